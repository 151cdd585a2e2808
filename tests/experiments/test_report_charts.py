"""Charts against the values that they draw, and sentences against the intervals that they tell."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.comparisons import improvement, mean_interval
from experiments.report import charts
from experiments.report.charts import Chart, chart
from experiments.report.curves import Curve, curve
from experiments.report.findings import collapses, findings
from experiments.report.panels import DRIFT, PENALTY_SHARE, Panel, with_shares

PANEL = Panel("entropy", "Entropy", "nats")
WIDE = Panel("ratio_min", "Lowest ratio", "r", wide=True, line=1.0)
SHARE = Panel("clip_fraction", "Clip fraction", "%", percent=True)


def made(*seeds: Sequence[float | None], label: str = "grpo") -> Curve:
    values = np.array(seeds, np.float64)
    return Curve(label, len(seeds), np.arange(1, values.shape[1] + 1), values)


def drawn(panel: Panel, *curves: Curve) -> Chart:
    found = chart(panel, curves)
    assert found is not None
    return found


def points(path: str) -> list[list[tuple[float, float]]]:
    """The points of each part of a path."""
    parts = [part for part in path.replace("Z", "").split("M") if part]
    return [[(float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", part)] for part in parts]


def values_of(found: Chart, heights: list[float]) -> list[float]:
    """Heights as values, by the marks of the axis."""
    first, last = found.y_ticks[0], found.y_ticks[-1]
    low, high = (float(tick.text.replace("−", "-")) for tick in (first, last))
    if found.logarithmic:
        low, high = math.log10(low), math.log10(high)
    read = [low + (height - first.at) / (last.at - first.at) * (high - low) for height in heights]
    return [10**value for value in read] if found.logarithmic else read


@given(st.lists(st.lists(st.floats(0.01, 5), min_size=4, max_size=4), min_size=1, max_size=4))
def test_a_line_read_off_by_its_axis_is_the_mean(seeds: list[list[float]]) -> None:
    found = drawn(PANEL, made(*seeds))
    [line], [run] = found.lines, points(found.lines[0].mean)
    spread = np.ptp(seeds) or 1.0
    means = np.mean(seeds, axis=0)
    if len(found.y_ticks) > 1:
        assert values_of(found, [y for _, y in run]) == pytest.approx(means, abs=0.01 * spread + 1e-3 * max(means))
    assert [x for x, _ in run] == pytest.approx(np.linspace(charts.LEFT, charts.RIGHT, 4), abs=0.06)
    assert all(charts.TOP <= y <= charts.BOTTOM for _, y in run)
    if len(seeds) == 1:
        assert line.band == ""
        return
    [outline] = points(line.band)
    for (_, high), (_, mean), (_, low) in zip(outline[:4], run, outline[:3:-1], strict=True):
        assert high - 0.06 <= mean <= low + 0.06  # SVG counts downwards


def test_a_scale_is_logarithmic_where_values_span_orders_of_magnitude() -> None:
    values = [1.0, 0.1, 1e-3, 1e-6]
    found = drawn(WIDE, made(values))
    assert found.logarithmic
    [run] = points(found.lines[0].mean)
    assert values_of(found, [y for _, y in run]) == pytest.approx(values, rel=0.05)
    assert [tick.text for tick in found.y_ticks] == ["1e−6", "1e−4", "0.01", "1"]
    assert found.reference == pytest.approx(run[0][1], abs=0.1)
    assert not drawn(WIDE, made([1.0, 0.5])).logarithmic
    assert not drawn(WIDE, made([1.0, 0.0])).logarithmic
    assert not drawn(PANEL, made(values)).logarithmic


def test_a_share_is_in_percent_from_zero_on() -> None:
    found = drawn(SHARE, made([0.5, 0.75]))
    assert found.y_ticks[0].text == "0"
    assert found.rows == [(1, ["50"]), (2, ["75"])]
    assert found.description == "%, at step 1 and at step 2: grpo 50 and 75."


def test_what_one_seed_lacks_is_a_gap_and_a_lone_point_a_dot() -> None:
    found = drawn(PANEL, made([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, None, 4.0, None]), made([None] * 5, label="sapo"))
    [line] = found.lines
    assert [len(part) for part in points(line.mean)] == [2, 1]
    assert [round(x) for x, _ in line.dots] == [round(charts.LEFT + 0.75 * (charts.RIGHT - charts.LEFT))]
    assert (found.columns, found.missing) == (["grpo"], ["sapo"])
    assert [row[1] for row in found.rows] == [["1 [1, 1]"], ["2 [2, 2]"], ["–"], ["4 [4, 4]"], ["–"]]
    assert chart(PANEL, [made([None, None])]) is None


@given(st.integers(1, 400))
def test_every_place_of_a_plot_tells_one_step(steps: int) -> None:
    found = drawn(PANEL, made([1.0] * steps))
    assert len(found.strips) == min(steps, charts.STRIPS)
    assert len(found.rows) == min(steps, charts.ROWS)
    assert (found.rows[0][0], found.rows[-1][0]) == (1, steps)
    assert found.strips[0].x == charts.LEFT
    assert sum(strip.width for strip in found.strips) == pytest.approx(charts.RIGHT - charts.LEFT)
    assert all(strip.text == f"step {strip.text.split()[1]}\ngrpo: 1" for strip in found.strips)


def test_a_metric_that_is_measured_now_and_then_is_one_line() -> None:
    norms = {1: (0.2, 0.1), 3: (0.0, 0.5), 5: (3.0, 0.0)}
    seed: dict[int, dict[str, float]] = {step: {} for step in range(1, 7)}
    for step, (penalty, objective) in norms.items():
        seed[step] = {"penalty_grad_norm": penalty, "objective_grad_norm": objective}
    found = curve("sapo", [with_shares(seed)], PENALTY_SHARE, sparse=True)
    assert found.steps.tolist() == [1, 3, 5]
    assert found.mean == pytest.approx([2.0, 0.0, math.nan], nan_ok=True)
    assert [panel.sparse for panel in DRIFT.panels if panel.key == PENALTY_SHARE] == [True]


# ---- sentences ----


def compared(differences: list[float]) -> dict[str, Any]:
    """A summary of two algorithms whose greedy EM differs so."""
    found = mean_interval(differences) | {"better": improvement(differences, [0.0] * len(differences))}
    pair = {"baseline": "grpo", "algorithm": "sapo", "seeds": list(range(len(differences))), "greedy": {"em": found}}
    return {
        "paired": [pair],
        "algorithms": [{"algorithm": label, "seeds": pair["seeds"]} for label in ("grpo", "sapo")],
    }


def sentence(differences: list[float]) -> str:
    [found] = findings(compared(differences))
    return f"{found.subject}: {found.numbers}: {found.verdict}"


@given(st.lists(st.integers(-64, 64), min_size=0, max_size=6))
def test_a_sentence_claims_no_more_than_its_interval(counts: list[int]) -> None:
    differences = [count / 64 for count in counts]
    text, found = sentence(differences), mean_interval(differences)
    shown = len(set(differences)) > 1
    assert ("sapo ended higher" in text) == (shown and found["low"] > 0)
    assert ("sapo ended lower" in text) == (shown and found["high"] < 0)
    if differences and "ended" not in text.replace("both ended", ""):
        assert text.endswith("no difference is shown.")


def test_sentences() -> None:
    assert sentence([0.1, 0.2, 0.0]) == (
        "sapo − grpo: +0.100 EM [−0.148, +0.348] over 3 paired seeds: no difference is shown."
    )
    assert (
        sentence([0.1, 0.11, 0.12]) == "sapo − grpo: +0.110 EM [+0.085, +0.135] over 3 paired seeds: sapo ended higher."
    )
    assert sentence([-0.1, -0.11]).endswith("over 2 paired seeds: sapo ended lower.")
    assert sentence([-0.1, -0.15]).endswith("over 2 paired seeds: no difference is shown.")
    assert (
        sentence([0.3])
        == "sapo − grpo: +0.300 EM over 1 paired seed: one pair has no interval, so no difference is shown."
    )
    assert (
        "the difference is the same in every pair, which says nothing of chance, so no difference is shown."
        in sentence([0.7 - 0.4, 0.6 - 0.3, 0.5 - 0.2])
    )
    assert "so they are not compared" in sentence([])


def test_an_algorithm_by_itself_is_told_by_what_it_gained() -> None:
    ends, start = [0.5, 0.6, 0.7], 0.4
    score = {"start": start, "end": mean_interval(ends), "gain": mean_interval(end - start for end in ends)}
    summary = {"paired": [], "algorithms": [{"algorithm": "grpo", "seeds": [0, 1, 2], "greedy": {"em": score}}]}
    [found] = findings(summary)
    assert found.numbers == "EM from 0.400 to 0.600 over 3 runs, +0.200 [−0.048, +0.448]"
    assert found.verdict == "no difference is shown."


def test_collapses_are_told_by_seed_and_step() -> None:
    summary = compared([0.1, 0.2])
    runs = [
        {"algorithm": label, "seed": seed, "collapsed": step}
        for label, seed, step in [("grpo", 1, 9), ("sapo", 0, None), ("grpo", 0, 12), ("sapo", 1, None)]
    ]
    assert collapses(summary, runs) == "grpo 2 of 2 (seed 0 at step 12, seed 1 at step 9)."
    assert collapses(summary, [run | {"collapsed": None} for run in runs]) == "no run collapsed."
