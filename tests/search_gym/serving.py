"""A real retrieval server on loopback, for the tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Queue

from search_gym.retrieval import Hit, Passage, Retriever, SearchFailed
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.running import bind, make_server
from search_gym.retrieval.server import ServerConfig, make_app

CITIES = [
    Passage("o", "Oslo", "Oslo is the capital of Norway.\nIt has a port."),
    Passage("p", 'The "City of Light"', 'Paris is the "capital" of France; A & B + 50% «é» [1].'),
    Passage("b", "", "Bergen is not the capital of Norway."),
    Passage("x", "\ud800", "Half a pair \udfff, \x00, \u2028, \U0001f600: the capital of trouble."),
]


class Watched:
    """Passes searches on, and remembers them. Like a real engine it may be asked one thing at a time.

    A query that is "poison" raises, one that is "down" fails; while `gate` is clear, searches wait; and each
    takes `pause` seconds more.
    """

    def __init__(self, retriever: Retriever, pause: float = 0.0) -> None:
        self._retriever, self._pause = retriever, pause
        self._lock = threading.Lock()
        self.searches: list[tuple[list[str], int]] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def search(self, queries: Sequence[str], k: int) -> list[Sequence[Hit] | SearchFailed]:
        assert self._lock.acquire(blocking=False), "two searches at once"
        try:
            self.searches.append((list(queries), k))
            self.begun.release()
            assert self.gate.wait(30)
            time.sleep(self._pause)
            if "poison" in queries:
                raise StopIteration("this cannot be searched for")
            found = self._retriever.search(queries, k)
            return [SearchFailed("down") if q == "down" else hits for q, hits in zip(queries, found, strict=True)]
        finally:
            self._lock.release()


def watched() -> Watched:
    return Watched(BM25Retriever(CITIES))


@contextmanager
def served(retriever: Retriever, config: ServerConfig | None = None) -> Iterator[str]:
    """The address of a server that runs in a thread until the end of the block."""
    addresses: Queue[str] = Queue()
    server = make_server(make_app(retriever, config), ready=addresses.put)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield addresses.get(timeout=30)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
