"""The geometry of a chart, in the units of its view box: what the template turns into SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from matplotlib.ticker import MaxNLocator

from experiments.report.curves import Curve, lonely
from experiments.report.panels import Panel
from experiments.report.words import number

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 354, 8, 186
"""Edges of the plot."""
STRIPS, ROWS = 60, 12
"""At most so many steps can be pointed at in a chart, and stand in its table."""
_WIDE = 30.0
"""A panel that may go over orders of magnitude gets a logarithmic scale where its values span this factor."""

Point = tuple[float, float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Frame:
    """What the plot shows: steps from left to right, values (or their logarithms to base 10) upwards."""

    first: int
    last: int
    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, panel: Panel, curves: Sequence[Curve]) -> Frame:
        """Around all lines and bands, at least one of which is known."""
        values = np.concatenate([curve.values[:, np.isfinite(curve.mean)].ravel() for curve in curves])
        low, high = float(values.min()), float(values.max())
        logarithmic = panel.wide and low > 0 and high / low > _WIDE
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        pad = 0.06 * (high - low) or 0.05 * max(abs(high), 0.1)
        steps = [int(step) for curve in curves for step in curve.steps]
        return cls(min(steps), max(steps), 0.0 if panel.percent else low - pad, high + pad, logarithmic)

    def x(self, step: float) -> float:
        """Of a step; a single one is in the middle."""
        if self.first == self.last:
            return (LEFT + RIGHT) / 2
        return LEFT + (step - self.first) / (self.last - self.first) * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        """Of a value."""
        height = math.log10(value) if self.logarithmic else value
        return BOTTOM - (height - self.low) / (self.high - self.low) * (BOTTOM - TOP)

    def x_ticks(self) -> list[int]:
        """Whole steps."""
        found = MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True).tick_values(self.first, self.last)
        return [round(tick) for tick in found if self.first <= tick <= self.last]

    def y_ticks(self) -> list[float]:
        """Round values; powers of ten on a logarithmic scale."""
        if self.logarithmic:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            return [10.0**power for power in powers[:: math.ceil(len(powers) / 5)]]
        found = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(tick) for tick in found if self.low <= tick <= self.high]


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: where it is, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """An algorithm in a chart, as SVG path data."""

    look: int
    """Number of its colour and dashes."""
    mean: str
    band: str
    """Empty for one seed."""
    dots: list[Point]
    """Points without neighbours."""


@dataclass(frozen=True)
class Strip:
    """A part of the plot that tells the values of a step to whoever points at it."""

    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A panel as it is drawn, and as its table tells it."""

    panel: Panel
    logarithmic: bool
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    reference: float | None
    """Height of the panel's line, if it lies in the plot."""
    lines: list[Line]
    strips: list[Strip]
    columns: list[str]
    """The algorithms that have a value."""
    rows: list[tuple[int, list[str]]]
    """(step, a text for each column), of `ROWS` steps evenly over all."""
    missing: list[str]
    """The algorithms that have none."""

    @property
    def description(self) -> str:
        """The chart in a sentence."""
        (first, begin), (last, end) = self.rows[0], self.rows[-1]
        ends = [f"{name} {a} and {b}" for name, a, b in zip(self.columns, begin, end, strict=True)]
        return f"{self.panel.unit}, at step {first} and at step {last}: {'; '.join(ends)}."


def chart(panel: Panel, curves: Sequence[Curve]) -> Chart | None:
    """A panel with the curves of all algorithms, in order; None if none has a value to draw."""
    known = [curve for curve in curves if curve.known]
    if not known:
        return None
    frame = Frame.of(panel, known)
    steps = sorted({int(step) for curve in known for step in curve.steps})
    line = panel.line
    shown = line is not None and (line > 0 or not frame.logarithmic) and TOP <= frame.y(line) <= BOTTOM
    return Chart(
        panel,
        frame.logarithmic,
        [Tick(frame.x(step), str(step)) for step in frame.x_ticks()],
        [Tick(frame.y(value), _plain(panel, value)) for value in frame.y_ticks()],
        frame.y(line) if line is not None and shown else None,
        [_line(row, curve, frame) for row, curve in enumerate(curves) if curve.known],
        _strips(panel, known, steps, frame),
        [curve.label for curve in known],
        [(step, [_text(panel, curve, step) for curve in known]) for step in evenly(steps, ROWS)],
        [curve.label for curve in curves if not curve.known],
    )


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, the first and the last among them, evenly over all."""
    if len(items) <= count:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, count)]


def _line(look: int, curve: Curve, frame: Frame) -> Line:
    edges: list[tuple[float, float, float, float] | None] = [
        (frame.x(step), frame.y(low), frame.y(mean), frame.y(high)) if np.isfinite(mean) else None
        for step, low, mean, high in zip(curve.steps, curve.low, curve.mean, curve.high, strict=True)
    ]
    unbroken = _unbroken(edges)
    means = [_path([(x, mean) for x, _, mean, _ in run]) for run in unbroken]
    around = [[(x, high) for x, _, _, high in run] + [(x, low) for x, low, _, _ in run[::-1]] for run in unbroken]
    bands = [f"{_path(outline)}Z" for outline in around] if curve.seeds > 1 else []
    alone = zip(edges, lonely(curve.mean), strict=True)
    return Line(look, "".join(means), "".join(bands), [(edge[0], edge[2]) for edge, lone in alone if lone and edge])


def _unbroken(items: Sequence[Item | None]) -> list[list[Item]]:
    """The runs of items between those that are missing."""
    runs: list[list[Item]] = [[]]
    for item in items:
        if item is not None:
            runs[-1].append(item)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _strips(panel: Panel, curves: Sequence[Curve], steps: Sequence[int], frame: Frame) -> list[Strip]:
    chosen = evenly(steps, STRIPS)
    places = [frame.x(step) for step in chosen]
    edges = [float(LEFT), *((a + b) / 2 for a, b in pairwise(places)), float(RIGHT)]
    texts = (
        "\n".join([f"step {step}", *(f"{curve.label}: {_text(panel, curve, step)}" for curve in curves)])
        for step in chosen
    )
    return [Strip(left, right - left, text) for (left, right), text in zip(pairwise(edges), texts, strict=True)]


def _text(panel: Panel, curve: Curve, step: int) -> str:
    """The mean at a step and, of several seeds, the lowest and the highest."""
    (found,) = np.nonzero(curve.steps == step)
    if not len(found) or not np.isfinite(curve.mean[found[0]]):
        return number(None)
    low, mean, high = (_plain(panel, float(part[found[0]])) for part in (curve.low, curve.mean, curve.high))
    return f"{mean} [{low}, {high}]" if curve.seeds > 1 else mean


def _plain(panel: Panel, value: float) -> str:
    return number(100 * value if panel.percent else value)
