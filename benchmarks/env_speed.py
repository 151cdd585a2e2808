"""How fast are the environments? search-gym beside skyrl-gym and gem-llm, on the same dialogues, in one run.

python benchmarks/env_speed.py --peers-python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a script has its own folder there
    sys.path.insert(0, str(ROOT))

from benchmarks import workloads
from benchmarks.worker import MODULES, RETRIEVALS
from benchmarks.workloads import Workload

DATA = ROOT.parent / "shared" / "data"
OURS = "search-gym"
PEERS = tuple(library for library in MODULES if library != OURS)
TITLES = {"none": "environment alone (what a query finds is known)", "bm25": "with retrieval (BM25 in process)"}


class Contestant(NamedTuple):
    """A library, in one of the forms that it can be played in."""

    library: str
    form: str


class Rate(NamedTuple):
    """What was played in a second."""

    turns: float
    tokens: float


class Worker:
    """A library in a process of its own; see `benchmarks.worker`."""

    def __init__(self, library: str, python: str, workload: Path) -> None:
        self.library = library
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", library, str(workload)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            # A batch of texts would be encoded by as many threads as there are cores: all have one.
            env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
        )
        self.forms: list[str] = self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def rate(self, form: str, retrieval: str, seconds: float) -> Rate:
        """Measure once."""
        assert self._process.stdin is not None
        request = {"form": form, "retrieval": retrieval, "seconds": seconds}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        return Rate(answer["turns"] / answer["seconds"], answer["tokens"] / answer["seconds"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = "".join(self._log.readlines()[-15:])
            self.close()
            raise RuntimeError(f"the benchmark of {self.library} stopped:\n{said}")
        return json.loads(line)


def compare(
    workload: Workload, pythons: Mapping[str, str], repeats: int, seconds: float
) -> Iterator[tuple[str, dict[Contestant, list[Rate]]]]:
    """For each kind of retrieval, `repeats` rates of every contestant, measured in turn."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "workload.json"
        workload.save(path)
        workers = []
        for library, python in pythons.items():
            workers.append(Worker(library, python, path))
            stack.callback(workers[-1].close)
        for retrieval in RETRIEVALS:
            rates: dict[Contestant, list[Rate]] = {}
            for _ in range(repeats):
                # One after another, so that what slows the machine down for a while slows all of them.
                for worker in workers:
                    for form in worker.forms:
                        rate = worker.rate(form, retrieval, seconds)
                        rates.setdefault(Contestant(worker.library, form), []).append(rate)
            yield retrieval, rates


def table(rates: Mapping[Contestant, Sequence[Rate]]) -> list[str]:
    """Lines of Markdown: medians, and each form of ours against the faster peer of either kind."""
    middle = {c: Rate(median(r.turns for r in of), median(r.tokens for r in of)) for c, of in rates.items()}
    best = {}
    for kind in ("text", "ids"):
        peers = [c for c in middle if c.library != OURS and c.form.startswith(kind)]
        if peers:
            best[kind] = max(peers, key=lambda c: middle[c].turns)
    titles = [f"× {best[kind].library}, {best[kind].form}" for kind in best]
    lines = [
        " | ".join(["", "library", "form", "turns/s", "tokens/s", *titles, ""]).strip(),
        "| --- | --- " + "| ---: " * (2 + len(titles)) + "|",
    ]
    for contestant, rate in middle.items():
        # Of rates that were measured one after the other, not of the medians.
        ratios = [
            f"{median(a.turns / b.turns for a, b in zip(rates[contestant], rates[peer], strict=True)):.2f}"
            for peer in best.values()
        ]
        cells = [contestant.library, contestant.form, f"{rate.turns:,.0f}", f"{rate.tokens:,.0f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = _parser().parse_args(arguments)
    pythons = {OURS: sys.executable}
    peers: str | None = args.peers_python
    if peers is not None:
        pythons |= dict.fromkeys(PEERS, peers)
    else:
        print("search-gym alone: give --peers-python to compare, see benchmarks/README.md")
    with tempfile.TemporaryDirectory() as folder:
        for workload in _workloads(args, Path(folder)):
            size = f"{len(workload.dialogues)} dialogues, {workload.turns} turns, {workload.tokens} tokens"
            print(f"\n## {workload.name}: {size}")
            for retrieval, rates in compare(workload, pythons, args.repeats, args.seconds):
                print(f"\n### {TITLES[retrieval]}\n")
                print("\n".join(table(rates)), flush=True)
    return 0


def _workloads(args: argparse.Namespace, folder: Path) -> Iterator[Workload]:
    yield workloads.embedded(args.size)
    missing = [str(file) for file in (args.recorded, args.corpus) if not file.exists()]
    if args.embedded_only:
        return
    if missing:
        print(f"\nthe recorded dialogues are left out, for there is no {' and no '.join(missing)}")
        return
    yield workloads.recorded(args.recorded, args.corpus, args.size, folder / "tokenizer")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", help="an interpreter that has skyrl-gym, gem-llm and search-gym's own needs")
    parser.add_argument(
        "--recorded", type=Path, default=DATA / "trajectories" / "bamboogle.jsonl", help="recorded dialogues, JSONL"
    )
    parser.add_argument(
        "--corpus", type=Path, default=DATA / "wiki18" / "corpus.jsonl", help="the corpus for them, FlashRAG JSONL"
    )
    parser.add_argument("--embedded-only", action="store_true", help="play no recorded dialogues")
    parser.add_argument("--size", type=int, default=128, help="dialogues of each kind, at most")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each, of which the median counts")
    parser.add_argument("--seconds", type=float, default=0.2, help="how long a measurement lasts at least")
    return parser


if __name__ == "__main__":
    sys.exit(main())
