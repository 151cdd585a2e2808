"""Dense retrieval: passages by the inner product of their vectors with the query's, by FAISS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from search_gym.retrieval import Hit, Passage, ann, checked, vectors
from search_gym.retrieval.encoders import Encoder, SentenceEncoder
from search_gym.retrieval.store import MANIFEST, json_digest, passages_digest, read_manifest, write_manifest

_INDEX, _VECTORS = "index.faiss", "vectors"
_KEYS = ("passages", "count", "encoder", "encoder_spec", "dimension", "factory", "index", "fingerprint")
# An adopted index must find so many passages by their own vectors, among its first few.
_CHECKED, _AMONG = 16, 10


class DenseRetriever:
    """Finds the passages whose vectors are nearest to the query's.

    A score is an inner product: with normalised vectors the cosine, in [-1, 1]. Equal scores come in the order of the
    corpus. A query finds the same alone and in a batch up to rounding: encoders round differently in batches, so scores
    agree within 1e-4, and passages whose scores are nearer than that may change places. An approximate index may find
    fewer than `k`. A query that is empty, or white space alone, finds nothing and is not encoded.

    Args:
        passages: in the order of the vectors of the index.
        encoder: that of the vectors.
        index: of FAISS, by inner product; its search parameters are set.
        parameters: how it searches, by FAISS's names; the defaults are `ann.DEFAULTS`, where the index has them.
        device: where it searches: "cpu", "cuda", "cuda:1".
        name: what names the index in the digest; None: its content, which takes as much memory again.

    Raises:
        ValueError: if passages, encoder and index do not fit each other, or a parameter is not of the index.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        encoder: Encoder,
        index: Any,
        *,
        parameters: Mapping[str, float] | None = None,
        device: str = "cpu",
        name: str | None = None,
    ) -> None:
        _check_index(index, len(passages), encoder.dimension)
        self.passages, self.encoder, self._name = passages, encoder, name
        self.parameters = ann.set_parameters(index, parameters)
        """How the index searches: those that were given, and the defaults."""
        self._index = index if device == "cpu" else ann.on_device(index, device)

    @cached_property
    def corpus_digest(self) -> str:
        """Of the passages, as `store.passages_digest` has it."""
        return passages_digest(self.passages)

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits of all that the hits depend on, but for rounding."""
        name = self._name or ann.content_digest(self._index)
        parts = ["dense", 1, self.corpus_digest, self.encoder.digest, name, sorted(self.parameters.items())]
        return json_digest(parts)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find up to `k` passages for every query, best first; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        checked(queries, k)
        asked = [number for number, query in enumerate(queries) if query.strip()]
        found: list[list[Hit]] = [[] for _ in queries]
        if asked:
            encoded = self.encoder.queries([queries[number] for number in asked])
            scores, places = self._index.search(encoded, min(k, len(self.passages)))
            for number, row, where in zip(asked, scores.tolist(), places.tolist(), strict=True):
                found[number] = self._hits(row, where)
        return found

    def _hits(self, scores: list[float], places: list[int]) -> list[Hit]:
        # FAISS fills up with the place -1 where it finds too few, and orders equal scores by chance.
        best = sorted((-score, place) for score, place in zip(scores, places, strict=True) if place >= 0)
        return [Hit(p.id, p.title, p.text, -score) for score, place in best for p in [self.passages[place]]]


def in_memory(passages: Sequence[Passage], encoder: Encoder, factory: str = "Flat") -> DenseRetriever:
    """A retriever over a small corpus, which is encoded now and written nowhere.

    Raises:
        ValueError: if there is no passage, or FAISS refuses the factory string.
    """
    if not passages:
        raise ValueError("the corpus is empty: there is nothing to search in")
    return DenseRetriever(passages, encoder, ann.make(encoder.passages(passages), factory))


def build(
    passages: Sequence[Passage],
    folder: Path,
    encoder: Encoder,
    factory: str = "Flat",
    *,
    shard_size: int = vectors.SHARD,
    progress: bool | None = None,
) -> DenseRetriever:
    """Encode a corpus and index it; what a call that was killed has encoded is not encoded again.

    Args:
        passages: at least one; their ids differ: who reads them sees to it.
        folder: is made. It holds `vectors/` (see `vectors.Vectors`), which another factory string can be built from and
            which may be removed afterwards, `index.faiss`, and `manifest.json`, which is written last.
        encoder: kept in the manifest by its `spec`, where it has one.
        factory: of FAISS: "Flat", "HNSW32", "IVF4096,Flat", "OPQ64_256,IVF4096,PQ64np", …
        shard_size: see `vectors.encode`.
        progress: see `vectors.encode`.

    Raises:
        ValueError: if the corpus is empty, the folder holds vectors of another corpus or encoder, or FAISS refuses the
            factory string.
    """
    ann.check_factory(factory, encoder.dimension)
    encoded = vectors.encode(passages, folder / _VECTORS, encoder, shard_size=shard_size, progress=progress)
    (folder / MANIFEST).unlink(missing_ok=True)
    ann.build(encoded, folder / _INDEX, factory)
    _write_manifest(folder, passages, encoder, folder / _INDEX, factory)
    return open_dense(folder, passages, encoder)


def adopt(index: Path, passages: Sequence[Passage], folder: Path, encoder: Encoder) -> DenseRetriever:
    """Take an index that was made elsewhere, such as Search-R1's e5_Flat.index; it stays where it is.

    Args:
        index: a FAISS index by inner product.
        passages: that it was made of, in the same order.
        folder: is made, for the manifest, which has the path of the index.
        encoder: that it was made with: for Search-R1's, SentenceEncoder("intfloat/e5-base-v2").

    Raises:
        ValueError: if counts or dimensions differ, or fewer than half of some passages are found by their own vectors:
            then it is of another corpus, order or encoder.
    """
    opened = ann.read(index, memory_map=True)
    _check_index(opened, len(passages), encoder.dimension, f"{index}: ")
    ann.set_parameters(opened, None)
    places = np.linspace(0, len(passages) - 1, min(_CHECKED, len(passages))).astype(int).tolist()
    _, found = opened.search(encoder.passages([passages[place] for place in places]), min(_AMONG, len(passages)))
    right = sum(place in row for place, row in zip(places, found.tolist(), strict=True))
    if 2 * right < len(places):
        raise ValueError(
            f"{index}: of {len(places)} passages, {right} are found by their own vectors: it was made of another "
            "corpus, in another order, or with another encoder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_manifest(folder, passages, encoder, index.resolve(), "")
    return open_dense(folder, passages, encoder)


def open_dense(
    folder: Path,
    passages: Sequence[Passage],
    encoder: Encoder | None = None,
    *,
    factory: str | None = None,
    parameters: Mapping[str, float] | None = None,
    device: str = "cpu",
    memory_map: bool = True,
    encoder_options: Mapping[str, Any] | None = None,
) -> DenseRetriever:
    """Open what `build` or `adopt` left in a folder.

    Args:
        folder: theirs.
        passages: that it was built of.
        encoder: that it was built with; None: made again from the manifest.
        factory: that it was built with; None: any.
        parameters: see `DenseRetriever`.
        device: "cpu", or the GPU that the index is moved to.
        memory_map: leave the index on the disk, read as it is searched; else, and for a GPU, it comes into memory.
        encoder_options: of the `SentenceEncoder` that is made: device, batch_size, dtype, trust_remote_code.

    Raises:
        ValueError: if the folder is not whole, or was built of another corpus, or with another encoder or factory
            string: it names both. FileNotFoundError: if the index or the model is not where it was.
    """
    manifest = read_manifest(folder / MANIFEST, "dense index", _KEYS)
    digest = passages_digest(passages)
    if (manifest["passages"], manifest["count"]) != (digest, len(passages)):
        raise ValueError(
            f"{folder}: this index is of the corpus {manifest['passages']} with {manifest['count']} passages, and not "
            f"of {digest} with {len(passages)}: build it again"
        )
    if factory not in (None, manifest["factory"]):
        raise ValueError(
            f"{folder} was built with the factory string {manifest['factory']!r}, not with {factory!r}: choose another "
            "folder, or delete this one"
        )
    path = folder / manifest["index"]  # an absolute path, of an index that was adopted, stays what it is
    index = ann.read(path, memory_map=memory_map and device == "cpu")
    _check_index(index, len(passages), manifest["dimension"], f"{path}: ")
    name = ann.fingerprint(path)
    if name != manifest["fingerprint"]:
        raise ValueError(f"{path}: the index was {manifest['fingerprint']} and is {name} now: build it again")
    if encoder is None:
        encoder = _encoder(folder, manifest, dict(encoder_options or {}))
    if encoder.digest != manifest["encoder"]:
        raise ValueError(
            f"{folder}: this index was built with the encoder {manifest['encoder']}, and not with {encoder.digest}: "
            "give the one it was built with, or build it again"
        )
    return DenseRetriever(passages, encoder, index, parameters=parameters, device=device, name=name)


def _encoder(folder: Path, manifest: dict[str, Any], options: dict[str, Any]) -> Encoder:
    spec = manifest["encoder_spec"]
    if not spec:
        raise ValueError(f"{folder}: built with an encoder that cannot be made from a description: give it (encoder=)")
    # Whoever wrote the manifest cannot have code run by whoever opens it.
    return SentenceEncoder(**{**spec, "trust_remote_code": False, **options})


def _check_index(index: Any, passages: int, dimension: int, where: str = "") -> None:
    if index.ntotal != passages:
        raise ValueError(
            f"{where}the index holds {index.ntotal} vectors and the corpus {passages} passages: it is of another corpus"
        )
    if index.d != dimension:
        raise ValueError(
            f"{where}the index holds vectors of {index.d} dimensions and the encoder makes {dimension}: it is of "
            "another encoder"
        )
    if index.metric_type != ann.inner_product():
        raise ValueError(f"{where}the index compares by another metric than the inner product")


def _write_manifest(folder: Path, passages: Sequence[Passage], encoder: Encoder, index: Path, factory: str) -> None:
    manifest = {
        "passages": passages_digest(passages),
        "count": len(passages),
        "encoder": encoder.digest,
        "encoder_spec": getattr(encoder, "spec", None),
        "dimension": encoder.dimension,
        "metric": "inner product",
        "factory": factory,
        "index": index.name if index.parent == folder else str(index),
        "fingerprint": ann.fingerprint(index),
    }
    write_manifest(folder / MANIFEST, manifest)
