"""Metrics to TensorBoard, Weights & Biases or MLflow, through accelerate. metrics.jsonl is written anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TRACKERS = ("tensorboard", "wandb", "mlflow")


class Trackers:
    """Some of `TRACKERS`, each told the same.

    Args:
        names: which ones.
        out: the run folder: its name is that of the run, and what is written to disk goes there.
        settings: of the run, shown beside its metrics.

    Raises:
        ValueError: if there is no such tracker, or its package is not installed.
    """

    def __init__(self, names: Sequence[str], out: Path, settings: Mapping[str, Any]) -> None:
        if unknown := set(names) - set(TRACKERS):
            raise ValueError(f"no tracker is called {', '.join(sorted(unknown))}; there are: {', '.join(TRACKERS)}")
        self._trackers = [_open(name, out) for name in names]
        for tracker in self._trackers:
            tracker.store_init_configuration(flat(settings))

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Pass the metrics of a step on; what is missing is left out."""
        values = {name: value for name, value in flat(metrics).items() if isinstance(value, int | float)}
        step = int(values.pop("step"))
        for tracker in self._trackers:
            tracker.log(values, step=step)

    def close(self) -> None:
        """Write what is still held back."""
        for tracker in self._trackers:
            tracker.finish()


def _open(name: str, out: Path) -> Any:
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS
    from accelerate.utils import is_mlflow_available, is_tensorboard_available, is_wandb_available

    there = {"tensorboard": is_tensorboard_available, "wandb": is_wandb_available, "mlflow": is_mlflow_available}
    if not there[name]():
        raise ValueError(f"--track {name} needs its package: pip install 'search-gym[{name}]'")
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
