"""Question sets from Hugging Face datasets: by name on the hub, by path, read whole or as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from search_gym.questions import Question
from search_gym.questions.rows import Row, collect

# So many questions of a stream are held to shuffle among.
BUFFER = 10_000


def open_dataset(name: str, *, config: str | None, split: str | None, streaming: bool) -> tuple[Any, str]:
    """A dataset, and the name of its split.

    Args:
        name: a name on the hub; a folder of data files; or a folder that `save_to_disk` wrote.
        config: which of the configurations of the dataset.
        split: which of its splits; None: the only one, or "train".
        streaming: read it as it is used, instead of loading it first.

    Raises:
        ValueError: if there is no such dataset, configuration or split; ImportError: without datasets.
    """
    if not name:
        raise ValueError("a dataset has a name: write hf:NAME or hf:NAME:SPLIT")
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ImportError(f"{name}: a dataset needs datasets: pip install 'search-gym[data]'") from error

    try:
        if any((Path(name) / file).exists() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(name)
            if streaming:
                raise ValueError("what save_to_disk wrote is not streamed: it is memory-mapped already")
        else:
            found = datasets.load_dataset(name, config, streaming=streaming)
    except (ValueError, OSError, DatasetsError) as error:
        raise ValueError(f"cannot open the dataset {name!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        if split is not None and split != str(found.split):
            raise ValueError(f"the dataset {name!r} is a single split, {found.split}; it has no {split!r}")
        return found, str(found.split or "row")
    chosen = split or (next(iter(found)) if len(found) == 1 else "train")
    if chosen not in found:
        asked = f"has no split {chosen!r}" if split else "has several splits, none of them 'train': say which"
        raise ValueError(f"the dataset {name!r} {asked}; there are: {', '.join(map(str, found))}")
    return found[chosen], str(chosen)


def read(dataset: Any, name: str) -> Iterator[tuple[str, Row]]:
    """The rows of a dataset, from "name:row 0" on."""
    for number, row in enumerate(dataset):
        yield f"{name}:row {number}", row


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
        rows = read(self._dataset, self._name)
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
