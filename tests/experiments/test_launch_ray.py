"""Runs as tasks of a Ray that the command starts, and workers of it that are killed."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from sweeping import RUNS, Sweep, gone, results, swept

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'search-gym[ray]'"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
RAY = ["--launcher", "ray"]
OWN = """
from algos import GRPO


class Failing(GRPO):
    def advantages(self, batch):
        raise ArithmeticError
"""


def test_a_worker_that_is_killed_costs_only_its_own_time(tmp_path: Path, undisturbed: Path) -> None:
    sweep = Sweep(tmp_path, *RAY)
    sweep.wait_for(lambda: sweep.steps("grpo-seed0") >= 3)
    os.kill(sweep.pid("grpo-seed0"), signal.SIGKILL)
    code, output = sweep.end()
    assert code == 0, output
    assert results(tmp_path) == results(undisturbed)
    tries = [json.loads((tmp_path / "runs" / run / "progress.json").read_text())["tries"] for run in RUNS]
    assert tries == [2, 1, 1, 1]
    assert not (tmp_path / "runs" / "grpo-seed0" / "checkpoints").exists()


def test_killed_with_all_its_processes_it_ends_as_if_it_had_not_been(tmp_path: Path, undisturbed: Path) -> None:
    moments = (
        lambda sweep: sweep.steps("grpo-seed0") == 1,  # before its first checkpoint
        lambda sweep: sweep.steps("sapo-seed1") >= 3,
    )
    for moment in moments:
        sweep = Sweep(tmp_path, *RAY)
        sweep.wait_for(lambda moment=moment, sweep=sweep: moment(sweep))
        sweep.kill_group()
        assert not (tmp_path / "results.json").exists()
    code, output = swept(tmp_path, *RAY)
    assert code == 0, output
    assert results(tmp_path) == results(undisturbed)


def test_a_run_that_fails_is_named_and_nothing_outlives_the_command(tmp_path: Path) -> None:
    """The module of the user lies in the folder in which the command runs."""
    (tmp_path / "failing_algorithms.py").write_text(OWN)
    options = [*RAY, "--algos", "failing_algorithms:Failing,grpo", "--seeds", "1", "--steps", "1"]
    code, output = swept(tmp_path / "out", *options, cwd=tmp_path)
    assert code == 1, output
    assert "ablate: error: failing_algorithms:Failing seed 0: ArithmeticError: no message (" in output
    assert [run["algorithm"] for run in results(tmp_path / "out")["runs"]] == ["grpo"]
    progress = json.loads((tmp_path / "out" / "runs" / "grpo-seed0" / "progress.json").read_text())
    assert gone(progress["pid"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run-cpus", "10000"], "a run needs 10000 CPU, and this machine has less: see --run-cpus and --run-gpus"),
        (["--ray-address", "127.0.0.1:1"], "no Ray cluster at --ray-address 127.0.0.1:1: "),
    ],
    ids=["too-much", "no-cluster"],
)
def test_what_cannot_be_is_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, output = swept(tmp_path, *RAY, *options)
    assert code == 2
    assert f"ablate: error: {message}" in output
    assert "Traceback" not in output
