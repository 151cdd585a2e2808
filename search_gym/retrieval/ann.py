"""FAISS indexes: made of vectors on disk, written whole or not at all, opened memory-mapped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from search_gym.retrieval.vectors import Vectors

# FAISS itself visits 1 list of an IVF index and keeps 16 candidates of an HNSW graph: fast, and often wrong.
DEFAULTS = {"nprobe": 64, "efSearch": 128}
# How many vectors an index learns from: FAISS wants 30 to 256 for each of its lists, and 256 for each of the 256
# values of a byte of a product quantizer.
_PER_LIST, _TRAINING = 40, 1 << 15
_EDGE = 1 << 20
# Where in its source FAISS found what is wrong; what follows is the reason.
_SOURCE = re.compile(r"^Error in .* at \S+:\d+: (Error: )?")


def build(vectors: Vectors, path: Path, factory: str) -> None:
    """Make the index of a FAISS factory string over vectors, by inner product, and write it.

    "Flat" is written as it is made and takes no more memory than a shard; the others are held in memory until they
    are whole.

    Raises:
        ValueError: if FAISS refuses the factory string, or it needs more vectors to learn from.
    """
    part = path.with_name(f"{path.name}.part")
    if factory == "Flat" and _writes_flat():
        _write_flat(vectors, part)
    else:
        _faiss().write_index(make(vectors, factory), str(part))
    part.replace(path)


def make(vectors: Vectors | np.ndarray, factory: str) -> Any:
    """The same in memory, of a folder or an array: float32, (vectors, dimension)."""
    faiss = _faiss()
    many = isinstance(vectors, Vectors)
    count, dimension = (vectors.count, vectors.dimension) if many else vectors.shape
    with _named(f"the factory string {factory!r} over {count} vectors"):
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            index.train(vectors.sample(_training_size(index)) if many else vectors)
        parts: Iterable[np.ndarray] = vectors.shards() if many else [vectors]
        for part in parts:
            index.add(np.ascontiguousarray(part))
    return index


def check_factory(factory: str, dimension: int) -> None:
    """Raise ValueError if FAISS does not know the factory string: it is told before hours of encoding."""
    faiss = _faiss()
    with _named(f"the factory string {factory!r}"):
        faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)


def read(path: Path, *, memory_map: bool) -> Any:
    """Open an index. Memory-mapped, it takes no memory until it is searched, and then what the system can spare.

    FAISS maps all kinds but those of fast scan ("PQ16x4fs"), which are small and come into memory.

    Raises:
        ValueError: if this is no index; FileNotFoundError: if there is no file.
    """
    faiss = _faiss()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no index here: build it again, or adopt it from where it is now")
    # FAISS before 1.11 has only the flag that maps the lists of IVF.
    flags = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if memory_map else 0
    with _named(str(path)):
        return faiss.read_index(str(path), flags)


def set_parameters(index: Any, parameters: Mapping[str, float] | None) -> dict[str, float]:
    """Set how an index searches, by FAISS's names ("nprobe", "efSearch", "k_factor_rf"), and say what is in force.

    Raises:
        ValueError: if the index has no such parameter.
    """
    space = _faiss().ParameterSpace()
    in_force: dict[str, float] = {}
    for name, value in DEFAULTS.items():
        try:
            space.set_index_parameter(index, name, value)
        except RuntimeError:
            continue
        in_force[name] = value
    for name, value in (parameters or {}).items():
        with _named(f"the search parameter {name} = {value} of an {type(index).__name__}"):
            space.set_index_parameter(index, name, value)
        in_force[name] = value
    return in_force


def on_device(index: Any, device: str) -> Any:
    """The index moved to a GPU ("cuda", "cuda:1"). Search parameters are set before: FAISS takes them along.

    Raises:
        ValueError: if it is another device; ImportError: if this FAISS knows no GPU.
    """
    faiss = _faiss()
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f"an index goes to 'cpu', 'cuda' or 'cuda:NUMBER', not to {device!r}")
    if not hasattr(faiss, "StandardGpuResources"):
        raise ImportError(f"device={device!r}: this FAISS knows no GPU: pip install 'search-gym[gpu]'")
    with _named(f"to move an {type(index).__name__} to a GPU"):
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(number or 0), index)


def fingerprint(path: Path) -> str:
    """32 hexadecimal digits of the size of a file, its first megabyte and its last: an index may have gigabytes."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        file.seek(max(0, size - _EDGE))
        digest.update(file.read())
    return digest.hexdigest()


def content_digest(index: Any) -> str:
    """32 hexadecimal digits of a whole index in memory."""
    return hashlib.blake2b(_faiss().serialize_index(index), digest_size=16).hexdigest()


def inner_product() -> int:
    """What FAISS calls the metric of every index here."""
    return _faiss().METRIC_INNER_PRODUCT


def _training_size(index: Any) -> int:
    try:
        lists = _faiss().extract_index_ivf(index).nlist
    except RuntimeError:  # there are no lists
        lists = 0
    return max(_TRAINING, _PER_LIST * lists)


def _write_flat(vectors: Vectors, path: Path) -> None:
    with path.open("wb") as file:
        file.write(_flat_header(vectors.count, vectors.dimension))
        for shard in vectors.shards():
            shard.tofile(file)


def _flat_header(count: int, dimension: int) -> bytes:
    """What FAISS writes before the vectors of a flat index: that of an empty index, with the two counts in it."""
    faiss = _faiss()
    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dimension)).tobytes())
    header[8:16] = count.to_bytes(8, "little")
    header[-8:] = (count * dimension).to_bytes(8, "little")
    return bytes(header)


def _writes_flat() -> bool:
    """Whether the FAISS that is installed writes flat indexes as is assumed here."""
    faiss = _faiss()
    index = faiss.IndexFlatIP(2)
    vectors = np.array([[0.5, 2.0], [3.0, 4.0], [1.0, 0.0]], np.float32)
    index.add(vectors)
    return faiss.serialize_index(index).tobytes() == _flat_header(3, 2) + vectors.tobytes()


@contextmanager
def _named(what: str) -> Iterator[None]:
    """FAISS raises RuntimeError for whatever it is given: say what that was, and the reason without its source code."""
    try:
        yield
    except RuntimeError as error:
        reason = _SOURCE.sub("", str(error).strip().splitlines()[0])
        raise ValueError(f"FAISS refuses {what}: {reason}") from error


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("a dense index needs FAISS: pip install 'search-gym[dense]', or [gpu]") from error
    return faiss
