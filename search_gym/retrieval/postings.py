"""Counting words: from passages, block by block, to the score of every word in every passage that has it.

bm25s makes its index from lists of all tokens and sorts all entries at once: for 21 million passages of 100 words that
is more than 50 GB. What is made here is the same index (a test compares the two), in memory that does not grow with the
corpus but for its vocabulary: blocks of counts lie on disk, and the matrix is written in place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_WORD = re.compile(r"\w+")
_ACCENT = re.compile("[\u0300-\u036f]")


@dataclass(frozen=True)
class Analyzer:
    """Runs of letters and digits in lower case without accents, so "Beyonce" finds "Beyoncé"; nothing is stemmed."""

    stopwords: frozenset[str]
    """Words that are left out, in lower case."""

    def words(self, text: str) -> list[str]:
        """The words of a text, in order."""
        if not text.isascii():
            text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
        return [word for word in _WORD.findall(text.lower()) if word not in self.stopwords]


@dataclass(frozen=True)
class Block:
    """How often every word is in every passage of a run of passages. Entries are sorted by word, then passage."""

    vocabulary: list[str]
    """(V,) The words of the block."""
    passages_with: np.ndarray
    """(V,) int64. In how many passages of the block each word is."""
    passages: np.ndarray
    """(entries,) int32. The place of the passage in the block."""
    counts: np.ndarray
    """(entries,) int32. How often the word is in it."""
    lengths: np.ndarray
    """(passages,) int32. How many words each passage has."""

    @classmethod
    def of(cls, texts: Iterable[str], analyzer: Analyzer) -> Block:
        """Count the words of some texts."""
        vocabulary: dict[str, int] = {}
        words: list[int] = []
        lengths: list[int] = []
        for text in texts:
            found = analyzer.words(text)
            words += [vocabulary.setdefault(word, len(vocabulary)) for word in found]
            lengths.append(len(found))
        size = np.asarray(lengths, np.int32)
        # One number for a word and a passage: equal numbers are counted, and their order is that of the entries.
        pairs = np.asarray(words, np.int64) * len(size) + np.repeat(np.arange(len(size)), size)
        pairs, counts = np.unique(pairs, return_counts=True)
        word, passage = np.divmod(pairs, max(len(size), 1))
        return cls(
            vocabulary=list(vocabulary),
            passages_with=np.bincount(word, minlength=len(vocabulary)),
            passages=passage.astype(np.int32),
            counts=counts.astype(np.int32),
            lengths=size,
        )

    def save(self, path: Path) -> None:
        """Write a file that is either there as a whole or not at all."""
        part = path.with_name(f"{path.name}.part")
        words = np.frombuffer("\n".join(self.vocabulary).encode(), np.uint8)  # no word holds a line end
        with part.open("wb") as file:
            np.savez(
                file,
                words=words,
                passages_with=self.passages_with,
                passages=self.passages,
                counts=self.counts,
                lengths=self.lengths,
            )
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Block:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            words = file["words"].tobytes().decode()
            arrays = {name: file[name] for name in ("passages_with", "passages", "counts", "lengths")}
        return cls(vocabulary=words.split("\n") if words else [], **arrays)


class Blocks(Protocol):
    """Blocks in the order of the corpus, read as often as needed: a list of them, or files."""

    def __iter__(self) -> Any: ...


@dataclass(frozen=True)
class SavedBlocks:
    """Blocks in files, one of them in memory at a time."""

    paths: Sequence[Path]

    def __iter__(self) -> Any:
        return map(Block.load, self.paths)


@dataclass
class Matrix:
    """Scores of words (columns) in passages (rows), column after column, as bm25s has them."""

    data: np.ndarray
    """(entries,) float32."""
    indices: np.ndarray
    """(entries,) int32. The passage of each entry; ascending in a column."""
    indptr: np.ndarray
    """(words + 1,) int64. Where each column begins."""
    passages: int
    vocabulary: dict[str, int]


def score(blocks: Blocks, *, k1: float, b: float, folder: Path | None = None) -> Matrix:
    """The BM25 score of every word in every passage that has it, Lucene's variant without its constant factor.

        idf(w) tf / (tf + k1 (1 - b + b length / mean length)),  idf(w) = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

    (Robertson and Zaragoza 2009; Kamphuis et al. 2020, "Lucene (accurate)".)

    Args:
        blocks: are read twice.
        k1, b: parameters of the formula.
        folder: where the matrix is made, memory-mapped; None: in memory.

    Raises:
        ValueError: if no passage has a word.
    """
    vocabulary, with_word, size, words = _totals(blocks)
    if not vocabulary:
        raise ValueError("no passage of the corpus holds a word that can be searched for")
    indptr = np.concatenate([[0], np.cumsum(with_word)])
    idf = np.log1p((size - with_word + 0.5) / (with_word + 0.5))
    data = _empty(int(indptr[-1]), np.float32, folder, "data")
    indices = _empty(int(indptr[-1]), np.int32, folder, "indices")
    free, first, mean = indptr[:-1].copy(), 0, words / size
    for block in blocks:
        columns = np.fromiter((vocabulary[word] for word in block.vocabulary), np.int64, len(block.vocabulary))
        held = block.passages_with
        ends = np.cumsum(held)
        # An entry goes to the first free place of its column, after those of its own column before it in the block.
        places = np.arange(len(block.passages)) + np.repeat(free[columns] - (ends - held), held)
        norms = k1 * (1 - b + b * block.lengths / mean)
        data[places] = np.repeat(idf[columns], held) * block.counts / (block.counts + norms[block.passages])
        indices[places] = block.passages + first
        free[columns] += held
        first += len(block.lengths)
    return Matrix(data, indices, indptr, size, vocabulary)


def _totals(blocks: Blocks) -> tuple[dict[str, int], np.ndarray, int, int]:
    """The words of all blocks, in how many passages each is, the number of passages, and that of their words."""
    vocabulary: dict[str, int] = {}
    with_word = np.zeros(1024, np.int64)
    size = words = 0
    for block in blocks:
        columns = [vocabulary.setdefault(word, len(vocabulary)) for word in block.vocabulary]
        if len(vocabulary) > len(with_word):
            with_word = np.concatenate([with_word, np.zeros(max(len(vocabulary), len(with_word)), np.int64)])
        with_word[columns] += block.passages_with
        size += len(block.lengths)
        words += int(block.lengths.sum())
    return vocabulary, with_word[: len(vocabulary)], size, words


def _empty(size: int, kind: type[np.generic], folder: Path | None, name: str) -> np.ndarray:
    if folder is None:
        return np.empty(size, kind)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(size,))
