"""What may be asked of any retriever: answers, one a query, and what it counted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search_gym.retrieval import Hit, Retriever, SearchFailed

Counts = dict[str, float | None]


def ask(retriever: Retriever, queries: Sequence[str], k: int) -> Sequence[Sequence[Hit] | SearchFailed]:
    """Search, and see that there is one result a query.

    Raises:
        ValueError: if there is not.
    """
    found = retriever.search(queries, k)
    if len(found) != len(queries):
        raise ValueError(
            f"{type(retriever).__name__}.search was asked {len(queries)} queries and gave {len(found)} results: it "
            "must give one for each, in order"
        )
    return found


def take_counts(retriever: Any) -> Counts:
    """What the retriever counted since it was asked last, as metrics; {} if it has no method `take_counts()`.

    Those of this package that count are, each with what it wraps:

    search_queries         queries that it was asked (`RemoteRetriever`, `CachedRetriever`: the outermost counts)
    search_cache_hit_rate  share of them that the cache answered; None (JSON's null) where there were none
    """
    take = getattr(retriever, "take_counts", None)
    return take() if take is not None else {}
