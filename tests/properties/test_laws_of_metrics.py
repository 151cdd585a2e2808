"""Each metric is what its one definition says, counted token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, critic, law, problems
from torch import Tensor

import algos
from algos.batch import Batch
from algos.primitives import importance_ratio, response_ratio, sequence_ratio

PER_TOKEN = ["dapo", "dr_grpo", "grpo", "grpo_kl", "lld", "ppo", "reinforce_pp", "rloo", "sapo"]
CLIPS = st.sampled_from([(0.1, 0.5), (0.0, 0.0)])
NEAR = st.one_of(problems(smooth=True), problems(spreads=(0.0, 0.3, 3.0)))


def metrics_of(algorithm: algos.Algorithm, problem: Problem, entropy: Tensor | None = None) -> tuple[Batch, dict]:
    batch = algorithm.advantages(problem.batch)
    return batch, algorithm.loss(batch, problem.logprobs, entropy, **critic(algorithm, batch)).metrics


def share(batch: Batch, ratio: Tensor, condition: Callable[[float, float], bool]) -> float:
    """The share of policy tokens whose ratio and advantage meet a condition."""
    advantages = batch.require("advantages", "just made")
    places = batch.mask.nonzero().tolist()
    held = [condition(ratio[row, column].item(), advantages[row, column].item()) for row, column in places]
    return sum(held) / len(held) if held else 0.0


def check_shares(name: str, batch: Batch, metrics: dict, ratio: Tensor, clips: tuple[float, float], dual: float):
    low, high = clips
    expected = {
        "clip_fraction_low": share(batch, ratio, lambda r, a: r < 1 - low and a < 0),
        "clip_fraction_high": share(batch, ratio, lambda r, a: r > 1 + high and a > 0),
    }
    if dual < math.inf:
        expected["clip_fraction_dual"] = share(batch, ratio, lambda r, a: r > dual and a < 0)
    expected["clip_fraction"] = sum(expected.values())
    found = {key: value.item() for key, value in metrics.items() if key.startswith("clip_fraction")}
    assert found == pytest.approx(expected), name


@pytest.mark.parametrize("name", PER_TOKEN)
@law(problem=NEAR, clips=CLIPS, dual=st.sampled_from([1.5, math.inf]))
def test_clip_fractions_count_the_tokens_that_the_clip_holds(
    name: str, problem: Problem, clips: tuple[float, float], dual: float
):
    algorithm = algos.make(name, clip_low=clips[0], clip_high=clips[1], dual_clip=dual)
    batch, metrics = metrics_of(algorithm, problem)
    ratio = importance_ratio(problem.logprobs, batch.old_logprobs, batch.mask)
    check_shares(name, batch, metrics, ratio, clips, dual)


@pytest.mark.parametrize(
    ("name", "options", "of_row"),
    [
        ("gspo", {}, sequence_ratio),
        ("gspo", {"variant": "token"}, sequence_ratio),
        ("rloo", {"ratio": "response"}, response_ratio),
    ],
)
@law(problem=NEAR, clips=CLIPS, dual=st.sampled_from([1.5, math.inf]))
def test_of_whole_responses_they_count_the_tokens_of_those(
    name: str, options: dict, of_row: Callable, problem: Problem, clips: tuple[float, float], dual: float
):
    algorithm = algos.make(name, clip_low=clips[0], clip_high=clips[1], dual_clip=dual, **options)
    batch, metrics = metrics_of(algorithm, problem)
    ratio = of_row(problem.logprobs, batch.old_logprobs, batch.mask)[:, None].expand_as(batch.mask)
    check_shares(name, batch, metrics, ratio, clips, dual)


@law(problem=NEAR, clips=CLIPS)
def test_of_cispo_they_count_the_weights_that_are_bounded(problem: Problem, clips: tuple[float, float]):
    low, high = clips
    batch, metrics = metrics_of(algos.make("cispo", clip_low=low, clip_high=high), problem)
    ratio = importance_ratio(problem.logprobs, batch.old_logprobs, batch.mask)
    expected = {
        "clip_fraction_low": share(batch, ratio, lambda r, _: r < 1 - low),
        "clip_fraction_high": share(batch, ratio, lambda r, _: r > 1 + high),
    }
    expected["clip_fraction"] = sum(expected.values())
    found = {key: value.item() for key, value in metrics.items() if key.startswith("clip_fraction")}
    assert found == pytest.approx(expected)


def test_a_ratio_at_the_dual_bound_is_not_beyond_it() -> None:
    logprobs = torch.full((1, 1), 0.5, dtype=torch.float64)
    batch = Batch(
        mask=torch.ones(1, 1, dtype=torch.bool),
        old_logprobs=0 * logprobs,
        rewards=torch.ones(1),
        groups=torch.zeros(1, dtype=torch.int64),
    ).with_advantages(torch.tensor([-1.0], dtype=torch.float64))
    for bound, expected in ((logprobs.exp().item(), 0.0), (1.6, 1.0)):
        metrics = algos.GRPO(dual_clip=bound).loss(batch, logprobs).metrics
        assert metrics["clip_fraction_dual"] == expected


@pytest.mark.parametrize("name", algos.available())
@law(problem=NEAR)
def test_means_over_the_policy_s_tokens(name: str, problem: Problem):
    entropy = problem.batch.old_logprobs.abs()
    batch, metrics = metrics_of(algos.make(name), problem, entropy)
    reference, sampled = (batch.require(field, "problems have it") for field in ("ref_logprobs", "rollout_logprobs"))
    log_r = problem.logprobs - batch.old_logprobs
    behind = reference - problem.logprobs
    expected = {
        "ratio": log_r.exp(),
        "kl_old": -log_r,
        "kl_ref": behind.exp() - 1 - behind,
        "mismatch": (batch.old_logprobs - sampled).abs(),
        "entropy": entropy,
    }
    for key, values in expected.items():
        mean = values[batch.mask].mean() if batch.mask.any() else torch.tensor(0.0, dtype=torch.float64)
        torch.testing.assert_close(metrics[key], mean, msg=key)


@pytest.mark.parametrize(
    ("name", "weight"), [("sapo", "gamma"), ("grpo_kl", "gamma"), ("grpo_kl_r", "gamma"), ("lld", "lambda_")]
)
@law(problem=NEAR, strength=st.sampled_from([0.0, 0.3, 2.0]))
def test_what_is_left_of_a_loss_without_its_penalty_is_grpo(name: str, weight: str, problem: Problem, strength: float):
    options: dict[str, Any] = {weight: strength}
    algorithm = algos.make(name, aggregation="token-mean", **options)
    batch, logprobs = algorithm.advantages(problem.batch), problem.logprobs.clone().requires_grad_()
    out, grpo = algorithm.loss(batch, logprobs), algos.GRPO(aggregation="token-mean").loss(batch, logprobs)
    assert out.penalty is not None
    (rest,) = torch.autograd.grad(out.loss - out.penalty, logprobs, retain_graph=True)
    (expected,) = torch.autograd.grad(grpo.loss, logprobs)
    assert_same(out.loss - out.penalty, grpo.loss)
    assert_same(rest, expected)
    assert_same(out.penalty, strength * out.metrics["penalty"])


@pytest.mark.parametrize(
    "name", [name for name in algos.available() if name not in ("sapo", "grpo_kl", "grpo_kl_r", "lld")]
)
@law(problem=NEAR)
def test_the_others_have_no_penalty(name: str, problem: Problem):
    algorithm = algos.make(name)
    batch = algorithm.advantages(problem.batch)
    assert algorithm.loss(batch, problem.logprobs, **critic(algorithm, batch)).penalty is None
