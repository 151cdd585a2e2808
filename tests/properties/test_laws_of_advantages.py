"""Laws of advantages that compare the responses to one question."""

from __future__ import annotations

import torch
from hypothesis import assume
from hypothesis import strategies as st
from problems import Problem, law, problems
from torch import Tensor

from algos.primitives import group_advantages, leave_one_out_advantages


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
