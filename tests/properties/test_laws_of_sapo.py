"""Laws that tie SAPO to GRPO, and to the tokens that its penalty is about."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, each_aggregation, law, problems, solve

import algos
from algos.primitives import conditional_kl


@each_aggregation
@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@law(problem=problems())
def test_gamma_zero_is_grpo_to_the_bit(aggregation: str, variant: str, kl_coef: float, problem: Problem):
    shared = {"aggregation": aggregation, "kl_coef": kl_coef}
    grpo = solve("grpo", shared, problem)
    sapo = solve("sapo", {**shared, "gamma": 0.0, "variant": variant}, problem)
    assert torch.equal(sapo[0], grpo[0])
    assert torch.equal(sapo[1], grpo[1])
    assert all(torch.equal(sapo[2][key], value) for key, value in grpo[2].items())


@each_aggregation
@pytest.mark.parametrize("variant", ["paper", "released"])
@law(problem=problems(), tau=st.sampled_from([0.5, 0.9, 1.0, 1.2, 3.0]))
def test_the_penalty_touches_the_tokens_it_names(aggregation: str, variant: str, problem: Problem, tau: float):
    sapo = algos.SAPO(aggregation=aggregation, variant=variant, tau=tau)
    batch = sapo.advantages(problem.batch)
    advantages = batch.require("advantages", "just made")
    logprobs = problem.logprobs.clone().requires_grad_()
    penalty = sapo.penalty(batch, logprobs, advantages)
    (gradient,) = torch.autograd.grad(penalty, logprobs)
    ratio = (problem.logprobs - batch.old_logprobs).exp()
    named = (
        (ratio < tau) & (advantages > 0) if variant == "paper" else (ratio <= tau) & (advantages >= 0) & batch.rewarded
    )
    assert torch.equal(gradient < 0, batch.mask & named)
    assert not (gradient > 0).any()
    if tau <= 1:
        assert penalty >= 0


@law(old=st.floats(-5, 0), change=st.floats(-5, 5), further=st.floats(0, 5), tau=st.sampled_from([0.3, 0.9, 1.0]))
def test_the_penalty_of_a_token_falls_as_its_ratio_rises(old: float, change: float, further: float, tau: float):
    mask, good = torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1, dtype=torch.float64)
    before = torch.full((1, 1), old, dtype=torch.float64)
    low, high = (conditional_kl(before + by, before, mask, tau, good) for by in (change, change + further))
    assert low >= high >= 0


@law(problem=problems(), tau=st.sampled_from([0.5, 1.0, 1.2]))
def test_there_is_no_penalty_where_no_response_is_good(problem: Problem, tau: float):
    sapo = algos.SAPO(tau=tau)
    for advantage in (0.0, -1.0):
        batch = sapo.advantages(problem.batch).with_advantages(torch.full_like(problem.batch.rewards, advantage))
        assert sapo.penalty(batch, problem.logprobs, batch.require("advantages", "just made")) == 0


@law(problem=problems(spreads=(1e4,)))
def test_the_unconditional_kl_counts_ratios_that_overflow(problem: Problem):
    """tau = inf is above any ratio, that of exp(1e4) as well."""
    batch = problem.batch
    terms = conditional_kl(problem.logprobs, batch.old_logprobs, batch.mask, math.inf)
    assert torch.equal(terms, (batch.old_logprobs - problem.logprobs).where(batch.mask, 0))
