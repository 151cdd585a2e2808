"""One library in a process of its own, which plays on request: `python -m benchmarks.worker LIBRARY WORKLOAD`.

It reads a request a line, a JSON object with `form`, `retrieval` and `seconds`, and answers each with a line of
`seconds`, `turns` and `tokens`. A process that waits for a request takes no time from the others, so their
measurements can be interleaved.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from benchmarks.workloads import TOP_K, Workload
from search_gym.retrieval import Hit, Retriever
from search_gym.retrieval.bm25 import BM25Retriever

Player = Callable[[], dict[str, int]]
"""Plays all dialogues once, or as many to their end in environments that go on; returns `turns` and `tokens`."""
Form = Callable[[Workload, Retriever], Player]

PLACES = 64
"""Environments side by side in the vector forms."""
MODULES = {
    "search-gym": "benchmarks.ours",
    "skyrl-gym": "benchmarks.skyrl",
    "gem-llm": "benchmarks.gem_llm",
}
RETRIEVALS = ("none", "bm25")


class Found:
    """A retriever that knows what every query finds."""

    def __init__(self, workload: Workload) -> None:
        self._found = workload.found

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`, in constant time; KeyError for a query of no dialogue."""
        return [self._found[query][:k] for query in queries]


class Documents:
    """What both peers ask of a search: dictionaries, as Search-R1's retrieval server sends them."""

    def __init__(self, workload: Workload, retriever: Retriever) -> None:
        self._retriever = retriever
        # Ready beforehand, for over HTTP they would come out of the response.
        self._documents = {p.id: {"document": {"contents": f"{p.title}\n{p.text}"}} for p in workload.passages}

    def search(self, query: str) -> list[dict]:
        """The documents for one query, best first."""
        return [self._documents[hit.id] for hit in self._retriever.search([query], TOP_K)[0]]  # pyright: ignore


def measure(player: Player, seconds: float) -> dict[str, float]:
    """Play until the time is up, whole rounds, at least one."""
    total, elapsed = {"turns": 0, "tokens": 0}, 0.0
    gc.collect()
    start = time.perf_counter()
    while elapsed < seconds or not total["turns"]:
        for key, value in player().items():
            total[key] += value
        elapsed = time.perf_counter() - start
    return {"seconds": elapsed, **total}


def serve(library: str, workload: Workload, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    forms: dict[str, Form] = importlib.import_module(MODULES[library]).FORMS
    retrievers: dict[str, Retriever] = {"none": Found(workload), "bm25": BM25Retriever(workload.passages)}
    ready: dict[tuple[str, str], Player] = {}
    print(json.dumps(list(forms)), file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        key = request["form"], request["retrieval"]
        if key not in ready:
            ready[key] = forms[key[0]](workload, retrievers[key[1]])
            ready[key]()  # to warm up
        print(json.dumps(measure(ready[key], request["seconds"])), file=answers, flush=True)


def check(question: str, expected: float, got: float) -> None:
    """Every environment has to find the same score, or it has not done the same work."""
    if float(got) != expected:
        raise ValueError(f"question {question!r} is worth {expected}, and this environment says {got}")


if __name__ == "__main__":
    # A library may print what it likes: the answers have standard output for themselves.
    with contextlib.redirect_stdout(sys.stderr):
        serve(sys.argv[1], Workload.load(Path(sys.argv[2])), sys.stdin, sys.__stdout__ or sys.stdout)
