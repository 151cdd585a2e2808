"""Dynamic batching: laws over any requests, then what must not go wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import CITIES, Watched, watched

from search_gym.retrieval import Hit, SearchFailed
from search_gym.retrieval.batching import Batcher
from search_gym.retrieval.bm25 import BM25Retriever

T = TypeVar("T")
QUERIES = st.sampled_from(["Oslo", "capital", "Paris Norway", "", "the", "zzz", "down", "\ud800"]) | st.text(max_size=5)
REQUESTS = st.lists(st.tuples(st.lists(QUERIES, max_size=7), st.integers(1, 3)), min_size=1, max_size=12)


def run(retriever: Any, use: Callable[[Batcher], Awaitable[T]], **settings: Any) -> T:
    """Use a batcher in an event loop of its own."""

    async def main() -> T:
        batcher = Batcher(retriever, **settings)
        try:
            return await asyncio.wait_for(use(batcher), 60)
        finally:
            batcher.close()

    return asyncio.run(main())


def together(batcher: Batcher, requests: Sequence[tuple[list[str], int]]) -> Awaitable[list[Any]]:
    """What comes of requests that are made at the same time: results, or the exceptions."""
    return asyncio.gather(*(batcher.search(*request) for request in requests), return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def held_up(batcher: Batcher, retriever: Watched) -> asyncio.Task[Any]:
    """A request that the retriever is busy with until its gate is opened."""
    retriever.gate.clear()
    first = asyncio.create_task(batcher.search(["first"], 1))
    await until(lambda: retriever.begun.acquire(blocking=False))
    return first


@given(REQUESTS, st.integers(1, 9), st.sampled_from([0.0, 1.0]))
def test_every_request_gets_what_it_would_get_alone(
    requests: list[tuple[list[str], int]], max_batch: int, max_wait_ms: float
) -> None:
    retriever, alone = watched(), watched()
    found = run(retriever, lambda b: together(b, requests), max_batch=max_batch, max_wait_ms=max_wait_ms)
    assert found == [alone.search(queries, k) for queries, k in requests]
    assert all(len(queries) == len(set(queries)) <= max_batch for queries, _ in retriever.searches)


@given(REQUESTS, st.data())
def test_a_poisoned_request_fails_alone(requests: list[tuple[list[str], int]], data: st.DataObject) -> None:
    requests = [*requests, (["poison"], 1)]
    poisoned = data.draw(st.sets(st.integers(0, len(requests) - 1)))
    for place in poisoned:
        requests[place] = ([*requests[place][0], "poison"], requests[place][1])
    found = run(watched(), lambda b: together(b, requests))
    for (queries, k), answer in zip(requests, found, strict=True):
        if "poison" in queries:
            assert isinstance(answer, Exception)
        else:
            assert answer == watched().search(queries, k)


def test_what_arrives_together_and_while_a_search_runs_goes_out_together() -> None:
    retriever = watched()

    async def use(batcher: Batcher) -> None:
        first = await held_up(batcher, retriever)
        later = asyncio.ensure_future(together(batcher, [([f"q{i}", "Oslo"], 2) for i in range(20)]))
        await until(lambda: batcher.waiting == 40)
        retriever.gate.set()
        await first
        await later
        assert batcher.waiting == 0

    run(retriever, use)
    # Of equal queries one is searched.
    assert retriever.searches == [(["first"], 1), (["q0", "Oslo", *(f"q{i}" for i in range(1, 20))], 2)]


def test_requests_for_more_or_fewer_hits_are_searched_apart_and_in_turn() -> None:
    retriever = watched()
    run(retriever, lambda b: together(b, [(["a"], 2), (["b"], 1), (["c"], 2), (["d"], 3)]))
    assert retriever.searches == [(["a", "c"], 2), (["b"], 1), (["d"], 3)]


def test_a_search_is_never_larger_than_the_largest() -> None:
    retriever = watched()
    large = [f"q{i}" for i in range(7)]
    run(retriever, lambda b: together(b, [(["a", "b"], 1), (large, 1), (["c"], 1)]), max_batch=3)
    assert [queries for queries, _ in retriever.searches] == [["a", "b", "c"], large[:3], large[3:6], large[6:]]


def test_waiting_for_more_ends_when_the_search_is_full() -> None:
    retriever = watched()

    async def use(batcher: Batcher) -> float:
        start = time.monotonic()
        first = asyncio.create_task(batcher.search(["a"], 1))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, batcher.search(["b"], 1))
        return time.monotonic() - start

    assert run(retriever, use, max_batch=2, max_wait_ms=30_000) < 20
    assert run(retriever, use, max_wait_ms=50) >= 0.05
    assert retriever.searches == [(["a", "b"], 1)] * 2


def test_the_event_loop_is_free_while_a_search_runs() -> None:
    retriever = watched()

    async def use(batcher: Batcher) -> None:
        first = await held_up(batcher, retriever)
        await asyncio.sleep(0.01)
        assert not first.done()
        retriever.gate.set()
        assert await first == [[]]

    run(retriever, use)


def test_a_cancelled_request_harms_nobody_and_is_not_searched() -> None:
    retriever = watched()

    async def use(batcher: Batcher) -> Any:
        first = await held_up(batcher, retriever)
        gone, stays = (asyncio.create_task(batcher.search([query], 1)) for query in ("gone", "Oslo"))
        await until(lambda: batcher.waiting == 2)
        gone.cancel()
        first.cancel()  # its search runs, and its answer finds nobody
        await asyncio.sleep(0)
        retriever.gate.set()
        return await stays

    ((hit,),) = run(retriever, use)
    assert hit.id == "o"
    assert [queries for queries, _ in retriever.searches] == [["first"], ["Oslo"]]


def test_a_batch_whose_requests_are_all_cancelled_stops_nothing() -> None:
    retriever = watched()

    async def use(batcher: Batcher) -> Any:
        gone = asyncio.create_task(batcher.search(["gone"], 1))
        await asyncio.sleep(0)
        gone.cancel()
        return await batcher.search(["Oslo"], 1)

    assert run(retriever, use)[0][0].id == "o"


class Faulty:
    """Raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        if queries == ["fine"]:
            return [[]]
        raise self._error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such thing"), "no such thing"),
        (StopIteration(), "StopIteration"),
        (SystemExit(3), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_raised_comes_back_as_an_exception_and_the_thread_lives(error: BaseException, told: str) -> None:
    async def use(batcher: Batcher) -> Any:
        with pytest.raises((ValueError, RuntimeError), match=told):
            await batcher.search(["Oslo"], 1)
        return await batcher.search(["fine"], 1)

    assert run(Faulty(error), use) == [[]]


def test_a_retriever_that_loses_count_or_gives_too_much_is_noticed() -> None:
    class Short(BM25Retriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return super().search(queries, k + 5)[: len(queries) - queries.count("lost")]

    async def use(batcher: Batcher) -> Any:
        with pytest.raises(ValueError, match=r"Short\.search was asked 2 queries and gave 1 results"):
            await batcher.search(["Oslo", "lost"], 1)
        return await batcher.search(["capital"], 2)

    (hits,) = run(Short(CITIES), use)
    assert len(hits) == 2  # R3


def test_nothing_is_asked_for_no_query_and_who_counts_is_told() -> None:
    retriever, seen = watched(), []
    requests: list[tuple[list[str], int]] = [([], 1), (["a", "b", "a"], 1)]
    run(retriever, lambda b: together(b, requests), on_search=lambda n, s: seen.append((n, s >= 0)))
    assert retriever.searches == [(["a", "b"], 1)]
    assert seen == [(2, True)]


@pytest.mark.parametrize(
    "settings", [{"max_batch": 0}, {"max_wait_ms": -1}, {"max_wait_ms": float("nan")}, {"max_wait_ms": float("inf")}]
)
def test_faulty_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_"):
        Batcher(watched(), **settings)
