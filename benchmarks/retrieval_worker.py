"""One measurement in a process of its own: `python -m benchmarks.retrieval_worker build|search KIND FOLDER …`.

Building and searching are processes apart, so that the memory of the one is not counted for the other.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import synthetic
from search_gym.retrieval import Retriever
from search_gym.retrieval.index import IndexFolder, Work, build

BATCHES = (1, 64, 512)
TOP_K = 10


def measure_build(kind: str, folder: Path, corpus: Path) -> dict[str, Any]:
    """Index a corpus into a folder."""
    started = time.perf_counter()
    build(corpus, folder, kind, work=Work(processes=2, progress=False))
    return {"build_s": time.perf_counter() - started}


def measure_search(kind: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Open an index, let it rest, and search it in batches of several sizes."""
    started = time.perf_counter()
    opened = IndexFolder.at(folder)
    retriever = opened.open(kind)
    row: dict[str, Any] = {"open_s": time.perf_counter() - started}
    asked = synthetic.queries(opened.passages, 2048)  # pyright: ignore[reportArgumentType]
    row["rest_mib"] = resident_mib()
    retriever.search(asked[:8], TOP_K)
    row["per_s"] = {str(size): per_second(retriever, asked, size, seconds) for size in BATCHES}
    row["searched_mib"] = resident_mib()
    return row


def per_second(retriever: Retriever, asked: list[str], size: int, seconds: float) -> float:
    """Queries answered in a second, in batches of a size; at least one batch is asked."""
    done, started = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - started < seconds:
        retriever.search([asked[(done + place) % len(asked)] for place in range(size)], TOP_K)
        done += size
    return done / (time.perf_counter() - started)


def resident_mib() -> dict[str, float]:
    """Memory of this process: all that is resident, and the part that is its own, not pages of mapped files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    size = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return {"resident": size["Rss"], "own": size["Anonymous"]}


def main(arguments: list[str]) -> None:
    """Print the measurement as one line of JSON."""
    action, kind, folder, what = arguments
    if action == "build":
        row = measure_build(kind, Path(folder), Path(what))
    else:
        row = measure_search(kind, Path(folder), float(what))
    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1:])
