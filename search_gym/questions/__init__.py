"""Questions with their accepted answers, and sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np


@dataclass(frozen=True)
class Question:
    """A question and the answers that count as right.

    Raises:
        ValueError: if `golds` holds no non-empty answer, for such a question can never be rewarded.
    """

    id: str
    text: str
    golds: tuple[str, ...]
    """The accepted answers, none of them empty, at least one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.golds or not all(gold.strip() for gold in self.golds):
            raise ValueError(f"question {self.id!r} has an empty list of answers or an empty answer: {self.golds!r}")


class QuestionSet(Protocol):
    """What an environment asks of its questions."""

    def one_pass(self, rng: np.random.Generator | None) -> Iterator[Question]:
        """Questions one after another: shuffled by `rng`, the same for the same state of it, or in their own order."""
        ...

    def find(self, identifier: str) -> Question:
        """The question with that id; ValueError if there is none, or no telling."""
        ...


class QuestionList(Sequence[Question]):
    """A question set in memory. A pass asks every question once.

    Raises:
        ValueError: if there is no question, or two share an id.
    """

    def __init__(self, questions: Iterable[Question]) -> None:
        self._questions = tuple(questions)
        if not self._questions:
            raise ValueError("an environment needs at least one question, and the list is empty")
        self._by_id: dict[str, Question] = {}
        for question in self._questions:
            if question.id in self._by_id:
                raise ValueError(f"two questions have the id {question.id!r}")
            self._by_id[question.id] = question

    def one_pass(self, rng: np.random.Generator | None) -> Iterator[Question]:
        """Every question once."""
        order = range(len(self)) if rng is None else rng.permutation(len(self)).tolist()
        return (self._questions[i] for i in order)

    def find(self, identifier: str) -> Question:
        """The question with that id."""
        if identifier not in self._by_id:
            raise ValueError(f"no question has the id {identifier!r}; the first one is {self._questions[0].id!r}")
        return self._by_id[identifier]

    def sample(self, size: int, seed: int) -> QuestionList:
        """So many of them, drawn by a seed, in the order that they had."""
        if not 1 <= size <= len(self):
            raise ValueError(f"cannot take a sample of {size} from {len(self)} questions")
        chosen = np.random.default_rng(seed).choice(len(self), size, replace=False)
        return QuestionList(self._questions[i] for i in sorted(chosen.tolist()))

    def __len__(self) -> int:
        return len(self._questions)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> list[Question]: ...
    def __getitem__(self, index: int | slice) -> Question | list[Question]:
        return list(self._questions[index]) if isinstance(index, slice) else self._questions[index]
