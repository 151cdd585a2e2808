"""What a summary shows, in sentences that say no more than its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.words import counted, interval, score, signed

HEADLINE = ("greedy", "em")
"""The score that sentences are about, chosen beforehand: of four scores, one is soon outside its interval by chance."""

_ROUNDING = 1e-9
"""Scores that are equal but for rounding, such as 0.7 - 0.4 and 0.6 - 0.3, differ by less."""


@dataclass(frozen=True)
class Finding:
    """A sentence about an algorithm, in parts."""

    subject: str
    numbers: str
    verdict: str


def findings(summary: Mapping[str, Any]) -> list[Finding]:
    """One for each algorithm that is compared with the baseline; of one algorithm alone, what it gained."""
    if summary["paired"]:
        return [_difference(pair) for pair in summary["paired"]]
    return [_gain(entry) for entry in summary["algorithms"]]


def has_width(interval: Mapping[str, Any]) -> bool:
    """Whether an interval can tell a difference from chance: not that of one value, or of values that are all equal."""
    return interval["half_width"] is not None and interval["half_width"] > _ROUNDING


def _difference(pair: Mapping[str, Any]) -> Finding:
    found = headline(pair)
    subject, pairs = f"{pair['algorithm']} − {pair['baseline']}", counted(len(pair["seeds"]), "paired seed")
    if found["mean"] is None:
        return Finding(subject, "", "no seed has finished with both, so they are not compared.")
    numbers = " ".join(filter(None, (signed(found["mean"]), "EM", interval(found, sign=True), f"over {pairs}")))
    if found["half_width"] is None:
        return Finding(subject, numbers, "one pair has no interval, so no difference is shown.")
    if not has_width(found):
        same = "both ended with the same score" if abs(found["mean"]) < _ROUNDING else "the difference is the same"
        return Finding(
            subject, numbers, f"{same} in every pair, which says nothing of chance, so no difference is shown."
        )
    return Finding(
        subject, numbers, _verdict(found, f"{pair['algorithm']} ended higher.", f"{pair['algorithm']} ended lower.")
    )


def _gain(entry: Mapping[str, Any]) -> Finding:
    scores = headline(entry)
    found, runs = scores["gain"], counted(len(entry["seeds"]), "run")
    numbers = f"EM from {score(scores['start'])} to {score(scores['end']['mean'])} over {runs}, {signed(found['mean'])}"
    if not has_width(found):
        return Finding(entry["algorithm"], numbers, "there is no interval to tell it from chance.")
    return Finding(
        entry["algorithm"], f"{numbers} {interval(found, sign=True)}", _verdict(found, "it rose.", "it fell.")
    )


def headline(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """The score of `HEADLINE`, of an algorithm or a pair in a summary."""
    return of[HEADLINE[0]][HEADLINE[1]]


def _verdict(found: Mapping[str, Any], above: str, below: str) -> str:
    if found["low"] > 0:
        return above
    return below if found["high"] < 0 else "no difference is shown."


def collapses(summary: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Which runs collapsed, and when."""
    parts = []
    for entry in summary["algorithms"]:
        fallen = collapsed_steps(entry["algorithm"], runs)
        if fallen:
            parts.append(f"{entry['algorithm']} {len(fallen)} of {len(entry['seeds'])} ({', '.join(fallen)})")
    return f"{'; '.join(parts)}." if parts else "no run collapsed."


def collapsed_steps(label: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The seeds of an algorithm that collapsed, each with its step."""
    fallen = [run for run in runs if run["algorithm"] == label and run["collapsed"] is not None]
    return [f"seed {run['seed']} at step {run['collapsed']}" for run in sorted(fallen, key=lambda run: run["seed"])]
