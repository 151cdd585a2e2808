"""Index folders: a corpus, and what was built to search it. And the cache of them that a user has."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock
from tqdm import tqdm

from search_gym.retrieval import Passage, Retriever, bm25, corpus, dense, store
from search_gym.retrieval.bm25 import BM25Retriever, BM25Settings
from search_gym.retrieval.dense import DenseRetriever, open_dense
from search_gym.retrieval.encoders import SentenceEncoder
from search_gym.retrieval.hybrid import HybridRetriever
from search_gym.retrieval.rerank import RerankRetriever
from search_gym.retrieval.store import PassageStore

RETRIEVERS = ("bm25", "dense", "hybrid", "rerank")
HYBRID: Mapping[str, Any] = {"weights": (1.0, 3.0), "depth": 50}
"""How "hybrid" weighs BM25 and dense. Chosen on every second question of three data sets, reported on the others: see
docs/retrieval.md."""
_PASSAGES, _BM25, _DENSE = "passages", "bm25", "dense"
S = TypeVar("S")
T = TypeVar("T")
Options = Mapping[str, Any]


@dataclass(frozen=True)
class DenseSettings:
    """How passages become vectors, and how vectors are searched."""

    encoder: str = "minilm"
    """A model: see `search_gym.retrieval.encoders`."""
    factory: str = "Flat"
    """FAISS's index factory string: Flat, HNSW32, "IVF4096,Flat", "IVF4096,PQ48np", …"""
    query_prefix: str | None = None
    passage_prefix: str | None = None
    """What is put before a text; None: what the model wants."""

    def make_encoder(self, devices: Sequence[str] = ()) -> SentenceEncoder:
        """Load the model."""
        return SentenceEncoder(
            self.encoder,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
            device=list(devices) or None,
        )


@dataclass(frozen=True)
class Work:
    """How an index is built; none of it changes what it holds."""

    processes: int = 1
    """How many count words side by side."""
    devices: tuple[str, ...] = ()
    """Where the encoder runs, for example ("cuda:0", "cuda:1"); empty: where sentence-transformers sees fit."""
    progress: bool = True
    """Show bars on stderr, where it is a terminal."""

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[tqdm[Any]]:
        """A progress bar over passages, with the time that is left."""
        disable = None if self.progress else True  # None: unless stderr is a terminal
        with tqdm(desc=title, total=total, unit=" passages", unit_scale=True, disable=disable) as shown:
            yield shown


@dataclass(frozen=True)
class IndexFolder:
    """Passages, and the folder of the indexes over them: `bm25/` and `dense/`, each with its manifest."""

    folder: Path
    passages: Sequence[Passage]
    cached: bool = False
    """Whether the folder is one of the cache: then it may hold indexes with several settings side by side, and what is
    missing is built when it is asked for."""

    @classmethod
    def at(cls, folder: str | PathLike[str]) -> IndexFolder:
        """A folder that `build` made; ValueError if its passages are not there."""
        return cls(Path(folder), PassageStore(Path(folder) / _PASSAGES))

    @classmethod
    def of_file(cls, source: corpus.Source) -> IndexFolder:
        """The folder of the cache for a corpus as it is now; the corpus is read if it has none yet."""
        folder = _cache(corpus.stamp(source))
        with FileLock(folder / ".lock"):
            return cls(folder, _stored(source, folder / _PASSAGES, Work()), cached=True)

    @classmethod
    def of_passages(cls, passages: Sequence[Passage]) -> IndexFolder:
        """The folder of the cache for passages that stay in memory."""
        if not passages:
            raise ValueError("the corpus is empty: there is nothing to search in")
        return cls(_cache(store.passages_digest(passages)), passages, cached=True)

    def open(self, name: str | None = None, options: Options | None = None) -> Retriever:
        """A retriever over the passages.

        Args:
            name: "bm25", "dense", "hybrid" or "rerank"; None: what is there, and hybrid where both are.
            options: of "bm25": those of `BM25Settings`. Of "dense": those of `DenseSettings`, and `parameters`,
                `device`, `memory_map` and `encoder_options` of `search_gym.retrieval.dense.open_dense`. Of "hybrid":
                `bm25` and `dense`, the options of its two, and those of `HybridRetriever`. Of "rerank": `first`, whose
                hits it orders anew, a name or a mapping with a name and options, by default "hybrid"; and those of
                `RerankRetriever`, `model` above all.

        Raises:
            ValueError: if there is no such index, or one that does not fit its passages or the options.
        """
        chosen, options = name or self._only(), dict(options or {})
        if chosen == _BM25:
            return self._bm25(options)
        if chosen == _DENSE:
            return self._dense(options)
        if chosen == "hybrid":
            parts = [self._bm25(options.pop(_BM25, {})), self._dense(options.pop(_DENSE, {}))]
            return construct(HybridRetriever, parts, **{**HYBRID, **options})
        if chosen == "rerank":
            first = options.pop("first", "hybrid")
            inner = {"name": first} if isinstance(first, str) else dict(first)
            return construct(RerankRetriever, self.open(inner.pop("name"), inner), **options)
        raise ValueError(f"unknown retriever {chosen!r}; there are: {', '.join(RETRIEVERS)}")

    def build(self, name: str, settings: Any, work: Work) -> Path:
        """Build an index if it is not there; its folder.

        Raises:
            ValueError: if there is one with other settings.
        """
        folder = self.folder / (f"{name}-{_key(asdict(settings))}" if self.cached else name)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not store.is_whole(folder):
            with FileLock(self.folder / ".lock"):  # of several runs that start together, one builds it
                if not store.is_whole(folder):
                    _BUILDERS[name](self.passages, folder, settings, work)
        return folder

    def _bm25(self, options: Options) -> BM25Retriever:
        settings = _settings(BM25Settings, options)
        if not isinstance(self.passages, PassageStore):
            return BM25Retriever(self.passages, **options)
        folder = self.build(_BM25, settings, Work()) if self.cached else self.folder / _BM25
        return BM25Retriever.open(folder, self.passages, settings if options else None)

    def _dense(self, options: Options) -> DenseRetriever:
        kept = {field.name for field in fields(DenseSettings)}
        settings = _settings(DenseSettings, {name: value for name, value in options.items() if name in kept})
        searching = {name: value for name, value in options.items() if name not in kept}
        if self.cached:
            return construct(open_dense, self.build(_DENSE, settings, Work()), self.passages, **searching)
        # What the index was built with is not asked of the user again; what they say all the same must be the same.
        encoder = settings.make_encoder() if kept & options.keys() - {"factory"} else None
        factory = options.get("factory")
        return construct(open_dense, self.folder / _DENSE, self.passages, encoder, factory=factory, **searching)

    def _only(self) -> str:
        there = [part for part in (_BM25, _DENSE) if store.is_whole(self.folder / part)]
        if not there:
            raise ValueError(f"{self.folder} holds passages and no index: search-gym index CORPUS --out {self.folder}")
        return there[0] if len(there) == 1 else "hybrid"


def is_index(path: str | PathLike[str]) -> bool:
    """Whether a folder is one that `build` made, at least its passages."""
    return store.is_whole(Path(path) / _PASSAGES)


def build(
    source: corpus.Source,
    folder: Path,
    retriever: str,
    *,
    words: BM25Settings | None = None,
    vectors: DenseSettings | None = None,
    work: Work | None = None,
) -> IndexFolder:
    """Index a corpus. What an interrupted call left in the folder is used, and what is whole there is kept.

    Args:
        source: what `corpus.read` takes.
        folder: gets the passages too, so that it can be opened without `source`.
        retriever: "bm25", "dense", or "hybrid" for both.
        words, vectors: settings of the two.
        work: how it is done.

    Raises:
        ValueError: if the corpus cannot be read, or the folder holds another one, or an index with other settings.
    """
    if retriever not in (_BM25, _DENSE, "hybrid"):
        raise ValueError(f"an index is built for bm25, dense or hybrid (both), not for {retriever!r}")
    work = work or Work()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        made = IndexFolder(folder, _stored(source, folder / _PASSAGES, work))
    for name, settings in ((_BM25, words or BM25Settings()), (_DENSE, vectors or DenseSettings())):
        if retriever in (name, "hybrid"):
            there = store.is_whole(folder / name)
            made.build(name, settings, work)
            if there:
                made.open(name, asdict(settings))  # it may have been built with others
    return made


def cache_folder() -> Path:
    """Where indexes of corpora that have no folder of their own are kept: $SEARCH_GYM_CACHE, by default
    ~/.cache/search-gym. It may be deleted at any time that nothing runs."""
    chosen = os.environ.get("SEARCH_GYM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "search-gym"


def _cache(name: str) -> Path:
    folder = cache_folder() / "indexes" / _key(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror}: name another cache folder by SEARCH_GYM_CACHE") from error
    return folder


def _key(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True, default=sorted).encode(), digest_size=8).hexdigest()


def _settings(kind: type[S], options: Options) -> S:
    known = [field.name for field in fields(cast(Any, kind))]
    unknown = [str(name) for name in options if name not in known]
    if unknown:
        raise ValueError(f"unknown option {', '.join(unknown)} of a retriever; there are: {', '.join(known)}")
    return kind(**options)


def construct(kind: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """The call, with an error for options that there are not."""
    known = [*signature(kind).parameters][len(arguments) :]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"unknown option {', '.join(unknown)} of a retriever; there are: {', '.join(known)}")
    return kind(*arguments, **options)


def _stored(source: corpus.Source, folder: Path, work: Work) -> PassageStore:
    """The passages of a corpus, from their store if there is one of the same corpus."""
    stamp = corpus.stamp(source)
    if store.is_whole(folder):
        found = PassageStore(folder)
        if found.stamp != stamp and found.digest != store.digest_of(corpus.read(source)):
            raise ValueError(
                f"{folder.parent} holds the passages of {found.source} (digest {found.digest}), which are not those of "
                f"{source}: choose another folder, or delete this one"
            )
        return found
    with work.bar("reading passages", corpus.size(source)) as bar:
        return store.write(_told(corpus.read(source), bar), folder, str(source), stamp)


def _told(passages: Iterator[Passage], bar: tqdm[Any]) -> Iterator[Passage]:
    for passage in passages:
        yield passage
        bar.update()


def _build_bm25(passages: PassageStore, folder: Path, settings: BM25Settings, work: Work) -> None:
    with work.bar("counting words", len(passages)) as bar:
        bm25.build(passages, folder, settings, processes=work.processes, advance=bar.update)


def _build_dense(passages: Sequence[Passage], folder: Path, settings: DenseSettings, work: Work) -> None:
    with settings.make_encoder(work.devices) as encoder:
        dense.build(passages, folder, encoder, settings.factory, progress=None if work.progress else False)


_BUILDERS: dict[str, Callable[[Any, Path, Any, Work], None]] = {_BM25: _build_bm25, _DENSE: _build_dense}
