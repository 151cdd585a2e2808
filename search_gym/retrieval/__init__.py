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


@dataclass(frozen=True)
class SearchFailed:
    """Stands for the hits of a query that could not be answered: not the same as finding nothing."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a search that failed has a reason: say which")


class Retriever(Protocol):
    """What the environment asks of a search engine."""

    def search(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Hit] | SearchFailed]:
        """Find passages for every query in one call.

        Args:
            queries: any strings; the empty one finds nothing.
            k: how many passages at most, >= 1.

        Returns:
            For every query, in order, up to `k` distinct hits, best first; or `SearchFailed`, which the policy is told
            of. An exception is for what no policy can help: it ends the run.
        """
        ...


def checked(queries: Sequence[str], k: int) -> Sequence[str]:
    """The queries of a search.

    Raises:
        ValueError: if k < 1; TypeError: if `queries` is a single string.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if isinstance(queries, str):
        raise TypeError(f"queries must be a list of strings, not a string: search([{queries!r:.80}], k)")
    return queries
