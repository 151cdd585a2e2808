"""What answers are worth: means with intervals, pass@k, the average over benchmarks, and the table of it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.estimates import bootstrap, ks, of_average, pass_at_k, wilson
from search_gym import rewards
from search_gym.trajectory import Trajectory, read_jsonl

Score = Callable[[Trajectory], float]

MEASURES: Mapping[str, tuple[str, Score]] = {  # key in results.json: name in the table, value of an answer
    "em": ("EM", lambda answer: answer.em),
    "f1": ("F1", lambda answer: answer.f1),
    "cover": ("Cover", lambda answer: rewards.contains(answer.answer, answer.golds)),
    "answered": ("Answered", lambda answer: float(answer.answer is not None)),
    "searches": ("Searches", lambda answer: float(answer.searches)),
    "failed_searches": ("Failed searches", lambda answer: float(answer.failed_searches)),
}
_SHARES = ("em", "cover", "answered")  # of which every answer has 0 or 1


def read(path: Path, samples: int) -> NDArray[np.float64]:
    """The scores of the answers in a file, [questions, samples, measures]; it is read line by line."""
    rows = [[score(answer) for _, score in MEASURES.values()] for answer in read_jsonl(path)]
    return np.array(rows).reshape(-1, samples, len(MEASURES))


def summarize(scores: Mapping[str, NDArray[np.float64]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Means over questions with their 95 % intervals, for each benchmark and for the average over benchmarks.

    Intervals are over questions: how far a mean would move with other questions of the same kind. They are Wilson's for
    a share of questions with one sample each, and otherwise those of a bootstrap that draws questions, each with all
    its samples.

    Args:
        scores: for each benchmark, what `read` gives, with the same number of samples in all.

    Returns:
        For each benchmark {measure: {"mean", "low", "high"}}, the measures those of `MEASURES` and, if there are
        several samples, "pass@1" and so on; and the same for the average, each benchmark counting the same.
    """
    found = {name: _summary(array) for name, array in scores.items()}
    average = {}
    for measure in next(iter(found.values())):
        parts = [summary[measure] for summary in found.values()]
        means = [part["mean"] for part in parts]
        low, high = of_average(means, [(part["low"], part["high"]) for part in parts])
        average[measure] = {"mean": sum(means) / len(means), "low": low, "high": high}
    return found, average


def _summary(scores: NDArray[np.float64]) -> dict[str, Any]:
    """Of one benchmark."""
    table, names = _by_question(scores), _names(scores.shape[1])
    intervals = dict(zip(names, bootstrap(table), strict=True))
    if scores.shape[1] == 1:
        intervals |= {name: wilson(int(table[:, names.index(name)].sum()), len(table)) for name in _SHARES}
    return {
        name: {"mean": mean, "low": intervals[name][0], "high": intervals[name][1]}
        for name, mean in zip(names, table.mean(axis=0).tolist(), strict=True)
    }


def _names(samples: int) -> list[str]:
    return [*MEASURES, *(f"pass@{k}" for k in ks(samples) if samples > 1)]


def _by_question(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """[questions, samples, measures] to [questions, names]: means over samples, and pass@k."""
    samples = scores.shape[1]
    correct = scores[:, :, list(MEASURES).index("em")].sum(axis=1)
    chances = [pass_at_k(correct, samples, k) for k in ks(samples) if samples > 1]
    return np.column_stack([scores.mean(axis=1), *chances])


def table(results: Mapping[str, Any]) -> Table:
    """The results as they stand in results.json: a section for each benchmark, and one for their average."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=Text(_caption(results)), caption_justify="left")
    for heading in ("Benchmark", "Questions", "Score"):
        grid.add_column(heading, overflow="fold")
    for heading in ("Mean", "95% interval"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for benchmark in results["benchmarks"].values():
        _section(grid, benchmark["title"], _size(benchmark), benchmark["scores"])
    if len(results["benchmarks"]) > 1:
        _section(grid, f"Average of {len(results['benchmarks'])}", "", results["average"])
    return grid


def _caption(results: Mapping[str, Any]) -> str:
    samples = "greedy answer" if results["temperature"] == 0 else f"answer at temperature {results['temperature']:g}"
    many = f"{results['samples']} answers" + samples.removeprefix("greedy answer").removeprefix("answer")
    return f"{'One ' + samples if results['samples'] == 1 else many} to each question; intervals are over questions."


def _size(benchmark: Mapping[str, Any]) -> str:
    """How many questions there were, and of how many where some of the benchmark were not there."""
    count, published = benchmark["questions"], benchmark["published"]
    return f"{count:,}" if published in (None, count) else f"{count:,} of {published:,}"


def _section(grid: Table, title: str, size: str, scores: Mapping[str, Any]) -> None:
    heads = [title, size]
    for name, score in scores.items():
        label = MEASURES[name][0] if name in MEASURES else name
        interval = f"[{score['low']:.3f}, {score['high']:.3f}]"
        grid.add_row(*map(Text, (*heads, label, f"{score['mean']:.3f}", interval)))  # Text, for "[…]" is no markup
        heads = ["", ""]
    grid.add_section()
