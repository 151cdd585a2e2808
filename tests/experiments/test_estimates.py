"""Intervals cover what they promise, and pass@k is what counting all subsets gives."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom, binomtest

from experiments.estimates import CONFIDENCE, bootstrap, ks, of_average, pass_at_k, wilson


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(case: tuple[int, int, int]) -> None:
    samples, correct, k = case
    subsets = list(combinations([True] * correct + [False] * (samples - correct), k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k([correct], samples, k)[0] == pytest.approx(expected, abs=1e-14)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.integers(0, 1000))
def test_pass_at_k_is_unbiased(case: tuple[int, int], per_mille: int) -> None:
    """Its mean over all that could have been sampled is the chance that k samples hold a correct one."""
    (samples, k), chance = case, per_mille / 1000
    weights = binom.pmf(np.arange(samples + 1), samples, chance)
    mean = float(weights @ pass_at_k(np.arange(samples + 1), samples, k))
    assert mean == pytest.approx(1 - (1 - chance) ** k, abs=1e-9)


@given(st.integers(1, 10_000), st.data())
def test_pass_at_k_stays_a_chance_and_grows(samples: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, samples))
    chances = [pass_at_k([correct], samples, k)[0] for k in ks(samples)]
    assert chances[0] == pytest.approx(correct / samples)
    assert chances == sorted(chances)
    assert chances[0] >= 0
    assert chances[-1] == (correct > 0)
    assert np.isfinite(chances).all()


def test_pass_at_k_of_large_numbers() -> None:
    expected = 1 - math.comb(9_000, 100) / math.comb(10_000, 100)
    assert pass_at_k([1_000], 10_000, 100)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("correct", "samples", "k"), [(1, 2, 3), (1, 2, 0), (3, 2, 1), (-1, 2, 1)])
def test_what_cannot_be_is_refused(correct: int, samples: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        pass_at_k([correct], samples, k)


@pytest.mark.parametrize(("samples", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_which_k_are_reported(samples: int, expected: list[int]) -> None:
    assert ks(samples) == expected


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipy_s(case: tuple[int, int]) -> None:
    expected = binomtest(*case).proportion_ci(CONFIDENCE, method="wilson")
    assert wilson(*case) == pytest.approx((expected.low, expected.high), abs=1e-12)
    with pytest.raises(ValueError, match="no such share"):
        wilson(case[1] + 1, case[1])


@pytest.mark.parametrize("chance", [0.05, 0.4, 0.9], ids=str)
def test_wilson_covers_the_true_share_in_95_percent(chance: float) -> None:
    """Exactly, over all outcomes: at 125 questions, the smallest benchmark."""
    outcomes = np.arange(126)
    covered = [low <= chance <= high for low, high in (wilson(int(hits), 125) for hits in outcomes)]
    assert binom.pmf(outcomes, 125, chance) @ np.array(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
def test_the_bootstrap_covers_the_true_mean_in_95_percent() -> None:
    """Of 1,000 simulated evaluations: scores like F1, many 0 and many 1, four samples a question that go together."""
    rng, hits, mean = np.random.default_rng(0), 0, 0.4
    for trial in range(1_000):
        ease = rng.beta(0.5, 0.75, size=(150, 1))  # of each question
        values = (rng.random((150, 4)) < ease).mean(axis=1, keepdims=True)
        ((low, high),) = bootstrap(values, trial, resamples=399)
        hits += low <= mean <= high
    assert hits / 1_000 == pytest.approx(0.95, abs=0.02)


def test_the_bootstrap_is_scipy_s() -> None:
    values = np.random.default_rng(1).beta(0.5, 1.0, size=200)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=2).confidence_interval
    assert bootstrap(values[:, None])[0] == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_columns_see_the_same_draws_and_equal_values_have_no_width() -> None:
    values = np.random.default_rng(3).random((50, 1))
    once, twice, ones = bootstrap(np.hstack([values, 2 * values, np.ones((50, 1))]), resamples=99)
    assert twice == pytest.approx((2 * once[0], 2 * once[1]))
    assert ones == pytest.approx((1, 1))


def test_the_average_of_benchmarks_covers_the_true_one_in_95_percent() -> None:
    """Of 4,000 simulated evaluations on benchmarks of unequal size and difficulty, two of them with few hits."""
    rng, chances, sizes = np.random.default_rng(0), [0.02, 0.05, 0.4, 0.9], [125, 60, 500, 200]
    truth, covered = sum(chances) / 4, 0
    for hits in rng.binomial(sizes, chances, size=(4_000, 4)).tolist():
        shares = [hit / size for hit, size in zip(hits, sizes, strict=True)]
        low, high = of_average(shares, [wilson(hit, size) for hit, size in zip(hits, sizes, strict=True)])
        covered += low <= truth <= high
    assert covered / 4_000 == pytest.approx(0.95, abs=0.02)


@given(st.floats(0, 1), st.integers(1, 9))
def test_averages_of_equal_benchmarks_are_narrower_by_the_root_of_their_number(share: float, count: int) -> None:
    low, high = of_average([share] * count, [(share - 0.2, share + 0.1)] * count)
    assert (share - low, high - share) == pytest.approx((0.2 / count**0.5, 0.1 / count**0.5))
