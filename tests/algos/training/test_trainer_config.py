"""The hyperparameters of the loop: laws of the schedule, and values that are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algos.training.config import TrainerConfig

SCHEDULES = ("constant", "linear", "cosine")
lengths = st.integers(1, 200)


def config(schedule: Any, steps: int, warmup: int) -> TrainerConfig:
    return TrainerConfig(schedule=schedule, steps=steps, warmup_steps=warmup)


@given(st.sampled_from(SCHEDULES), lengths, st.integers(0, 250), st.integers(0, 500))
def test_a_rate_is_a_share(schedule: str, steps: int, warmup: int, step: int) -> None:
    assert 0 <= config(schedule, steps, warmup).rate(step) <= 1


@given(st.sampled_from(SCHEDULES), lengths, st.integers(1, 200))
def test_the_warm_up_rises_in_equal_parts_to_the_full_rate(schedule: str, steps: int, warmup: int) -> None:
    made = config(schedule, warmup + steps, warmup)
    rates = [made.rate(step) for step in range(warmup + 1)]
    assert rates == pytest.approx([(step + 1) / (warmup + 1) for step in range(warmup + 1)])
    assert rates[0] > 0  # the first step is not wasted
    assert rates[-1] == 1


@given(st.sampled_from(SCHEDULES[1:]), lengths, st.integers(0, 50))
def test_linear_and_cosine_fall_to_zero_where_the_run_ends(schedule: str, steps: int, warmup: int) -> None:
    made = config(schedule, warmup + steps, warmup)
    rates = [made.rate(step) for step in range(warmup, warmup + steps + 20)]
    assert all(earlier >= later for earlier, later in pairwise(rates))
    assert rates[steps:] == pytest.approx([0] * 20)
    assert 0 < rates[steps - 1] <= 1 / steps + 1e-12  # the last step still learns


@given(lengths)
def test_half_way_both_are_at_a_half_and_cosine_is_late_to_fall(half: int) -> None:
    linear, cosine = (config(schedule, 2 * half, 0) for schedule in SCHEDULES[1:])
    assert linear.rate(half) == pytest.approx(0.5)
    assert cosine.rate(half) == pytest.approx(0.5)
    for step in range(half):
        assert cosine.rate(step) >= linear.rate(step) - 1e-12
        assert cosine.rate(2 * half - step) <= linear.rate(2 * half - step) + 1e-12


@given(lengths, st.integers(0, 50), st.integers(0, 500))
def test_constant_is_constant_after_the_warm_up(steps: int, warmup: int, later: int) -> None:
    assert config("constant", steps, warmup).rate(warmup + later) == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *[
            (name, 0, f"{name} must be at least 1, not 0")
            for name in ("batch_questions", "group_size", "minibatches", "epochs", "max_sampled_batches")
        ],
        ("micro_batch_tokens", 0, "micro_batch_tokens must be at least 1, not 0"),
        ("keep_checkpoints", 0, "keep_checkpoints must be at least 1, not 0"),
        *[
            (name, -1, f"{name} must be at least 0, not -1")
            for name in ("steps", "concurrency", "warmup_steps", "save_every", "max_skips", "save_trajectories")
        ],
        *[
            (name, value, f"{name} must be a finite number of at least 0, not {value}")
            for name in ("learning_rate", "critic_learning_rate", "weight_decay")
            for value in (-0.1, math.inf, math.nan)
        ],
        ("temperature", math.nan, "temperature must be above 0 and finite in training, not nan"),
        ("max_grad_norm", 0.0, "max_grad_norm must be above 0, not 0.0"),
        ("max_grad_norm", math.nan, "max_grad_norm must be above 0, not nan"),
        ("drift_alarm", 1.0, r"drift_alarm must be in \[0, 1\), not 1.0"),
        ("schedule", "cosin", "schedule must be one of constant, linear, cosine, not 'cosin'"),
        ("precision", "fp16", "precision must be one of fp32, bf16, not 'fp16'"),
        ("async_rollouts", 2, "async_rollouts must be one of 0, 1, not 2"),
    ],
    ids=lambda value: str(value) if not isinstance(value, str) or len(value) < 25 else "",
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        replace(TrainerConfig(), **{name: value})


def test_limits_themselves_can_be_used() -> None:
    made = TrainerConfig(
        steps=0, learning_rate=0.0, max_grad_norm=math.inf, drift_alarm=0.0, group_size=1, batch_questions=1,
        minibatches=1,
    )  # fmt: skip
    assert (made.rollouts, made.updates) == (1, 1)
