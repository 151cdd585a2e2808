"""Laws of the correction for a sampler whose log-probs are not quite the policy's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, evaluate, law, problems, solve

import algos
from algos.batch import Batch
from algos.primitives import CORRECTIONS, average, mismatch_weights

each_correction = pytest.mark.parametrize("correction", CORRECTIONS)
each_algorithm = pytest.mark.parametrize("name", algos.available())
BOUNDS = {"low": st.sampled_from([0.0, 0.5, 1.0]), "high": st.sampled_from([1.0, 1.3, 2.0, 5.0])}


@each_correction
@law(problem=problems(spreads=(0.0, 3.0, 30.0)), **BOUNDS)
def test_weights_are_what_they_are_said_to_be(correction: str, problem: Problem, low: float, high: float):
    batch = problem.batch
    sampled = batch.require("rollout_logprobs", "problems have them")
    found = mismatch_weights(batch.old_logprobs, sampled, batch.mask, correction, low, high)
    for row, kept in enumerate(batch.mask):
        logs = (batch.old_logprobs - sampled)[row][kept].tolist()
        if correction.startswith("sequence"):
            logs = [sum(logs)] * len(logs)
        for weight, log in zip(found[row][kept].tolist(), logs, strict=True):
            exact = math.exp(min(max(log, -20.0), 20.0))
            inside = low <= exact <= high
            bounded = min(max(exact, low), high) if correction.endswith("truncate") else exact * inside
            assert weight == pytest.approx(bounded, rel=1e-9) or abs(exact - high) < 1e-9 or abs(exact - low) < 1e-9
    assert (found[~batch.mask] == 1).all()


@each_correction
@each_algorithm
@law(problem=problems())
def test_a_sampler_that_agrees_changes_nothing(name: str, correction: str, problem: Problem):
    agreeing = Problem(replace(problem.batch, rollout_logprobs=problem.batch.old_logprobs), problem.logprobs)
    expected = solve(name, {}, agreeing)
    for bounds in ({}, {"correction_low": 1.0, "correction_high": 1.0}):  # a weight of 1 is inside even then
        found = solve(name, {"correction": correction, **bounds}, agreeing)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


@each_correction
def test_a_weight_has_no_gradient(correction: str) -> None:
    old = torch.zeros(1, 2, requires_grad=True)
    weights = mismatch_weights(old, torch.full((1, 2), -0.1), torch.ones(1, 2, dtype=torch.bool), correction)
    assert not weights.requires_grad


@each_algorithm
@law(problem=problems())
def test_it_is_off_unless_asked_for(name: str, problem: Problem):
    """The sampler's log-probs then have no influence, and need not be there; the mismatch is reported all the same."""
    found = solve(name, {}, problem)
    without = solve(name, {}, Problem(replace(problem.batch, rollout_logprobs=None), problem.logprobs))
    assert torch.equal(found[0], without[0])
    assert torch.equal(found[1], without[1])
    batch = problem.batch
    difference = (batch.old_logprobs - batch.require("rollout_logprobs", "problems have them")).abs()
    expected = difference[batch.mask].mean() if batch.mask.any() else torch.tensor(0.0).double()
    torch.testing.assert_close(found[2]["mismatch"], expected)
    assert "mismatch" not in without[2]


@each_correction
@law(problem=problems(spreads=(0.3, 3.0)))
def test_it_weighs_the_gain_and_not_the_kl(correction: str, problem: Problem):
    """Of CISPO, whose gain is a product: the gradient of each token times its weight, and the KL's beside it."""
    options = {"kl_coef": 0.2, "correction": correction, "correction_high": 1.5}
    algorithm = algos.make("cispo", **options)
    batch = algorithm.advantages(problem.batch)
    sampled = batch.require("rollout_logprobs", "problems have them")
    weights = mismatch_weights(batch.old_logprobs, sampled, batch.mask, correction, 0.0, 1.5)
    plain, with_kl = (
        evaluate(algos.make("cispo", kl_coef=coefficient), batch, problem.logprobs) for coefficient in (0.0, 0.2)
    )
    found = evaluate(algorithm, batch, problem.logprobs)
    assert_same(found[1], plain[1] * weights + (with_kl[1] - plain[1]))


def test_without_the_sampler_s_log_probs_it_says_what_is_missing() -> None:
    batch = Batch(
        mask=torch.ones(2, 1, dtype=torch.bool),
        old_logprobs=torch.zeros(2, 1),
        rewards=torch.tensor([1.0, 0.0]),
        groups=torch.zeros(2, dtype=torch.int64),
    )
    algorithm = algos.make("grpo", correction="token-truncate")
    with pytest.raises(ValueError, match=r"Batch.rollout_logprobs is missing: the correction compares"):
        algorithm.loss(algorithm.advantages(batch), torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"unknown correction 'token'; there are: token-truncate, "):
        mismatch_weights(batch.old_logprobs, batch.old_logprobs, batch.mask, "token")


def test_a_sampler_that_cuts_the_tail_off_does_not_move_the_ratio() -> None:
    """Case M3: probabilities .5, .3, .2 under top-p .8, so the sampler says log .625 of token 0."""
    batch = Batch(
        mask=torch.ones(2, 1, dtype=torch.bool),
        old_logprobs=torch.full((2, 1), 0.5).log(),
        rollout_logprobs=torch.full((2, 1), 0.625).log(),
        rewards=torch.tensor([1.0, 0.0]),
        groups=torch.zeros(2, dtype=torch.int64),
    )
    for name in sorted({*algos.available()} - {"ppo"}):
        algorithm = algos.make(name)
        metrics = algorithm.loss(algorithm.advantages(batch), batch.old_logprobs).metrics
        assert metrics["ratio"] == 1
        assert average(batch.old_logprobs, batch, "token-mean") == pytest.approx(math.log(0.5))
        assert metrics["mismatch"] == pytest.approx(math.log(0.625 / 0.5))
