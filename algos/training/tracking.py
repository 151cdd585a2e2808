"""Metrics to TensorBoard, Weights & Biases or MLflow, through accelerate. metrics.jsonl is written anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TRACKERS = ("tensorboard", "wandb", "mlflow")


class Trackers:
    """Some of `TRACKERS`, each told the same. They are told nothing before `open`.

    Args:
        names: which ones.

    Raises:
        ValueError: if there is no such tracker.
        ImportError: if its package is not installed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        if unknown := set(names) - set(TRACKERS):
            raise ValueError(f"no tracker is called {', '.join(sorted(unknown))}; there are: {', '.join(TRACKERS)}")
        for name in names:
            _require_package(name)
        self._names = list(dict.fromkeys(names))
        self._opened: list[Any] = []

    def open(self, out: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run.

        Args:
            out: the run folder: its name is that of the run, and what is written to disk goes there.
            settings: of the run, shown beside its metrics.
        """
        self._opened = [_open(name, out) for name in self._names]
        for tracker in self._opened:
            tracker.store_init_configuration(flat(settings))

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Pass the metrics of a step on; what is missing is left out."""
        values = {name: value for name, value in flat(metrics).items() if isinstance(value, int | float)}
        step = int(values.pop("step"))
        for tracker in self._opened:
            tracker.log(values, step=step)

    def close(self) -> None:
        """Write what is still held back."""
        for tracker in self._opened:
            tracker.finish()
        self._opened = []


def _require_package(name: str) -> None:
    from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

    there = {"tensorboard": is_tensorboard_available, "wandb": is_wandb_available, "mlflow": is_mlflow_available}
    if not there[name]():
        raise ImportError(f"--track {name} needs a package that is not installed: pip install {name}")


def _open(name: str, out: Path) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # the trackers ask it which process writes
    out.mkdir(parents=True, exist_ok=True)
    tracker = LOGGER_TYPE_TO_CLASS[name]
    needs_folder = getattr(tracker, "requires_logging_directory", False)
    opened = tracker(name, logging_dir=out) if needs_folder else tracker(out.name)
    opened.start()
    return opened


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, the names joined by a slash; what is no number, word or truth becomes text."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}/")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, int | float | str | bool) else str(value)
    return found
