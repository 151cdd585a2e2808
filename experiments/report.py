"""What an ablation found: intervals over seeds, the tables on the terminal, the figure over training steps.

A result is one run, (algorithm, seed), as a dict:

    {"algorithm": str, "seed": int, "start": SCORES, "end": SCORES, "collapsed": int or None, ...}
    SCORES = {"sampled": {"em": float, "f1": float, "questions": int, ...}, "greedy": the same}

"collapsed" is the step at which the run did (`comparisons.collapsed`); further keys are ignored.
Intervals are over seeds: how far the mean would move if training ran again with other seeds, on the same questions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.comparisons import CONFIDENCE, improvement, iqm_interval, mean_interval

DECODINGS = ("sampled", "greedy")
MEASURES = ("em", "f1")

PANELS = (  # key in metrics.jsonl, title, unit
    ("ratio", "Mean importance ratio", r"$\pi\,/\,\pi_{\mathrm{old}}$"),
    ("clip_fraction", "Clip fraction", "% of policy tokens"),
    ("entropy", "Entropy", "nats per policy token"),
    ("reward", "Reward", "mean per rollout"),
)
# Okabe & Ito's palette, which readers with any colour vision tell apart, without its yellow (too pale for a line).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
# Five styles to seven colours: no pair comes twice among 35 algorithms, and the first five differ without colour.
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))


# ---- summary ----


def summarize(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and intervals over seeds, for each algorithm in order of first appearance, ready for JSON.

    INTERVAL is what `mean_interval` and, for "iqm", `iqm_interval` return, CHANCE what `improvement` does. The
    baseline of every pair is the first algorithm; a difference is that of the end scores, algorithm minus baseline,
    over the seeds that both have finished; "better" compares all runs of the two. "collapsed" are the seeds that did.

        {"questions": int, "confidence": 0.95,
         "algorithms": [{"algorithm": str, "seeds": [int, ...], "collapsed": [int, ...],
                         "sampled": {"em": {"start": float, "end": INTERVAL, "gain": INTERVAL, "iqm": INTERVAL},
                                     "f1": the same},
                         "greedy": the same}, ...],
         "paired": [{"baseline": str, "algorithm": str, "seeds": [int, ...],
                     "sampled": {"em": INTERVAL | {"better": CHANCE}, "f1": the same}, "greedy": the same}, ...]}

    Raises:
        ValueError: if there are no results, a run comes twice, or runs were scored on different numbers of questions.
    """
    if not results:
        raise ValueError("no results to summarize: no run has finished")
    questions = {
        row[when][decoding]["questions"] for row in results for when in ("start", "end") for decoding in DECODINGS
    }
    if len(questions) > 1:
        raise ValueError(
            f"runs were scored on different numbers of questions, {sorted(questions)}: they do not compare"
        )
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in results:
        seeds = runs.setdefault(row["algorithm"], {})
        if row["seed"] in seeds:
            raise ValueError(f"two results of {row['algorithm']}, seed {row['seed']}")
        seeds[row["seed"]] = row
    baseline, *others = runs
    return {
        "questions": questions.pop(),
        "confidence": CONFIDENCE,
        "algorithms": [_algorithm(label, seeds) for label, seeds in runs.items()],
        "paired": [_pair(baseline, other, runs) for other in others],
    }


def _algorithm(label: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    def scores(decoding: str, measure: str) -> dict[str, Any]:
        start, end = ([row[when][decoding][measure] for row in runs.values()] for when in ("start", "end"))
        gain = mean_interval(after - before for before, after in zip(start, end, strict=True))
        return {
            "start": mean_interval(start)["mean"],
            "end": mean_interval(end),
            "gain": gain,
            "iqm": iqm_interval(end),
        }

    table = {decoding: {measure: scores(decoding, measure) for measure in MEASURES} for decoding in DECODINGS}
    fallen = sorted(seed for seed, row in runs.items() if row["collapsed"] is not None)
    return {"algorithm": label, "seeds": sorted(runs), "collapsed": fallen, **table}


def _pair(baseline: str, other: str, runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    ours, theirs = runs[other], runs[baseline]
    seeds = sorted(ours.keys() & theirs.keys())

    def difference(decoding: str, measure: str) -> dict[str, Any]:
        ends = [{seed: row["end"][decoding][measure] for seed, row in runs.items()} for runs in (ours, theirs)]
        better = improvement(*(list(scores.values()) for scores in ends))
        return mean_interval(ends[0][seed] - ends[1][seed] for seed in seeds) | {"better": better}

    table = {decoding: {measure: difference(decoding, measure) for measure in MEASURES} for decoding in DECODINGS}
    return {"baseline": baseline, "algorithm": other, "seeds": seeds, **table}


# ---- tables ----


def table(summary: Mapping[str, Any]) -> Group:
    """A summary for the terminal, 80 columns wide: a table of algorithms and, of two or more, two of comparisons."""
    percent = f"{100 * summary['confidence']:g} %"
    scores = _grid(
        f"Scores on {summary['questions']} held-out questions",
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


# ---- figure ----


def figure(runs: Mapping[str, Sequence[Path]], path: Path) -> None:
    """Write the figure of `draw` to `path`; its suffix says the format, as a rule .png."""
    drawn = draw(runs)
    FigureCanvasAgg(drawn)
    drawn.savefig(path, dpi=150)


def draw(runs: Mapping[str, Sequence[Path]]) -> Figure:
    """Four panels over training steps: mean importance ratio, clip fraction, entropy, reward.

    `runs` maps the label of an algorithm to the metrics.jsonl of each of its seeds. A line is the mean over seeds, a
    band goes from the lowest seed to the highest (at three seeds a t interval would be wider than the panel). Both
    are drawn only at steps where every seed has a finite value, so each point of a line averages the same seeds: a
    value that one seed lacks is a gap, and a run that ended early ends its algorithm's line.

    Raises:
        ValueError: if there is no run to draw, or a line of a metrics file can't be read: file and line are said.
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"no metrics to draw for {[label for label, paths in runs.items() if not paths] or 'any run'}")
    drawn = Figure(figsize=(10, 6.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.02))
    panels = drawn.subplots(2, 2, sharex=True)
    for row, (label, paths) in enumerate(runs.items()):
        look = {"color": COLOURS[row % len(COLOURS)], "linestyle": STYLES[row % len(STYLES)]}
        name = f"{label} ({len(paths)} seed{'s' if len(paths) > 1 else ''})"
        seeds = [read_metrics(path) for path in paths]
        for axes, (key, _, _) in zip(panels.flat, PANELS, strict=True):
            _draw_algorithm(axes, *_stack(seeds, key), label=name, **look)
    for axes, (key, title, unit) in zip(panels.flat, PANELS, strict=True):
        _dress(axes, key, title, unit)
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = max(1, 120 // (max(map(len, labels)) + 9))  # the figure is some 120 characters wide, a sample line 9
    drawn.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, handlelength=3.2)
    drawn.align_ylabels()
    if any(len(paths) > 1 for paths in runs.values()):
        drawn.supxlabel("Line: mean over seeds. Band: lowest to highest seed.", fontsize=9, color="0.35")
    return drawn


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """{step: {key: value}} of a metrics.jsonl, for the keys of `PANELS`; nan for what is null or missing."""
    steps: dict[int, dict[str, float]] = {}
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                step = row["step"]
                if not isinstance(step, int) or step in steps:
                    raise ValueError(f"step {step!r} is no integer, or comes twice")
                values = {key: math.nan if row.get(key) is None else float(row[key]) for key, _, _ in PANELS}
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: not the metrics of a training step: {error!r}") from error
            steps[step] = values
    return steps


def _stack(seeds: Sequence[Mapping[int, Mapping[str, float]]], key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The steps that all seeds have, [S], and their values [seeds, S], nan where not finite."""
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = np.array([[seed[step][key] for step in steps] for seed in seeds])
    return np.array(steps), np.where(np.isfinite(values), values, np.nan)


def _draw_algorithm(axes: Axes, steps: NDArray[Any], values: NDArray[Any], **look: Any) -> None:
    mean = values.mean(axis=0)  # like min and max below nan where one seed is: a gap
    # A line needs two neighbours: a lone point, between gaps or of a run of one step, would not show.
    there = np.pad(np.isfinite(mean), 1)
    lone = np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])
    axes.plot(steps, mean, linewidth=1.8, **look)
    axes.scatter(steps[lone], mean[lone], s=16, color=look["color"])
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.14, linewidth=0)


def _dress(axes: Axes, key: str, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(unit)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)
    if not any(np.isfinite(line.get_ydata()).any() for line in axes.lines):
        axes.text(0.5, 0.5, "nothing logged", transform=axes.transAxes, ha="center", va="center", color="0.5")
    if key == "clip_fraction":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))
        axes.set_ylim(bottom=0)
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    if key == "ratio":
        axes.axhline(1, color="0.35", linewidth=1, linestyle=(0, (2, 2)), zorder=1.5)
