"""How indexing and searching grow with the corpus, from 10 thousand passages to a million, made up from a seed.

python benchmarks/retrieval.py --work DIR
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

import matplotlib.pyplot as plt
import tyro

from benchmarks import synthetic
from benchmarks.retrieval_worker import BATCHES, TOP_K, factory
from benchmarks.serving import environment
from search_gym.retrieval import corpus, store

KINDS = ("bm25", "flat", "hnsw", "ivfpq")
Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Index and search corpora of several sizes. What is measured already is in DIR/rows.jsonl and stays."""

    work: Path
    """Where corpora and indexes go: for a million passages, 8 GB."""
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Passages, smallest first."""
    kinds: tuple[str, ...] = KINDS
    """bm25, flat, hnsw, ivfpq: the dense ones over random vectors."""
    seconds: float = 10.0
    """How long each batch size is asked."""
    figure: Path = ROOT / "benchmarks" / "retrieval.png"
    """Where the plot goes."""


def prepare(work: Path, size: int) -> Path:
    """The folder of a size, with its passages in it."""
    folder = work / str(size)
    if not store.is_whole(folder / "passages"):
        folder.mkdir(parents=True, exist_ok=True)
        synthetic.write_corpus(folder / "corpus.jsonl", size)
        store.write(corpus.read(folder / "corpus.jsonl"), folder / "passages", "synthetic")
    return folder


def measure(folder: Path, kind: str, seconds: float) -> Row:
    """Build and search an index, each in a process of its own; `recall` against a flat index where there is one."""
    row: Row = {"kind": kind, "size": int(folder.name)}
    for action in ("build", "search"):
        command = [sys.executable, "-m", "benchmarks.retrieval_worker", action, kind, str(folder), str(seconds)]
        done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
        row |= json.loads(done.stdout.splitlines()[-1])
    truth = folder / "flat.json"
    if kind in ("hnsw", "ivfpq") and truth.exists():
        pairs = zip(json.loads(truth.read_text()), json.loads((folder / f"{kind}.json").read_text()), strict=True)
        row["recall"] = fmean(len({*right} & {*found}) / TOP_K for right, found in pairs)
    return row


def table(rows: list[Row]) -> str:
    """The rows, for the README."""
    speeds = " | ".join(f"queries/s, {size}" for size in BATCHES)
    lines = [
        f"| index | passages | build, s | size, MiB | open, s | at rest, MiB | {speeds} | recall@{TOP_K} |",
        "| --- " + "| ---: " * (7 + len(BATCHES)) + "|",
    ]
    for row in sorted(rows, key=lambda row: (KINDS.index(row["kind"]), row["size"])):
        name = row["kind"] if row["kind"] == "bm25" else factory(row["kind"], row["size"])
        speed = " | ".join(f"{row['per_s'][str(size)]:,.0f}" for size in BATCHES)
        recall = f"{row['recall']:.3f}" if "recall" in row else ""
        lines.append(
            f"| {name} | {row['size']:,} | {row['build_s']:,.1f} | {row['index_mib']:,.0f} | {row['open_s']:.2f} | "
            f"{row['rest_mib']['resident']:,.0f} | {speed} | {recall} |"
        )
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Four quantities over the size of the corpus, both axes logarithmic: a straight slope of 1 is linear growth."""
    quantities = {
        "time to build, s": lambda row: row["build_s"],
        "index on disk, MiB": lambda row: row["index_mib"],
        "memory at rest, MiB": lambda row: row["rest_mib"]["resident"],
        "queries/s in batches of 64": lambda row: row["per_s"]["64"],
    }
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    for axis, (title, value) in zip(axes.flat, quantities.items(), strict=True):
        for kind in KINDS:
            some = sorted((row for row in rows if row["kind"] == kind), key=lambda row: row["size"])
            axis.loglog([row["size"] for row in some], [value(row) for row in some], marker="o", label=kind)
        axis.set(title=title, xlabel="passages")
        axis.grid(alpha=0.3)
    axes[1, 0].legend()
    figure.savefig(path, dpi=110)


def main(config: Config) -> None:
    """Measure what is missing, print the table, draw the plot."""
    config.work.mkdir(parents=True, exist_ok=True)
    path = config.work / "rows.jsonl"
    rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["kind"], row["size"]) for row in rows}
    for size in config.sizes:
        folder = prepare(config.work, size)
        for kind in config.kinds:
            if (kind, size) not in done:
                rows.append(measure(folder, kind, config.seconds))
                with path.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    draw(rows, config.figure)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
