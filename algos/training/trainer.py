"""The loop: roll out, weigh, update, log, save. One copy, whatever the algorithm."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from algos import Algorithm, Batch
from algos.training import snapshot
from algos.training.collate import collate
from algos.training.config import TrainerConfig
from algos.training.critic import Critic
from algos.training.distributed import ALONE, Ranks
from algos.training.engines import Engine
from algos.training.learner import Learner, Metrics, Reference
from algos.training.loading import context_of
from algos.training.lora import weights
from algos.training.policy import CausalLMPolicy
from algos.training.records import Record, token_records
from algos.training.rollouts import Rollout, Rollouts, groups_of
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, write_jsonl

_log = logging.getLogger(__name__)


@dataclass
class Trainer:
    """Trains a policy on questions with an algorithm.

    Args:
        policy: is updated in place.
        algorithm: gives advantages and losses.
        engine: samples; from the policy itself, or from a copy that follows it.
        tokenizer, retriever, rules: of the episodes.
        questions: to train on.
        config: of the loop.
        seed: of the minibatches.
        reference: gives log-probs that go into the batch, for algorithms with a KL to it.
        critic: is updated in place, for algorithms that need values; a new one unless given.
        ranks: this process among those that train together; each makes a trainer, from the same arguments.
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
    reference: Reference | None = None
    critic: Critic | None = None
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        config = self.config
        fits(self.policy, self.rules)
        if config.async_rollouts:
            self.algorithm = corrected(self.algorithm)
        self.learner = Learner(
            self.policy,
            self.algorithm,
            config,
            seed=self.seed,
            reference=self.reference,
            critic=self.critic,
            ranks=self.ranks,
        )
        self.rollouts = Rollouts(
            self.engine, self.tokenizer, self.retriever, self.rules, self.questions, config, self.ranks
        )
        self.steps_done = 0
        self._saved: tuple[Path, int] | None = None  # the folder and the step of the last checkpoint

    def train(
        self,
        out: Path,
        on_step: Callable[[Metrics], None] = lambda _: None,
        *,
        resume: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Run up to `config.steps` steps; write metrics.jsonl, trajectories.jsonl and checkpoints into a folder.

        Args:
            out: the folder; is made if it is not there. Logs of an earlier run without checkpoints are replaced.
            on_step: called with the metrics of each step, in every process, before its checkpoint.
            resume: go on from the newest whole checkpoint in the folder; begin anew if there is none.
            on_start: called in every process before the first step, once it is sure that the run may go on here.

        Raises:
            CheckpointError: if there are checkpoints and `resume` is not set; if none of them is whole, or it is that
                of a run with other settings; if one cannot be written.
        """
        out.mkdir(parents=True, exist_ok=True)
        self.learner.wreckage = out / "diverged.pt"
        self._begin(out, resume)
        on_start()
        while self.steps_done < self.config.steps:
            metrics, trajectories = self.step()
            if self.ranks.leads:
                with (out / "metrics.jsonl").open("a", encoding="utf-8") as log:
                    log.write(json.dumps(metrics) + "\n")
                saved = trajectories[: self.config.save_trajectories]
                write_jsonl(out / "trajectories.jsonl", saved, append=True)
            on_step(metrics)
            every = self.config.save_every
            if every and (self.steps_done % every == 0 or self.steps_done == self.config.steps):
                self.save(out)

    def _begin(self, out: Path, resume: bool) -> None:
        """Load what an earlier run left in its folder, or see that nothing is lost by beginning anew."""
        if resume:
            folder = snapshot.load(self, out)
            if folder is not None:
                self._saved = out, self.steps_done
                _log.info("going on from %s", folder)
                return
            _log.warning("there is no checkpoint in %s to go on from: beginning anew", out)
        snapshot.require_none(self.ranks, out)
        if self.ranks.leads:
            for name in snapshot.LOGS:
                (out / name).unlink(missing_ok=True)

    def save(self, out: Path) -> None:
        """Write a checkpoint into the run folder, unless that of this step was written there. All processes call it.

        Raises:
            CheckpointError: if it cannot be written.
        """
        if self._saved != (out, self.steps_done):
            snapshot.save(self, out)
            self._saved = out, self.steps_done

    def step(self) -> tuple[Metrics, list[Trajectory]]:
        """One rollout batch and its updates: the metrics, and all episodes, those of other processes too.

        `Trajectory.extra` has the step and the seed and, in the first `save_trajectories` episodes that were learnt
        from, what `token_records` says.
        """
        seconds: dict[str, float] = {}
        with _timed(seconds, "rollout"):
            rollout = self._next_rollout()
            parts: list[Rollout] = self.ranks.gather(rollout)
        trajectories = [trajectory for part in parts for trajectory in part.trajectories]
        groups = groups_of(trajectories, self.config.group_size)
        batch = collate(trajectories, groups, self.policy.device, self.tokenizer)
        starts = [sum(len(part.trajectories) for part in parts[:rank]) for rank in range(len(parts))]
        kept = [start + row for start, part in zip(starts, parts, strict=True) for row in part.kept]
        batch = batch.select(kept)
        updates: Metrics = {"updates": 0}
        records: dict[int, Record] = {}
        if len(batch):
            with _timed(seconds, "score"):
                batch = self.learner.score(batch)
            with _timed(seconds, "update"):
                batch = self.algorithm.advantages(batch)
                updates = self.learner.update(batch, self.steps_done)
                records = self._records(batch, kept)
        self.steps_done += 1
        with _timed(seconds, "sync"):
            # With rollouts that are made ahead, the engine takes the new weights when the next ones begin.
            if not self.config.async_rollouts or self.steps_done == self.config.steps:
                self.engine.sync(lambda: weights(self.policy))
        seconds |= {"search": round(rollout.search_seconds, 3), "sampling": round(rollout.seconds, 3)}
        metrics = {"step": self.steps_done} | of_rollouts(trajectories) | rollout.counts | updates
        metrics |= {"seconds": seconds, "speed": _speed(metrics, seconds)}
        self._watch(metrics)
        extra = {"step": self.steps_done, "seed": self.seed}
        return metrics, [
            replace(trajectory, extra=extra | ({"tokens": records[number]} if number in records else {}))
            for number, trajectory in enumerate(trajectories)
        ]

    def _records(self, batch: Batch, numbers: Sequence[int]) -> dict[int, Record]:
        """The records of the tokens of those trajectories that are saved, by the number of the trajectory.

        Args:
            batch: with its advantages, after the updates on it.
            numbers: of the trajectories that its rows are.
        """
        rows = [row for row, number in enumerate(numbers) if number < self.config.save_trajectories]
        if not rows:
            return {}
        shown = batch.select(rows)
        found = token_records(shown, self.learner.rescore(shown))
        return dict(zip((numbers[row] for row in rows), found, strict=True))

    def _next_rollout(self) -> Rollout:
        rollout = self.rollouts.take()
        if self.config.async_rollouts and self.steps_done + 1 < self.config.steps:
            self.engine.sync(lambda: weights(self.policy))
            self.rollouts.begin()
        return rollout

    def _watch(self, metrics: Metrics) -> None:
        """Say it when the policy drifts from the one that sampled, the first sign of a collapse (arXiv 2603.10069)."""
        ratio = metrics.get("ratio_last")
        metrics["drifting"] = float(ratio is not None and ratio < self.config.drift_alarm)
        if metrics["drifting"]:
            _log.warning(
                "step %d: the mean ratio fell to %.3f, below %g", self.steps_done, ratio, self.config.drift_alarm
            )
        if metrics.get("skipped"):
            _log.warning(
                "step %d: %.0f %% of its updates were skipped, for their loss or gradient was not finite",
                self.steps_done,
                100 * metrics["skipped"],
            )


def fits(policy: CausalLMPolicy, rules: Rules) -> None:
    """Raise ValueError if an episode may be longer than the policy can read."""
    longest = context_of(policy)
    if longest is not None and rules.max_context_tokens > longest:
        raise ValueError(
            f"an episode may have {rules.max_context_tokens} tokens (max_context_tokens), but the model reads no more "
            f"than {longest}: lower the one, or take a model with a longer context"
        )


def corrected(algorithm: Algorithm) -> Algorithm:
    """The algorithm with truncated importance sampling, unless it has a correction of its own.

    Raises:
        ValueError: if it has no such option.
    """
    correction = getattr(algorithm, "correction", None)
    if correction is None or not is_dataclass(algorithm) or isinstance(algorithm, type):
        raise ValueError(
            f"async_rollouts = 1 needs an algorithm with an option `correction`, and {type(algorithm).__name__} has "
            "none: rollouts of an older policy would count as those of the present one"
        )
    return replace(algorithm, correction="token-truncate") if correction == "none" else algorithm


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Put the time that the block takes under the name of its phase."""
    start = time.perf_counter()
    yield
    seconds[phase] = round(time.perf_counter() - start, 3)


def of_rollouts(trajectories: Sequence[Trajectory]) -> Metrics:
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


def _speed(metrics: Metrics, seconds: dict[str, float]) -> dict[str, Any]:
    """Tokens a second of all processes, and the most memory that this one has had."""
    sampled, read = (metrics["episodes"] * metrics[name] for name in ("policy_tokens", "tokens"))
    training = seconds.get("score", 0.0) + seconds.get("update", 0.0)
    return {
        "sampled_per_second": round(sampled / seconds["sampling"], 1) if seconds["sampling"] else None,
        "trained_per_second": round(read / training, 1) if training else None,
        "peak_memory_gib": round(peak_memory() / 2**30, 2),
    }


def peak_memory() -> int:
    """The most memory that this process has had, in bytes: on its GPU where it has one, else resident."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts in bytes, Linux in KiB
