"""Do the tests notice a wrong formula? Each mutant has one small fault; a test must fail for it.

    python tests/mutants [--file algos/gspo.py] [-j 2] [--list]

A mutant that fails no test survives: a test is missing, or the fault changes nothing. Those of the second kind are in
survivors.txt, each with the reason; only --all tries them, but they count as survivors, and so does a mutant with which
the tests do not end in time. The check fails where fewer than 95 of 100 mutants are killed.

The libraries are imported once. Each mutant is a fork, which imports `algos` with the fault in it and runs pytest.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Collection
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # a fork has no threads but its own
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # PLUGINS are enough; others cost a fork a second

import _hypothesis_pytestplugin  # noqa: F401 - all these are for the forks
import numpy as np  # noqa: F401
import pytest
import pytest_timeout  # noqa: F401
import torch  # noqa: F401
from faults import NO_FORMULAS, ROOT, Mutant, mutants
from hypothesis import HealthCheck, Phase, settings

KNOWN = Path(__file__).with_name("survivors.txt")
TESTS = ("tests/reference/test_fixture.py", "tests/algos/test_batch.py", "tests/properties")
PLUGINS = ("-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")
FLOOR = 0.95
EXAMPLES = ("8", "30")  # of a law: few at first, to be quick; what survives those gets as many as in the tests


def known() -> dict[str, str]:
    """The mutants that change nothing, each with its reason: a line of its own, indented, below it."""
    found: dict[str, str] = {}
    for line in KNOWN.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            found[list(found)[-1]] += line.strip()
        elif line and not line.startswith("#"):
            found[line] = ""
    missing = [key for key, reason in found.items() if not reason]
    if missing:
        raise SystemExit(f"{KNOWN.name}: without a reason: {missing}")
    return found


# Runs of the tests


class Fault(SourceFileLoader):
    """Imports a module from a source that is not on the disk. A finder too: of this module alone."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(ROOT / mutant.file))
        self.text = mutant.source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec")

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None


class Run:
    """A plugin of pytest: which tests to run, in which order, and what came of them."""

    def __init__(self, files: Collection[str], tests: dict[str, Any], kills: Counter[str]) -> None:
        self.files, self.tests, self.kills = files, tests, kills
        self.failed: str | None = None
        self.seen: dict[str, Any] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self.tests:  # the run without a fault: algos can be imported
            self.seen = {item.nodeid: {"files": matters_for(item), "seconds": 0.0} for item in items}
        about = self.tests or self.seen
        chosen = [item for item in items if relevant(about.get(item.nodeid), self.files)]
        if self.tests:  # the independent ones, those that killed before, the fast ones: in this order
            chosen.sort(key=lambda item: self.rank(item.nodeid))
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen

    def rank(self, test: str) -> tuple[bool, int, float]:
        return test.startswith("tests/properties"), -self.kills[test], self.tests.get(test, {}).get("seconds", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.seen:
            self.seen[report.nodeid]["seconds"] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid


def matters_for(item: pytest.Item) -> list[str] | None:
    """The files of the algorithm that a test is about, and of those that it is made of; None: it is about others too.

    A file that is here is no file of an algorithm: a fault in it matters for all tests.
    """
    from algos import registry

    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    factory = registry._factories.get(str(params.get("name")))
    if not isinstance(factory, type):
        return None
    return [f"{base.__module__.replace('.', '/')}.py" for base in factory.__mro__]


def relevant(test: dict[str, Any] | None, files: Collection[str]) -> bool:
    shared = {"algos/batch.py", "algos/metrics.py", "algos/objective.py", "algos/primitives.py"}
    if test is None or test["files"] is None or shared.intersection(files):
        return True
    return not set(files).isdisjoint(test["files"])


def run_tests(run: Run, mutant: Mutant | None, answer: Path, options: list[str]) -> int:
    """In a fork: what pytest returns, and in a file what the plugin saw."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    if mutant is not None:
        os.dup2(silence, 2)
        sys.meta_path.insert(0, Fault(mutant))  # type: ignore[arg-type]
    # Nothing is learnt from the smallest example that fails, so none is looked for. No slow machine is a failure.
    quick = settings(
        deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    settings.register_profile("mutants", quick)
    fixed = ["--tb=no", "--hypothesis-profile=mutants", *PLUGINS]
    fixed += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the plugins are imported already, on purpose
    code = pytest.main([*TESTS, *fixed, *options, *(["-x"] if mutant else [])], plugins=[run])
    answer.write_text(json.dumps({"failed": run.failed, "seen": run.seen}), encoding="utf-8")
    return int(code)


def fork(run: Run, mutant: Mutant | None, answer: Path, options: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        code = run_tests(run, mutant, answer, options)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # whatever was raised: a fork must not go on as the program


def baseline(files: Collection[str], answer: Path, options: list[str]) -> dict[str, Any]:
    """Which tests there are, how long each takes, and which files it is about; all must pass."""
    start = time.monotonic()
    _, status = os.waitpid(fork(Run(files, {}, Counter()), None, answer, options), 0)
    found: dict[str, Any] = {"failed": "pytest itself", "seen": {}}
    if answer.exists():
        found = json.loads(answer.read_text(encoding="utf-8"))
    if status or not found["seen"]:
        raise SystemExit(f"the tests fail without a fault: {found['failed']}")
    print(f"the tests pass without a fault, in {time.monotonic() - start:.0f} s", flush=True)
    return found["seen"]


class Job(NamedTuple):
    mutant: Mutant
    answer: Path
    started: float
    limit: float


def killed(todo: list[Mutant], tests: dict[str, Any], args: argparse.Namespace, folder: Path) -> set[Mutant]:
    """The mutants that fail a test."""
    kills: Counter[str] = Counter()
    running: dict[int, Job] = {}
    dead: set[Mutant] = set()
    waiting = todo[::-1]
    while waiting or running:
        while waiting and len(running) < args.j:
            mutant = waiting.pop()
            usual = sum(test["seconds"] for test in tests.values() if relevant(test, [mutant.file]))
            answer = folder / f"{len(waiting)}.json"
            # Slow tests are no fault: the limit is above what they take.
            job = Job(mutant, answer, time.monotonic(), max(args.timeout, 4 * usual))
            running[fork(Run([mutant.file], tests, kills), mutant, answer, args.pytest)] = job
        time.sleep(0.02)
        for pid, job in list(running.items()):
            if (verdict := outcome(pid, job)) is None:
                continue
            del running[pid]
            if verdict:
                dead.add(job.mutant)
                kills[verdict] += 1
            done, seconds = len(todo) - len(waiting) - len(running), time.monotonic() - job.started
            print(f"[{done}/{len(todo)}] {seconds:.1f} s, {verdict or 'SURVIVED'}: {job.mutant}", flush=True)
    return dead


def outcome(pid: int, job: Job) -> str | None:
    """What killed a mutant, "" if nothing did in time; None while the tests still run."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        if time.monotonic() < job.started + job.limit:
            return None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return ""
    code = os.waitstatus_to_exitcode(status)
    if code == pytest.ExitCode.OK:
        return ""
    if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) or code < 0:
        failed = json.loads(job.answer.read_text(encoding="utf-8"))["failed"] if code > 0 else "a crash"
        return failed or "an error before the tests"
    raise SystemExit(f"pytest ended with {code}, which says nothing about {job.mutant}")


def report(todo: list[Mutant], dead: set[Mutant], reasons: dict[str, str]) -> bool:
    """Print what survived; whether enough was killed."""
    expected = [mutant for mutant in todo if mutant not in dead and mutant.key in reasons]
    for mutant in expected:
        print(f"changes nothing: {mutant}\n    {reasons[mutant.key]}")
    for mutant in todo:
        if mutant not in dead and mutant.key not in reasons:
            print(f"SURVIVED: {mutant}")
    files = {mutant.file for mutant in todo}
    for key in reasons.keys() - {mutant.key for mutant in expected}:
        if key.split()[0] in files:
            print(f"{KNOWN.name}: there is no such survivor: {key}")
    share, rest = len(dead) / len(todo), len(dead) / max(1, len(todo) - len(expected))
    print(f"{len(dead)} of {len(todo)} mutants killed: {share:.1%}; of those that change something: {rest:.1%}")
    return share >= FLOOR


def main() -> int:
    files = sorted(f"algos/{path.name}" for path in (ROOT / "algos").glob("*.py") if path.name not in NO_FORMULAS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", action="append", choices=files, help="only the mutants of this file")
    parser.add_argument("-j", type=int, default=2, help="how many at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a mutant, at least")
    parser.add_argument("--all", action="store_true", help="try those as well that are known to change nothing")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("pytest", nargs="*", help="after --: more options of pytest, such as --deselect")
    args = parser.parse_args()
    files = args.file or files
    todo, reasons = [mutant for file in files for mutant in mutants(file)], known()
    if args.list:
        print(*todo, f"{len(todo)} mutants", sep="\n")
        return 0
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    gc.freeze()  # a fork need not look through what it inherits
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.environ["LAW_EXAMPLES"] = EXAMPLES[0]
        tests = baseline(files, Path(folder) / "baseline.json", args.pytest)
        tried, dead = [mutant for mutant in todo if args.all or mutant.key not in reasons], set()
        for examples in EXAMPLES:
            os.environ["LAW_EXAMPLES"] = examples
            dead |= killed([mutant for mutant in tried if mutant not in dead], tests, args, Path(folder))
    return 0 if report(todo, dead, reasons) else 1


if __name__ == "__main__":
    sys.exit(main())
