"""What was searched for once is not searched for again: in memory, and on disk for all processes and runs."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from search_gym.retrieval import Hit, Retriever, SearchFailed, checked
from search_gym.retrieval.asking import Counts, ask, take_counts
from search_gym.retrieval.disk_cache import DiskCache
from search_gym.retrieval.processes import PerProcess

Hits = tuple[Hit, ...]


class CachedRetriever:
    """Answers from memory, then from disk; asks another retriever for the rest, in one call, each query once.

    Searches that failed are not kept. What is on disk is found by the digest of the retriever, the query and k, so that
    one file serves any number of retrievers; an answer for another k is never cut to fit. Threads may share it, and
    processes the file.

    Args:
        retriever: answers the rest.
        memory: how many results are kept in memory, those that were used last; 0: none. Each takes about as much as its
            passages: 100,000 of 3 passages of 100 words, 250 MB.
        path: the file on disk, made if it is not there; None: nothing is kept on disk. It must be on a disk of this
            machine: SQLite's write-ahead log does not work over a network.
        key: names what the answers depend on, instead of the retriever's digest.

    Raises:
        ValueError: if `memory` is below 0; if there is a path, and neither a digest nor a key; if the file is no cache,
            of another version, or damaged.
        SearchError: if a server must be asked for its digest, and cannot be.
    """

    def __init__(
        self, retriever: Retriever, *, memory: int = 100_000, path: Path | None = None, key: str | None = None
    ) -> None:
        if memory < 0:
            raise ValueError(f"the memory of a cache holds 0 results or more, not {memory}")
        self.retriever = retriever
        self._memory, self._path, self._key = memory, path, key
        self._results: OrderedDict[tuple[str, int], Hits] = OrderedDict()
        self._lock = PerProcess(threading.Lock)
        self.hits = 0
        """Queries that were answered without the retriever."""
        self.misses = 0
        """Queries that the retriever was asked."""
        self._counted = (0, 0)
        # At once, and not at the first search: a run that cannot use its cache is to say so before it begins.
        self._name = "" if path is None else self._digest()
        self._disk = None if path is None else DiskCache(path)

    @property
    def digest(self) -> str:
        """The key, or the retriever's digest. AttributeError: there is neither."""
        return self.retriever.digest if self._key is None else self._key  # pyright: ignore[reportAttributeAccessIssue]

    def _digest(self) -> str:
        if not hasattr(self, "digest"):
            raise ValueError(
                f"{type(self.retriever).__name__} has no digest, so that nobody could tell whose answers a file holds: "
                "give the cache a key= that names the retriever and all that its answers depend on"
            )
        return self.digest

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        """Find up to `k` passages for every query; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        distinct = list(dict.fromkeys(checked(queries, k)))
        known = self._recall(distinct, k)
        missing = [query for query in distinct if query not in known]
        fresh = dict(zip(missing, ask(self.retriever, missing, k), strict=True)) if missing else {}
        found = {query: tuple(hits) for query, hits in fresh.items() if not isinstance(hits, SearchFailed)}
        if self._disk is not None and found:
            self._disk.write({self._address(query, k): hits for query, hits in found.items()})
        with self._lock.get():
            self._keep(found, k)
            self.misses += len(missing)
            self.hits += len(queries) - len(missing)
        answers: Mapping[str, Sequence[Hit] | SearchFailed] = known | fresh
        return [a if isinstance(a := answers[query], SearchFailed) else list(a) for query in queries]

    def take_counts(self) -> Counts:
        """Queries and hit rate since the last call, and what the retriever counts; see `asking.take_counts`."""
        with self._lock.get():
            hits, misses = self.hits - self._counted[0], self.misses - self._counted[1]
            self._counted = (self.hits, self.misses)
        asked = hits + misses
        rate = hits / asked if asked else None
        return take_counts(self.retriever) | {"search_queries": asked, "search_cache_hit_rate": rate}

    def close(self) -> None:
        """Close the file. A later search opens it again."""
        if self._disk is not None:
            self._disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _made, (self.retriever, self._memory, self._path, self._key)

    def _recall(self, queries: Sequence[str], k: int) -> dict[str, Hits]:
        """What is known, from memory and then from disk."""
        known: dict[str, Hits] = {}
        with self._lock.get():
            for query in queries:
                hits = self._results.get((query, k))
                if hits is not None:
                    self._results.move_to_end((query, k))
                    known[query] = hits
        if self._disk is None or len(known) == len(queries):
            return known
        addresses = {self._address(query, k): query for query in queries if query not in known}
        read = {addresses[address]: hits for address, hits in self._disk.read(addresses).items()}
        with self._lock.get():
            self._keep(read, k)
        return known | read

    def _keep(self, found: Mapping[str, Hits], k: int) -> None:
        for query, hits in found.items():
            self._results[query, k] = hits
            self._results.move_to_end((query, k))
        while len(self._results) > self._memory:
            self._results.popitem(last=False)

    def _address(self, query: str, k: int) -> bytes:
        """16 bytes that stand for the digest, k and the query."""
        address = hashlib.blake2b(digest_size=16)
        for part in (self._name, str(k), query):
            content = part.encode("utf-8", "surrogatepass")
            address.update(len(content).to_bytes(8, "little") + content)
        return address.digest()


def _made(retriever: Retriever, memory: int, path: Path | None, key: str | None) -> CachedRetriever:
    return CachedRetriever(retriever, memory=memory, path=path, key=key)
