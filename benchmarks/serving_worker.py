"""A retrieval server in a process of its own, for `benchmarks.serving`.

python -m benchmarks.serving_worker KIND RETRIEVER CORPUS

It prints its address when it is ready, and then, for every line of its input, the seconds of CPU that it has used.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.running import bind, make_server, serve
from search_gym.sources import open_retriever

OURS, THREADS, BLOCKING = "search-gym serve", "a thread a request", "one at a time"
TOP_K = 3


class _Request(BaseModel):
    """What Search-R1's server takes."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def _answer(retriever: Retriever, request: _Request) -> dict[str, Any]:
    """One search for one request, and dicts that FastAPI makes JSON of."""
    return {
        "result": [
            [_item(hit, request.return_scores) for hit in hits]
            for hits in retriever.search(request.queries, request.topk or TOP_K)
            if not isinstance(hits, SearchFailed)
        ]
    }


def _item(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": contents(hit.title, hit.text), "title": hit.title, "text": hit.text}
    return {"document": document, "score": hit.score} if with_score else document


def _threads(retriever: Retriever) -> FastAPI:
    """As Search-R1's server, whose handler is a plain function: FastAPI runs it in one of its 40 threads."""
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: _Request) -> dict[str, Any]:
        return _answer(retriever, request)

    return app


def _blocking(retriever: Retriever) -> FastAPI:
    """The same with a coroutine, as some of its kin have it: nothing else happens while a request is searched."""
    app = FastAPI()

    @app.post("/retrieve")
    async def retrieve(request: _Request) -> dict[str, Any]:
        return _answer(retriever, request)

    return app


KINDS: dict[str, Callable[[Retriever], FastAPI] | None] = {OURS: None, THREADS: _threads, BLOCKING: _blocking}


def main(kind: str, retriever: str, corpus: str) -> None:
    """Serve until the process is ended."""

    def tell() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)

    def ready(address: str) -> None:
        print(address, flush=True)
        threading.Thread(target=tell, daemon=True).start()

    opened, make = open_retriever(retriever, corpus), KINDS[kind]
    if make is None:
        serve(opened, port=0, ready=ready)
        return
    # Behind the same uvicorn as ours, and without the line that Search-R1's logs for every request.
    with bind("127.0.0.1", 0) as bound:
        make_server(make(opened), ready=ready).run([bound])


if __name__ == "__main__":
    main(*sys.argv[1:])
