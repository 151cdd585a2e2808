"""How far runs are, read from folders as processes leave them, and how it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from algos.training.config import TrainerConfig
from experiments.config import AblateConfig
from experiments.launch.job import Job
from experiments.launch.status import Watch, overall
from experiments.live import BLOCKS, WIDTH, Lines, duration, line, sparkline, table, watching

QUESTIONS = 10


def job(out: Path, label: str = "grpo", seed: int = 0) -> Job:
    """A run of four steps of eight episodes."""
    return Job(
        AblateConfig(out=out, trainer=TrainerConfig(steps=4, batch_questions=4, group_size=2)), label=label, seed=seed
    )


def row(step: int, reward: float = 0.5, seconds: float = 4.0) -> str:
    """A line of metrics.jsonl."""
    phases = {"rollout": seconds / 2, "update": seconds / 2, "search": 1.0, "sampling": 1.0}
    return json.dumps({"step": step, "reward": reward, "ratio": 0.9, "seconds": phases}) + "\n"


def write(run: Job, log: str = "", **files: Any) -> None:
    """Files of a run, as its process writes them: their names without .json."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "metrics.jsonl").write_text(log)
    for name, content in files.items():
        (run.folder / f"{name}.json").write_text(json.dumps(content))


def progress(tries: int = 1, evaluated: int = 0) -> dict[str, Any]:
    return {"pid": 1, "host": "here", "tries": tries, "evaluated": evaluated}


def test_the_states_of_a_run(tmp_path: Path) -> None:
    run = job(tmp_path)
    watch = Watch(run, QUESTIONS)
    assert (watch.look().state, watch.look().step, watch.look().seconds_left) == ("waiting", 0, None)
    write(run, progress=progress())
    assert (watch.look().state, watch.look().seconds_left) == ("training", None)
    write(run, row(1, 0.25) + row(2, 0.75), progress=progress())
    status = watch.look()
    assert (status.state, status.step, status.rewards, status.ratio) == ("training", 2, [0.25, 0.75], 0.9)
    # Two steps of 4 s, and 20 episodes, of which 8 take the 2 s of a rollout batch.
    assert status.seconds_left == pytest.approx(2 * 4 + 20 * 2 / 8)
    write(run, "".join(map(row, range(1, 5))), progress=progress(tries=2, evaluated=12))
    status = watch.look()
    assert (status.state, status.evaluated, status.tries) == ("evaluating", 12, 2)
    assert status.seconds_left == pytest.approx(8 * 2 / 8)
    (run.folder / "traceback.txt").touch()
    assert (watch.look().state, watch.look().seconds_left) == ("failed", None)
    write(run, "".join(map(row, range(1, 5))), progress=progress(evaluated=19), result={})
    assert (watch.look().state, watch.look().evaluated) == ("done", 20)


def test_the_evaluation_of_the_start_has_no_steps(tmp_path: Path) -> None:
    start = Job(job(tmp_path).config)
    watch = Watch(start, QUESTIONS)
    assert watch.look().state == "waiting"
    write(start, progress=progress(evaluated=5))
    assert (watch.look().state, watch.look().seconds_left) == ("evaluating", None)
    assert overall([watch.look()], QUESTIONS) == 5 / 20
    run = Watch(job(tmp_path), QUESTIONS)
    write(run.job, row(1), progress=progress())
    assert overall([watch.look(), run.look()], QUESTIONS) == (5 + 8) / (20 + 4 * 8 + 20)


def test_a_log_is_read_while_it_grows_and_again_where_it_was_cut(tmp_path: Path) -> None:
    watch = Watch(job(tmp_path), QUESTIONS)
    seen = []
    whole = row(1, 0.1) + row(2, 0.2) + row(3, 0.3)
    for log in (
        row(1, 0.1)[:7],  # half a line
        row(1, 0.1) + row(2, 0.2)[:30],
        whole,
        row(1, 0.1) + row(2, 0.9),  # gone on with from a checkpoint after the first step
        row(1, 0.1) + row(2, 0.7) + row(3, 0.7) + row(4, 0.7),  # likewise, and longer than before
        row(1, 0.1) + row(2, 0.20001) + row(3, 0.6) + row(4, 0.6),  # likewise, with lines of other lengths
    ):
        write(watch.job, log, progress=progress())
        seen.append(list(watch.look().rewards))
    assert seen[:4] == [[], [0.1], [0.1, 0.2, 0.3], [0.1, 0.9]]
    assert [len(rewards) for rewards in seen[4:]] == [4, 4]
    assert seen[5] == [0.1, 0.20001, 0.6, 0.6]


def test_a_sparkline() -> None:
    assert sparkline([], 0, 1) == ""
    assert sparkline([0.0, 0.5, 1.0], 0, 1) == BLOCKS[0] + BLOCKS[4] + BLOCKS[7]
    assert sparkline([1.0, 1.0], 0, 1) == BLOCKS[7] * 2
    assert sparkline([0.0, 0.0], 0, 0) == BLOCKS[0] * 2
    long = sparkline([step / 100 for step in range(101)], 0, 1)
    assert len(long) == WIDTH
    assert list(long) == sorted(long)
    assert (long[0], long[-1]) == (BLOCKS[0], BLOCKS[-1])
    assert sparkline([1.0] * WIDTH + [0.0] * WIDTH, 0, 1) == BLOCKS[7] * (WIDTH // 2) + BLOCKS[0] * (WIDTH // 2)


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 125, 3599, 3600, 36_065)] == [
        "0:00", "1:00", "2:05", "59:59", "1:00:00", "10:01:05",
    ]  # fmt: skip


def shown(out: Path, height: int, runs: int = 3) -> str:
    """The table of some runs: one in training, one failed, others waiting."""
    jobs = [job(out, "sapo:gamma=[red]", seed) for seed in range(runs)]
    write(jobs[1], row(1, 0.25) + row(2, 1.0), progress=progress(tries=3))
    write(jobs[2], progress=progress())
    (jobs[2].folder / "traceback.txt").touch()
    console = Console(file=io.StringIO(), width=120, height=height, record=True)
    console.print(table([Watch(run, QUESTIONS).look() for run in jobs], QUESTIONS, height))
    return console.export_text()


def test_the_table_has_a_row_for_each_run(tmp_path: Path) -> None:
    text = shown(tmp_path, 40)
    rows = [" ".join(text_row.split()) for text_row in text.splitlines() if "sapo" in text_row]
    assert rows[0].startswith("sapo:gamma=[red] seed 0 waiting")
    assert rows[1].startswith("sapo:gamma=[red] seed 1 training (process 3)")
    assert rows[1].endswith(f"2/4 {BLOCKS[2]}{BLOCKS[7]} 1.000 0.900 0:13")
    assert rows[2].startswith("sapo:gamma=[red] seed 2 failed")
    assert "1 training, 1 failed, 1 waiting; 10 % of all episodes are played" in text


def test_runs_at_work_come_first_where_there_is_no_room(tmp_path: Path) -> None:
    text = shown(tmp_path, 8, runs=20)
    assert [row.split()[2] for row in text.splitlines() if "sapo" in row] == ["1", "2"]
    assert "1 training, 1 failed, 18 waiting" in text


def test_lines_say_what_is_new(tmp_path: Path) -> None:
    said: list[str] = []
    lines, run = Lines(said.append), job(tmp_path)
    watch = Watch(run, QUESTIONS)

    def look(log: str, **files: Any) -> list[str]:
        said.clear()
        write(run, log, **files)
        lines.show([watch.look()])
        lines.show([watch.look()])  # nothing is new
        return said

    assert look("") == []
    assert look("", progress=progress()) == ["grpo seed 0: training  step 0/4"]
    assert look(row(1), progress=progress()) == [
        "grpo seed 0: training  step 1/4  reward 0.500  ratio 0.900  0:17 left"
    ]
    log = "".join(map(row, range(1, 5)))
    assert [text.split("  ")[0] for text in look(log, progress=progress(2))] == ["grpo seed 0: evaluating"]
    assert look(log, progress=progress(2, 15)) == []
    assert look(log, progress=progress(2), result={}) == [line(watch.look())]
    assert said == ["grpo seed 0: done  step 4/4  reward 0.500  ratio 0.900  process 2"]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "bar"])
def test_what_is_shown_at_the_end(tmp_path: Path, live: bool, terminal: bool) -> None:
    run = job(tmp_path)
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal, record=True)
    with watching([run], QUESTIONS, console, live=live):
        write(run, "".join(map(row, range(1, 5))), progress=progress(), result={})
        console.print("said meanwhile")
    text = console.export_text()
    assert "said meanwhile" in text
    if not live:
        assert "done" in text
        assert "100%" in text
    elif terminal:
        assert "1 done; 100 % of all episodes are played" in text
    else:
        assert "grpo seed 0: done  step 4/4  reward 0.500  ratio 0.900\n" in text
