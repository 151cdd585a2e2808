"""The hyperparameters of the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

_AT_LEAST_ONE = ("batch_questions", "group_size", "minibatches", "epochs", "max_sampled_batches", "micro_batch_tokens")
_AT_LEAST_ZERO = (
    "steps", "concurrency", "warmup_steps", "save_every", "max_skips", "save_trajectories", "penalty_every",
)  # fmt: skip
_RATES = ("learning_rate", "critic_learning_rate", "weight_decay")
_CHOICES = {"schedule": ("constant", "linear", "cosine"), "precision": ("fp32", "bf16"), "async_rollouts": (0, 1)}


@dataclass(frozen=True)
class TrainerConfig:
    """The hyperparameters of the loop; those of the objective are the algorithm's."""

    steps: int = 16
    """Rollout batches, each followed by its updates."""
    batch_questions: int = 16
    """Questions in a rollout batch, over all processes."""
    group_size: int = 8
    """Responses to each question."""
    minibatches: int = 4
    """Updates in one pass over a rollout batch. More of them, more drift: from the second on, the policy that is
    updated is not the one that sampled."""
    epochs: int = 1
    """Passes over a rollout batch."""
    max_sampled_batches: int = 1
    """Dynamic sampling (DAPO, arXiv 2503.14476, Sec. 3.2): above 1, only groups whose rewards (as the environment gives
    them) differ are learnt from, and up to so many rollout batches are drawn to fill one with them. Each process fills
    its own share."""
    learning_rate: float = 1e-4
    """Of AdamW, after the warm-up."""
    critic_learning_rate: float = 1e-3
    """Of AdamW, for the critic of an algorithm that has one."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rates go on after the warm-up: down to 0 at the last step, or not at all."""
    warmup_steps: int = 0
    """Steps over which the learning rates rise linearly to their full values."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm, those of a critic by themselves."""
    temperature: float = 1.0
    """Of the sampling, > 0; log-probs are scored at the same one."""
    micro_batch_tokens: int = 4096
    """How many tokens go through the model at once, padding included. It changes memory and speed, not the gradient."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16 (autocast), parameters and optimiser as they are."""
    concurrency: int = 0
    """Episodes side by side in each process; 0: all of a rollout batch."""
    overlap_searches: bool = False
    """Whether searches run beside the sampling. Faster where searches take long; runs then no longer repeat exactly."""
    async_rollouts: Literal[0, 1] = 0
    """1: the next rollouts are made while this batch trains. They come from a policy that is one step older, which
    truncated importance sampling corrects; the engine holds a copy of the policy."""
    question_seed: int = 0
    """Order of the questions: the same in every run that shares it."""
    save_trajectories: int = 8
    """How many trajectories of each step are written to trajectories.jsonl, with the ratio, advantage and entropy of
    each token after the updates."""
    penalty_every: int = 0
    """Steps between measurements of the gradient of the algorithm's penalty against that of the rest of its loss, where
    it has one; each costs as much as two updates. 0: none."""
    save_every: int = 0
    """Steps between checkpoints; 0: none but after the last step of `experiments/train.py`."""
    keep_checkpoints: int = 2
    """How many checkpoints are kept, the newest ones."""
    max_skips: int = 10
    """Updates in a row whose loss or gradient may be non-finite: they are skipped. At the next one the run stops, and
    the batch is saved for inspection."""
    drift_alarm: float = 0.5
    """A step whose mean ratio at the last update is below this is reported as drifting; 0: never. In [0, 1)."""

    def __post_init__(self) -> None:
        for low, names in ((0, _AT_LEAST_ZERO), (1, (*_AT_LEAST_ONE, "keep_checkpoints"))):
            for name in names:
                if getattr(self, name) < low:
                    raise ValueError(f"{name} must be at least {low}, not {getattr(self, name)}")
        for name in _RATES:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, not {getattr(self, name)!r}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite in training, not {self.temperature}")
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be above 0, not {self.max_grad_norm}")
        if not 0 <= self.drift_alarm < 1:
            raise ValueError(f"drift_alarm must be in [0, 1), not {self.drift_alarm}")
        if self.minibatches > self.rollouts:
            raise ValueError(
                f"{self.minibatches} minibatches cannot be cut from {self.batch_questions} questions x "
                f"{self.group_size} responses"
            )

    @property
    def rollouts(self) -> int:
        """Episodes in a rollout batch."""
        return self.batch_questions * self.group_size

    @property
    def updates(self) -> int:
        """Optimiser steps on a rollout batch."""
        return self.minibatches * self.epochs

    def rate(self, step: int) -> float:
        """What the learning rates are multiplied by in a step, counted from 0; in [0, 1].

        A function of the step alone, so a run that is resumed needs no state of a schedule.
        """
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        if self.schedule == "linear":
            return max(0.0, 1 - done)
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * min(1.0, done))) / 2
        return 1.0
