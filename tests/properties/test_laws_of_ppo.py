"""Laws of PPO's advantages and of its critic's loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, critic, evaluate, law, problems, solve
from torch import Tensor

import algos
from algos.batch import Batch
from algos.primitives import average, clipped_gain, gae, value_losses, whiten

SHARES = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def direct(rewards: list[float], values: list[float], gamma: float, lam: float, final: float) -> list[float]:
    """Eq. 16 as it is written, a sum for each token, over tokens that all count."""
    after = [*values, final][1:]
    deltas = [reward + gamma * then - now for reward, then, now in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


@law(problem=problems(), gamma=SHARES, lam=SHARES, bootstrap=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_gae_is_the_direct_sum_with_masked_tokens_removed(
    problem: Problem, gamma: float, lam: float, bootstrap: bool, seed: int
):
    mask = problem.batch.mask
    rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = problem.batch.require("values", "problems have them")
    final = problem.batch.require("final_values", "problems have them") if bootstrap else None
    found = gae(rewards.where(mask, math.nan), values, mask, gamma, lam, final)
    assert not found[~mask].any()
    for row, kept in enumerate(mask):
        last = 0.0 if final is None else final[row].item()
        expected = direct(rewards[row][kept].tolist(), values[row][kept].tolist(), gamma, lam, last)
        torch.testing.assert_close(found[row][kept].tolist(), expected)


@law(problem=problems())
def test_without_values_and_discount_an_advantage_is_the_reward_to_go(problem: Problem):
    batch = replace(problem.batch, values=torch.zeros_like(problem.batch.old_logprobs))
    found = algos.make("ppo", whiten_advantages=False).advantages(batch)
    to_go = batch.rewards.nan_to_num(0.0)[:, None].expand_as(batch.mask).where(batch.mask, 0)
    assert_same(found.advantages, to_go)
    assert_same(found.returns, to_go)


@law(problem=problems(), gamma=SHARES)
def test_without_values_ppo_is_reinforce_pp(problem: Problem, gamma: float):
    """Of its own options: the critic's loss aside, both whiten the returns and clip as PPO does."""
    blind = Problem(replace(problem.batch, values=torch.zeros_like(problem.logprobs)), problem.logprobs)
    ppo = solve("ppo", {"gamma": gamma, "value_coef": 0.0}, blind)
    assert_same(ppo[:2], solve("reinforce_pp", {"gamma": gamma}, blind)[:2])


@law(problem=problems())
def test_whitened_advantages_have_mean_0_and_variance_1(problem: Problem):
    batch = problem.batch
    learnt = batch.mask & ~batch.rewards.isnan()[:, None]
    advantages = algos.make("ppo").advantages(batch).require("advantages", "just made")
    assert not advantages[~learnt].any()
    if learnt.sum() > 1:
        torch.testing.assert_close(advantages[learnt].mean(), torch.tensor(0.0).double(), rtol=0, atol=1e-9)
        torch.testing.assert_close(advantages[learnt].var(), torch.tensor(1.0).double(), rtol=1e-6, atol=0)


@law(size=st.integers(0, 9), value=st.floats(-1e6, 1e6))
def test_equal_values_whiten_to_0_however_they_round(size: int, value: float):
    for dtype in (torch.float32, torch.float64):
        assert not whiten(torch.full((1, size), value, dtype=dtype), torch.ones(1, size, dtype=torch.bool)).any()


@law(problem=problems())
def test_only_truncated_responses_go_on_with_the_value_of_their_last_state(problem: Problem):
    """Case G2: and only if they are asked to. With lambda 1 what is added is that value, to every token."""
    cut, final = (problem.batch.require(name, "problems have it") for name in ("truncated", "final_values"))
    ended, going_on = (
        algos.make("ppo", whiten_advantages=False, bootstrap_truncated=asked).advantages(problem.batch)
        for asked in (False, True)
    )
    learnt = problem.batch.mask & ~problem.batch.rewards.isnan()[:, None]
    added = torch.where(learnt & cut[:, None], final[:, None], 0)
    assert_same(going_on.require("advantages", "") - ended.require("advantages", ""), added)


@law(problem=problems())
def test_a_missing_reward_teaches_nothing(problem: Problem):
    """Case M7."""
    missing = problem.batch.rewards.isnan()
    algorithm = algos.make("ppo")
    batch = algorithm.advantages(problem.batch)
    assert not batch.require("advantages", "just made")[missing].any()
    assert not batch.require("returns", "just made")[~batch.mask].any()
    still = {"values": batch.require("values", "problems have them").clone().requires_grad_()}
    (gradient,) = torch.autograd.grad(algorithm.loss(batch, problem.logprobs, **still).loss, still["values"])
    assert not gradient[missing].any()


def test_whitening_adds_its_epsilon_to_the_variance() -> None:
    """Of [0, 1e-4], whose variance of 5e-9 is half of the epsilon."""
    found = whiten(torch.tensor([[0.0, 1e-4]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool))
    size = 0.5e-4 / (0.5e-8 + 1e-8) ** 0.5
    torch.testing.assert_close(found, torch.tensor([[-size, size]], dtype=torch.float64))


# The critic's loss


def value_gradient(algorithm: algos.PPO, batch: Batch, problem: Problem, values: Tensor) -> tuple[Tensor, Tensor]:
    values = values.clone().requires_grad_()
    loss, metrics = (out := algorithm.loss(batch, problem.logprobs, values=values)).loss, out.metrics
    assert not any(value.requires_grad for value in metrics.values())
    return loss.detach(), torch.autograd.grad(loss, values)[0]


@law(problem=problems(), other=st.sampled_from([0.0, -7.0, math.inf, math.nan]), clip=st.sampled_from([0.1, math.inf]))
def test_values_at_masked_places_have_no_influence_and_no_gradient(problem: Problem, other: float, clip: float):
    algorithm = algos.PPO(value_clip=clip)
    batch, again = (algorithm.advantages(p.batch) for p in (problem, problem.poisoned(other)))
    values = critic(algorithm, batch)["values"]
    loss, gradient = value_gradient(algorithm, batch, problem, values)
    assert loss.isfinite()
    assert (gradient[~batch.mask] == 0).all()
    expected = value_gradient(algorithm, again, problem, values.where(batch.mask, other))
    assert torch.equal(loss, expected[0])
    assert torch.equal(gradient, expected[1])


@law(problem=problems(spreads=(0.3,)), clip=st.sampled_from([0.1, 0.5, math.inf]))
def test_the_value_loss_is_the_larger_of_two_squares(problem: Problem, clip: float):
    """Written out token by token; and its gradient ends where the clipped value is the worse one."""
    batch = algos.make("ppo").advantages(problem.batch)
    old, returns = (batch.require(name, "made") for name in ("values", "returns"))
    values = critic(algos.make("ppo"), batch)["values"].clone().requires_grad_()
    losses = value_losses(values, old, returns, batch.mask, clip)
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    for place in batch.mask.nonzero().tolist():
        row, column = place
        v, v_old, g = (float(given[row, column]) for given in (values.detach(), old, returns))
        clipped = min(max(v, v_old - clip), v_old + clip)
        assert losses[row, column].item() == pytest.approx(max((v - g) ** 2, (clipped - g) ** 2) / 2)
        stopped = abs(v - v_old) > clip and (clipped - g) ** 2 > (v - g) ** 2
        assert gradient[row, column].item() == pytest.approx(0 if stopped else v - g)
    assert not losses[~batch.mask].any()


@law(problem=problems(), coefficient=st.sampled_from([0.0, 0.5, 2.0]))
def test_the_loss_is_the_policy_s_and_the_critic_s(problem: Problem, coefficient: float):
    algorithm = algos.PPO(value_coef=coefficient)
    batch = algorithm.advantages(problem.batch)
    values = critic(algorithm, batch)["values"]
    alone = evaluate(algos.PPO(value_coef=0.0), batch, problem.logprobs)
    both = evaluate(algorithm, batch, problem.logprobs)
    old, returns = (batch.require(name, "made") for name in ("values", "returns"))
    error = average(value_losses(values, old, returns, batch.mask, 0.5), batch, "token-mean")
    assert_same(both[0], alone[0] + coefficient * error)
    assert_same(both[1], alone[1])
    expected = average((values - returns).where(batch.mask, 0).square(), batch, "token-mean")
    assert_same(both[2]["value_error"], expected)


def test_the_loss_needs_the_critic() -> None:
    batch = Batch(
        mask=torch.ones(1, 1, dtype=torch.bool),
        old_logprobs=torch.zeros(1, 1),
        rewards=torch.ones(1),
        groups=torch.zeros(1, dtype=torch.int64),
    )
    with pytest.raises(ValueError, match=r"Batch.values is missing: a critic must score the batch first"):
        algos.make("ppo").advantages(batch)
    batch = replace(batch, values=torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"Batch.final_values is missing: bootstrap_truncated asks for it"):
        algos.make("ppo", bootstrap_truncated=True).advantages(batch)
    batch = algos.make("ppo").advantages(batch)
    with pytest.raises(ValueError, match=r"its loss takes the values \[B, T\]"):
        algos.make("ppo").loss(batch, torch.zeros(1, 1))


# The policy's clip


@law(
    ratio=st.floats(0, 100),
    advantage=st.floats(-5, 5),
    low=st.floats(0, 0.9),
    high=st.floats(0, 5),
    dual=st.one_of(st.floats(1.01, 20), st.just(math.inf)),
)
def test_the_clipped_gain_is_what_its_papers_say(ratio: float, advantage: float, low: float, high: float, dual: float):
    gain = clipped_gain(torch.tensor(ratio).double(), torch.tensor(advantage).double(), low, high, dual).item()
    expected = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if advantage < 0 and dual < math.inf:
        expected = max(expected, dual * advantage)
    assert gain == pytest.approx(expected)
