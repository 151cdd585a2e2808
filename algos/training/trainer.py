"""The loop: roll out, weigh, update, log. One copy, whatever the algorithm."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from algos import Algorithm, Batch
from algos.training.collate import collate, cut_by_length
from algos.training.drift import ratio_drift
from algos.training.engines import Engine
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, write_jsonl

Metrics = dict[str, Any]


@dataclass(frozen=True)
class TrainerConfig:
    """The hyperparameters of the loop; those of the objective are the algorithm's."""

    steps: int = 16
    """Rollout batches, each followed by its updates."""
    batch_questions: int = 16
    """Questions in a rollout batch."""
    group_size: int = 8
    """Responses to each question."""
    minibatches: int = 4
    """Updates in one pass over a rollout batch. More of them, more drift: from the second on, the policy that is
    updated is not the one that sampled."""
    epochs: int = 1
    """Passes over a rollout batch."""
    learning_rate: float = 1e-4
    """Of AdamW."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    temperature: float = 1.0
    """Of the sampling, > 0; log-probs are scored at the same one."""
    micro_batch_tokens: int = 4096
    """How many tokens go through the model at once, padding included. It changes memory and speed, not the gradient."""
    question_seed: int = 0
    """Order of the questions: the same in every run that shares it."""
    save_trajectories: int = 8
    """How many trajectories of each step are written to trajectories.jsonl."""

    def __post_init__(self) -> None:
        for name in ("batch_questions", "group_size", "minibatches", "epochs", "micro_batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0 in training, not {self.temperature}")
        if self.minibatches > self.rollouts:
            raise ValueError(
                f"{self.minibatches} minibatches cannot be cut from {self.batch_questions} questions x "
                f"{self.group_size} responses"
            )

    @property
    def rollouts(self) -> int:
        """Episodes in a rollout batch."""
        return self.batch_questions * self.group_size


def question_order(questions: Sequence[Question], seed: int) -> Iterator[Question]:
    """The questions without end, shuffled anew in each pass."""
    if not questions:
        raise ValueError("there is no question to train on")
    generator = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(questions), generator=generator).tolist():
            yield questions[index]


@dataclass
class Trainer:
    """Trains a policy on questions with an algorithm.

    Args:
        policy: is updated in place.
        algorithm: gives advantages and losses.
        engine: samples from the same policy.
        tokenizer, retriever, rules: of the episodes.
        questions: to train on.
        config: of the loop.
        seed: of the minibatches.
        reference: a frozen policy whose log-probs go into the batch, for algorithms with a KL to it.
    """

    policy: CausalLMPolicy
    algorithm: Algorithm
    engine: Engine
    tokenizer: Tokenizer
    retriever: Retriever
    rules: Rules
    questions: Sequence[Question]
    config: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    reference: CausalLMPolicy | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self._order = question_order(self.questions, config.question_seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        self.steps_done = 0

    def train(self, out: Path, on_step: Callable[[Metrics], None] = lambda _: None) -> None:
        """Run `config.steps` steps; write metrics.jsonl and trajectories.jsonl into the folder `out`.

        Args:
            out: is made if it is not there; files of an earlier run in it are replaced.
            on_step: called with the metrics of each step.
        """
        out.mkdir(parents=True, exist_ok=True)
        with (out / "metrics.jsonl").open("w", encoding="utf-8") as log:
            for step in range(self.config.steps):
                metrics, trajectories = self.step()
                log.write(json.dumps(metrics) + "\n")
                log.flush()  # whoever watches the run, or stops it, sees every step that is done
                saved = trajectories[: self.config.save_trajectories]
                write_jsonl(out / "trajectories.jsonl", saved, append=step > 0)
                on_step(metrics)

    def step(self) -> tuple[Metrics, list[Trajectory]]:
        """One rollout batch and its updates."""
        seconds: dict[str, float] = {}
        size = self.config.group_size
        asked = [next(self._order) for _ in range(self.config.batch_questions)]
        with _timed(seconds, "rollout"):
            trajectories = play(
                [question for question in asked for _ in range(size)],
                engine=self.engine,
                tokenizer=self.tokenizer,
                retriever=self.retriever,
                rules=self.rules,
                temperature=self.config.temperature,
            )
        # Groups are told by position: a question that is drawn twice makes two groups.
        groups = [position // size for position in range(len(trajectories))]
        with _timed(seconds, "score"):
            batch = self._scored(collate(trajectories, groups, self.policy.device))
        with _timed(seconds, "update"):
            updates = self._update(self.algorithm.advantages(batch))
        self.steps_done += 1
        metrics = {"step": self.steps_done} | _of_rollouts(trajectories, batch) | updates | {"seconds": seconds}
        trajectories = [replace(t, extra={"step": self.steps_done, "seed": self.seed}) for t in trajectories]
        return metrics, trajectories

    def _scored(self, batch: Batch) -> Batch:
        """The batch with the log-probs of the policy as it is before the first update, and of the reference."""
        scored = replace(batch, old_logprobs=self._logprobs(self.policy, batch))
        if self.reference is not None:
            scored = replace(scored, ref_logprobs=self._logprobs(self.reference, batch))
        return scored

    @torch.no_grad()
    def _logprobs(self, policy: CausalLMPolicy, batch: Batch) -> torch.Tensor:
        logprobs = torch.zeros_like(batch.old_logprobs)
        for rows in self._micro_batches(batch):
            part = batch.part(rows)
            logprobs[rows] = policy(*part.inputs(), part.mask, self.config.temperature).logprobs
        return logprobs

    def _micro_batches(self, batch: Batch) -> list[list[int]]:
        return cut_by_length(batch.inputs()[1].tolist(), self.config.micro_batch_tokens)

    def _update(self, batch: Batch) -> Metrics:
        """All updates on one rollout batch: means of their metrics, and the drift at the last."""
        rows: list[Metrics] = []
        drift: Metrics = {}
        for _ in range(self.config.epochs):
            order = torch.randperm(len(batch), generator=self._generator)
            for chosen in order.tensor_split(self.config.minibatches):
                metrics, drift = self._update_once(batch.select(chosen.to(batch.mask.device)), first=not rows)
                rows.append(metrics)
        names = dict.fromkeys(name for row in rows for name in row)
        means = {name: _finite(sum(row.get(name, 0.0) for row in rows) / len(rows)) for name in names}
        return means | {"updates": len(rows)} | {name: _finite(value) for name, value in drift.items()}

    def _update_once(self, minibatch: Batch, first: bool) -> tuple[Metrics, Metrics]:
        """One optimiser step on a minibatch, its gradient accumulated over micro-batches."""
        self.optimizer.zero_grad()
        totals: dict[str, float] = {}
        log_ratio = torch.zeros_like(minibatch.old_logprobs)
        for rows in self._micro_batches(minibatch):
            part = minibatch.part(rows)
            scores = self.policy(*part.inputs(), part.mask, self.config.temperature)
            if first:
                # The policy is still the one that sampled, so its ratios are 1: exactly, not up to the rounding of
                # two forward passes, which would tell r < 1 from r = 1 at random.
                part = replace(part, old_logprobs=scores.logprobs.detach())
            out = self.algorithm.loss(part, scores.logprobs, scores.entropy)
            out.loss.backward()
            log_ratio[rows] = scores.logprobs.detach() - part.old_logprobs
            for name, value in ({"loss": out.loss.detach()} | out.metrics).items():
                totals[name] = totals.get(name, 0.0) + value.item()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm).item()
        usable = math.isfinite(norm)
        if usable:  # a step along NaN would lose the policy
            self.optimizer.step()
        return totals | {"grad_norm": norm, "skipped": float(not usable)}, ratio_drift(log_ratio, minibatch.mask)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Put the time that the block takes under the name of its phase."""
    start = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - start, 3)


def _of_rollouts(trajectories: Sequence[Trajectory], batch: Batch) -> Metrics:
    """What the trajectories of a step say: means over them.

    mismatch: mean absolute difference of the sampler's log-probs and the trainer's, for the same policy and tokens.
    """
    count = len(trajectories)
    sampled = max(int(batch.mask.sum()), 1)
    difference = (batch.old_logprobs - batch.require("rollout_logprobs", "collate sets it")).abs()
    return {
        "reward": sum(t.reward for t in trajectories) / count,
        "em": sum(t.em for t in trajectories) / count,
        "f1": sum(t.f1 for t in trajectories) / count,
        "searches": sum(t.searches for t in trajectories) / count,
        "invalid_actions": sum(t.invalid_actions for t in trajectories) / count,
        "truncated": sum(bool(t.truncated) for t in trajectories) / count,
        "policy_tokens": sampled / count,
        "tokens": sum(len(t.ids) for t in trajectories) / count,
        "mismatch": _finite(float(torch.where(batch.mask, difference, 0).sum()) / sampled),
    }


def _finite(value: float) -> float | None:
    """The value, or None (JSON's null) where JSON has no word for it."""
    return value if math.isfinite(value) else None
