"""The figure over training steps, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.report.curves import Curve, Steps, curve, lonely

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


def figure(runs: Mapping[str, Sequence[Steps]], path: Path) -> None:
    """Write the figure of `draw` to `path`; its suffix says the format, as a rule .png."""
    drawn = draw(runs)
    FigureCanvasAgg(drawn)
    drawn.savefig(path, dpi=150)


def draw(runs: Mapping[str, Sequence[Steps]]) -> Figure:
    """Four panels over training steps: mean importance ratio, clip fraction, entropy, reward.

    `runs` maps the label of an algorithm to the metrics of each of its seeds. A line is the mean over seeds, a
    band goes from the lowest seed to the highest (at three seeds a t interval would be wider than the panel). Both
    are drawn only at steps where every seed has a finite value, so each point of a line averages the same seeds: a
    value that one seed lacks is a gap, and a run that ended early ends its algorithm's line.

    Raises:
        ValueError: if there is no run to draw.
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"no metrics to draw for {[label for label, seeds in runs.items() if not seeds] or 'any run'}")
    drawn = Figure(figsize=(10, 6.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.02))
    panels = drawn.subplots(2, 2, sharex=True)
    for row, (label, seeds) in enumerate(runs.items()):
        look = {"color": COLOURS[row % len(COLOURS)], "linestyle": STYLES[row % len(STYLES)]}
        name = f"{label} ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})"
        for axes, (key, _, _) in zip(panels.flat, PANELS, strict=True):
            _draw_algorithm(axes, curve(label, seeds, key), label=name, **look)
    for axes, (key, title, unit) in zip(panels.flat, PANELS, strict=True):
        _dress(axes, key, title, unit)
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = max(1, 120 // (max(map(len, labels)) + 9))  # the figure is some 120 characters wide, a sample line 9
    drawn.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, handlelength=3.2)
    drawn.align_ylabels()
    if any(len(seeds) > 1 for seeds in runs.values()):
        drawn.supxlabel("Line: mean over seeds. Band: lowest to highest seed.", fontsize=9, color="0.35")
    return drawn


def _draw_algorithm(axes: Axes, found: Curve, **look: Any) -> None:
    mean = found.mean
    lone = np.flatnonzero(lonely(mean))
    axes.plot(found.steps, mean, linewidth=1.8, **look)
    axes.scatter(found.steps[lone], mean[lone], s=16, color=look["color"])
    if found.seeds > 1:
        axes.fill_between(found.steps, found.low, found.high, color=look["color"], alpha=0.14, linewidth=0)


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
