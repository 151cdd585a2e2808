"""Folders of comparisons for the tests of the report: scores and metrics that are drawn, in the files of ablate.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from experiments import report
from experiments.config import run_folder

KEYS = ("reward", "f1", "ratio", "clip_fraction", "entropy", "loss", "ratio_min", "drifted", "lambda_action")


def make_comparison(
    out: Path,
    labels: Sequence[str] = ("grpo", "sapo"),
    seeds: int = 3,
    steps: int = 6,
    rng: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a folder and return its results.json. The first run of the first algorithm collapsed at step 4."""
    draw, runs = np.random.default_rng(rng), []
    start = _scores(draw)
    for label in labels:
        for seed in range(seeds):
            run = {"algorithm": label, "seed": seed, "start": start, "end": _scores(draw), "steps": steps}
            run |= {"collapsed": None if runs else 4, "seconds": 90.0, "options": {"clip_low": 0.2}}
            runs.append(run)
            write_metrics(out / "runs" / run_folder(label, seed) / "metrics.jsonl", steps, draw)
    results = {"summary": report.summarize(runs), "runs": runs}
    task = {"questions": "embedded", "held_out": ""}
    config = {"algos": ",".join(labels), "seeds": seeds, "out": str(out), "task": task, "trainer": {"steps": steps}}
    _write(out / "config.json", config | dict(settings or {}))
    _write(out / "environment.json", {"python": "3.11", "versions": {"torch": "2.13"}})
    _write(out / "results.json", results)
    return results


def write_metrics(path: Path, steps: int, draw: np.random.Generator) -> None:
    """Each metric of `KEYS` between 0.1 and 0.9."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": step, **{key: draw.uniform(0.1, 0.9) for key in KEYS}, "seconds": {"update": 1.0}}
        for step in range(1, steps + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _scores(draw: np.random.Generator) -> dict[str, dict[str, float]]:
    def one() -> dict[str, float]:
        em, more = draw.uniform(0, 1, 2)
        return {"questions": 64, "em": em, "f1": em + (1 - em) * more, "searches": 4 * more}

    return {"sampled": one(), "greedy": one()}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


class Page(HTMLParser):
    """What a page holds, as a parser sees it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of texts by caption, headings included."""
        self.text = ""
        """All of it but the style."""
        self._rows: list[list[str]] = []
        self._caption = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            caption = " ".join(self._caption.split())
            rows = [[" ".join(cell.split()) for cell in row] for row in self._rows]
            assert self.tables.setdefault(caption, rows) == rows, f"two tables are called {caption!r}"

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif "th" in self._open or "td" in self._open:
            self._rows[-1][-1] += data

    def attributes(self, name: str) -> list[str]:
        """All values of an attribute."""
        return [value for _, found in self.tags if (value := found.get(name)) is not None]
