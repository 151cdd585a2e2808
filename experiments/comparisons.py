"""What a few runs say of an algorithm: means over seeds, whether one algorithm is better than another, and collapse.

The unit is a run. Which interval, and how often it covers the truth, measured on simulated runs:

    mean                  Student's t, from 2 runs on: 95 % where scores are normal, 93 % where they are skewed like
                          beta(8, 2). A percentile or BCa bootstrap of runs covers it in 72 to 74 % with 3 runs, 81 to
                          82 % with 5, 87 to 90 % with 10, so none is used
    interquartile mean    likewise, with a quantile of its own: 95 %, and 93 to 95 %
    P(X > Y)              Newcombe's score interval: 94 to 97 % from 5 runs a side on; with fewer it is made wider, for
                          3 runs against 3 fall in complete order by chance once in ten times

No interval knows of what did not happen. Where a fifth of all runs collapses, half of all triples hold no such run, and
the interval of the mean covers it in 48 % with 3 runs, 66 % with 5, 89 % with 10: look at the number of collapsed runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95
LEAST_FOR_SCORE = 5
"""With fewer runs on either side, the interval of P(X > Y) takes a quantile of t instead of the normal one."""
WINDOW = 5
"""Steps in a running mean of the reward."""
SHORTEST = 3
"""Of the running means at the start of a run: few enough to see one that falls at once."""
LEAST_REWARD = 0.1
"""A run whose best running mean is below this had nothing to lose: so near to 0, noise alone halves a running mean."""

Interval = dict[str, Any]


def mean_interval(values: Iterable[float]) -> Interval:
    """The mean of a sample and the 95 % Student t interval of the mean that it was drawn around.

        mean ± t(0.975, n - 1) s / sqrt(n),    s the sample standard deviation (ddof 1)

    Source: Student, "The probable error of a mean", Biometrika 6 (1908). Exact for normal values; one value says
    nothing about spread, so its interval is None, not of width 0. Sums are exact: the order of values has no effect.

    Returns:
        {"n": int, "mean": float, "half_width": float, "low": float, "high": float}; the last three None if n is 1,
        the last four if n is 0.
    """
    sample = [float(value) for value in values]
    n = len(sample)
    if n < 2:
        return _around(n, sample[0] if sample else None, None)
    return _around(n, statistics.mean(sample), _t(n - 1) * statistics.stdev(sample) / math.sqrt(n))


def iqm_interval(values: Iterable[float]) -> Interval:
    """The interquartile mean, of what is left without the lowest and the highest quarter (rounded down), and its 95 %
    interval.

        iqm ± c s_w / sqrt(n)

    s_w is the sample standard deviation after the values left out were replaced by the nearest one that was not, and c
    the 95 % quantile of |iqm| sqrt(n) / s_w over normal samples of that size, simulated with a fixed seed: the usual t
    quantile (Tukey & McLaughlin, Sankhya A 25, 1963) covers 92 to 94 % where as much is left out as here.
    Source: Agarwal et al., "Deep RL at the edge of the statistical precipice", arXiv 2108.13264. With fewer than 4
    values it is the mean.

    Returns:
        As `mean_interval`.
    """
    sample = np.array([float(value) for value in values])
    n = len(sample)
    if n < 2:
        return _around(n, float(sample[0]) if n else None, None)
    middle, error = _iqm(sample)
    return _around(n, float(middle), _iqm_quantile(n) * float(error))


def _iqm(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Interquartile means of samples [..., n], and s_w / sqrt(n)."""
    ordered, n = np.sort(samples, axis=-1), samples.shape[-1]
    cut = n // 4
    winsorised = ordered.clip(ordered[..., [cut]], ordered[..., [n - cut - 1]])
    return ordered[..., cut : n - cut].mean(axis=-1), winsorised.std(axis=-1, ddof=1) / math.sqrt(n)


@cache
def _iqm_quantile(n: int) -> float:
    if n < 4:  # nothing is left out
        return _t(n - 1)
    middle, error = _iqm(np.random.default_rng(n).normal(size=(max(1_000, 2_000_000 // n), n)))
    return float(np.quantile(np.abs(middle) / error, CONFIDENCE))


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """P(X > Y), the chance that a run X of ours beats a run Y of theirs, and its 95 % interval.

        p = mean over all pairs of 1[x > y] + 1[x = y] / 2

    The ends of the interval are the q with  (p - q)² = z² V(q),  V the variance of p, by Hanley & McNeil's formula

        V(q) = q (1 - q) (1 + (k - 1) ((1 - q) / (2 - q) + q / (1 + q))) / (m n),    k = (m + n) / 2

    and z the normal quantile, or that of t with m + n - 2 degrees of freedom (`LEAST_FOR_SCORE`).
    Source: Agarwal et al., arXiv 2108.13264; the interval: Newcombe, Statistics in Medicine 25 (2006), method 5. Where
    runs share random numbers by seed, and that makes their scores alike, it is wider than it need be.

    Returns:
        {"runs": [m, n], "probability": float, "low": float, "high": float}, in [0, 1]; None for the first where m or n
        is 0, for the others where one of them is below 2.
    """
    m, n = len(ours), len(theirs)
    if not (m and n):
        return {"runs": [m, n], "probability": None, "low": None, "high": None}
    gaps = np.subtract.outer(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    p = float((np.sign(gaps) + 1).mean() / 2)
    if min(m, n) < 2:
        return {"runs": [m, n], "probability": p, "low": None, "high": None}
    return {"runs": [m, n], "probability": p, "low": _score_low(p, m, n), "high": 1 - _score_low(1 - p, m, n)}


def _score_low(p: float, m: int, n: int) -> float:
    """The lower end of the interval of `improvement`."""
    if p <= 0:
        return 0.0
    z = float(ndtri((1 + CONFIDENCE) / 2)) if min(m, n) >= LEAST_FOR_SCORE else _t(m + n - 2)
    more = (m + n) / 2 - 1

    def beyond(q: float) -> float:
        variance = q * (1 - q) * (1 + more * ((1 - q) / (2 - q) + q / (1 + q))) / (m * n)
        return (p - q) ** 2 - z * z * variance

    # At p = 1 both sides vanish at q = 1 as well, which is not the end that is looked for.
    return float(brentq(beyond, 0.0, p - 1e-9))  # pyright: ignore[reportArgumentType]


def collapsed(rewards: Sequence[float]) -> int | None:
    """The step at which a run collapsed: its reward fell under half its best and did not come back.

    Let s_t be the mean of the last 5 rewards (`WINDOW`; a shorter curve did not collapse), or of all that there are,
    from the third on (`SHORTEST`). The run has collapsed if its last s is under half of the highest one, which must be
    at least `LEAST_REWARD`: else there was nothing to lose, and noise would count as a fall.

    False alarms need few episodes a step. Of simulated runs of 40 steps whose true reward stays the same, none is
    counted with 64 episodes a step and a reward of 0.3; 2 % with 16; 13 % with 8, but 0.3 % if the reward is 0.6.

    Args:
        rewards: finite, the mean reward of each training step in order.

    Returns:
        The first step, counted from 1, from which on all s are under half of the highest one; None if there is none.
    """
    if len(rewards) < WINDOW:
        return None
    curve = np.asarray(rewards, np.float64)
    first = [curve[:steps].mean() for steps in range(SHORTEST, WINDOW)]
    smooth = np.concatenate([first, np.convolve(curve, np.full(WINDOW, 1 / WINDOW), mode="valid")])
    best = smooth.max()
    if best < LEAST_REWARD:
        return None
    standing = np.flatnonzero(smooth >= best / 2)  # not empty: the best itself is one
    step = int(standing[-1]) + SHORTEST + 1
    return step if step <= len(rewards) else None


def _t(freedom: int) -> float:
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _around(n: int, mean: float | None, half: float | None) -> Interval:
    if mean is None or half is None:
        return {"n": n, "mean": mean, "half_width": None, "low": None, "high": None}
    return {"n": n, "mean": mean, "half_width": half, "low": mean - half, "high": mean + half}
