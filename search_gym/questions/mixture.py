"""Several question sets in one, mixed by weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from search_gym.questions import Question, QuestionList, QuestionSet


class Mixture:
    """Draws each question from one of several sets. Their ids begin with the name of the set, "nq/test_12", which is
    also the "data_source" in their metadata, unless they have one.

    A shuffled pass draws the set by weight, and from it the next question of a pass of its own, which begins anew after
    its last. It is as long as the sets are together, so small sets are asked repeatedly in it, and large ones in part;
    with a stream among them it has no end. In order, the sets come one after another, each question once, and weights
    do not matter.

    Args:
        sets: each set by its name, with its weight: any positive number; only their proportions count.

    Raises:
        ValueError: if there is no set, a name holds "/" or is empty, or a weight is not positive.
    """

    def __init__(self, sets: Mapping[str, tuple[QuestionSet, float]]) -> None:
        if not sets:
            raise ValueError("a mixture needs at least one question set")
        for name, (_, weight) in sets.items():
            if not name or "/" in name:
                raise ValueError(f"a set of a mixture cannot be named {name!r}: a name is not empty and holds no '/'")
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(f"the weight of {name!r} must be a positive number, not {weight}")
        self._sets = {name: questions for name, (questions, _) in sets.items()}
        weights = np.array([weight for _, weight in sets.values()], float)
        self._shares = weights / weights.sum()

    @property
    def finite(self) -> bool:
        """Whether all of its sets are lists."""
        return all(isinstance(questions, QuestionList) for questions in self._sets.values())

    def one_pass(self, rng: np.random.Generator | None) -> Iterator[Question]:
        """See the class."""
        if rng is None:
            for name, questions in self._sets.items():
                yield from (_named(name, question) for question in questions.one_pass(None))
            return
        names = list(self._sets)
        going: dict[str, Iterator[Question]] = {name: iter(()) for name in names}
        left = sum(len(q) for q in self._sets.values() if isinstance(q, QuestionList)) if self.finite else math.inf
        while left > 0:
            name = names[int(rng.choice(len(names), p=self._shares))]
            question = next(going[name], None)
            if question is None:
                going[name] = self._sets[name].one_pass(rng)
                question = next(going[name])
            yield _named(name, question)
            left -= 1

    def find(self, identifier: str) -> Question:
        """The question with that id."""
        name, _, rest = identifier.partition("/")
        if name not in self._sets:
            raise ValueError(f"no question has the id {identifier!r}: ids begin with {', '.join(self._sets)}, and '/'")
        return _named(name, self._sets[name].find(rest))


def _named(name: str, question: Question) -> Question:
    return replace(question, id=f"{name}/{question.id}", metadata={"data_source": name, **question.metadata})
