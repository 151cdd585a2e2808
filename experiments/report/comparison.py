"""The folder of a comparison, read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.config import AblateConfig, run_folder
from experiments.folders import as_saved, flat
from experiments.report.curves import Steps, read_metrics
from experiments.report.panels import with_shares


@dataclass(frozen=True)
class Comparison:
    """What `experiments/ablate.py` left."""

    summary: Mapping[str, Any]
    """As `summarize` returns it."""
    runs: Sequence[Mapping[str, Any]]
    """The result of each run."""
    settings: Mapping[str, Any]
    """config.json, groups by full name: "trainer.steps"."""
    environment: Mapping[str, Any]
    """environment.json, likewise; {} where there is none."""
    metrics: Mapping[str, Mapping[int, Steps]]
    """By algorithm and seed."""

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """All of it.

        Raises:
            FileNotFoundError: if a run or the settings are missing.
            ValueError: if the folder holds no finished comparison, or a line of a metrics file can't be read.
        """
        if not (folder / "results.json").is_file():
            raise ValueError(f"{folder}: no results.json here: name the folder of a comparison that ablate.py finished")
        results, environment = _json(folder / "results.json"), folder / "environment.json"
        metrics: dict[str, dict[int, Steps]] = {}
        for run in results["runs"]:
            path = folder / "runs" / run_folder(run["algorithm"], run["seed"]) / "metrics.jsonl"
            metrics.setdefault(run["algorithm"], {})[run["seed"]] = with_shares(read_metrics(path))
        return cls(
            results["summary"],
            results["runs"],
            flat(_json(folder / "config.json")),
            flat(_json(environment)) if environment.is_file() else {},
            metrics,
        )

    @property
    def labels(self) -> list[str]:
        """The algorithms, the baseline first."""
        return [entry["algorithm"] for entry in self.summary["algorithms"]]

    @property
    def steps(self) -> str:
        """Of a run, for people: how many, or "16 or 24" where runs differ."""
        return " or ".join(map(str, sorted({run["steps"] for run in self.runs})))

    def changed_settings(self) -> list[tuple[str, Any, Any]]:
        """(name, value, default) of the settings that differ from the defaults of the embedded policy."""
        defaults = flat(as_saved(asdict(AblateConfig())))
        rows = [(name, value, defaults.get(name)) for name, value in self.settings.items()]
        return [row for row in rows if row[1] != row[2] and row[0] != "out"]

    @property
    def held_out(self) -> str:
        """Where the held-out questions come from."""
        source, questions = self.settings.get("task.held_out"), self.settings.get("task.questions")
        if source:
            return str(source)
        return "embedded:test" if questions == "embedded" else f"a part of {questions} that was not trained on"


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
