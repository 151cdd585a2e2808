"""Statistics of few runs: intervals cover what they promise, and the collapse detector on drawn curves."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from experiments.comparisons import (
    LEAST_REWARD,
    SHORTEST,
    WINDOW,
    collapsed,
    improvement,
    iqm_interval,
    mean_interval,
)

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=8)
SKEWED = stats.beta(8, 2)


def runs(kind: str, trials: int, seeds: int, shift: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    """Scores of simulated runs, [trials, seeds]."""
    rng = np.random.default_rng([seeds, seed])
    if kind == "skewed":
        return rng.beta(8, 2, size=(trials, seeds)) + shift
    values = rng.normal(0.7 + shift, 0.1, size=(trials, seeds))
    return values.round(1) if kind == "rounded" else values


# ---- coverage ----


def covered(found: list[dict[str, Any]], truth: float) -> float:
    return float(np.mean([interval["low"] <= truth <= interval["high"] for interval in found]))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("statistic", [mean_interval, iqm_interval], ids=["mean", "iqm"])
def test_intervals_of_normal_scores_cover_the_truth_in_95_percent(statistic: Any, seeds: int) -> None:
    found = [statistic(row) for row in runs("normal", 3_000, seeds).tolist()]
    assert covered(found, 0.7) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("statistic", [mean_interval, iqm_interval], ids=["mean", "iqm"])
def test_intervals_of_skewed_scores_cover_it_almost_as_often(statistic: Any, seeds: int) -> None:
    """The true interquartile mean is that of all runs there could be, between the quartiles of their distribution."""
    low, high = SKEWED.ppf([0.25, 0.75])
    truth = SKEWED.mean() if statistic is mean_interval else SKEWED.expect(lb=low, ub=high, conditional=True)
    found = [statistic(row) for row in runs("skewed", 3_000, seeds).tolist()]
    assert covered(found, float(truth)) == pytest.approx(0.94, abs=0.02)


def share_covered(ours: NDArray[np.float64], theirs: NDArray[np.float64], truth: float) -> float:
    """How often the interval of P(X > Y) covers the true one."""
    found = [improvement(x, y) for x, y in zip(ours.tolist(), theirs.tolist(), strict=True)]
    return float(np.mean([chance["low"] <= truth <= chance["high"] for chance in found]))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1, 0.2], ids=str)
def test_the_interval_of_the_chance_covers_it_in_95_percent(shift: float, seeds: int) -> None:
    ours, theirs = runs("normal", 2_500, seeds, shift, 1), runs("normal", 2_500, seeds, seed=2)
    truth = stats.norm.cdf(shift / (0.1 * math.sqrt(2)))
    assert share_covered(ours, theirs, float(truth)) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["normal", "rounded", "skewed"])
def test_it_covers_it_at_least_as_often_with_fewer_runs_and_other_scores(kind: str, seeds: int) -> None:
    ours, theirs = runs(kind, 1_500, seeds, seed=1), runs(kind, 1_500, seeds, seed=2)
    assert share_covered(ours, theirs, 0.5) > 0.93


@pytest.mark.slow
def test_runs_that_share_random_numbers_are_covered_more_often() -> None:
    shared = runs("normal", 1_000, 5)
    ours, theirs = (0.7 * shared + 0.3 * runs("normal", 1_000, 5, seed=seed) for seed in (1, 2))
    assert share_covered(ours, theirs, 0.5) > 0.97


# ---- mean ----


def test_interval_of_the_mean_worked_by_hand() -> None:
    # mean 0.7, s = 0.1, t(0.975, 2 degrees of freedom) = 4.302653: half = 4.302653 * 0.1 / sqrt(3) = 0.248414
    interval = mean_interval([0.6, 0.7, 0.8])
    assert interval["n"] == 3
    assert interval["mean"] == pytest.approx(0.7)
    assert interval["half_width"] == pytest.approx(0.248414, abs=1e-6)
    assert (interval["low"], interval["high"]) == pytest.approx((0.451586, 0.948414), abs=1e-6)


@given(st.lists(st.integers(0, 512), min_size=2, max_size=8).filter(lambda counts: len(set(counts)) > 1))
def test_interval_of_the_mean_is_that_of_scipy(counts: list[int]) -> None:
    values = [count / 512 for count in counts]
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    interval = mean_interval(values)
    assert (interval["low"], interval["high"]) == pytest.approx((low, high))


def test_one_run_has_no_interval_and_none_has_no_mean() -> None:
    missing = {"half_width": None, "low": None, "high": None}
    assert mean_interval([0.5]) == {"n": 1, "mean": 0.5, **missing}
    assert mean_interval([]) == {"n": 0, "mean": None, **missing}


@given(st.floats(0, 1), st.integers(2, 6))
def test_identical_values_have_width_zero(value: float, n: int) -> None:
    interval = mean_interval([value] * n)
    assert (interval["mean"], interval["half_width"]) == (value, 0)


# ---- interquartile mean ----


def test_interquartile_mean_worked_by_hand() -> None:
    # 3 of 12 are left out on each side. Kept: 4 … 9; the sum of squares around 6.5 with 4 and 9 four times each is
    # 2 * (4 * 6.25 + 2.25 + 0.25) = 55.
    found = iqm_interval([*map(float, range(1, 12)), 1_000.0])
    assert (found["mean"], found["n"]) == (6.5, 12)
    error = math.sqrt(55 / 11 / 12)
    # Tukey and McLaughlin's interval has t(0.975, 5) * 12 / 6 = 5.14 instead, and covers 92.8 %: t has 95 % of its
    # probability where it is 13 % wider.
    assert found["half_width"] / error == pytest.approx(5.14 * 1.13, rel=0.02)
    assert (found["low"], found["high"]) == pytest.approx((6.5 - found["half_width"], 6.5 + found["half_width"]))


@given(SCORES)
def test_interquartile_mean_is_scipy_s_and_that_of_few_runs_is_the_mean(values: list[float]) -> None:
    found = iqm_interval(values)
    assert found["mean"] == pytest.approx(stats.trim_mean(values, 0.25))
    if len(values) < 4:
        assert found == pytest.approx(mean_interval(values), abs=1e-9)


def test_no_run_has_no_interquartile_mean() -> None:
    assert iqm_interval([]) == {"n": 0, "mean": None, "half_width": None, "low": None, "high": None}


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.floats(2, 1e6))
def test_no_outlier_moves_the_interval_of_the_interquartile_mean(values: list[float], outlier: float) -> None:
    values[0] = 1.5
    assert iqm_interval([outlier, *values[1:]]) == iqm_interval(values)


# ---- P(X > Y) ----


@given(SCORES, SCORES)
def test_chance_is_the_mann_whitney_statistic_over_the_pairs(ours: list[float], theirs: list[float]) -> None:
    expected = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic / (len(ours) * len(theirs))
    assert improvement(ours, theirs)["probability"] == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_who_is_compared_with_whom_only_turns_it_round(ours: list[float], theirs: list[float]) -> None:
    one, other = improvement(ours, theirs), improvement(theirs, ours)
    assert 0 <= one["low"] <= one["probability"] <= one["high"] <= 1
    assert one["low"] < one["high"]
    turned = [1 - other[name] for name in ("probability", "high", "low")]
    assert [one[name] for name in ("probability", "low", "high")] == pytest.approx(turned, abs=1e-6)


def test_ends_of_the_interval_solve_the_equation() -> None:
    found = improvement([0.5, 0.6, 0.7, 0.8, 0.9, 0.95], [0.4, 0.55, 0.65, 0.3, 0.85])
    p, (m, n) = found["probability"], found["runs"]
    assert (p, m, n) == (pytest.approx((2 + 3 + 4 + 4 + 5 + 5) / 30), 6, 5)
    for q in (found["low"], found["high"]):
        auc = q / (2 - q) * (m - 1 + n - 1) / 2 + 2 * q * q / (1 + q) * (m - 1 + n - 1) / 2
        hanley_mcneil = (q * (1 - q) + auc - q * q * (m - 1 + n - 1)) / (m * n)
        assert (p - q) ** 2 == pytest.approx(1.959964**2 * hanley_mcneil, rel=1e-5)


@pytest.mark.parametrize(("seeds", "told"), [(3, False), (5, True)])
def test_three_runs_that_all_win_do_not_tell_two_algorithms_apart(seeds: int, told: bool) -> None:
    """Were the two the same, one of the two would win all pairs in 1 of 10 comparisons of 3 runs, 1 of 126 of 5."""
    orders = list(permutations(range(6), 3))
    by_chance = sum(max(rest) < 3 or min(rest) > 2 for rest in orders) / len(orders)
    assert by_chance == pytest.approx(0.1)
    found = improvement([0.9 + 0.01 * seed for seed in range(seeds)], [0.1] * seeds)
    assert (found["probability"], found["high"]) == (1.0, 1.0)
    assert (found["low"] > 0.51) == told


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [([], [0.5], None), ([0.5], [], None), ([0.6], [0.5, 0.6], 0.75), ([0.6, 0.7], [0.9], 0.0)],
    ids=["none of ours", "none of theirs", "one of ours", "one of theirs"],
)
def test_too_few_runs_have_no_interval(ours: list[float], theirs: list[float], expected: float | None) -> None:
    found = improvement(ours, theirs)
    assert found == {"runs": [len(ours), len(theirs)], "probability": expected, "low": None, "high": None}


# ---- collapse ----


def drawn(*points: tuple[int, float], noise: float = 0.0) -> list[float]:
    """A reward curve over steps 1, 2, … through points (step, reward), with noise."""
    steps, rewards = zip(*points, strict=True)
    curve = np.interp(np.arange(1, steps[-1] + 1), steps, rewards)
    return np.clip(curve + noise * np.random.default_rng(0).normal(size=len(curve)), 0, 1).tolist()


@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["smooth", "noisy"])
@pytest.mark.parametrize(
    ("points", "falls"),
    [
        ([(1, 0.1), (60, 0.8)], False),
        ([(1, 0.4), (60, 0.4)], False),
        ([(1, 0.1), (30, 0.8), (40, 0.1), (60, 0.05)], True),
        ([(1, 0.1), (30, 0.8), (36, 0.1), (45, 0.7), (60, 0.8)], False),
        ([(1, 0.1), (30, 0.8), (36, 0.1), (45, 0.7), (52, 0.1), (60, 0.1)], True),
        ([(1, 0.1), (30, 0.8), (60, 0.55)], False),
        ([(1, 0.8), (20, 0.1), (60, 0.1)], True),
        ([(1, 0.8), (60, 0.6)], False),
        ([(1, 0.0), (60, 0.0)], False),
    ],
    ids=[
        "rises",
        "flat",
        "falls",
        "comes back",
        "falls twice",
        "sags",
        "falls at once",
        "sinks slowly",
        "never learns",
    ],
)
def test_collapse_on_drawn_curves(points: list[tuple[int, float]], falls: bool, noise: float) -> None:
    assert (collapsed(drawn(*points, noise=noise)) is not None) == falls


def test_the_step_of_a_collapse() -> None:
    # The mean of 5 rewards is under half of 0.8 from the third reward of 0 on.
    assert collapsed([0.8] * 20 + [0.0] * 20) == 23
    assert collapsed([0.8] * 20 + [0.0] * 3) == 23
    assert collapsed([0.8] * 20 + [0.0] * 2) is None
    assert collapsed([0.8] * 20 + [0.0] * 20 + [0.8] * 2) == 23
    assert collapsed([0.8] * 20 + [0.0] * 20 + [0.8] * 3) is None


def test_a_run_that_falls_at_once_collapsed() -> None:
    """As GRPO at a learning rate of 1e-3 (docs/findings.md)."""
    assert collapsed([0.36, 0.11, 0.0, 0.0, 0.0, 0.0]) == 6
    assert collapsed([0.8, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0]) == 6
    assert collapsed([0.8, 0.8, 0.0, 0.0, 0.8, 0.8, 0.8]) is None


@pytest.mark.parametrize(("episodes", "reward", "most"), [(64, 0.3, 0.002), (16, 0.3, 0.04), (8, 0.6, 0.01)])
def test_few_runs_whose_reward_stays_the_same_count_as_collapsed(episodes: int, reward: float, most: float) -> None:
    runs = np.random.default_rng(0).binomial(episodes, reward, (2000, 40)) / episodes
    assert np.mean([collapsed(run) is not None for run in runs]) <= most


def test_exactly_half_is_not_under_half() -> None:
    assert collapsed([0.5] * 10 + [0.25] * 10) is None
    assert collapsed([0.5] * 10 + [0.2499] * 10) == 15


def test_what_is_too_short_or_was_never_good_did_not_collapse() -> None:
    assert collapsed([1.0] + [0.0] * (WINDOW - 2)) is None
    assert collapsed([]) is None
    assert collapsed([0.9 * LEAST_REWARD] * 10 + [0.0] * 10) is None
    assert collapsed([1.1 * LEAST_REWARD] * 10 + [0.0] * 10) == 13
    assert collapsed([-0.1] * 10 + [-0.9] * 10) is None


@given(st.lists(st.floats(0, 1), min_size=WINDOW, max_size=30), st.integers(1, 5))
def test_a_collapse_scales_with_the_reward_and_stays_one_at_0(rewards: list[float], power: int) -> None:
    step = collapsed(rewards)
    if step is not None:
        assert SHORTEST < step <= len(rewards)
        assert collapsed([reward * 2**power for reward in rewards]) == step
        assert collapsed([*rewards, *[0.0] * 10]) == step
