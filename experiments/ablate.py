"""Which algorithm? Trains each with each seed from the same start, and shows what became of them.

python experiments/ablate.py --algos grpo,sapo --seeds 3
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Threads that wait sleep; this must be set before torch is loaded. By default they spin, and where another program
# wants the same cores they then hold up the very thread that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from filelock import FileLock, Timeout
from rich.console import Console

from experiments import folders, models, report, scale
from experiments.config import AblateConfig, parse
from experiments.launch.job import RESULT, TRACEBACK, Bench, Failure, Job
from experiments.launch.launchers import Launcher, open_launcher
from experiments.live import watching
from experiments.provenance import environment, write_json
from search_gym import tokenizers


@contextmanager
def open_folder(config: AblateConfig) -> Iterator[None]:
    """Make the run folder, or see that the one that is there belongs to the same comparison; hold it.

    Algorithms and seeds may be added to a folder; everything else must be as it was, or its runs could not be compared.

    Raises:
        ValueError: naming each setting that differs, or if another command works in the folder.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(config.out / ".lock", timeout=0):
            folders.claim(
                config.out,
                {name: value for name, value in asdict(config).items() if name != "launch"},
                free={
                    "algos",
                    "preset",
                    "seeds",
                    "out",
                    "device",
                    "batch_episodes",
                    "task.search_cache",
                    "task.on_search_error",
                    "trainer.save_every",
                    "trainer.keep_checkpoints",
                },
                holds="a comparison",
            )
            write_json(config.out / "environment.json", environment())
            yield
    except Timeout as error:
        raise ValueError(f"another command is at work in {config.out}: wait for it, or name another --out") from error


def compare(config: AblateConfig, questions: int, launch: Launcher, console: Console) -> list[Failure]:
    """Run what is not finished yet, then report on all that is.

    Args:
        config: what is compared.
        questions: the number of held-out ones.
        launch: carries the runs out.
        console: for people.

    Returns:
        The runs that failed.
    """
    jobs = [Job(config, label, seed) for seed in range(config.seeds) for label in config.labels]
    missing = [job for job in jobs if not job.done]
    if len(missing) < len(jobs):
        console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs were finished before and are kept.")
    failures = _run_all(config, missing, questions, launch, console)
    finished = [job for job in jobs if job.done]
    if finished:
        _report(config, finished, console)
    return failures


def _run_all(
    config: AblateConfig, missing: Sequence[Job], questions: int, launch: Launcher, console: Console
) -> list[Failure]:
    """The evaluation of the start, then the runs; those that failed."""
    start = Job(config)
    first = [start] if missing and not start.done else []
    for job in (*first, *missing):
        job.forget()

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    with watching([*first, *missing], questions, console, live=config.launch.live):
        return launch(first, say) or launch(missing, say)


def _report(config: AblateConfig, finished: Sequence[Job], console: Console) -> None:
    """Write and print what the runs found."""
    results = [json.loads((job.folder / RESULT).read_text(encoding="utf-8")) for job in finished]
    write_json(config.out / "results.json", {"summary": report.summarize(results), "runs": results})
    found = report.Comparison.read(config.out)
    report.figure({label: [*seeds.values()] for label, seeds in found.metrics.items()}, config.out / "figure.png")
    console.print(report.table(found.summary, f"{found.held_out}; {found.steps}"))
    if failed := failed_searches(results):
        where = ", ".join(f"{name}: {count}" for name, count in failed.items())
        console.print(f"{sum(failed.values())} searches failed, of which the policies were told ({where}).")
    console.print(f"Figure: {config.out / 'figure.png'}\nResults: {config.out / 'results.json'}")
    console.print(f"Report: {report.write(found, config.out)}")


def failed_searches(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many searches failed at the start and in each run, by name; only where some did."""

    def in_evaluation(scores: Mapping[str, Any]) -> int:
        return sum(round(score.get("failed_searches", 0) * score["questions"]) for score in scores.values())

    found = {"start": in_evaluation(results[0]["start"])}
    for result in results:
        name = f"{result['algorithm']} seed {result['seed']}"
        found[name] = result.get("failed_searches", 0) + in_evaluation(result["end"])
    return {name: count for name, count in found.items() if count}


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when all is done, 1 when a run failed, 2 for settings that cannot be used, 130 when it was
    stopped."""
    console = Console()
    sys.path.append(str(Path.cwd()))  # for --algos package.module:Name; a script has its own folder on the path instead
    try:
        with _refusing():
            config = parse(argv)
            comparisons = config.by_model()
            for one in comparisons:  # so that a model that is missing is said before the first one has its hours
                models.resolve(one.model)
        if len(comparisons) == 1:
            return _say_failures(_compare(config, console))
        codes = []
        for one in comparisons:
            console.print(f"\nModel: {one.model}", markup=False, highlight=False)
            codes.append(_say_failures(_compare(one, console)))
        scale.report(comparisons, config.out, console)
        return max(codes)
    except Refused as error:
        print(f"ablate: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("\nStopped. Finished runs are kept: the same command goes on with the others.")
        return 130


class Refused(Exception):
    """Settings that cannot be used: says why, in one line."""


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with settings, or missing, is `Refused`; errors of the runs are not."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise Refused(error) from error


def _compare(config: AblateConfig, console: Console) -> list[Failure]:
    """The comparison with one model; the runs that failed."""
    with ExitStack() as held:
        with _refusing():
            config.launch.check(config.device)
            bench = Bench.open(config)
            launch = held.enter_context(closing(open_launcher(bench)))
            held.enter_context(open_folder(config))
        tokenizers.copy_files(bench.setting.model, config.out)  # for the viewer, which does not know models by name
        questions = len(bench.setting.held_out)
        del bench  # runs in other processes have their own
        return compare(config, questions, launch, console)


def _say_failures(failures: Sequence[Failure]) -> int:
    """Name the runs that failed; the exit code."""
    for job, reason in failures:
        print(f"ablate: error: {job.name}: {reason} ({job.folder / TRACEBACK})", file=sys.stderr)
    if failures:
        print("The same command begins them again, or goes on from their checkpoints.", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
