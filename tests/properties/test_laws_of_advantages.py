"""Laws of advantages that compare the responses to one question."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from problems import Problem, law, problems
from torch import Tensor

import algos
from algos.primitives import group_advantages, leave_one_out_advantages

COMPARING = sorted({*algos.available()} - {"ppo"})
"""Their advantages compare responses; PPO's compare with what a critic expected."""
SCALED = sorted({*COMPARING} - {"dr_grpo", "rloo"})
"""And divide by a standard deviation."""


def advantages_of(name: str, problem: Problem, rewards: Tensor) -> Tensor:
    batch = replace(problem.batch, rewards=rewards)
    return algos.make(name).advantages(batch).require("advantages", "just made")


@pytest.mark.parametrize("name", COMPARING)
@law(problem=problems(), shift=st.sampled_from([-3.0, 0.1, 100.0]))
def test_the_level_of_rewards_says_nothing(name: str, problem: Problem, shift: float):
    found = advantages_of(name, problem, problem.batch.rewards + shift)
    torch.testing.assert_close(found, advantages_of(name, problem, problem.batch.rewards), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", COMPARING)
@law(problem=problems(), scale=st.sampled_from([0.1, 3.0, 100.0]))
def test_the_scale_of_rewards_says_nothing_to_those_that_divide_by_it(name: str, problem: Problem, scale: float):
    found = advantages_of(name, problem, problem.batch.rewards * scale)
    expected = advantages_of(name, problem, problem.batch.rewards)
    # Up to the epsilon beside the std; the least std of two different rewards here is 0.1 * 0.4 / sqrt(6).
    torch.testing.assert_close(found, expected if name in SCALED else scale * expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", COMPARING)
@law(problem=problems())
def test_advantages_balance(name: str, problem: Problem):
    """Within a group, counting each response once; REINFORCE++ over the tokens of the whole batch."""
    found, batch = advantages_of(name, problem, problem.batch.rewards), problem.batch
    if name == "reinforce_pp":
        assert abs(found.sum()) < 1e-9
        return
    full = replace(batch, mask=torch.ones_like(batch.mask))
    found = algos.make(name).advantages(full).require("advantages", "just made")[:, 0]
    assert all(abs(found[batch.groups == number].sum()) < 1e-9 for number in batch.groups.unique())


@pytest.mark.parametrize("name", COMPARING)
@law(problem=problems(), reward=st.sampled_from([0.0, 1.0, 0.1, -2.7]))
def test_equal_rewards_teach_nothing(name: str, problem: Problem, reward: float):
    """Case M7: [1, 1, 1, 1], a group of one, and [1, missing, 0, 0] among them."""
    equal = torch.full_like(problem.batch.rewards, reward)
    assert not advantages_of(name, problem, equal).any()
    missing = equal.where(torch.arange(len(equal)) > 0, torch.nan)
    assert not advantages_of(name, problem, missing).any()


@law(reward=st.sampled_from([1.0, 0.0, -2.0]), size=st.integers(1, 4))
def test_a_group_of_one_may_keep_its_reward(reward: float, size: int):
    """As in verl; by default it has nothing to compare with."""
    rewards, groups = torch.full((size,), reward, dtype=torch.float64), torch.arange(size)
    assert not group_advantages(rewards, groups).any()
    assert not leave_one_out_advantages(rewards, groups).any()
    torch.testing.assert_close(group_advantages(rewards, groups, epsilon=0.5, group_of_one="reward"), rewards / 1.5)
    torch.testing.assert_close(group_advantages(rewards, groups, scale_by_std=False, group_of_one="reward"), rewards)
    torch.testing.assert_close(leave_one_out_advantages(rewards, groups, group_of_one="reward"), rewards)
    twice = torch.cat([rewards, rewards])
    assert not group_advantages(twice, torch.cat([groups, groups]), group_of_one="reward").any()


@law(problem=problems(), scale_by_std=st.booleans(), ddof=st.sampled_from([0, 1]))
def test_advantages_are_relative_to_the_group(problem: Problem, scale_by_std: bool, ddof: int):
    rewards, groups = problem.batch.rewards, problem.batch.groups

    def advantages(rewards: Tensor) -> Tensor:
        return group_advantages(rewards, groups, scale_by_std=scale_by_std, ddof=ddof)

    found = advantages(rewards)
    assert found.isfinite().all()
    assert not found[rewards.isnan()].any()
    for number in groups.unique():
        assert abs(found[groups == number].sum()) < 1e-9
        if len(rewards[(groups == number) & ~rewards.isnan()].unique()) <= 1:
            assert not found[groups == number].any()
    torch.testing.assert_close(advantages(rewards + 5), found)
    torch.testing.assert_close(advantages(rewards * 3), found if scale_by_std else 3 * found, rtol=1e-4, atol=0)


@law(size=st.integers(1, 9), reward=st.floats(-1e6, 1e6))
def test_equal_rewards_have_no_advantage_however_they_round(size: int, reward: float):
    """Case M7, with the mean of n equal numbers that is not that number."""
    for dtype in (torch.float32, torch.float64):
        rewards = torch.full((size,), reward, dtype=dtype)
        assert not group_advantages(rewards, torch.zeros(size, dtype=torch.int64)).any()


@law(problem=problems(spreads=(0.3,)))
def test_a_missing_reward_changes_no_other_advantage(problem: Problem):
    """Case M7."""
    batch = problem.batch
    present = ~batch.rewards.isnan()
    assume(present.any())
    alone = group_advantages(batch.rewards[present], batch.groups[present])
    assert torch.equal(group_advantages(batch.rewards, batch.groups)[present], alone)


@law(problem=problems())
def test_leaving_one_out_compares_with_the_others(problem: Problem):
    """And is R - mean times n / (n - 1): Dr. GRPO's advantage, made unbiased."""
    rewards, groups = problem.batch.rewards, problem.batch.groups
    found, centred = leave_one_out_advantages(rewards, groups), group_advantages(rewards, groups, scale_by_std=False)
    for i, reward in enumerate(rewards):
        others = rewards[(groups == groups[i]) & ~rewards.isnan() & (torch.arange(len(rewards)) != i)]
        if reward.isnan() or len(others) == 0:
            assert found[i] == 0
        else:
            torch.testing.assert_close(found[i], reward - others.mean())
            torch.testing.assert_close(found[i], centred[i] * (len(others) + 1) / len(others))
