"""The training command, for real but small: the embedded policy, two steps, a handful of questions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from experiments import models, train
from search_gym.trajectory import read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = [
    "--batch-questions", "2", "--group-size", "4", "--minibatches", "2", "--held-out-size", "6", "--save-every", "1",
    "--temperature", "1.5", "--search-cost", "0.1", "--learning-rate", "1e-3", "--device", "cpu",
]  # fmt: skip


def run(out: Path, *options: str, steps: int = 2) -> int:
    return train.main([*SMALL, "--steps", str(steps), "--out", str(out), *options])


def rows(out: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the machine."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "speed")} for row in found]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("train") / "run"
    assert run(out, "--algo", "sapo:gamma=0.2") == 0
    return out


def test_the_folder_says_what_was_done(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert (config["algo"], config["trainer"]["steps"], config["task"]["search_cost"]) == ("sapo:gamma=0.2", 2, 0.1)
    assert (config["options"]["gamma"], config["options"]["tau"]) == (0.2, 1.0)
    assert set(json.loads((finished / "environment.json").read_text())) >= {"commit", "python", "versions"}
    assert [row["step"] for row in rows(finished)] == [1, 2]
    assert all(row["grad_norm"] > 0 and row["updates"] == 2 for row in rows(finished))
    assert [t.extra["step"] for t in read_jsonl(finished / "trajectories.jsonl")] == [1] * 8 + [2] * 8
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == ["step-000001", "step-000002"]


def test_the_result_is_that_of_the_held_out_answers(finished: Path) -> None:
    answers = list(read_jsonl(finished / "evaluations" / "step-000002.jsonl"))
    result = json.loads((finished / "result.json").read_text())
    assert (result["algorithm"], result["seed"]) == ("sapo:gamma=0.2", 0)
    assert result["held_out"]["episodes"] == len(answers) == 6
    for name in ("em", "f1", "searches", "reward"):
        assert result["held_out"][name] == pytest.approx(sum(getattr(t, name) for t in answers) / 6), name
    assert all(answer.question_id.startswith("test/") for answer in answers)


def test_the_policy_is_a_plain_model_that_has_learnt(finished: Path, tmp_path: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(finished / "policy").state_dict()
    start = AutoModelForCausalLM.from_pretrained(models.EMBEDDED).state_dict()
    assert loaded.keys() == start.keys()
    moved = max((value - start[name]).abs().max().item() for name, value in loaded.items())
    assert 1e-4 < moved < 0.1
    # As `--model`, before any step, it answers as it did at the end of the run.
    assert run(tmp_path / "next", "--model", str(finished / "policy"), steps=0) == 0
    answers = [list(read_jsonl(path)) for path in (
        finished / "evaluations" / "step-000002.jsonl", tmp_path / "next" / "evaluations" / "step-000000.jsonl",
    )]  # fmt: skip
    assert [t.ids for t in answers[0]] == [t.ids for t in answers[1]]


def test_resume_goes_on_as_if_the_run_had_not_been_stopped(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-000002")
    assert run(tmp_path / "resumed", "--algo", "sapo:gamma=0.2", "--resume") == 0
    assert rows(tmp_path / "resumed") == rows(finished)
    found, expected = files(tmp_path / "resumed"), files(finished)
    assert found.keys() == expected.keys()
    # Those that hold times, the sizes of such files, the command itself or the commit.
    others = ("metrics.jsonl", "state.json", "manifest.json", "config.json", "environment.json")
    assert [name for name in found if Path(name).name not in others and found[name] != expected[name]] == []
    policies = [name for name in found if name.endswith("model.safetensors")]
    assert len(policies) == 3  # two checkpoints and the policy


def test_an_earlier_run_is_left_as_it_is(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(finished)
    assert run(finished) == 2
    error = capsys.readouterr().err
    assert f"train: error: {finished} holds 2 checkpoints of an earlier run: go on with it (--resume)" in error
    assert error.count("\n") == 1
    assert run(finished, "--algo", "gspo", "--resume") == 1
    error = capsys.readouterr().err
    assert "with other settings: algorithm is 'GSPO', and was 'SAPO'" in error
    assert error.count("\n") == 1
    assert files(finished) == before


def test_checkpoints_that_are_all_damaged_are_said(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        os.truncate(folder / "rank-0.pt", 10)
    before = files(tmp_path / "run")
    assert run(tmp_path / "run", "--algo", "sapo:gamma=0.2", "--resume") == 1
    error = capsys.readouterr().err
    assert f"no checkpoint in {tmp_path / 'run' / 'checkpoints'} is whole" in error
    assert error.count("\n") == 1
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume: there is no run in"),
        (["--preset", "sapo-33b"], "no preset is called 'sapo-33b'; there are: sapo-3b"),
        (["--model", "/nowhere"], "no tokenizer at '/nowhere'"),
        (["--algo", "sapo:gama=1"], "sapo has no option 'gama'; it has: "),
        (["--questions", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--held-out", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--held-out-size", "0"], "--held-out-size must be at least 1, not 0"),
        (["--minibatches", "99"], "99 minibatches cannot be cut from 2 questions x 4 responses"),
        (["--learning-rate", "-1"], "learning_rate must be a finite number of at least 0, not -1.0"),
        (["--max-context-tokens", "5000"], "5000 tokens (max_context_tokens), but the model reads no more than 1024"),
        (["--device", "magic"], "the device 'magic' cannot be used here"),
        (["--attention", "magic"], 'attn_implementation="magic"'),
        (["--lora.rank", "2", "--lora.targets", "query"], "Target modules {'query'} not found"),
        (["--engine.name", "http://127.0.0.1:9", "--engine.retry-for", "0"], "the vLLM server cannot be asked"),
    ],
    ids=lambda value: "".join(value[:2]).replace("/", "") if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "x", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lerning-rate", "1"], "Unrecognized options: --lerning-rate"),
        (["--algo", "magic"], "unknown algorithm 'magic'; there are: "),
        (["--track", "magic"], "no tracker is called magic; there are: tensorboard, wandb, mlflow"),
        (["--reward", "magic"], "there is no reward 'magic'; there are: em"),
        (["--evaluate-every", "-1"], "--evaluate-every must be at least 0, not -1"),
        (["--batch-episodes", "0"], "--batch-episodes must be at least 1, not 0"),
        (["--lora.rank", "-1"], "the rank of LoRA must be at least 0, not -1"),
        (["--engine.name", "vlm"], "unknown engine 'vlm'; there are: hf, vllm"),
        (
            ["--schedule", "magic"],
            "invalid choice 'magic' for argument '--schedule'. Expected one of ('constant', 'linear', 'cosine')",
        ),
    ],
    ids=lambda value: "".join(value[:2]) if isinstance(value, list) else "",
)
def test_options_that_cannot_be_read_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path / "x", *options)
    assert exit_.value.code == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())  # it stands in a box, and is broken to fit
    assert message in error
    assert not (tmp_path / "x").exists()


def test_evaluations_on_the_way_and_trackers(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "run"
    options = ["--evaluate-every", "1", "--track", "tensorboard", "--lora.rank", "2", "--lora.targets", "q_proj"]
    assert run(out, *options) == 0
    evaluations = sorted((out / "evaluations").iterdir())
    assert [path.name for path in evaluations] == ["step-000000.jsonl", "step-000001.jsonl", "step-000002.jsonl"]
    shown: dict[str, list[tuple[int, float]]] = {}
    for file in out.rglob("events.out.tfevents.*"):
        events = accumulator.EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            shown.setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
    assert shown["reward"] == [(row["step"], pytest.approx(row["reward"])) for row in rows(out)]
    searches = [sum(t.searches for t in read_jsonl(path)) / 6 for path in evaluations]
    assert shown["held_out/searches"] == [(step, pytest.approx(mean)) for step, mean in enumerate(searches)]
    # What was trained are adapters of one kind of layer: merged, only those differ from the start.
    found, start = (load_file(folder / "model.safetensors") for folder in (out / "policy", models.EMBEDDED))
    assert {name.split(".")[-2] for name in start if not torch.equal(found[name], start[name])} == {"q_proj"}


STOPPING = """
from algos import GRPO


class Stopping(GRPO):
    def loss(self, *args, **kwargs):
        raise KeyboardInterrupt


class Broken(GRPO):
    def loss(self, *args, **kwargs):
        out = super().loss(*args, **kwargs)
        return type(out)(out.loss * float("nan"), out.metrics)
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with algorithms of the user's, in which the command runs."""
    (tmp_path / "their_algorithms.py").write_text(STOPPING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "their_algorithms", raising=False)
    return tmp_path


def test_stopped_before_the_first_checkpoint_a_run_begins_anew(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = elsewhere / "run"
    assert run(out, "--algo", "their_algorithms:Stopping") == 130
    shown = capsys.readouterr().out
    assert "Stopped. There was no checkpoint yet: the same command begins anew" in shown
    assert run(out, "--resume", steps=1) == 0
    assert [row["step"] for row in rows(out)] == [1]


def test_a_run_that_diverges_stops_and_keeps_the_batch(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(elsewhere / "run", "--algo", "their_algorithms:Broken", "--max-skips", "1") == 1
    error = capsys.readouterr().err
    assert "2 updates in a row had a loss or gradient that is not finite" in error
    assert error.count("\n") == 1
    kept = torch.load(elsewhere / "run" / "diverged.pt", weights_only=True)
    assert {"mask", "old_logprobs", "advantages", "ids"} <= kept.keys()


@pytest.mark.slow
def test_ctrl_c_keeps_the_newest_checkpoint_and_resume_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "train.py"), *SMALL, "--steps", "500", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # Whoever runs the tests in the background of a script has SIGINT ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(2400):
        if list((tmp_path / "checkpoints").glob("step-*[0-9]")) or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    newest = max(path.name for path in (tmp_path / "checkpoints").glob("step-*[0-9]"))
    assert f"Stopped. The same command with --resume goes on from {newest}." in output
    steps = int(newest.removeprefix("step-")) + 1
    assert run(tmp_path, "--resume", steps=steps) == 0
    assert [row["step"] for row in rows(tmp_path)] == [*range(1, steps + 1)]
    assert (tmp_path / "policy" / "model.safetensors").exists()
