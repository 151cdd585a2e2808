"""Questions of a Hugging Face dataset that is read while it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from search_gym import hub
from search_gym.questions import Question
from search_gym.questions.rows import collect

# So many questions of a stream are held to shuffle among.
BUFFER = 10_000


class QuestionStream:
    """The questions of a streamed dataset: a pass reads it from the beginning, and shuffles within a buffer.

    Args:
        dataset: a `datasets.IterableDataset`.
        name: its name, for errors.
        split: its split, for the ids of rows that have none.
        skip_bad: leave out what is no question.
    """

    def __init__(self, dataset: Any, name: str, split: str, *, skip_bad: bool = False) -> None:
        self._dataset, self._name, self._split, self._skip_bad = dataset, name, split, skip_bad

    def one_pass(self, rng: np.random.Generator | None) -> Iterator[Question]:
        """Every question once. The ids of rows without one are their numbers in this order."""
        rows = hub.read(self._dataset, self._name)
        skipped = _forget if self._skip_bad else None
        questions = collect(rows, numbered=f"{self._split}_", skipped=skipped, distinct=False)
        return _nonempty(questions if rng is None else _shuffled(questions, rng), self._name)

    def find(self, identifier: str) -> Question:
        """A stream cannot tell what it will hold."""
        raise ValueError(f"{self._name} is streamed: no question can be chosen by its id ({identifier!r})")


def _forget(reason: str) -> None:
    """A stream never ends, so there is no time at which to report what was left out."""


def _nonempty(questions: Iterable[Question], name: str) -> Iterator[Question]:
    number = 0
    for number, question in enumerate(questions, start=1):  # noqa: B007
        yield question
    if number == 0:
        raise ValueError(f"{name} holds no question")


def _shuffled(questions: Iterator[Question], rng: np.random.Generator) -> Iterator[Question]:
    """Each question trades places with a random one of a buffer, which is emptied in a random order at the end."""
    buffer: list[Question] = []
    for question in questions:
        if len(buffer) < BUFFER:
            buffer.append(question)
            continue
        i = int(rng.integers(BUFFER))
        buffer[i], question = question, buffer[i]
        yield question
    for i in rng.permutation(len(buffer)).tolist():
        yield buffer[i]
