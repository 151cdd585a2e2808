"""Corpora, queries and vectors of any size, made from a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from search_gym.retrieval import Passage
from search_gym.retrieval.store import PassageStore

WORDS, COMMON, LENGTH = 500_000, 30, 100
"""Size of the vocabulary; how many of its commonest words no query holds, as if they were stop words; words of a
passage."""
DIMENSION, CENTRES, SPREAD = 384, 2_000, 1.0


def write_corpus(path: Path, size: int, seed: int = 0) -> None:
    """Passages of 100 words, the i-th commonest word with a probability in proportion to 1 / i (Zipf's law)."""
    rng = np.random.default_rng(seed)
    names = np.array([_word(rank) for rank in range(WORDS)])
    ends = np.cumsum(1 / np.arange(1, WORDS + 1))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, size, 10_000):
            drawn = np.searchsorted(ends / ends[-1], rng.random((min(10_000, size - start), LENGTH)))
            for number, row in enumerate(names[drawn], start):
                file.write(json.dumps({"id": number, "title": f"title{number}", "text": " ".join(row)}) + "\n")


def queries(passages: PassageStore, count: int, words: int = 6, seed: int = 1) -> list[str]:
    """Each is some words of one passage, the commonest left out."""
    rng = np.random.default_rng(seed)
    common = {_word(rank) for rank in range(COMMON)}
    made = []
    for place in rng.integers(len(passages), size=count).tolist():
        held = [word for word in passages[place].text.split() if word not in common]
        made.append(" ".join(rng.choice(held, words)))
    return made


class VectorEncoder:
    """Stands for a model: unit vectors around random centres, for passages by their numbers, for queries by theirs.

    Args:
        spread: the noise around a centre, as a multiple of the centre's length; without centres, vectors of text would
            be as far from each other as random ones, which no index but a flat one can search.
    """

    def __init__(self, spread: float = SPREAD) -> None:
        self._spread = spread
        self._centres = np.random.default_rng(2).standard_normal((CENTRES, DIMENSION), np.float32)
        self.dimension = DIMENSION
        self.digest = f"vectors-{CENTRES}-{spread}"

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """(n, 384) float32, of unit length."""
        return self._vectors(np.random.default_rng((3, int(passages[0].id))), len(passages))

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """(n, 384) float32, of unit length."""
        return np.concatenate([self._vectors(np.random.default_rng((4, int(text))), 1) for text in texts])

    def _vectors(self, rng: np.random.Generator, count: int) -> np.ndarray:
        vectors = self._centres[rng.integers(CENTRES, size=count)]
        vectors = vectors + self._spread * rng.standard_normal((count, DIMENSION), np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _word(rank: int) -> str:
    return f"w{rank:x}"
