"""Reranking: the first hits of a retriever in the order of a model that reads query and passage together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search_gym.retrieval import Hit, Passage, Retriever, SearchFailed, checked
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.models import load, model_digest, model_folder
from search_gym.retrieval.store import json_digest
from search_gym.unicode import whole


class RerankRetriever:
    """Orders what a retriever finds by the scores of a cross-encoder, by sentence-transformers.

    The scores are those of `CrossEncoder.predict`; equal ones keep the order of the retriever. The model reads '"Title"
    newline text', see `corpus.contents`, cut at its length. All queries of a call are scored together, and a query
    finds the same alone and in a batch up to rounding, as `DenseRetriever` says.

    Args:
        retriever: whose hits are reranked.
        model: the path of a folder, or a name on the hub, "BAAI/bge-reranker-base" for one. There is no default: no
            cross-encoder was found that a package ships.
        depth: how many hits are reranked, >= 1, or `k` where that is more.
        max_length: of query and passage together, in tokens, >= 1; None: the model's.
        revision: of a model on the hub.
        device: "cpu", "cuda", "cuda:1", …; None: a GPU where there is one.
        batch_size: how many pairs the model sees at once, >= 1.
        dtype: of the weights in memory; "float16" is for GPUs.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        ValueError: if a number is out of range, or the model gives several scores a pair; FileNotFoundError: if there
            is no such model; ImportError: without sentence-transformers.
    """

    def __init__(
        self,
        retriever: Retriever,
        model: str,
        *,
        depth: int = 50,
        max_length: int | None = None,
        revision: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        if min(depth, batch_size, 1 if max_length is None else max_length) < 1:
            raise ValueError(
                f"depth, batch_size and max_length are at least 1, not {depth}, {batch_size} and {max_length}"
            )
        folder = model_folder(model, organization="cross-encoder", revision=revision)
        self.retriever, self.depth, self._batch_size = retriever, depth, batch_size
        self.passages: Sequence[Passage] | None = getattr(retriever, "passages", None)
        """The passages, where the retriever has them."""
        self._model = load("CrossEncoder", folder, device, dtype, trust_remote_code=trust_remote_code)
        if self._model.num_labels != 1:
            raise ValueError(
                f"{model}: this model gives {self._model.num_labels} scores for a query and a passage: a cross-encoder "
                "for search gives one"
            )
        if max_length is not None:
            self._model.max_seq_length = max_length
        self._name = [model_digest(folder), self._model.max_seq_length]

    @property
    def corpus_digest(self) -> str | None:
        """That of the retriever, where it tells."""
        return getattr(self.retriever, "corpus_digest", None)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of all that the hits depend on. AttributeError: the retriever has none."""
        inner = self.retriever.digest  # pyright: ignore[reportAttributeAccessIssue]
        parts = ["rerank", 1, inner, self._name, self.depth]
        return json_digest(parts)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        """Find up to `k` passages for every query, best first; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        checked(queries, k)
        found = self.retriever.search(queries, max(k, self.depth))
        pairs = [
            (whole(query), whole(contents(hit.title, hit.text)))
            for query, some in zip(queries, found, strict=True)
            if not isinstance(some, SearchFailed)
            for hit in some
        ]
        scores = iter(self._scores(pairs))
        return [
            some if isinstance(some, SearchFailed) else _best([replace(hit, score=next(scores)) for hit in some], k)
            for some in found
        ]

    def _scores(self, pairs: list[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        scores = self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
        if not np.isfinite(scores).all():
            raise ValueError("the cross-encoder gave scores that are not finite: try dtype='float32'")
        return scores.tolist()


def _best(hits: list[Hit], k: int) -> list[Hit]:
    return sorted(hits, key=lambda hit: -hit.score)[:k]
