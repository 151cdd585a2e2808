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
from algos.dapo import informative
from algos.training.collate import collate, cut_by_length
from algos.training.critic import Critic
from algos.training.drift import ratio_drift
from algos.training.engines import Engine
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.retrieval.asking import take_counts
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, write_jsonl

Metrics = dict[str, Any]


_AT_LEAST_ONE = ("batch_questions", "group_size", "minibatches", "epochs", "max_sampled_batches", "micro_batch_tokens")


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
    max_sampled_batches: int = 1
    """Dynamic sampling (DAPO, arXiv 2503.14476, Sec. 3.2): above 1, only groups whose rewards (as the environment gives
    them) differ are learnt from, and up to so many rollout batches are drawn to fill one with them."""
    learning_rate: float = 1e-4
    """Of AdamW."""
    critic_learning_rate: float = 1e-3
    """Of AdamW, for the critic of an algorithm that has one."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm, those of a critic by themselves."""
    temperature: float = 1.0
    """Of the sampling, > 0; log-probs are scored at the same one."""
    micro_batch_tokens: int = 4096
    """How many tokens go through the model at once, padding included. It changes memory and speed, not the gradient."""
    question_seed: int = 0
    """Order of the questions: the same in every run that shares it."""
    save_trajectories: int = 8
    """How many trajectories of each step are written to trajectories.jsonl."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
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
        critic: is updated in place, for algorithms that need values; a new one unless given.
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
    critic: Critic | None = None

    def __post_init__(self) -> None:
        config = self.config
        if self.critic is None and "values" in getattr(self.algorithm, "needs", ()):
            self.critic = Critic(self.policy)
        learners = [{"params": self.policy.parameters(), "lr": config.learning_rate}]
        if self.critic is not None:
            learners.append({"params": self.critic.parameters(), "lr": config.critic_learning_rate})
        self.optimizer = torch.optim.AdamW(learners, weight_decay=config.weight_decay)
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
        take_counts(self.retriever)  # what was searched for since the last step, in an evaluation, is not of this one
        with _timed(seconds, "rollout"):
            trajectories, batch = self._roll_out()
        counts = take_counts(self.retriever)
        with _timed(seconds, "score"):
            batch = self._scored(batch)
        with _timed(seconds, "update"):
            updates = self._update(self.algorithm.advantages(batch))
        self.steps_done += 1
        metrics = {"step": self.steps_done} | _of_rollouts(trajectories) | counts | updates | {"seconds": seconds}
        trajectories = [replace(t, extra={"step": self.steps_done, "seed": self.seed}) for t in trajectories]
        return metrics, trajectories

    def _roll_out(self) -> tuple[list[Trajectory], Batch]:
        """All episodes that were played, and the batch of those to learn from."""
        config, trajectories = self.config, []
        while True:
            asked = [next(self._order) for _ in range(config.batch_questions)]
            trajectories += play(
                [question for question in asked for _ in range(config.group_size)],
                engine=self.engine,
                tokenizer=self.tokenizer,
                retriever=self.retriever,
                rules=self.rules,
                temperature=config.temperature,
            )
            # Groups are told by position: a question that is drawn twice makes two groups.
            groups = [position // config.group_size for position in range(len(trajectories))]
            batch = collate(trajectories, groups, self.policy.device)
            if config.max_sampled_batches == 1:
                return trajectories, batch
            rows = informative(batch).nonzero().squeeze(1)
            if len(rows) >= config.rollouts or len(trajectories) == config.max_sampled_batches * config.rollouts:
                return trajectories, batch.select(rows[: config.rollouts])

    def _scored(self, batch: Batch) -> Batch:
        """The batch with what policy, reference and critic say of it before the first update."""
        scored = replace(batch, old_logprobs=self._logprobs(self.policy, batch))
        if self.reference is not None:
            scored = replace(scored, ref_logprobs=self._logprobs(self.reference, batch))
        if self.critic is not None:
            scored = self._valued(scored, self.critic)
        return scored

    @torch.no_grad()
    def _valued(self, batch: Batch, critic: Critic) -> Batch:
        values, final = torch.zeros_like(batch.old_logprobs), torch.zeros_like(batch.rewards)
        for rows in self._micro_batches(batch):
            part = batch.part(rows)
            values[rows], final[rows] = critic(*part.inputs(), part.mask)
        return replace(batch, values=values, final_values=final)

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
            critic = {} if self.critic is None else {"values": self.critic(*part.inputs(), part.mask).values}
            out = self.algorithm.loss(part, scores.logprobs, scores.entropy, **critic)
            out.loss.backward()
            log_ratio[rows] = scores.logprobs.detach() - part.old_logprobs
            for name, value in ({"loss": out.loss.detach()} | out.metrics).items():
                totals[name] = totals.get(name, 0.0) + value.item()
        norms = {"grad_norm": self._clip_gradient(self.policy)}
        if self.critic is not None:
            norms["critic_grad_norm"] = self._clip_gradient(self.critic)
        usable = all(map(math.isfinite, norms.values()))
        if usable:  # a step along NaN would lose the policy
            self.optimizer.step()
        return totals | norms | {"skipped": float(not usable)}, ratio_drift(log_ratio, minibatch.mask)

    def _clip_gradient(self, learner: torch.nn.Module) -> float:
        """Its norm before it was clipped."""
        return torch.nn.utils.clip_grad_norm_(learner.parameters(), self.config.max_grad_norm).item()


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Put the time that the block takes under the name of its phase."""
    start = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - start, 3)


def _of_rollouts(trajectories: Sequence[Trajectory]) -> Metrics:
    """What the trajectories of a step say: their number, and means over them."""
    count = len(trajectories)
    return {
        "episodes": count,
        "reward": sum(t.reward for t in trajectories) / count,
        "em": sum(t.em for t in trajectories) / count,
        "f1": sum(t.f1 for t in trajectories) / count,
        "searches": sum(t.searches for t in trajectories) / count,
        "failed_searches": sum(t.failed_searches for t in trajectories) / count,
        "invalid_actions": sum(t.invalid_actions for t in trajectories) / count,
        "truncated": sum(bool(t.truncated) for t in trajectories) / count,
        "policy_tokens": sum(sum(t.mask) for t in trajectories) / count,
        "tokens": sum(len(t.ids) for t in trajectories) / count,
    }


def _finite(value: float) -> float | None:
    """The value, or None (JSON's null) where JSON has no word for it."""
    return value if math.isfinite(value) else None
