"""The drift diagnostics, on ratios whose statistics are known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from torch import Tensor, tensor

from algos.batch import Batch
from algos.training.drift import COLLAPSED, drift, drift_rate, ratio_drift


def test_quantiles_and_drifted_share() -> None:
    ratios = tensor([[0.5, 1.0, 2.0, 9.0], [0.05, 0.1, 7.0, 7.0], [3.0, 3.0, 3.0, 3.0]])
    mask = tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    found = ratio_drift(ratios.log(), mask)
    assert found["ratio_p50"] == pytest.approx(0.5)
    assert found["ratio_p05"] == pytest.approx(math.exp(0.8 * math.log(0.05) + 0.2 * math.log(0.1)))
    assert found["ratio_min"] == pytest.approx(0.05)
    assert found["ratio_last"] == pytest.approx((0.5 + 1 + 2 + 0.05 + 0.1) / 5)
    # Row 0's product is 1, row 1's 0.005; row 2 has no token of the policy and is no trajectory here.
    assert 0.005 < COLLAPSED < 1
    assert found["drifted"] == 0.5


def batch_of(mask: Tensor, actions: Tensor | None, advantages: Tensor) -> Batch:
    rows = len(mask)
    zeros = torch.zeros(mask.shape)
    groups = torch.zeros(rows, dtype=torch.int64)
    return Batch(mask, zeros, torch.zeros(rows), groups, advantages=advantages.expand(mask.shape), actions=actions)


def test_kinds_of_tokens_worked_by_hand() -> None:
    mask = tensor([[1, 1, 1, 1, 0]], dtype=torch.bool)
    actions = tensor(
        [[0, 0, 1, 1, 1]], dtype=torch.bool
    )  # the last one: an action of a masked place counts for nothing
    log_ratio = tensor([[-1.0, 0.0, -2.0, -4.0, math.nan]])
    entropy = tensor([[1.0, 3.0, 0.5, 0.25, math.nan]])
    found = drift(batch_of(mask, actions, tensor([[1.0, 1.0, 1.0, -1.0, 1.0]])), log_ratio, entropy, tau=0.5)
    assert found["lambda_reasoning"] == pytest.approx(-0.5 + 0.25 / 2)
    assert found["lambda_action"] == pytest.approx(-3 + 1 / 2)
    assert (found["entropy_reasoning"], found["entropy_action"]) == (2.0, 0.375)
    assert found["positive_below_tau"] == pytest.approx(2 / 3)  # of exp(-1), 1 and exp(-2), two are below 0.5


@pytest.mark.parametrize(("tau", "share"), [(0.0, 0.0), (0.5, 0.0), (1.0, 0.5), (math.inf, 1.0)], ids=str)
def test_a_ratio_of_tau_is_not_below_it(tau: float, share: float) -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = drift(batch_of(mask, None, torch.ones(1, 2)), tensor([[0.5, 1.0]]).log(), torch.zeros(1, 2), tau)
    assert found["positive_below_tau"] == share


@given(mean=st.floats(-1, 1), std=st.floats(0, 1))
def test_lambda_of_normal_log_ratios_is_the_log_of_their_mean_ratio(mean: float, std: float) -> None:
    """Prop. 1, on the quantiles of a normal distribution, which are as evenly drawn as can be."""
    log_ratio = mean + std * torch.from_numpy(ndtri((torch.arange(20_000).double() + 0.5).numpy() / 20_000))
    assert drift_rate(log_ratio) == pytest.approx(log_ratio.exp().mean().log().item(), abs=2e-3)


def test_lambda_of_other_log_ratios_is_not() -> None:
    log_ratio = tensor([0.0] * 9 + [-10.0])
    assert drift_rate(log_ratio) == pytest.approx(-1 + 9 / 2)
    assert log_ratio.exp().mean().log() < 0


@st.composite
def problems(draw: st.DrawFn) -> tuple[Batch, Tensor, Tensor]:
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    mask, actions = (torch.rand(rows, width, generator=generator) < draw(st.floats(0, 1)) for _ in range(2))
    log_ratio, entropy, advantages = torch.randn(3, rows, width, generator=generator)
    return batch_of(mask, actions, advantages), log_ratio, entropy


@settings(deadline=None)
@given(problems(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_padding_and_the_order_of_rows_change_nothing(problem, extra: int, random) -> None:
    batch, log_ratio, entropy = problem
    expected = drift(batch, log_ratio, entropy)
    order = random.sample(range(len(batch)), len(batch))

    def padded(values: Tensor, filler: float) -> Tensor:
        return torch.nn.functional.pad(values[order], (0, extra, 0, extra), value=filler)

    assert batch.actions is not None and batch.advantages is not None  # noqa: PT018
    wide = batch_of(padded(batch.mask, False), padded(batch.actions, True), padded(batch.advantages, math.nan))
    assert drift(wide, padded(log_ratio, math.nan), padded(entropy, math.inf)) == pytest.approx(expected)


@settings(deadline=None)
@given(problems())
def test_tokens_in_one_row_or_in_many(problem) -> None:
    """Only `drifted`, which is about trajectories, sees which tokens belong together."""
    batch, log_ratio, entropy = problem
    assert batch.actions is not None and batch.advantages is not None  # noqa: PT018
    single = [values.reshape(-1, 1) for values in (batch.mask, batch.actions, batch.advantages)]
    apart = drift(batch_of(*single), log_ratio.reshape(-1, 1), entropy.reshape(-1, 1))
    together = drift(batch, log_ratio, entropy)
    assert apart.keys() == together.keys()
    assert {**apart, "drifted": 0} == pytest.approx({**together, "drifted": 0})


@settings(deadline=None)
@given(problems())
def test_a_policy_that_has_not_moved_has_not_drifted(problem) -> None:
    batch, log_ratio, entropy = problem
    found = drift(batch, torch.zeros_like(log_ratio), entropy)
    found = {name: value for name, value in found.items() if not name.startswith("entropy")}
    assert found == {name: float(name.startswith("ratio")) for name in found}
    assert bool(found) == bool(batch.mask.any())


def test_what_is_not_there_is_left_out() -> None:
    assert ratio_drift(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == {}
    mask, zeros = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2)
    unknown = drift(batch_of(mask, None, -mask.float()), zeros, zeros)
    assert set(unknown) == {"ratio_last", "ratio_min", "ratio_p05", "ratio_p50", "ratio_p95", "drifted"}
    reasoning = drift(batch_of(mask, ~mask, -mask.float()), zeros, zeros)
    assert set(reasoning) - set(unknown) == {"lambda_reasoning", "entropy_reasoning"}
