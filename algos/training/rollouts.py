"""Rollout batches, one after the other: questions drawn in order, played by an engine, now or ahead of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch

from algos.dapo import informative
from algos.training.collate import collate
from algos.training.config import TrainerConfig
from algos.training.distributed import ALONE, Ranks
from algos.training.engines import Engine
from algos.training.rollout import play
from search_gym.questions import Question
from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.asking import Counts, take_counts
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


class QuestionOrder:
    """The questions without end, shuffled anew in each pass.

    Args:
        questions: at least one.
        seed: of the order.
    """

    def __init__(self, questions: Sequence[Question], seed: int) -> None:
        if not questions:
            raise ValueError("there is no question to train on")
        self._questions, self._seed = questions, seed
        self.position = 0
        """How many questions were drawn since the beginning of the first pass. May be set."""
        self._passes_drawn, self._order = 0, list[int]()

    def take(self, count: int) -> list[Question]:
        """The next `count` questions."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Question:
        passes, index = divmod(self.position, len(self._questions))
        if self._passes_drawn != passes + 1:
            generator = torch.Generator().manual_seed(self._seed)
            for _ in range(passes + 1):  # each pass goes on with the random numbers of the one before
                self._order = torch.randperm(len(self._questions), generator=generator).tolist()
            self._passes_drawn = passes + 1
        self.position += 1
        return self._questions[self._order[index]]


@dataclass(frozen=True)
class Rollout:
    """What one process played for a step."""

    trajectories: list[Trajectory]
    """All episodes, whole groups one after the other."""
    kept: list[int]
    """The numbers of those that are learnt from."""
    seconds: float
    """How long it took."""
    search_seconds: float
    """How much of it went by in searches."""
    counts: Counts = field(default_factory=dict)
    """What the retriever counted."""

    def to_state(self) -> dict[str, Any]:
        """Of types that `torch.load(weights_only=True)` reads."""
        return vars(self) | {"trajectories": [trajectory.to_json() for trajectory in self.trajectories]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Rollout:
        """The inverse of `to_state`."""
        return cls(**{**state, "trajectories": [Trajectory.from_json(row) for row in state["trajectories"]]})


@dataclass
class Rollouts:
    """Makes rollout batches. Talks to no other process, so it may run in a thread beside the training.

    Args:
        engine, tokenizer, retriever, rules: as `play` takes them.
        questions: to draw from; every process draws the same and plays its share.
        config: of the loop.
        ranks: this process among those that train together.
    """

    engine: Engine
    tokenizer: Tokenizer
    retriever: Retriever
    rules: Rules
    questions: Sequence[Question]
    config: TrainerConfig
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        if self.config.batch_questions < self.ranks.count:
            raise ValueError(
                f"batch_questions = {self.config.batch_questions} cannot be shared out to {self.ranks.count} processes"
            )
        self._order = QuestionOrder(self.questions, self.config.question_seed)
        self._pending: Future[Rollout] | None = None

    def make(self) -> Rollout:
        """Play a rollout batch: this process's share of the questions, each `group_size` times."""
        config, retriever = self.config, _Timed(self.retriever)
        take_counts(self.retriever)  # what was searched for in between, in an evaluation, is not of this rollout
        start = time.perf_counter()
        trajectories: list[Trajectory] = []
        while True:
            asked = self._order.take(config.batch_questions)
            share = asked[self._bound(self.ranks.rank) : self._bound(self.ranks.rank + 1)]
            trajectories += play(
                [question for question in share for _ in range(config.group_size)],
                engine=self.engine,
                tokenizer=self.tokenizer,
                retriever=retriever,
                rules=self.rules,
                temperature=config.temperature,
                concurrency=config.concurrency or None,
                overlap_searches=config.overlap_searches,
            )
            wanted = len(share) * config.group_size
            kept = self._kept(trajectories)
            if len(kept) >= wanted or len(trajectories) == config.max_sampled_batches * wanted:
                seconds = time.perf_counter() - start
                return Rollout(trajectories, kept[:wanted], seconds, retriever.seconds, take_counts(self.retriever))

    def _bound(self, rank: int) -> int:
        return self.config.batch_questions * rank // self.ranks.count

    def _kept(self, trajectories: Sequence[Trajectory]) -> list[int]:
        if self.config.max_sampled_batches == 1:
            return list(range(len(trajectories)))
        batch = collate(trajectories, groups_of(trajectories, self.config.group_size))
        return informative(batch).nonzero().squeeze(1).tolist()

    def begin(self) -> None:
        """Make the next batch in a thread, from the weights that the engine has now. `take` gives it."""
        self._pending = _in_thread(self.make)

    def take(self) -> Rollout:
        """The batch that `begin` began; or one that is made now."""
        pending, self._pending = self._pending, None
        return self.make() if pending is None else pending.result()

    @contextmanager
    def paused(self) -> Iterator[Engine]:
        """The engine, for another use in between: no rollouts are being made, and its random state is put back."""
        if self._pending is not None:
            self._pending.exception()  # waits; whatever it is, `take` gives or raises it
        state = self.engine.state_dict()
        yield self.engine
        self.engine.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins. Waits for one that is being made, which is part of the state."""
        pending = None if self._pending is None else self._pending.result().to_state()
        return {"position": self._order.position, "engine": self.engine.state_dict(), "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called."""
        self._order.position = state["position"]
        self.engine.load_state_dict(state["engine"])
        self._pending = None
        if state["pending"] is not None:
            self._pending = Future()
            self._pending.set_result(Rollout.from_state(state["pending"]))


def groups_of(trajectories: Sequence[Trajectory], size: int) -> list[int]:
    """A number for the group of each; told by position, for a question that is drawn twice makes two groups."""
    return [position // size for position in range(len(trajectories))]


def _in_thread(make: Callable[[], Rollout]) -> Future[Rollout]:
    """Run in a thread that does not outlive the program: Ctrl-C need not wait for it."""
    future: Future[Rollout] = Future()

    def work() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name="rollouts", daemon=True).start()
    return future


class _Timed:
    """A retriever that says how long its searches took."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner
        self.seconds = 0.0

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Hit] | SearchFailed]:
        start = time.perf_counter()
        try:
            return self._inner.search(queries, k)
        finally:
            self.seconds += time.perf_counter() - start
