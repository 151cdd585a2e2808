"""The metrics of training steps, read and put side by side for the seeds of an algorithm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Steps = Mapping[int, Mapping[str, float]]
"""{step: {key: value}}, nan where a value is null."""


@dataclass(frozen=True)
class Curve:
    """A metric of an algorithm over the steps that all of its seeds have."""

    label: str
    seeds: int
    steps: NDArray[np.int64]
    """[S], rising."""
    values: NDArray[np.float64]
    """[seeds, S]; nan where a seed has no finite value."""

    @property
    def mean(self) -> NDArray[np.float64]:
        """[S], over seeds; like `low` and `high`, nan where a seed has no finite value."""
        return self.values.mean(axis=0)

    @property
    def low(self) -> NDArray[np.float64]:
        """[S], of the lowest seed."""
        return self.values.min(axis=0)

    @property
    def high(self) -> NDArray[np.float64]:
        """[S], of the highest seed."""
        return self.values.max(axis=0)

    @property
    def known(self) -> bool:
        """Whether there is a step at which all seeds have a finite value."""
        return bool(np.isfinite(self.mean).any())

    @property
    def overall(self) -> float:
        """The mean over those steps and all seeds; nan where there is none."""
        return float(np.nanmean(self.mean)) if self.known else math.nan


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """The numbers of a metrics.jsonl by step and key; nan for null. What is grouped (times, speeds) is left out.

    Raises:
        ValueError: if a line can't be read: file and line are said.
    """
    steps: dict[int, dict[str, float]] = {}
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                step = row["step"]
                if not isinstance(step, int) or step in steps:
                    raise ValueError(f"step {step!r} is no integer, or comes twice")
                flat = {key: value for key, value in row.items() if not isinstance(value, dict)}
                values = {key: math.nan if value is None else float(value) for key, value in flat.items()}
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: not the metrics of a training step: {error!r}") from error
            steps[step] = values
    return steps


def curve(label: str, seeds: Sequence[Steps], key: str, sparse: bool = False) -> Curve:
    """The curve of a metric, over the steps that all seeds have; with `sparse` those alone at which one has the key.

    So a metric that is measured every few steps is one line, and any other has a gap where it is missing.
    """
    shared = set.intersection(*(set(seed) for seed in seeds)) if seeds else set()
    steps = [step for step in sorted(shared) if not sparse or any(key in seed[step] for seed in seeds)]
    rows: list[list[Any]] = [[seed[step].get(key, math.nan) for step in steps] for seed in seeds]
    values = np.array(rows, np.float64).reshape(len(seeds), len(steps))
    return Curve(label, len(seeds), np.array(steps, np.int64), np.where(np.isfinite(values), values, np.nan))


def lonely(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[S]: the finite values of a line [S] without a finite neighbour; as a line needs two, they would not show."""
    there = np.pad(np.isfinite(values), 1)
    return there[1:-1] & ~there[:-2] & ~there[2:]
