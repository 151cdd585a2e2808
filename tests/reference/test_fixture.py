"""Values computed independently of this code, from the formulas of verl, TRL, Search-R1 and the released SAPO.

Four responses to one question. Masked tokens have a log-ratio of 5: whatever lets one through is off by far.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, tensor

import algos
from algos.batch import Batch
from algos.primitives import (
    conditional_kl,
    gae,
    group_advantages,
    kl_k1,
    kl_k2,
    kl_k3,
    leave_one_out_advantages,
    masked_mean,
    sequence_ratio,
)

REWARDS = tensor([1, 0, 0, 1], dtype=torch.float64)
GROUPS = torch.zeros(4, dtype=torch.int64)
MASK = tensor([[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.bool)
OLD = tensor(
    [[-1, -0.5, -3, -0.2], [-0.7, -2, -1.1, -0.3], [-0.9, -0.4, -1.5, 0], [-2, -1, -1, -0.6]], dtype=torch.float64
)
LOG_RATIO = tensor(
    [[0.1, -0.3, 5, 0.4], [-0.25, 5, 0.3, -0.05], [0.05, 1.5, -0.6, 0], [-0.5, 5, 5, 0.2]], dtype=torch.float64
)
NEW = OLD + LOG_RATIO
BATCH = Batch(mask=MASK, old_logprobs=OLD, rewards=REWARDS, groups=GROUPS)
SIGNS = tensor([1, -1, -1, 1], dtype=torch.float64)


def close(found: Tensor, expected: object, digits: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=digits)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        pytest.param({"epsilon": 1e-6}, 0.8660239037870368, id="verl"),
        pytest.param({"epsilon": 1e-4}, 0.8658754297607016, id="trl"),
        pytest.param({"epsilon": 0.0, "ddof": 0}, 1.0, id="population"),
        pytest.param({"scale_by_std": False}, 0.5, id="dr_grpo"),
    ],
)
def test_advantages(options: dict, size: float) -> None:
    close(group_advantages(REWARDS, GROUPS, **options), size * SIGNS, digits=1e-12)


def test_leave_one_out_advantages() -> None:
    close(leave_one_out_advantages(REWARDS, GROUPS), 2 / 3 * SIGNS, digits=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        pytest.param("grpo", {"aggregation": "token-mean"}, 0.360701, id="search-r1"),
        pytest.param("grpo", {"preset": "verl"}, 0.244049, id="verl"),
        pytest.param("grpo", {"dual_clip": 3.0}, 0.158524, id="verl-seq-mean"),
        pytest.param("dapo", {"preset": "verl"}, 0.352718, id="verl-dapo"),
        pytest.param("dr_grpo", {"preset": "verl", "norm_tokens": 4}, 0.09687, id="verl-dr-grpo"),
        pytest.param("rloo", {"ratio": "response"}, 0.274149, id="trl-rloo"),
        pytest.param("gspo", {"preset": "verl"}, 0.110729, id="verl-gspo-by-name"),
        pytest.param("cispo", {"preset": "trl"}, 0.316826, id="trl-cispo-by-name"),
        pytest.param("grpo", {"aggregation": "seq-mean-token-mean", "epsilon": 1e-4}, 0.26541, id="trl"),
        pytest.param(
            "grpo", {"aggregation": "token-mean", "epsilon": 1e-4, "clip_high": 0.28}, 0.352657, id="trl-dapo"
        ),
        pytest.param("sapo", {"aggregation": "token-mean", "variant": "released"}, 0.376701, id="sapo-released"),
        pytest.param("dapo", {"epsilon": 1e-4}, 0.352657, id="trl-dapo-by-name"),
        pytest.param("dr_grpo", {"norm_tokens": 4}, 0.143173, id="trl-dr-grpo"),
        pytest.param(
            "dr_grpo", {"norm_tokens": 4, "scale_by_std": True, "epsilon": 1e-4}, 0.24794, id="trl-dr-grpo-scaled"
        ),
        pytest.param("gspo", {}, 0.110729, id="verl-gspo"),
        pytest.param("gspo", {"variant": "token"}, 0.110729, id="verl-gspo-token"),
        pytest.param("gspo", {"epsilon": 1e-4}, 0.11071, id="trl-gspo"),
        pytest.param("gspo", {"epsilon": 1e-4, "aggregation": "token-mean"}, 0.188526, id="trl-gspo-token-mean"),
        pytest.param("cispo", {}, 0.046038, id="verl-cispo"),
        pytest.param("cispo", {"clip_high": 4.0, "epsilon": 1e-4}, 0.316826, id="trl-cispo"),
        pytest.param("cispo", {"clip_high": 4.0}, 0.31688, id="skyrl-cispo"),
        pytest.param("soft_sapo", {}, 0.060995, id="verl-soft-sapo"),
        pytest.param("soft_sapo", {"epsilon": 1e-4}, 0.060985, id="trl-soft-sapo"),
    ],
)
def test_losses(name: str, options: dict, expected: float) -> None:
    algorithm = algos.make(name, **options)
    close(algorithm.loss(algorithm.advantages(BATCH), NEW).loss, expected)


@pytest.mark.parametrize("baseline", ["batch", "group"])
def test_reinforce_pp_advantages(baseline: str) -> None:
    """There is one group, so its mean is the batch's: both give the same."""
    algorithm = algos.make("reinforce_pp", baseline=baseline)
    sizes = tensor([1.044466, -0.870388, -0.870388, 1.044466], dtype=torch.float64)
    close(algorithm.advantages(BATCH).require("advantages", "just made"), sizes[:, None] * MASK)


def test_sapo_penalties() -> None:
    """By hand: responses 0 and 3 are good, and of their five tokens two have fallen, by 0.3 and 0.5."""
    expected = {"released": (0.3 + 0.5) / 5, "paper": (0.3 / 3 + 0.5 / 2) / 4}
    for variant, value in expected.items():
        sapo = algos.make("sapo", variant=variant)
        close(sapo.loss(sapo.advantages(BATCH), NEW).metrics["penalty"], value, digits=1e-12)
    terms = conditional_kl(NEW, OLD, MASK, advantages=SIGNS[:, None].expand(4, 4))
    close(terms, [[0, 0.3, 0, 0], [0] * 4, [0] * 4, [0.5, 0, 0, 0]], digits=1e-12)


def test_metrics() -> None:
    """By hand: of 11 tokens, those with d = .4 and .2 are clipped above (A > 0), with -.25 and -.6 below (A < 0)."""
    grpo = algos.make("grpo")
    metrics = grpo.loss(grpo.advantages(BATCH), NEW, entropy=torch.where(MASK, 2.0, torch.nan)).metrics
    close(metrics["ratio"].double(), LOG_RATIO[MASK].exp().mean())
    close(metrics["kl_old"].double(), -0.077273)
    close(metrics["entropy"].double(), 2.0)
    close(metrics["clip_fraction_high"].double(), 2 / 11)
    close(metrics["clip_fraction_low"].double(), 2 / 11)
    close(metrics["clip_fraction"].double(), 4 / 11)


@pytest.mark.parametrize(("estimator", "expected"), [(kl_k1, 0.077273), (kl_k2, 0.150795), (kl_k3, 0.119551)])
def test_kl_estimators(estimator, expected: float) -> None:
    close(masked_mean(estimator(NEW, OLD, MASK), MASK), expected)


def test_gspo_sequence_ratio() -> None:
    expected = [1.0689391057472464, 1.0, 1.3725449806709298, 0.8607079764250578]
    close(sequence_ratio(NEW, OLD, MASK), expected, digits=1e-12)


def test_gae() -> None:
    """The fixture leaves out its values: [.1, .2, .9, .3] in each row is what solves both of its lines, 27 numbers."""
    values = tensor([0.1, 0.2, 0.9, 0.3], dtype=torch.float64).expand(4, 4)
    rewards = torch.zeros(4, 4).double()
    rewards[:, 3] = REWARDS
    skipping = tensor(
        [
            [0.82675, 0.765, 0, 0.7],
            [-0.04075, 0, -0.885, -0.3],
            [-0.04725, -0.155, -0.9, 0],
            [0.865, 0, 0, 0.7],
        ]
    )
    close(gae(rewards, values, MASK, gamma=1.0, lam=0.95), skipping)
    everywhere = tensor([[0.823662, 0.76175, 0.065, 0.7], [-0.033713, -0.14075, -0.885, -0.3]])[[0, 1, 1, 0]]
    close(gae(rewards, values, torch.ones_like(MASK), gamma=1.0, lam=0.95), everywhere)


def test_the_slopes_of_the_soft_gate() -> None:
    """Case A4: 1 at a ratio of 1 for both signs; at 2, .78645 where A > 0 and .76811 where A < 0."""
    algorithm = algos.make("soft_sapo")
    mask = torch.ones(2, 1, dtype=torch.bool)
    for ratio, slopes in ((1.0, (1.0, 1.0)), (2.0, (0.78645, 0.76811))):
        old = torch.zeros(2, 1, dtype=torch.float64)
        new = (old + tensor(ratio).log()).requires_grad_()
        batch = Batch(mask=mask, old_logprobs=old, rewards=REWARDS[:2], groups=GROUPS[:2])
        batch = batch.with_advantages(tensor([1.0, -1.0], dtype=torch.float64))
        (gradient,) = torch.autograd.grad(algorithm.loss(batch, new).loss, new)
        # The gradient by the log-prob is slope * r * A, averaged over two responses.
        close(-2 * gradient[:, 0] / ratio * tensor([1, -1]), slopes, digits=1e-5)


def test_a_sequence_that_drifted_far_is_finite() -> None:
    """Case A2."""
    mask = tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    drift = tensor([[0.3, -0.3, 0], [0.2, 0.2, 0.9]], dtype=torch.float64)
    close(sequence_ratio(drift, 0 * drift, mask), [1.0, 1.2214], digits=1e-4)
    batch = Batch(mask=mask, old_logprobs=0 * drift, rewards=REWARDS[:2], groups=GROUPS[:2])
    batch = batch.with_advantages(-torch.ones(2, dtype=torch.float64))
    for variant in ("sequence", "token"):
        far = (drift + 200).requires_grad_()
        loss = algos.make("gspo", variant=variant).loss(batch, far).loss
        (gradient,) = torch.autograd.grad(loss, far)
        assert loss.isfinite()
        assert gradient.isfinite().all()
