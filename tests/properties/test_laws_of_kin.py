"""How algorithms are related: each law holds one to another, which is held to its paper elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from problems import Problem, assert_same, each_aggregation, evaluate, law, problems, solve

import algos
from algos.batch import Batch
from algos.dapo import informative, overlong_penalty
from algos.primitives import average, group_advantages, importance_ratio

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


@law(problem=problems())
def test_overlong_filtering_leaves_truncated_responses_out_of_the_loss(problem: Problem):
    """And nothing else: their rewards stay in their groups."""
    cut = problem.batch.require("truncated", "problems have it")
    loss, gradient, _ = solve("dapo", {"drop_truncated": True}, problem)
    assert not gradient[cut].any()
    dapo = algos.make("dapo")
    rest = evaluate(dapo, dapo.advantages(problem.batch).select(~cut), problem.logprobs[~cut])
    assert_same((loss, gradient[~cut]), rest[:2])


@law(problem=problems(), limit=st.integers(2, 8), data=st.data())
def test_overlong_shaping_is_a_penalty_on_the_reward(problem: Problem, limit: int, data: st.DataObject):
    buffer = data.draw(st.integers(1, limit))
    batch = replace(problem.batch, lengths=torch.arange(1, len(problem.batch) + 1))
    shaped = algos.make("dapo", overlong_limit=limit, overlong_buffer=buffer).advantages(batch)
    penalty = overlong_penalty(batch.require("lengths", "just set"), limit, buffer)
    expected = algos.make("dapo").advantages(replace(batch, rewards=batch.rewards + penalty))
    assert_same(shaped.advantages, expected.advantages)


@law(limit=st.integers(1, 50), data=st.data())
def test_the_overlong_penalty_falls_from_0_to_minus_1(limit: int, data: st.DataObject):
    buffer = data.draw(st.integers(1, limit))
    penalties = overlong_penalty(torch.arange(2 * limit + 1), limit, buffer)
    assert not penalties[: limit - buffer + 1].any()
    assert (penalties[limit:] == -1).all()
    torch.testing.assert_close(penalties[limit - buffer : limit + 1].diff(), torch.full((buffer,), -1 / buffer))
    incomplete: list[dict] = [{"overlong_limit": limit}, {"overlong_buffer": buffer}]
    for wrong in incomplete:
        with pytest.raises(ValueError, match=r"DAPO: overlong_buffer = \d+, but it must be in \(0, overlong_limit = "):
            algos.make("dapo", **wrong)
    assert algos.make("dapo", overlong_limit=limit, overlong_buffer=buffer)
    for wrong in (0, limit + 1):
        with pytest.raises(ValueError, match="buffer must be in"):
            overlong_penalty(torch.arange(3), limit, wrong)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {}), ("dapo", {}), ("dr_grpo", {}), ("rloo", {}), ("reinforce_pp", {}), ("ppo", {"value_coef": 0.0}),
        ("sapo", {"gamma": 0.0}), ("grpo_kl", {"gamma": 0.0}), ("lld", {"lambda_": 0.0}),
    ],
)  # fmt: skip
@law(problem=problems(spreads=(0.3, 3.0)))
def test_all_that_clip_tokens_clip_them_alike(name: str, options: dict, problem: Problem):
    """Further above than below, and doubly: a bound in the place of another is seen."""
    shared = {"aggregation": "token-mean", "clip_low": 0.1, "clip_high": 0.5, "dual_clip": 1.7}
    algorithm = algos.make(name, **shared, **options)
    batch = algorithm.advantages(problem.batch)
    advantages = batch.require("advantages", "just made")
    logprobs = problem.logprobs.clone().requires_grad_()
    ratio = torch.where(batch.mask, logprobs - batch.old_logprobs, 0).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(0.9, 1.5) * advantages)
    gain = torch.where(advantages < 0, torch.max(gain, 1.7 * advantages), gain)
    loss = average(-gain, batch, "token-mean")
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert_same(evaluate(algorithm, batch, problem.logprobs)[:2], (loss.detach(), gradient.where(batch.mask, 0)))


def one_row(mask: list[int], advantages: list[float]) -> Batch:
    kept = torch.tensor([mask], dtype=torch.bool)
    zeros = torch.zeros(kept.shape, dtype=torch.float64)
    batch = Batch(mask=kept, old_logprobs=zeros, rewards=torch.ones(1), groups=torch.zeros(1, dtype=torch.int64))
    return batch.with_advantages(torch.tensor([advantages], dtype=torch.float64))


def test_the_forms_of_gspo_part_where_tokens_of_a_response_differ_in_their_advantage() -> None:
    """The ratio of the response cannot serve both; the token form pushes each its own way."""
    batch = one_row([1, 1], [1.0, -1.0])
    for variant, expected in (("sequence", [0.0, 0.0]), ("token", [-0.5, 0.5])):
        gradient = evaluate(algos.make("gspo", variant=variant), batch, batch.old_logprobs)[1]
        assert gradient[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("log_ratios", "gate", "named"),
    [
        ([-0.5, 0.1, 0.0, 0.6, -0.1], "action", [0]),  # the first action fell, the second rose, so did the response
        ([-0.5, 0.1, 0.0, 0.6, -0.1], "response", []),
        ([-0.5, 0.1, 0.0, 0.1, -0.2], "response", [0, 4]),
        ([-0.5, 0.1, 0.0, 0.6, -0.7], "action", [0, 4]),
        ([-0.5, 0.5, 0.0, -0.5, 0.25], "action", [3]),  # one that is as likely as before is left alone
        ([-0.5, 0.5, 0.0, -0.5, 0.5], "response", []),
    ],
)
def test_lld_by_hand(log_ratios: list[float], gate: str, named: list[int]) -> None:
    batch = one_row([1, 1, 0, 1, 1], [0.0] * 5)
    logprobs = torch.tensor([log_ratios], dtype=torch.float64)
    _, gradient, metrics = evaluate(algos.LLD(gate=gate, lambda_=1.0), batch, logprobs)
    assert gradient[0].nonzero().flatten().tolist() == named
    assert metrics["penalty"].item() == pytest.approx(-sum(log_ratios[place] for place in named) / 4)


@law(problem=problems())
def test_rloo_is_dr_grpo_times_n_over_n_minus_1(problem: Problem):
    rloo, dr_grpo = (
        algos.make(name).advantages(problem.batch).require("advantages", "just made") for name in ("rloo", "dr_grpo")
    )
    present = ~problem.batch.rewards.isnan()
    for number in problem.batch.groups.unique():
        members = (problem.batch.groups == number) & present
        if (size := int(members.sum())) > 1:
            assert_same(rloo[members], dr_grpo[members] * size / (size - 1))


@law(problem=problems())
def test_rloo_of_responses_of_one_token_has_one_ratio(problem: Problem):
    first = problem.batch.mask & (problem.batch.mask.cumsum(1) == 1)
    short = Problem(replace(problem.batch, mask=first), problem.logprobs).poisoned(float("nan"))
    assert_same_step(solve("rloo", {"ratio": "response"}, short), solve("rloo", {}, short))


@law(problem=problems(spreads=(0.0, 0.3)))
def test_rloo_of_whole_responses_is_the_product_of_ratios(problem: Problem):
    """Unclipped, its gradient is that of A * prod r, once for each token of the average."""
    algorithm = algos.make("rloo", ratio="response", clip_low=0.99, clip_high=1e9)
    batch = algorithm.advantages(problem.batch)
    logprobs = problem.logprobs.clone().requires_grad_()
    change = torch.where(batch.mask, logprobs - batch.old_logprobs.where(batch.mask, 0), 0).sum(1)
    advantages = torch.where(batch.mask, batch.require("advantages", "made"), 0).sum(1) / batch.mask.sum(1).clamp(min=1)
    expected = -(change.exp() * advantages).sum() / batch.mask.any(1).sum().clamp(min=1)
    (gradient,) = torch.autograd.grad(expected, logprobs)
    found = evaluate(algorithm, batch, problem.logprobs)
    assert_same(found[0], expected.detach())
    assert_same(found[1], gradient.where(batch.mask, 0))


@each_aggregation
@pytest.mark.parametrize("gate", ["action", "response"])
@law(problem=problems())
def test_lld_without_its_penalty_is_grpo(gate: str, aggregation: str, problem: Problem):
    shared = {"aggregation": aggregation}
    found = solve("lld", {**shared, "gate": gate, "lambda_": 0.0}, problem)
    assert_same_step(found, solve("grpo", shared, problem))


def actions(kept: list[bool]) -> list[list[int]]:
    """The runs of True."""
    runs: list[list[int]] = []
    for place, is_kept in enumerate(kept):
        if is_kept and place and kept[place - 1]:
            runs[-1].append(place)
        elif is_kept:
            runs.append([place])
    return runs


@each_aggregation
@pytest.mark.parametrize("gate", ["action", "response"])
@law(problem=problems())
def test_lld_pulls_at_the_tokens_it_names(gate: str, aggregation: str, problem: Problem):
    """Those that fell, of actions that fell, of responses that are not bad: written out row by row."""
    algorithm = algos.LLD(aggregation=aggregation, gate=gate)
    batch = algorithm.advantages(problem.batch)
    advantages = batch.require("advantages", "just made")
    change = (problem.logprobs - batch.old_logprobs).where(batch.mask, 0)
    named = torch.zeros_like(batch.mask)
    for row, kept in enumerate(batch.mask.tolist()):
        runs = actions(kept) if gate == "action" else [[place for place, sampled in enumerate(kept) if sampled]]
        for run in runs:
            if change[row, run].sum() < 0:
                named[row, run] = (change[row, run] < 0) & (advantages[row, run] >= 0)
        named[row] &= ~batch.rewards[row].isnan()  # not known to be good
    with_penalty = evaluate(algorithm, batch, problem.logprobs)
    without = evaluate(algos.GRPO(aggregation=aggregation), batch, problem.logprobs)
    logprobs = problem.logprobs.clone().requires_grad_()
    expected = average(torch.where(named, batch.old_logprobs - logprobs, 0), batch, aggregation)
    (gradient,) = torch.autograd.grad(expected, logprobs)
    assert_same(with_penalty[2]["penalty"], expected.detach())
    assert expected >= 0
    assert_same(with_penalty[0], without[0] + 0.2 * expected.detach())
    assert_same(with_penalty[1], without[1] + 0.2 * gradient.where(batch.mask, 0))


@law(problem=problems(), data=st.data())
def test_reinforce_pp_gives_earlier_turns_the_return_of_later_ones(problem: Problem, data: st.DataObject):
    """Masked spans reset nothing: without discount, all tokens of a response have one advantage."""
    baseline = data.draw(st.sampled_from(["batch", "group"]))
    batch = problem.batch
    found = algos.make("reinforce_pp", baseline=baseline).advantages(batch).require("advantages", "just made")
    rewards = batch.rewards
    if baseline == "group":
        rewards = group_advantages(rewards, batch.groups, scale_by_std=False)
    learnt = batch.mask & ~batch.rewards.isnan()[:, None]
    per_token = rewards[:, None].expand_as(learnt)[learnt]
    expected = torch.zeros_like(found)
    if len(per_token.unique()) > 1:
        expected[learnt] = (per_token - per_token.mean()) / (per_token.var() + 1e-8).sqrt()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
