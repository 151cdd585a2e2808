"""Search: queries in, passages out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Passage:
    """One entry of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage that a search found; a higher score is a better match, on the scale of its retriever."""

    id: str
    title: str
    text: str
    score: float


class Retriever(Protocol):
    """What the environment asks of a search engine."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find passages for every query in one call.

        Args:
            queries: any strings; the empty one finds nothing.
            k: how many passages at most, >= 1.

        Returns:
            For every query, in order, up to `k` distinct hits, best first.
        """
        ...
