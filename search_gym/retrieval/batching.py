"""Dynamic batching: requests that arrive while a search runs go out together as the next one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.asking import ask

Found = Sequence[Hit] | SearchFailed
Outcome = list[Found] | Exception


@dataclass(frozen=True, eq=False)
class _Request:
    queries: list[str]
    k: int
    arrived: float
    """By the clock of the event loop."""
    outcome: asyncio.Future[Outcome]
    """Its result is what was found, or why nothing could be."""


class Batcher:
    """Lets many coroutines share a retriever, which one thread calls, one search at a time.

    While the retriever is busy, requests wait; as soon as it is free, those that ask for as many hits as the oldest of
    them go out as one search, and others with the next: not every retriever's best three begin its best five. Equal
    queries of a search are searched once. If a search raises, each of its requests is searched again alone, so that a
    query which the retriever cannot bear fails the request that it came with and no other. A request that is cancelled
    while it waits is not searched; one that is cancelled later takes nothing from the others.

    All calls come from one event loop. The thread is started by the first of them, and ends with `close`.

    Args:
        retriever: is called in a thread of its own, never twice at once.
        max_batch: the most queries of a search, >= 1. A request of more is served by several searches in turn.
        max_wait_ms: how long a search that is not full waits for more requests though the retriever is free, >= 0.
        on_search: is told of every search that has ended: the number of queries, and the seconds that it took; called
            in the thread.

    Raises:
        ValueError: if a parameter is not as above.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_batch: int = 256,
        max_wait_ms: float = 0.0,
        on_search: Callable[[int, float], None] | None = None,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, not {max_batch}")
        if not 0 <= max_wait_ms < float("inf"):
            raise ValueError(f"max_wait_ms must be a number of milliseconds, 0 or more, not {max_wait_ms}")
        self._retriever, self._max_batch, self._on_search = retriever, max_batch, on_search
        self._max_wait = max_wait_ms / 1000
        self._waiting: deque[_Request] = deque()
        self._jobs: SimpleQueue[tuple[asyncio.AbstractEventLoop, list[_Request]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._timer: asyncio.Handle | None = None

    @property
    def waiting(self) -> int:
        """How many queries wait for the retriever to be free."""
        return sum(len(request.queries) for request in tuple(self._waiting))

    async def search(self, queries: Sequence[str], k: int) -> list[Found]:
        """What `retriever.search(queries, k)` gives, at most `k` hits a query.

        Raises:
            Exception: what the retriever raises when it is asked these queries alone; ValueError: if it does not give
                one result a query.
        """
        if not queries:
            return []
        if self._thread is None:
            # A daemon: a search that never ends keeps nobody from leaving.
            self._thread = threading.Thread(target=self._work, name="search", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        request = _Request(list(queries), k, loop.time(), loop.create_future())
        self._waiting.append(request)
        self._schedule(loop)
        outcome = await request.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the thread when the search that it is at has ended. Whoever still waits for one waits in vain."""
        self._jobs.put(None)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the next search sent off, unless that is done when the present one ends."""
        if self._busy or not self._waiting:
            return
        due = self._waiting[0].arrived + self._max_wait - loop.time()
        if due > 0 and self.waiting < self._max_batch:
            if self._timer is None:
                self._timer = loop.call_later(due, self._send, loop)
            return
        if self._timer is not None:
            self._timer.cancel()
        # Not at once: what else arrives in this turn of the loop comes along.
        self._timer = loop.call_soon(self._send, loop)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        batch = self._next_batch()
        if batch:
            self._busy = True
            self._jobs.put((loop, batch))

    def _next_batch(self) -> list[_Request]:
        """The oldest request and those after it that ask for as many hits, as far as they fit."""
        batch: list[_Request] = []
        left: deque[_Request] = deque()
        room = self._max_batch
        for request in self._waiting:
            if request.outcome.done():  # cancelled
                continue
            if not batch or (request.k == batch[0].k and len(request.queries) <= room):
                batch.append(request)
                room -= len(request.queries)
            else:
                left.append(request)
        self._waiting = left
        return batch

    def _deliver(self, loop: asyncio.AbstractEventLoop, outcomes: list[tuple[_Request, Outcome]]) -> None:
        for request, outcome in outcomes:
            if not request.outcome.done():
                request.outcome.set_result(outcome)
        self._busy = False
        self._schedule(loop)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, batch = job
            outcomes = list(self._outcomes(batch))
            try:
                loop.call_soon_threadsafe(self._deliver, loop, outcomes)
            except RuntimeError:  # the loop is closed: nobody is left to hear of it
                return

    def _outcomes(self, batch: list[_Request]) -> Iterator[tuple[_Request, Outcome]]:
        queries = [query for request in batch for query in request.queries]
        try:
            found = self._search(queries, batch[0].k)
        except BaseException as error:  # even SystemExit: it would end the thread, and with it every later search
            if len(batch) == 1:
                yield batch[0], _as_exception(error)
            else:
                for request in batch:
                    yield from self._outcomes([request])
            return
        for request in batch:
            yield request, [found[query] for query in request.queries]

    def _search(self, queries: list[str], k: int) -> dict[str, Found]:
        """What is found for each of the different queries, in searches of at most `max_batch`."""
        distinct = list(dict.fromkeys(queries))
        found: dict[str, Found] = {}
        for start in range(0, len(distinct), self._max_batch):
            part = distinct[start : start + self._max_batch]
            started = time.perf_counter()
            results = ask(self._retriever, part, k)
            if self._on_search is not None:
                self._on_search(len(part), time.perf_counter() - started)
            for query, hits in zip(part, results, strict=True):
                found[query] = hits if isinstance(hits, SearchFailed) else hits[:k]
        return found


def _as_exception(error: BaseException) -> Exception:
    """What a coroutine may raise: not StopIteration, nor what ends an event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the retriever raised {error!r}")
