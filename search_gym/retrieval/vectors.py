"""The vectors of a corpus on disk: encoded shard by shard, in an order that survives being killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from search_gym.retrieval import Passage
from search_gym.retrieval.encoders import Encoder
from search_gym.retrieval.store import FORMAT, open_array, passages_digest, write_manifest

SHARD = 10_000
_MANIFEST = "vectors.json"
# Passages that an encoder gets in one call: enough to sort by length, few enough for the progress bar to move.
_STEP = 512


@dataclass(frozen=True)
class _Kind:
    """What the vectors of a folder are; the manifest, which is written before the first shard."""

    format: int
    passages: str
    """Digest of the corpus."""
    count: int
    encoder: str
    """Digest of the encoder."""
    dimension: int
    shard_size: int


class Vectors:
    """The vectors of all passages of a corpus, in the order of the corpus.

    A folder holds `vectors.json`, which says what they are, and `00000.npy`, `00001.npy`, …: float32, (passages,
    dimension), each whole or not there.

    Raises:
        ValueError: if the folder is not there, or not whole.
    """

    def __init__(self, folder: Path) -> None:
        kind = _read(folder)
        if kind is None:
            raise ValueError(f"{folder}: no vectors are here: encode the corpus first")
        missing = [path.name for path, size in _layout(folder, kind) if not _is_whole(path, size, kind.dimension)]
        if missing:
            raise ValueError(f"{folder}: {len(missing)} shards are not there, {missing[0]} first: encode the rest")
        self.folder, self.count, self.dimension = folder, kind.count, kind.dimension
        self._kind = kind

    def shards(self) -> Iterator[np.ndarray]:
        """One shard after the other, memory-mapped: float32, (passages of the shard, dimension)."""
        for path, _ in _layout(self.folder, self._kind):
            yield open_array(path)

    def sample(self, size: int, seed: int = 0) -> np.ndarray:
        """So many vectors of places drawn by `seed`, or all: float32, (min(size, count), dimension)."""
        if size >= self.count:
            return np.concatenate(list(self.shards()))
        places = np.sort(np.random.default_rng(seed).choice(self.count, size, replace=False))
        ends = np.arange(0, self.count + self._kind.shard_size, self._kind.shard_size)
        parts = pairwise(np.searchsorted(places, ends))
        drawn = [
            shard[places[a:b] - start] for shard, (a, b), start in zip(self.shards(), parts, ends[:-1], strict=True)
        ]
        return np.concatenate(drawn)


def encode(
    passages: Sequence[Passage],
    folder: Path,
    encoder: Encoder,
    *,
    shard_size: int = SHARD,
    progress: bool | None = None,
) -> Vectors:
    """Encode a corpus; shards that an earlier call for the same corpus and encoder finished are not made again.

    Memory holds no more than a shard. One process at a time may write to a folder.

    Args:
        passages: at least one.
        folder: is made.
        encoder: its digest goes with the vectors.
        shard_size: how many passages are lost at most when the process is killed, >= 1; a folder that was begun keeps
            its own.
        progress: show a bar with the time left; None: where standard error is a terminal.

    Raises:
        ValueError: if the folder holds vectors of another corpus or encoder, or there is no passage.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size must be at least 1, not {shard_size}")
    if not passages:
        raise ValueError("the corpus is empty: there is nothing to encode")
    asked = _Kind(FORMAT, passages_digest(passages), len(passages), encoder.digest, encoder.dimension, shard_size)
    kind = _begin(folder, asked)
    left = [(path, size) for path, size in _layout(folder, kind) if not _is_whole(path, size, kind.dimension)]
    done = kind.count - sum(size for _, size in left)
    hidden = None if progress is None else not progress
    with tqdm(total=kind.count, initial=done, desc="encoding", unit="passage", disable=hidden) as bar:
        for path, size in left:
            start = int(path.stem) * kind.shard_size
            _write_shard(path, passages, range(start, start + size), encoder, bar)
    return Vectors(folder)


def _begin(folder: Path, asked: _Kind) -> _Kind:
    """What the folder holds or is going to hold."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = _read(folder)
    if kind is None:
        if any(folder.glob("*.npy")):
            raise ValueError(f"{folder}: there are vectors here, and no {_MANIFEST} that says of what: remove them")
        write_manifest(folder / _MANIFEST, asdict(asked))
        return asked
    for what in ("passages", "encoder"):
        theirs, ours = getattr(kind, what), getattr(asked, what)
        if theirs != ours:
            name = {"passages": "corpus", "encoder": "encoder"}[what]
            raise ValueError(
                f"{folder}: these vectors are of the {name} {theirs}, and not of {ours}: remove the folder to encode "
                "again, or take another"
            )
    return kind


def _write_shard(path: Path, passages: Sequence[Passage], places: range, encoder: Encoder, bar: Any) -> None:
    part = path.with_name(f"{path.name}.part")
    shape = (len(places), encoder.dimension)
    shard = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=shape)
    step = _STEP * getattr(encoder, "workers", 1)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        vectors = encoder.passages(passages[some.start : some.stop])
        if vectors.shape != (len(some), shape[1]):
            raise ValueError(
                f"the encoder was given {len(some)} passages and made vectors of the shape {vectors.shape}"
            )
        shard[start : start + len(some)] = vectors
        bar.update(len(some))
    shard.flush()
    del shard
    # A name must not reach the disk before the content does: a machine may lose its power, too.
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def _layout(folder: Path, kind: _Kind) -> Iterator[tuple[Path, int]]:
    """The path of every shard and how many vectors it holds."""
    for number, start in enumerate(range(0, kind.count, kind.shard_size)):
        yield folder / f"{number:05}.npy", min(kind.shard_size, kind.count - start)


def _is_whole(path: Path, size: int, dimension: int) -> bool:
    if not path.is_file():
        return False
    try:
        shard = open_array(path)
    except ValueError:  # cut short, which only a machine without power does
        return False
    return shard.shape == (size, dimension) and shard.dtype == np.float32


def _read(folder: Path) -> _Kind | None:
    path = folder / _MANIFEST
    if not path.is_file():
        return None
    try:
        kind = _Kind(**json.loads(path.read_text(encoding="utf-8")))
        if kind.format != FORMAT:
            raise ValueError(f"its format is {kind.format}, and this version reads {FORMAT}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: does not describe vectors: {error}; remove the folder") from error
    return kind
