"""A retriever behind HTTP: POST /retrieve as Search-R1's server has it, GET /health, GET /metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from search_gym.retrieval import Retriever, SearchFailed
from search_gym.retrieval.answering import Limits, Refused, encoded, read, written
from search_gym.retrieval.batching import Batcher

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from search_gym.retrieval.server_metrics import Metrics

_log = logging.getLogger(__name__)
# Nobody reads this code, but the metrics count it; nginx uses the same.
_CLIENT_LEFT = 499


@dataclass(frozen=True)
class ServerConfig:
    """How a server answers.

    Raises:
        ValueError: if a number is outside its range.
    """

    top_k: int = 3
    """Hits of a query whose request does not say; from 1 to `limits.max_top_k`."""
    limits: Limits = field(default_factory=Limits)
    max_batch: int = 256
    """The most queries that the retriever is asked at once, >= 1."""
    max_wait_ms: float = 0.0
    """How long a search that is not full waits for more requests, >= 0."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.limits.max_top_k:
            raise ValueError(f"top_k must be from 1 to max_top_k, {self.limits.max_top_k}, not {self.top_k}")


def make_app(retriever: Retriever, config: ServerConfig | None = None) -> FastAPI:
    """The server as an ASGI application.

    POST /retrieve takes and gives what `search_gym.retrieval.answering` describes. It answers 413 to a body that is
    too large, 422 to what is none of the protocol or beyond a limit (the body says which, its value and what was sent),
    503 where no query could be searched, and 500 where the retriever raised. GET /health tells the digest of the
    retriever, the number of its passages and the limits. GET /metrics is Prometheus's text.

    Args:
        retriever: is called in one thread, one search at a time; see `search_gym.retrieval.batching`.
        config: by default `ServerConfig()`.

    Raises:
        ImportError: without fastapi or prometheus_client.
    """
    try:
        from fastapi import FastAPI
        from starlette.responses import Response
        from starlette.routing import Route

        from search_gym.retrieval.server_metrics import Metrics
    except ImportError as error:
        raise ImportError(f"a server needs {error.name}: pip install 'search-gym[serve]'") from error

    config = config or ServerConfig()
    metrics = Metrics()
    batcher = Batcher(
        retriever, max_batch=config.max_batch, max_wait_ms=config.max_wait_ms, on_search=metrics.on_search
    )
    metrics.watch(lambda: batcher.waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    async def retrieve(request: Request) -> Response:
        started = time.perf_counter()
        status, body = await _answer(request, batcher, config, metrics)
        metrics.on_request(status, time.perf_counter() - started)
        return Response(body, status, media_type="application/json")

    def health() -> Response:  # in a thread of FastAPI's: to know its digest, a retriever may ask another server
        status, content = _health(retriever, config)
        return Response(encoded(content), status, media_type="application/json")

    async def show_metrics() -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    app = FastAPI(title="search-gym", version=version("search-gym"), lifespan=lifespan, docs_url=None, redoc_url=None)
    # As Starlette's own route: FastAPI's would make a model of every request and a copy of every answer first, which
    # takes longer than the search does.
    app.router.routes.append(Route("/retrieve", retrieve, methods=["POST"]))
    app.get("/health")(health)
    app.get("/metrics")(show_metrics)
    return app


async def _answer(request: Request, batcher: Batcher, config: ServerConfig, metrics: Metrics) -> tuple[int, bytes]:
    """The code and the body for a request to /retrieve."""
    try:
        asked = read(await _body(request, config.limits.max_body_bytes), config.limits, config.top_k)
    except Refused as refused:
        return refused.status, encoded(refused.body)
    try:
        found = await batcher.search(asked.queries, asked.k)
        failed = sum(isinstance(hits, SearchFailed) for hits in found)
        metrics.on_queries(len(found), failed)
        return written(found, asked.with_scores)
    except Exception as error:
        _log.exception("a search for %d queries failed", len(asked.queries))
        metrics.on_queries(len(asked.queries), len(asked.queries))
        return 500, encoded({"detail": f"the search failed: {type(error).__name__}: {error}"})


async def _body(request: Request, limit: int) -> bytes:
    """The body of a request; of one that is too large, the rest is read and forgotten: else the client, which sends
    before it reads, would see a connection that breaks instead of the answer."""
    from starlette.requests import ClientDisconnect

    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                parts.clear()
            else:
                parts.append(part)
    except ClientDisconnect as error:
        raise Refused("the client left before its request was whole", status=_CLIENT_LEFT) from error
    if size > limit:
        detail = f"the body has {size} bytes, and at most {limit} are allowed (max_body_bytes)"
        raise Refused(detail, status=413, limit="max_body_bytes", value=limit, sent=size)
    return b"".join(parts)


def _health(retriever: Retriever, config: ServerConfig) -> tuple[int, dict[str, Any]]:
    try:
        about = {"digest": getattr(retriever, "digest", None), "passages": passage_count(retriever)}
    except Exception as error:
        return 503, {"status": "failing", "detail": f"{type(error).__name__}: {error}"}
    settings = {"top_k": config.top_k, "limits": asdict(config.limits), "version": version("search-gym")}
    return 200, {"status": "ok", **about, **settings}


def passage_count(retriever: Retriever) -> int | None:
    """How many passages a retriever searches in, if it says."""
    passages = getattr(retriever, "passages", None)
    return None if passages is None else len(passages)
