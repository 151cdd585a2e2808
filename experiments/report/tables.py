"""A summary on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.report.summary import DECODINGS, MEASURES


def table(summary: Mapping[str, Any], runs: str) -> Group:
    """A summary for the terminal, 80 columns wide: a table of algorithms and, of two or more, two of comparisons.

    Args:
        summary: as `summarize` returns it.
        runs: what else the runs have in common, for the title.
    """
    percent = f"{100 * summary['confidence']:g} %"
    scores = _grid(
        f"Scores on {summary['questions']} held-out questions ({runs})",
        f"Mean over seeds ± half its {percent} Student t interval; –: one seed has none.\n{_collapses(summary)}",
        ("Algorithm", "Seeds", "Decoding", "Score", "Start", "End", "Gain"),
    )
    for entry in summary["algorithms"]:
        _add_rows(
            scores, entry, lambda it: (f"{it['start']:.3f}", _plus_minus(it["end"]), _plus_minus(it["gain"], "+z"))
        )
    if not summary["paired"]:
        return Group(scores)
    baseline = summary["paired"][0]["baseline"]
    pairs = _grid(
        f"End scores minus those of {baseline}, seed by seed ({summary['questions']} questions)",
        f"Mean over pairs ± half its {percent} Student t interval; –: one pair has none.",
        ("Algorithm", "Pairs", "Decoding", "Score", "Difference", f"{percent} interval"),
    )
    for entry in summary["paired"]:
        _add_rows(pairs, entry, lambda it: (_plus_minus(it, "+z"), _low_high(it)))
    robust = _grid(
        f"Interquartile means, and the chance that a run beats one of {baseline}",
        f"Of all end scores, seeds not paired, with {percent} intervals; –: too few seeds for one.",
        ("Algorithm", "Decoding", "Score", "IQM", "P(better)", f"{percent} interval"),
    )
    for entry, pair in zip(summary["algorithms"], [None, *summary["paired"]], strict=True):
        _add_robust(robust, entry, pair)
    return Group(scores, Text(), pairs, Text(), robust)


def _collapses(summary: Mapping[str, Any]) -> str:
    """How many runs collapsed, where some did."""
    found = [
        f"{entry['algorithm']} {len(entry['collapsed'])} of {len(entry['seeds'])}"
        for entry in summary["algorithms"]
        if entry["collapsed"]
    ]
    return f"Runs that collapsed (reward under half its best, to the end): {', '.join(found) or 'none'}."


def _add_robust(grid: Table, entry: Mapping[str, Any], pair: Mapping[str, Any] | None) -> None:
    """The rows of one algorithm in the table of what outliers do not move; the baseline has no pair."""
    head = entry["algorithm"]
    for decoding in DECODINGS:
        for row, measure in enumerate(MEASURES):
            better = {} if pair is None else pair[decoding][measure]["better"]
            chance, low = better.get("probability"), better.get("low")
            words = (
                "" if chance is None else f"{chance:.2f}",
                "" if low is None else f"[{low:.2f}, {better['high']:.2f}]",
            )
            iqm = _plus_minus(entry[decoding][measure]["iqm"])
            grid.add_row(*map(Text, (head, "" if row else decoding, measure.upper(), iqm, *words)))
            head = ""
    grid.add_section()


def _grid(title: str, caption: str, columns: Sequence[str]) -> Table:
    # Text, not str: a label such as "sapo[gamma=0.2]" is no markup.
    grid = Table(title=Text(title, "bold"), caption=Text(caption), box=box.SIMPLE_HEAD, pad_edge=False)
    grid.title_justify = grid.caption_justify = "left"
    for name in columns:
        # Labels give way where the terminal is narrow; a broken number would be read as another number.
        side = "left" if name in ("Algorithm", "Decoding", "Score") else "right"
        grid.add_column(name, justify=side, no_wrap=name != "Algorithm", overflow="fold", min_width=len(name))
    return grid


def _add_rows(grid: Table, entry: Mapping[str, Any], texts: Callable[[Any], tuple[str, ...]]) -> None:
    """The rows of one algorithm, each heading said once."""
    heads = [entry["algorithm"], str(len(entry["seeds"]))]
    for decoding in DECODINGS:
        for row, measure in enumerate(MEASURES):
            words = (*heads, "" if row else decoding, measure.upper(), *texts(entry[decoding][measure]))
            grid.add_row(*map(Text, words))
            heads = ["", ""]
    grid.add_section()


def _plus_minus(value: Mapping[str, Any], sign: str = "") -> str:
    if value["mean"] is None:
        return "–"
    half = "–".rjust(5) if value["half_width"] is None else f"{value['half_width']:.3f}"
    return f"{value['mean']:{sign}.3f} ± {half}"


def _low_high(value: Mapping[str, Any]) -> str:
    return "–" if value["low"] is None else f"[{value['low']:+z.3f}, {value['high']:+z.3f}]"
