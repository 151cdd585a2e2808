"""Runs that fail, that are killed and that go on, on one machine: for real but small."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from sweeping import RUNS, SMALL, STEPS, Sweep, alive, gone, results, swept

from experiments import ablate
from experiments.config import parse
from experiments.launch.job import TRIES

OWN = '''
import os
import signal
from pathlib import Path

from algos import GRPO


class Failing(GRPO):
    """Fails in its second step, until there is a file called mended."""

    calls = 0

    def advantages(self, batch):
        Failing.calls += 1
        if Failing.calls == 2 and not Path("mended").exists():
            raise ArithmeticError("the second step\\nof all")
        return super().advantages(batch)


class Dying(GRPO):
    """Its process dies in every first step."""

    def advantages(self, batch):
        os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with algorithms of the user's, in which the command runs."""
    (tmp_path / "own_algorithms.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_algorithms", raising=False)
    return tmp_path


@pytest.mark.slow
def test_a_run_that_fails_keeps_no_other_from_its_end_and_goes_on(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--out", "out", "--algos", "own_algorithms:Failing,grpo", "--seeds", "1", "--save-every", "1"]
    folder = own / "out" / "runs" / "own_algorithms_Failing-seed0"
    assert ablate.main(options) == 1
    error = capsys.readouterr().err
    named = Path("out") / "runs" / "own_algorithms_Failing-seed0" / "traceback.txt"
    assert f"ablate: error: own_algorithms:Failing seed 0: ArithmeticError: the second step ({named})\n" in error
    assert (folder / "traceback.txt").read_text().startswith("ArithmeticError: the second step\n\nTraceback")
    assert 'raise ArithmeticError("the second step' in (folder / "traceback.txt").read_text()
    assert [run["algorithm"] for run in results(own / "out")["runs"]] == ["grpo"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]

    (own / "mended").touch()
    assert ablate.main(options) == 0
    assert sys.modules["own_algorithms"].Failing.calls == 2 + STEPS - 1  # the first step was not made again
    ours, theirs = results(own / "out")["runs"]
    assert (ours.pop("algorithm"), theirs.pop("algorithm")) == ("own_algorithms:Failing", "grpo")
    assert ours == theirs
    assert not (folder / "traceback.txt").exists()
    assert not (folder / "checkpoints").exists()


@pytest.mark.slow
def test_what_is_lost_of_a_run_counts_for_its_result(tmp_path: Path) -> None:
    """What a process that died has logged is of the run as well: failed searches, rewards and seconds."""
    options = [*SMALL, "--out", str(tmp_path), "--seeds", "1", "--algos", "grpo", "--keep-run-checkpoints"]
    assert ablate.main(options) == 0
    folder = tmp_path / "runs" / "grpo-seed0"
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000004", "step-000006"]
    log = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[0] |= {"failed_searches": 0.5, "reward": 9.0, "seconds": rows[0]["seconds"] | {"rollout": 1000.0}}
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "result.json").unlink()
    assert ablate.main(options) == 0  # only the evaluation is left to be done
    result = json.loads((folder / "result.json").read_text())
    assert result["failed_searches"] == 2  # of four episodes
    assert result["collapsed"] == 6  # running means of five: above 1.8, then below 1
    assert result["seconds"] > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launcher", "rya"], "no launcher is called 'rya'; there are: local, ray"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["--run-gpus", "1"], "--run-gpus cannot be used without --launcher ray"),
        (["--ray-address", "auto", "--run-cpus", "2"], "--ray-address and --run-cpus cannot be used without"),
        (["--launcher", "ray", "--workers", "2"], "--workers is of --launcher local"),
        (["--launcher", "ray", "--run-cpus", "0"], "--run-cpus must be above 0, not 0"),
        (["--launcher", "ray", "--run-gpus=-1"], "--run-gpus must be at least 0, not -1"),
        (["--launcher", "ray", "--device", "cuda:1"], "Ray chooses the GPU of a run: --device cuda, not cuda:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_together_are_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate.main(["--out", str(tmp_path / "x"), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ablate: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "x").exists()


def test_a_gpu_is_needed_where_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate.main([*SMALL, "--out", str(tmp_path), "--workers", "500", "--device", "cuda"]) == 2
    assert "--workers 500 with --device cuda takes a GPU each, and there are" in capsys.readouterr().err
    assert ablate.main([*SMALL, "--out", str(tmp_path), "--device", "cuda:499"]) == 2
    assert "the device 'cuda:499' cannot be used here" in capsys.readouterr().err


def test_a_gpu_is_the_default_of_a_run_on_one() -> None:
    for device, gpus in (("cpu", 0), ("cuda", 1)):
        launch = parse(["--launcher", "ray", "--device", device]).launch
        launch.check(device)
        assert launch.gpus(device) == gpus
    assert parse(["--launcher", "ray", "--device", "cuda", "--run-gpus", "0.5"]).launch.gpus("cuda") == 0.5


def test_two_commands_do_not_work_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(tmp_path / ".lock"):
        assert ablate.main([*SMALL, "--out", str(tmp_path)]) == 2
    assert f"another command is at work in {tmp_path}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_several_moments_it_ends_as_if_it_had_not_been(tmp_path: Path, undisturbed: Path) -> None:
    moments = (
        (1, lambda sweep: sweep.steps("grpo-seed0") == 1),  # before its first checkpoint
        (2, lambda sweep: sweep.steps("sapo-seed0") >= 3),
        (1, lambda sweep: (tmp_path / "runs" / "grpo-seed0" / "end").exists()),
    )
    for workers, moment in moments:
        sweep = Sweep(tmp_path, "--workers", str(workers))
        sweep.wait_for(lambda moment=moment, sweep=sweep: moment(sweep))
        sweep.kill_group()
        assert not (tmp_path / "results.json").exists()
    code, output = swept(tmp_path, "--workers", "2")
    assert code == 0, output
    assert results(tmp_path) == results(undisturbed)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        for run in RUNS:
            assert untimed(tmp_path / "runs" / run / name) == untimed(undisturbed / "runs" / run / name)


def untimed(path: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "speed")} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_dies_is_followed_by_another(tmp_path: Path, undisturbed: Path) -> None:
    sweep = Sweep(tmp_path, "--workers", "2")
    sweep.wait_for(lambda: sweep.steps("sapo-seed0") >= 3)
    os.kill(sweep.pid("sapo-seed0"), signal.SIGKILL)
    code, output = sweep.end()
    assert code == 0, output
    assert "sapo seed 0: its process died (SIGKILL); another one goes on from its checkpoint." in output
    assert "going on from" in (tmp_path / "runs" / "sapo-seed0" / "log.txt").read_text()
    tries = [json.loads((tmp_path / "runs" / run / "progress.json").read_text())["tries"] for run in RUNS]
    assert tries == [1, 2, 1, 1]
    assert results(tmp_path) == results(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_always_dies_is_given_up(own: Path) -> None:
    """And the others, one of which fails, go on; the modules of the user are found by other processes, too."""
    options = ["--algos", "own_algorithms:Dying,own_algorithms:Failing,grpo", "--seeds", "1", "--workers", "2"]
    code, output = swept(own / "out", *options, cwd=own)
    assert code == 1, output
    text = " ".join(output.split())
    died = f"own_algorithms:Dying seed 0: its process died {TRIES} times (SIGKILL): was memory short?"
    assert f"ablate: error: {died}" in text
    assert text.count("another one goes on") == TRIES - 1
    assert "ablate: error: own_algorithms:Failing seed 0: ArithmeticError: the second step (" in text
    assert (own / "out" / "runs" / "own_algorithms_Dying-seed0" / "traceback.txt").exists()
    assert [run["algorithm"] for run in results(own / "out")["runs"]] == ["grpo"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9 of the command alone"])
def test_no_process_outlives_the_command(tmp_path: Path, how: str) -> None:
    sweep = Sweep(tmp_path, "--workers", "2")
    sweep.wait_for(lambda: sweep.at_work(RUNS[:2]))
    pids = [sweep.pid(run) for run in RUNS[:2]]
    assert all(map(alive, pids))
    if how == "Ctrl-C":
        os.killpg(sweep.process.pid, signal.SIGINT)
        code, output = sweep.end()
        assert code == 130, output
        assert "Finished runs are kept" in output
        assert "Traceback" not in output
        assert not any(map(alive, pids))
    else:
        sweep.process.kill()
        sweep.end()
        assert all(map(gone, pids))
