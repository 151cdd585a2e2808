"""What becomes of searches that fail: the policy is told, or the run stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.asking import Counts, ask, take_counts

OnSearchError = Literal["tell", "raise"]
"""What becomes of a search that failed: "tell" the policy, which reads that the search is unavailable and goes on; or
"raise" `SearchError`, which ends the run."""


class SearchError(RuntimeError):
    """A search failed, and was not to."""

    def __init__(self, reason: str, query: str | None = None) -> None:
        super().__init__(reason, query)
        self.reason = reason
        self.query = query

    def __str__(self) -> str:
        return self.reason if self.query is None else f"the search for {self.query!r:.200} failed: {self.reason}"


class StrictRetriever:
    """Raises `SearchError` where the retriever within says that a search failed.

    Args:
        retriever: answers the searches.
    """

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    @property
    def digest(self) -> str:
        """That of the retriever within. AttributeError: it has none."""
        return self.retriever.digest  # pyright: ignore[reportAttributeAccessIssue]

    def take_counts(self) -> Counts:
        """Those of the retriever within; see `asking.take_counts`."""
        return take_counts(self.retriever)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The hits for every query; see `search_gym.retrieval.Retriever`.

        Raises:
            SearchError: for the first query whose search failed, with the reason.
        """
        found = []
        for query, hits in zip(queries, ask(self.retriever, queries, k), strict=True):
            if isinstance(hits, SearchFailed):
                raise SearchError(hits.reason, query)
            found.append(list(hits))
        return found
