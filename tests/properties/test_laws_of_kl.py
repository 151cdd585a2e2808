"""Laws of the KL estimators, and of the KL to a reference policy in the loss and in the reward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, law, problems, solve

import algos
from algos.primitives import KL_ESTIMATORS, average, group_advantages, kl_k1, kl_k2, kl_k3

each_estimator = pytest.mark.parametrize("estimator", KL_ESTIMATORS)
SEEDS = st.integers(0, 2**32 - 1)


@law(problem=problems())
def test_k2_and_k3_are_never_negative(problem: Problem):
    for estimator in (kl_k2, kl_k3):
        assert (estimator(problem.logprobs, problem.batch.old_logprobs, problem.batch.mask) >= 0).all()


@law(seed=SEEDS, size=st.sampled_from([1e-1, 1e-2, 1e-3]))
def test_the_estimators_agree_to_second_order(seed: int, size: float):
    """k1 and k3 have the KL as their mean, k2 up to the third power of the log-ratio; and k2 = k3 up to that too."""
    generator = torch.Generator().manual_seed(seed)
    logits, change = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    p, q = (given.log_softmax(0) for given in (logits, logits + size * change))
    k1, k2, k3 = (p.exp() @ estimator(p, q) for estimator in (kl_k1, kl_k2, kl_k3))
    kl = torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True)
    torch.testing.assert_close(k1, kl, rtol=1e-6, atol=1e-15)
    torch.testing.assert_close(k3, kl, rtol=1e-6, atol=1e-15)
    third = (p - q).abs().pow(3).max()
    assert abs(k2 - kl) <= third
    rounding = 1e-15
    assert ((kl_k2(p, q) - kl_k3(p, q)).abs() <= (p - q).abs().pow(3) + rounding).all()


@law(seed=SEEDS)
def test_the_gradient_of_k2_is_that_of_the_kl_and_that_of_k1_is_none(seed: int):
    """In expectation over samples of the policy, as the docstrings say."""
    logits, other = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits, q = logits.requires_grad_(), other.log_softmax(0)
    p = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits, retain_graph=True)
    k1, k2 = (
        torch.autograd.grad(p.detach().exp() @ estimator(p, q), logits, retain_graph=True)[0]
        for estimator in (kl_k1, kl_k2)
    )
    torch.testing.assert_close(k2, exact)
    torch.testing.assert_close(k1, torch.zeros(6).double(), rtol=0, atol=1e-12)


@each_estimator
@pytest.mark.parametrize("name", ["grpo", "sapo", "soft_sapo", "cispo", "gspo", "rloo"])
@law(problem=problems(spreads=(0.0, 0.3, 3.0)))
def test_in_the_loss_it_is_a_term(estimator: str, name: str, problem: Problem):
    options = {"kl_coef": 0.3, "kl_estimator": estimator}
    found, without = solve(name, options, problem), solve(name, {}, problem)
    reference = problem.batch.require("ref_logprobs", "problems have them")
    logprobs = problem.logprobs.clone().requires_grad_()
    aggregation = getattr(algos.make(name), "aggregation", "")
    term = average(KL_ESTIMATORS[estimator](logprobs, reference, problem.batch.mask), problem.batch, aggregation)
    (gradient,) = torch.autograd.grad(term, logprobs)
    assert_same(found[0], without[0] + 0.3 * term.detach())
    assert_same(found[1], without[1] + 0.3 * gradient)


@each_estimator
@law(problem=problems())
def test_in_the_reward_it_is_a_cost_of_the_response(estimator: str, problem: Problem):
    batch = problem.batch
    reference = batch.require("ref_logprobs", "problems have them")
    cost = KL_ESTIMATORS[estimator](batch.old_logprobs, reference, batch.mask).sum(1)
    options = {"kl_coef": 0.3, "kl_estimator": estimator, "kl_in": "reward"}
    found = algos.make("grpo", **options).advantages(batch)
    expected = group_advantages(batch.rewards - 0.3 * cost, batch.groups)
    assert_same(found.advantages, torch.where(batch.mask, expected[:, None], 0))


@each_estimator
@law(problem=problems())
def test_in_the_reward_of_a_token_it_is_a_cost_from_there_on(estimator: str, problem: Problem):
    """PPO without values: a token's advantage is the reward minus the costs of itself and of all later tokens."""
    batch = replace(problem.batch, values=torch.zeros_like(problem.logprobs))
    reference = batch.require("ref_logprobs", "problems have them")
    costs = KL_ESTIMATORS[estimator](batch.old_logprobs, reference, batch.mask)
    to_go = costs.flip(1).cumsum(1).flip(1)
    options = {"kl_coef": 0.3, "kl_estimator": estimator, "kl_in": "reward", "whiten_advantages": False}
    found = algos.make("ppo", **options).advantages(batch).require("advantages", "just made")
    learnt = batch.mask & ~batch.rewards.isnan()[:, None]
    assert_same(found, torch.where(learnt, batch.rewards.nan_to_num(0.0)[:, None] - 0.3 * to_go, 0))


def test_the_reference_is_asked_for_by_name() -> None:
    assert algos.GRPO(kl_coef=0.1).needs == ("ref_logprobs",)
    assert algos.GRPO().needs == ()
    assert algos.PPO(kl_coef=0.1).needs == ("ref_logprobs", "values")
