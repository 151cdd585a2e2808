"""Encoders: queries and passages in, vectors out, by sentence-transformers."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from search_gym.retrieval import Passage
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.models import MINILM, load, model_digest, model_folder
from search_gym.retrieval.store import json_digest
from search_gym.unicode import whole

_BGE = "Represent this sentence for searching relevant passages: "
# By the name of a model, for what its own configuration does not say: what is put before queries and before passages.
_PREFIXES = (
    (re.compile(r"(?:^|[^a-z0-9])e5(?:[^a-z0-9]|$)(?!.*(?:instruct|mistral))"), ("query: ", "passage: ")),
    (re.compile(r"bge-(?:small|base|large)-en"), (_BGE, "")),
)


class Encoder(Protocol):
    """Turns text into vectors whose inner product says how well a passage answers a query."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that name all that the vectors depend on, but for rounding."""
        ...

    @property
    def dimension(self) -> int:
        """Of the vectors, >= 1."""
        ...

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """One vector a query: float32, (queries, dimension)."""
        ...

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """One vector a passage: float32, (passages, dimension)."""
        ...


class SentenceEncoder:
    """A model of sentence-transformers, or a bare transformers model with mean pooling.

    Pooling is what the model's own configuration says. Texts are cut at the model's length, and half a surrogate pair
    is read as U+FFFD. Use it as a context manager, or call `close`, where several devices are given.

    Args:
        model: "minilm", the path of a folder, or a name on the hub; see `models.model_folder`.
        query_prefix: what is put before queries. None: the prompt that the model's configuration has for queries; else,
            by the model's name, "query: " for E5 and BGE's instruction for BGE in English; else nothing.
        passage_prefix: what is put before passages; "passage: " for E5, and nothing for BGE.
        normalize: make every vector one of length 1, so that the inner product is the cosine.
        max_length: in tokens, >= 1; None: the model's.
        revision: of a model on the hub.
        device: "cpu", "cuda", "cuda:1", ...; None: a GPU where there is one. Several: passages are encoded by one
            process on each, queries on the first. A script that gives several needs `if __name__ == "__main__":`.
        batch_size: how many texts the model sees at once, >= 1.
        dtype: of the weights in memory. "float16" is for GPUs: faster, and rounded to about three digits. Like the
            device it is no part of the digest.
        trust_remote_code: run Python code that comes with the model. Never taken from an index.

    Raises:
        ValueError: if a number is out of range; FileNotFoundError: if there is no such model; ImportError: without
            sentence-transformers.
    """

    def __init__(
        self,
        model: str = MINILM,
        *,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        normalize: bool = True,
        max_length: int | None = None,
        revision: str | None = None,
        device: str | Sequence[str] | None = None,
        batch_size: int = 64,
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"batch_size and max_length are at least 1, not {batch_size} and {max_length}")
        folder = model_folder(model, organization="sentence-transformers", revision=revision)
        devices = [device] if isinstance(device, str) or device is None else list(device)
        self._model = load("SentenceTransformer", folder, devices[0], dtype, trust_remote_code=trust_remote_code)
        if max_length is not None:
            self._model.max_seq_length = max_length
        self._devices, self._batch_size = devices, batch_size
        self._pool: Any = None
        self._stop: Callable[[], object] | None = None
        for_queries, for_passages = _prefixes(model, folder)
        self.spec: dict[str, Any] = {
            "model": str(folder) if Path(model).expanduser().is_dir() and model != MINILM else model,
            "query_prefix": for_queries if query_prefix is None else query_prefix,
            "passage_prefix": for_passages if passage_prefix is None else passage_prefix,
            "normalize": normalize,
            "max_length": self._model.max_seq_length,
            "revision": revision,
        }
        """What makes the same encoder again: SentenceEncoder(**spec). JSON can hold it."""
        self.digest = _digest(folder, self.spec)
        self.dimension: int = self._encode([""], "").shape[1]

    @property
    def workers(self) -> int:
        """How many processes encode passages."""
        return len(self._devices)

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """One vector a query: float32, (queries, dimension).

        Raises:
            ValueError: if the model gives a number that is not finite, as some do in float16.
        """
        return self._encode(texts, self.spec["query_prefix"])

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """One vector a passage: float32, (passages, dimension); see `contents`.

        Raises:
            ValueError: as `queries`.
        """
        if self.workers > 1 and self._pool is None:
            self._pool = self._model.start_multi_process_pool(self._devices)
            self._stop = weakref.finalize(self, self._model.stop_multi_process_pool, self._pool)
        return self._encode(
            [contents(passage.title, passage.text) for passage in passages], self.spec["passage_prefix"], self._pool
        )

    def close(self) -> None:
        """End the processes of several devices, if there are any; they start again when needed."""
        if self._stop is not None:
            self._stop()
        self._pool = self._stop = None

    def __enter__(self) -> SentenceEncoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _encode(self, texts: Sequence[str], prefix: str, pool: Any = None) -> np.ndarray:
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        where = {"device": self._devices[0]} if pool is None else {"pool": pool, "chunk_size": self._chunk(len(texts))}
        vectors = self._model.encode(
            [prefix + whole(text) for text in texts],
            prompt="",  # the prefix is ours; a default prompt of the model would come on top of it
            batch_size=self._batch_size,
            normalize_embeddings=self.spec["normalize"],
            show_progress_bar=False,
            convert_to_numpy=True,
            **where,
        ).astype(np.float32, copy=False)
        if not np.isfinite(vectors).all():
            raise ValueError(f"the model {self.spec['model']} gave numbers that are not finite: try dtype='float32'")
        return np.ascontiguousarray(vectors)

    def _chunk(self, texts: int) -> int:
        """How many texts a process gets at once: about four rounds for each, so that none waits long for the last."""
        return max(self._batch_size, -(-texts // (4 * self.workers)))


def _prefixes(model: str, folder: Path) -> tuple[str, str]:
    """What the model's configuration, or else its name, has for queries and for passages."""
    config = folder / "config_sentence_transformers.json"
    prompts = json.loads(config.read_text(encoding="utf-8")).get("prompts") or {} if config.is_file() else {}
    known = {name: prompt for name, prompt in prompts.items() if prompt}
    if known.keys() & {"query", "document", "passage"}:
        return known.get("query", ""), known.get("document") or known.get("passage") or ""
    # A folder in the cache of the hub is named after a commit, and one further up after the model.
    cached = next((part for part in reversed(folder.parts) if part.startswith("models--")), None)
    name = (cached or (folder.name if Path(model).expanduser().is_dir() else model)).lower()
    return next((prefixes for pattern, prefixes in _PREFIXES if pattern.search(name)), ("", ""))


def _digest(folder: Path, spec: dict[str, Any]) -> str:
    names = ("query_prefix", "passage_prefix", "normalize", "max_length")
    parts = {"format": 1, "model": model_digest(folder), **{name: spec[name] for name in names}}
    return json_digest(parts)
