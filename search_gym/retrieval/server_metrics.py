"""What the retrieval server tells Prometheus; each metric is described where it is made."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counts of one server, in a registry of its own."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("search_gym_requests", "Requests to /retrieve by code", ["code"], registry=registry)
        self._queries = Counter("search_gym_queries", "Queries that were asked", registry=registry)
        self._failures = Counter("search_gym_failed_queries", "Queries whose search failed", registry=registry)
        self._latency = Histogram(
            "search_gym_request_seconds",
            "From the head of a request to its answer",
            buckets=_SECONDS,
            registry=registry,
        )
        self._searches = Histogram(
            "search_gym_search_seconds", "One search of the retriever", buckets=_SECONDS, registry=registry
        )
        self._batches = Histogram(
            "search_gym_batch_queries", "Different queries of one search", buckets=_QUERIES, registry=registry
        )
        self._waiting = Gauge("search_gym_waiting_queries", "Queries that wait for a search", registry=registry)

    def watch(self, waiting: Callable[[], int]) -> None:
        """Have the number of waiting queries read when it is asked for."""
        self._waiting.set_function(waiting)

    def on_request(self, status: int, seconds: float) -> None:
        """A request has its answer."""
        self._requests.labels(str(status)).inc()
        self._latency.observe(seconds)

    def on_queries(self, asked: int, failed: int) -> None:
        """The queries of a request were searched, or could not be."""
        self._queries.inc(asked)
        self._failures.inc(failed)

    def on_search(self, queries: int, seconds: float) -> None:
        """The retriever has answered."""
        self._searches.observe(seconds)
        self._batches.observe(queries)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
