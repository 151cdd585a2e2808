"""Hybrid retrieval: what several retrievers found, merged by rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from search_gym.retrieval import Hit, Retriever, SearchFailed, checked
from search_gym.retrieval.store import json_digest

CONSTANT = 60.0


class HybridRetriever:
    """Reciprocal rank fusion of retrievers over the same passages.

    Cormack, Clarke and Büttcher, SIGIR 2009: a passage scores the sum over retrievers of weight / (60 + rank), with
    ranks from 1, and nothing from a retriever that has not found it. Only ranks count, so scores of any scales go
    together. Equal scores come in the order of the ranks that the first retriever gave, then the second, and so on.
    Where a retriever could not answer a query, neither can this: half an answer would be a worse one unnoticed.

    Args:
        retrievers: at least one.
        weights: one for each, above 0; None: all 1, as in the paper.
        depth: how many hits each is asked for, >= 1, or `k` where that is more.
        constant: how little the first ranks stand out, >= 0; the paper's 60.

    Raises:
        ValueError: if an argument is not as above; or if retrievers say that they search different corpora (by their
            `corpus_digest`: one across a network has none).
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        *,
        weights: Sequence[float] | None = None,
        depth: int = 100,
        constant: float = CONSTANT,
    ) -> None:
        self.retrievers = list(retrievers)
        self.weights = [1.0] * len(self.retrievers) if weights is None else [float(weight) for weight in weights]
        self.depth, self.constant = depth, float(constant)
        if not self.retrievers or len(self.weights) != len(self.retrievers):
            raise ValueError(
                f"a hybrid needs at least one retriever and a weight for each, not {len(self.retrievers)} and "
                f"{len(self.weights)}"
            )
        if not all(0 < weight < math.inf for weight in self.weights):
            raise ValueError(f"weights must be above 0, not {self.weights}")
        if not (depth >= 1 and 0 <= constant < math.inf):
            raise ValueError(f"depth must be at least 1 and the constant at least 0, not {depth} and {constant}")
        self.passages = next((p for r in self.retrievers if (p := getattr(r, "passages", None)) is not None), None)
        """The passages, where a retriever has them."""
        self.corpus_digest = _corpus(self.retrievers)
        """Of the passages, as `store.passages_digest` has it; None where no retriever tells."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of all that the hits depend on. AttributeError: a retriever has none."""
        digests = [retriever.digest for retriever in self.retrievers]  # pyright: ignore[reportAttributeAccessIssue]
        parts = ["hybrid", 1, digests, self.weights, self.depth, self.constant]
        return json_digest(parts)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        """Find up to `k` passages for every query, best first; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        checked(queries, k)
        depth = max(k, self.depth)
        answers = [retriever.search(queries, depth) for retriever in self.retrievers]
        return [self._fused(found, k) for found in zip(*answers, strict=True)]

    def _fused(self, found: Sequence[Sequence[Hit] | SearchFailed], k: int) -> list[Hit] | SearchFailed:
        hits: dict[str, Hit] = {}
        parts: dict[str, list[float]] = {}
        for some, weight in zip(found, self.weights, strict=True):
            if isinstance(some, SearchFailed):
                return some
            for rank, hit in enumerate(some, start=1):
                hits.setdefault(hit.id, hit)
                parts.setdefault(hit.id, []).append(weight / (self.constant + rank))
        # fsum rounds once, so that the order in which equal parts are added makes no difference between passages.
        scores = {name: math.fsum(each) for name, each in parts.items()}
        # Equal scores stay in the order in which the passages came: the ranks of the first retriever, then the second.
        best = sorted(scores, key=lambda name: -scores[name])[:k]
        return [replace(hits[name], score=scores[name]) for name in best]


def _corpus(retrievers: Sequence[Retriever]) -> str | None:
    known = {
        str(digest): type(retriever).__name__
        for retriever in retrievers
        if (digest := getattr(retriever, "corpus_digest", None)) is not None
    }
    if len(known) > 1:
        each = ", ".join(f"{name} {digest}" for digest, name in known.items())
        raise ValueError(f"these retrievers search different corpora, so their hits cannot be merged: {each}")
    return next(iter(known), None)
