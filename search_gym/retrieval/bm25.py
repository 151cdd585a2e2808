"""BM25 by bm25s: over passages in memory, or over an index on disk that is memory-mapped."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from search_gym.retrieval import Hit, Passage, checked
from search_gym.retrieval.postings import Analyzer, Block, Matrix, SavedBlocks, score
from search_gym.retrieval.store import (
    MANIFEST,
    PassageStore,
    json_digest,
    open_array,
    passages_digest,
    read_manifest,
    write_manifest,
)

# bm25s sets its logger to DEBUG, which would get past the level that an application chose: give the choice back.
logging.getLogger("bm25s").setLevel(logging.NOTSET)

BLOCK_PASSAGES = 50_000
Progress = Callable[[int], object]


@dataclass(frozen=True)
class BM25Settings:
    """What scores depend on, besides the passages.

    Raises:
        ValueError: if a parameter is outside its range.
    """

    k1: float = 1.2
    """How much a repeated word adds, >= 0."""
    b: float = 0.75
    """How much long passages are held back, in [0, 1]. The defaults of both are Lucene's; Pyserini, and with it
    Search-R1, uses 0.9 and 0.4."""
    stopwords: Collection[str] = STOPWORDS_EN
    """Words that are left out of passages and queries, in lower case; by default Lucene's 33 for English."""

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1):
            raise ValueError(f"k1 must be at least 0 and b in [0, 1], not {self.k1} and {self.b}")

    @property
    def analyzer(self) -> Analyzer:
        """Makes words of passages and queries."""
        return Analyzer(frozenset(self.stopwords))

    def described(self) -> dict[str, Any]:
        """The settings, as JSON can hold them."""
        return {"k1": self.k1, "b": self.b, "stopwords": sorted(self.stopwords)}


class BM25Retriever:
    """Finds the passages that share words with a query, title and text taken together.

    What words are, `postings.Analyzer` says. A passage that has no word of the query is no hit; equal scores come in
    the order of the corpus; a query finds the same alone and in a batch.

    Args:
        passages: at least one, each with an id of its own, one of them with a word.
        k1, b, stopwords: see `BM25Settings`.

    Raises:
        ValueError: if the corpus or a parameter is not as above.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        stopwords: Collection[str] = STOPWORDS_EN,
    ) -> None:
        settings = BM25Settings(k1, b, stopwords)
        if not passages:
            raise ValueError("the corpus is empty: there is nothing to search in")
        identifier, count = Counter(passage.id for passage in passages).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} passages of the corpus have the id {identifier!r}")
        block = Block.of(map(_searched, passages), settings.analyzer)
        self._set(list(passages), settings, _index(score([block], k1=k1, b=b), settings), passages_digest(passages))

    def _set(self, passages: Sequence[Passage], settings: BM25Settings, index: bm25s.BM25, corpus: str) -> None:
        self.passages = passages
        self._index, self._analyzer = index, settings.analyzer
        self._vocabulary: dict[str, int] = index.vocab_dict  # pyright: ignore[reportAttributeAccessIssue]
        self.corpus_digest = corpus
        """Of the passages, see `store.passages_digest`."""
        self.digest = _digest(settings, corpus)
        """Names the passages and the settings: equal digests, equal answers."""

    @classmethod
    def open(cls, folder: Path, passages: Sequence[Passage], settings: BM25Settings | None = None) -> BM25Retriever:
        """Open what `build` wrote, memory-mapped: what a search needs of the index is read when it needs it.

        Args:
            folder: that of the index.
            passages: those that it was built from.
            settings: those that it must have been built with; None: any.

        Raises:
            ValueError: if the folder holds no whole index, or one of other passages or settings.
        """
        manifest = read_manifest(folder / MANIFEST, "BM25 index", ["corpus", "passages", "settings"])
        corpus = passages_digest(passages)
        if manifest["corpus"] != corpus or manifest["passages"] != len(passages):
            raise ValueError(
                f"{folder} was built from {manifest['passages']} passages with the digest {manifest['corpus']}; these "
                f"are {len(passages)} with the digest {corpus}: build the index again, or open it with its own passages"
            )
        built = manifest["settings"]
        asked = built if settings is None else settings.described()
        for name, value in asked.items():
            if value != built.get(name):
                raise ValueError(
                    f"{folder} was built with {name}={built.get(name)}, not with {name}={value}: choose another "
                    "folder, or delete this one"
                )
        retriever = cls.__new__(cls)
        arrays = {name: open_array(folder / f"{name}.csc.index.npy") for name in ("data", "indices", "indptr")}
        index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        index.scores |= arrays
        retriever._set(passages, BM25Settings(**built), index, corpus)
        return retriever

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find up to `k` passages for every query, best first; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        return [self._search(query, k) for query in checked(queries, k)]

    def _search(self, query: str, k: int) -> list[Hit]:
        ids = [self._vocabulary[word] for word in self._analyzer.words(query) if word in self._vocabulary]
        if not ids:
            return []
        # Not `retrieve`: it orders equal scores by chance, fills up with passages that score 0, and refuses a large k.
        scores = self._index.get_scores_from_ids(ids)
        return [Hit(p.id, p.title, p.text, float(scores[i])) for i in _best(scores, k) for p in [self.passages[i]]]


def build(
    passages: PassageStore,
    folder: Path,
    settings: BM25Settings,
    *,
    processes: int = 1,
    advance: Progress = lambda _: None,
) -> None:
    """Build an index on disk, for `BM25Retriever.open`. What an interrupted call with the same settings left is used.

    Args:
        passages: each with an id of its own, one of them with a word.
        folder: is made.
        settings: of the index.
        processes: how many count words side by side. With more than one, a script that calls this must guard its main
            part by `if __name__ == "__main__":`, for each of them imports it.
        advance: is told of every run of passages whose words are counted.

    Raises:
        ValueError: if no passage has a word.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    digest = _digest(settings, passages.digest)
    counted = folder / f"counts-{digest}"  # those of other settings or passages are never taken for these
    for other in folder.glob("counts-*"):
        if other != counted:
            shutil.rmtree(other)
    counted.mkdir(exist_ok=True)
    paths = _count(passages, counted, settings, processes, advance)
    matrix = score(SavedBlocks(paths), k1=settings.k1, b=settings.b, folder=counted)
    _index(matrix, settings).save(folder, show_progress=False)
    write_manifest(
        folder / MANIFEST,
        {"corpus": passages.digest, "passages": len(passages), "settings": settings.described()},
    )
    shutil.rmtree(counted)


def _count(
    passages: PassageStore, folder: Path, settings: BM25Settings, processes: int, advance: Progress
) -> list[Path]:
    """Count the words of all passages into files, a block each; those that are there already are taken as they are."""
    starts = range(0, len(passages), BLOCK_PASSAGES)
    paths = [folder / f"{start:012}.npz" for start in starts]
    tasks = [(start, path) for start, path in zip(starts, paths, strict=True) if not path.exists()]
    advance(min(len(passages), (len(paths) - len(tasks)) * BLOCK_PASSAGES))
    if processes == 1:
        for start, path in tasks:
            advance(_count_block(passages, start, path, settings.analyzer))
        return paths
    # Not forked: a library that runs threads of its own, as torch does, may hold a lock at that moment.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_count_block, passages, start, path, settings.analyzer) for start, path in tasks]
        for job in jobs:
            advance(job.result())
    return paths


def _count_block(passages: PassageStore, start: int, path: Path, analyzer: Analyzer) -> int:
    """Count one block; the number of its passages."""
    stop = min(start + BLOCK_PASSAGES, len(passages))
    Block.of((_searched(passages[place]) for place in range(start, stop)), analyzer).save(path)
    return stop - start


def _searched(passage: Passage) -> str:
    return f"{passage.title} {passage.text}"


def _index(matrix: Matrix, settings: BM25Settings) -> bm25s.BM25:
    """bm25s over a matrix of ours."""
    index = bm25s.BM25(k1=settings.k1, b=settings.b)
    index.scores = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "num_docs": matrix.passages,
    }
    index.vocab_dict = matrix.vocabulary
    index.nonoccurrence_array = None
    return index


def _digest(settings: BM25Settings, corpus: str) -> str:
    return json_digest({"bm25": settings.described(), "corpus": corpus})


def _best(scores: np.ndarray, k: int) -> list[int]:
    """Places of the k greatest scores above 0, equal ones in ascending order of place."""
    places = np.flatnonzero(scores > 0)  # few of them, most often
    if k < len(places):
        found = scores[places]
        places = places[found >= np.partition(found, -k)[-k]]
    return places[np.argsort(-scores[places], kind="stable")][:k].tolist()
