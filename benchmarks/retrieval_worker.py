"""One measurement in a process of its own: `python -m benchmarks.retrieval_worker build|search KIND FOLDER SECONDS`.

Building and searching are processes apart, so that the memory of the one is not counted for the other. The folder
holds the passages; an index goes into a folder of its kind beside them.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import synthetic
from search_gym.retrieval import Retriever, bm25, dense
from search_gym.retrieval.bm25 import BM25Retriever, BM25Settings
from search_gym.retrieval.store import PassageStore

BATCHES = (1, 64, 512)
TOP_K = 10
QUERIES = 2_048
COMPARED = 200
"""Queries whose hits are written down, to compare an index with a flat one."""


def factory(kind: str, size: int) -> str:
    """FAISS's factory string: an inverted file has about 4 lists for the root of the number of vectors.

    "np" leaves out a training of codes for polysemous search, which nothing here uses and which takes minutes.
    """
    lists = 1 << round((16 * size).bit_length() / 2 - 0.5)
    return {"flat": "Flat", "hnsw": "HNSW32", "ivfpq": f"IVF{lists},PQ48np"}[kind]


def measure_build(kind: str, folder: Path) -> dict[str, Any]:
    """Build an index over the passages of a folder; for a dense one, the vectors are there before the clock starts."""
    passages = PassageStore(folder / "passages")
    out = folder / kind
    shutil.rmtree(out, ignore_errors=True)
    if kind == "bm25":
        started = time.perf_counter()
        bm25.build(passages, out, BM25Settings(), processes=2)
        took = time.perf_counter() - started
    else:
        encoder = synthetic.VectorEncoder()
        dense.vectors.encode(passages, out / "vectors", encoder, progress=False)
        started = time.perf_counter()
        dense.build(passages, out, encoder, factory(kind, len(passages)), progress=False)
        took = time.perf_counter() - started
        shutil.rmtree(out / "vectors")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"build_s": took, "index_mib": size / 2**20, "build_peak_mib": peak}


def measure_search(kind: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Open an index, let it rest, and search it in batches of several sizes."""
    passages = PassageStore(folder / "passages")
    started = time.perf_counter()
    if kind == "bm25":
        retriever, asked = BM25Retriever.open(folder / kind, passages), synthetic.queries(passages, QUERIES)
    else:
        retriever = dense.open_dense(folder / kind, passages, synthetic.VectorEncoder())
        asked = [str(number) for number in range(QUERIES)]
    row: dict[str, Any] = {"open_s": time.perf_counter() - started, "rest_mib": resident_mib()}
    found = [[hit.id for hit in hits] for hits in retriever.search(asked[:COMPARED], TOP_K)]
    (folder / f"{kind}.json").write_text(json.dumps(found))
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
    action, kind, folder, seconds = arguments
    built = action == "build"
    print(
        json.dumps(measure_build(kind, Path(folder)) if built else measure_search(kind, Path(folder), float(seconds)))
    )


if __name__ == "__main__":
    main(sys.argv[1:])
