"""Exact match of each group of the held-out questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.comparisons import Interval, mean_interval
from experiments.report.comparison import Comparison


@dataclass(frozen=True)
class GroupRow:
    """A group, or all of them."""

    name: str
    questions: int
    start: float
    """Exact match before the training."""
    ends: list[Interval]
    """`mean_interval` of it after the training, over the seeds of each algorithm."""


def group_rows(comparison: Comparison, decoding: str) -> list[GroupRow]:
    """Exact match by group, the last row of all questions; [] where there are not two groups that all runs know."""
    scores = [run[when][decoding] for run in comparison.runs for when in ("start", "end")]
    names = list(scores[0].get("groups", {}))
    if len(names) < 2 or any(list(score.get("groups", {})) != names for score in scores):
        return []
    return [_row(comparison, decoding, name) for name in (*names, "")]


def _row(comparison: Comparison, decoding: str, name: str) -> GroupRow:
    def part(run: Mapping[str, Any], when: str) -> Mapping[str, Any]:
        return run[when][decoding]["groups"][name] if name else run[when][decoding]

    start = part(comparison.runs[0], "start")
    ends = [
        mean_interval(part(run, "end")["em"] for run in comparison.runs if run["algorithm"] == label)
        for label in comparison.labels
    ]
    return GroupRow(name or "all", start["questions"], start["em"], ends)
