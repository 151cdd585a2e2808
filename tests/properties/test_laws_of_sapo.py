"""Laws that tie SAPO to GRPO, and to the tokens that its penalty is about."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, each_aggregation, law, problems, solve

import algos


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
    named = (ratio < tau) & (advantages > 0) if variant == "paper" else (ratio <= tau) & (advantages >= 0)
    assert torch.equal(gradient < 0, batch.mask & named)
    assert not (gradient > 0).any()
    if tau <= 1:
        assert penalty >= 0
