"""Metrics to trackers: TensorBoard for real, its files read back; the others where they are installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from algos.training.tracking import TRACKERS, Trackers, flat

STEPS = [
    {"step": 1, "reward": 0.25, "seconds": {"rollout": 1.5}, "loss": None},
    {"step": 2, "reward": 0.75, "seconds": {"rollout": 2.5}, "loss": 0.125, "note": "a word"},
]
SETTINGS = {"algo": "grpo", "out": Path("runs/x"), "trainer": {"steps": 2, "learning_rate": 1e-4}, "track": ("a", "b")}


def follow(name: str, out: Path) -> None:
    trackers = Trackers([name])
    trackers.open(out, SETTINGS)
    for metrics in STEPS:
        trackers.log(metrics)
    trackers.close()


def test_nested_settings_become_one_level_of_words_and_numbers() -> None:
    assert flat(SETTINGS | {"none": None, "nan": math.inf, "yes": True}) == {
        "algo": "grpo", "out": "runs/x", "trainer/steps": 2, "trainer/learning_rate": 1e-4, "track": "('a', 'b')",
        "nan": math.inf, "yes": True,
    }  # fmt: skip


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_shows_every_number_at_its_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    follow("tensorboard", tmp_path / "run")
    found: dict[str, list[tuple[int, float]]] = {}
    for file in (tmp_path / "run").rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    assert found == {
        "reward": [(1, 0.25), (2, 0.75)],
        "seconds/rollout": [(1, 1.5), (2, 2.5)],
        "loss": [(2, 0.125)],
    }


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_keeps_the_settings(tmp_path: Path) -> None:
    follow("tensorboard", tmp_path / "run")
    (hparams,) = (tmp_path / "run").rglob("hparams.yml")
    assert "trainer/learning_rate: 0.0001" in hparams.read_text()


@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_keeps_every_number_at_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    follow("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "reward")] == [(1, 0.25), (2, 0.75)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_takes_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    follow("wandb", tmp_path / "run")
    assert list(tmp_path.rglob("*.wandb"))


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packages of a tracker were not installed."""

    def find(package: str, *rest: Any) -> Any:
        return None if package in (name, f"{name}X", f"{name}-skinny") else find_spec(package, *rest)

    monkeypatch.setattr("importlib.util.find_spec", find)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(name, monkeypatch)
    with pytest.raises(ImportError, match=f"^--track {name} needs a package that is not installed: pip install {name}"):
        Trackers([name])


def test_an_unknown_tracker_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no tracker is called magic; there are: tensorboard, wandb, mlflow"):
        Trackers(["magic"])


def test_nothing_is_written_without_trackers_or_before_a_run_begins(tmp_path: Path) -> None:
    follow_none = Trackers([])
    follow_none.open(tmp_path / "run", SETTINGS)
    follow_none.log(STEPS[0])
    follow_none.close()
    if find_spec("tensorboard"):
        Trackers(["tensorboard"]).log(STEPS[0])
    assert list(tmp_path.iterdir()) == []
