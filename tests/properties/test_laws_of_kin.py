"""How algorithms are related: each law holds one to another, which is held to its paper elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, each_aggregation, evaluate, law, problems, solve

import algos
from algos.dapo import informative, overlong_penalty, without_truncated
from algos.primitives import average, importance_ratio

CLIPS = {"clip_low": 0.2, "clip_high": 0.2}


def assert_same_step(found: tuple, expected: tuple) -> None:
    """Equal losses and gradients."""
    assert_same(found[:2], expected[:2])


@law(problem=problems())
def test_dapo_with_equal_clips_is_grpo_with_the_token_mean(problem: Problem):
    assert_same_step(solve("dapo", {"clip_high": 0.2}, problem), solve("grpo", {"aggregation": "token-mean"}, problem))


@law(problem=problems())
def test_grpo_of_the_population_std_is_dr_grpo_over_the_std(problem: Problem):
    batch = problem.batch
    grpo, dr_grpo = (
        algorithm.advantages(batch).require("advantages", "just made")
        for algorithm in (algos.make("grpo", ddof=0, epsilon=0.0), algos.make("dr_grpo"))
    )
    for number in batch.groups.unique():
        members = (batch.groups == number) & ~batch.rewards.isnan()
        if members.any():
            std = batch.rewards[members].std(correction=0)
            torch.testing.assert_close(grpo[members] * std, dr_grpo[members])


@law(problem=problems(), norm=st.floats(0.5, 5000))
def test_the_constant_of_dr_grpo_only_scales(problem: Problem, norm: float):
    found = solve("dr_grpo", {"norm_tokens": norm}, problem)
    expected = solve("dr_grpo", {"norm_tokens": 1.0}, problem)
    assert_same([norm * part for part in found[:2]], list(expected[:2]))


@each_aggregation
@pytest.mark.parametrize(
    ("name", "options"), [("grpo_kl", {"gamma": 0.0}), ("grpo_kl_r", {"gamma": 0.0}), ("sapo", {"tau": 0.0})]
)
@law(problem=problems())
def test_without_their_penalty_they_are_grpo(name: str, options: dict, aggregation: str, problem: Problem):
    shared = {"aggregation": aggregation}
    assert_same_step(solve(name, {**shared, **options}, problem), solve("grpo", shared, problem))


@law(problem=problems())
def test_the_conditions_of_sapo_are_those_of_its_ablation_and_one_more(problem: Problem):
    """Where no advantage is above 0, SAPO is GRPO; where all are, it is GRPO + KL_r."""
    for sign, kin in ((-1.0, "grpo"), (1.0, "grpo_kl_r")):
        steps = [
            evaluate(algorithm, algorithm.advantages(problem.batch).with_advantages(
                torch.full_like(problem.batch.rewards, sign)), problem.logprobs)
            for algorithm in (algos.make("sapo"), algos.make(kin))
        ]  # fmt: skip
        assert_same_step(*steps)


@pytest.mark.parametrize("variant", ["sequence", "token"])
@law(problem=problems())
def test_gspo_of_responses_of_one_token_is_grpo(variant: str, problem: Problem):
    first = problem.batch.mask & (problem.batch.mask.cumsum(1) == 1)
    short = Problem(replace(problem.batch, mask=first), problem.logprobs).poisoned(float("nan"))
    found, expected = solve("gspo", {**CLIPS, "variant": variant}, short), solve("grpo", CLIPS, short)
    assert_same(found[0], expected[0])
    inside = (problem.logprobs - problem.batch.old_logprobs).abs() < 20  # beyond, a bounded ratio has no gradient
    kept = first & inside
    assert_same(found[1][kept], expected[1][kept])


@each_aggregation
@law(problem=problems(spreads=(0.0, 0.3, 3.0)))
def test_both_forms_of_gspo_have_one_value_and_one_gradient(aggregation: str, problem: Problem):
    sequence, token = (
        solve("gspo", {**CLIPS, "aggregation": aggregation, "variant": variant}, problem)
        for variant in ("sequence", "token")
    )
    assert_same(token[0], sequence[0])
    assert_same(token[1], sequence[1])


@each_aggregation
@law(problem=problems())
def test_cispo_is_reinforce_with_a_bounded_weight(aggregation: str, problem: Problem):
    algorithm = algos.make("cispo", aggregation=aggregation, clip_low=0.3, clip_high=0.5)
    batch = algorithm.advantages(problem.batch)
    logprobs = problem.logprobs.clone().requires_grad_()
    weight = importance_ratio(logprobs, batch.old_logprobs, batch.mask).detach().clamp(0.7, 1.5)
    advantages = batch.require("advantages", "just made")
    reinforce = average(torch.where(batch.mask, -weight * advantages * logprobs, 0), batch, aggregation)
    (expected,) = torch.autograd.grad(reinforce, logprobs)
    assert_same(evaluate(algorithm, batch, problem.logprobs)[1], torch.where(batch.mask, expected, 0))


@law(problem=problems())
def test_dynamic_sampling_drops_exactly_the_groups_without_variance(problem: Problem):
    batch = problem.batch
    kept = informative(batch)
    for number in batch.groups.unique():
        members = batch.groups == number
        different = len(batch.rewards[members & ~batch.rewards.isnan()].unique()) > 1
        assert (kept[members] == different).all()
    advantages = algos.make("dapo").advantages(batch).require("advantages", "just made")
    assert not advantages[~kept].any()
    assert torch.equal(informative(batch.select(kept)), torch.ones(int(kept.sum()), dtype=torch.bool))


@law(problem=problems(), truncated=st.lists(st.booleans(), min_size=6, max_size=6))
def test_truncated_responses_take_no_part(problem: Problem, truncated: list[bool]):
    algorithm = algos.make("dapo")
    batch = algorithm.advantages(problem.batch)
    cut = torch.tensor(truncated[: len(batch)])
    loss, gradient, _ = evaluate(algorithm, without_truncated(batch, cut), problem.logprobs)
    assert not gradient[cut].any()
    rest = evaluate(algorithm, batch.select(~cut), problem.logprobs[~cut])
    assert_same((loss, gradient[~cut]), rest[:2])


@law(limit=st.integers(1, 50), data=st.data())
def test_the_overlong_penalty_falls_from_0_to_minus_1(limit: int, data: st.DataObject):
    buffer = data.draw(st.integers(1, limit))
    penalties = overlong_penalty(torch.arange(2 * limit + 1), limit, buffer)
    assert not penalties[: limit - buffer + 1].any()
    assert (penalties[limit:] == -1).all()
    torch.testing.assert_close(penalties[limit - buffer : limit + 1].diff(), torch.full((buffer,), -1 / buffer))
    for wrong in (0, limit + 1):
        with pytest.raises(ValueError, match="buffer must be in"):
            overlong_penalty(torch.arange(3), limit, wrong)
