"""Evaluations, for real but small: the embedded policy answers a few questions."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from search_server import SearchServer

from algos.training.engines.hf import HFEngine
from algos.training.loading import load_policy
from algos.training.rollout import play
from experiments import evaluate, models
from experiments.games import Game
from search_gym import rewards, sources, tokenizers
from search_gym.trajectory import read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = ["--max-questions", "12", "--samples", "2", "--chunk-questions", "2", "--batch-episodes", "3"]


def run(out: Path, *options: str) -> int:
    return evaluate.main([*SMALL, "--out", str(out), *options])


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluate")
    assert run(out) == 0
    return out


def test_the_results_are_those_of_the_answers(finished: Path) -> None:
    answers = list(read_jsonl(finished / "embedded-test" / "answers.jsonl"))
    assert [answer.extra["sample"] for answer in answers] == [0, 1] * 12
    assert len({answer.question_id for answer in answers}) == 12
    scores = results(finished)["benchmarks"]["embedded-test"]["scores"]
    expected = {
        "em": [answer.em for answer in answers],
        "f1": [answer.f1 for answer in answers],
        "cover": [rewards.contains(answer.answer, answer.golds) for answer in answers],
        "answered": [answer.terminated for answer in answers],
        "searches": [answer.searches for answer in answers],
        "pass@1": [answer.em for answer in answers],
        "pass@2": [max(a.em, b.em) for a, b in zip(answers[::2], answers[1::2], strict=True)],
    }
    for name, values in expected.items():
        score = scores[name]
        assert score["mean"] == pytest.approx(sum(values) / len(values)), name
        assert score["low"] <= score["mean"] <= score["high"], name
    assert 0 < scores["em"]["mean"] < 1
    assert results(finished)["average"]["em"]["mean"] == scores["em"]["mean"]
    assert set(results(finished)["environment"]) >= {"commit", "versions"}


def test_one_greedy_answer_is_that_of_play_with_wilson_s_interval(tmp_path: Path) -> None:
    assert run(tmp_path, "--samples", "1") == 0
    model = models.resolve("embedded")
    tokenizer = tokenizers.load(model)
    expected = play(
        list(sources.open_questions({"source": "embedded:test", "sample": 12}).one_pass(None)),
        engine=HFEngine(load_policy(model), tokenizer),
        tokenizer=tokenizer,
        retriever=sources.open_retriever(),
        rules=Game().rules(),
        temperature=0,
    )
    answers = list(read_jsonl(tmp_path / "embedded-test" / "answers.jsonl"))
    assert [answer.ids for answer in answers] == [answer.ids for answer in expected]
    scores = results(tmp_path)["benchmarks"]["embedded-test"]["scores"]
    assert scores["answered"] == {"mean": 1, "low": pytest.approx(0.7575, abs=1e-4), "high": 1}  # 12 of 12
    assert "pass@1" not in scores


@pytest.mark.parametrize("share", [0.0, 0.37, 0.5, 0.81, 1.0], ids=str)
def test_an_evaluation_that_was_cut_off_anywhere_goes_on_to_the_same_end(
    finished: Path, tmp_path: Path, share: float
) -> None:
    shutil.copytree(finished, tmp_path / "cut")
    file = tmp_path / "cut" / "embedded-test" / "answers.jsonl"
    whole = file.read_bytes()
    os.truncate(file, int(share * len(whole)))
    (tmp_path / "cut" / "results.json").unlink()
    assert run(tmp_path / "cut") == 0
    assert file.read_bytes() == whole
    assert results(tmp_path / "cut") == results(finished)


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *SMALL, "--out", str(tmp_path)]
    file, rng = tmp_path / "embedded-test" / "answers.jsonl", random.Random(0)
    for _ in range(3):
        before = file.stat().st_size if file.exists() else 0
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and not (file.exists() and file.stat().st_size > before):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))  # in the middle of the next chunk, or while it is written
        process.kill()
        process.communicate()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == (finished / "embedded-test" / "answers.jsonl").read_bytes()
    assert results(tmp_path) == results(finished)


def test_other_settings_need_another_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(finished, "--temperature", "0.5", "--top-k", "1") == 2
    error = capsys.readouterr().err
    assert "game.top_k: 3 -> 1; temperature: None -> 0.5" in error
    assert error.count("\n") == 1
    assert run(finished, "--batch-episodes", "3", "--device", "cpu") == 0


def test_two_processes_do_not_write_into_one_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(finished / ".lock"):
        assert run(finished) == 2
    assert "another process is at work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: lines[2:], r"answers.jsonl:1 answers 'test/\S+', .* the questions have changed"),
        (lambda lines: [*lines, lines[0]], r"answers.jsonl:25 answers .* the questions have changed"),
        (lambda lines: ["{}\n", *lines[1:]], r"answers.jsonl:1: not a trajectory: 'turns': delete this line"),
    ],
    ids=["other-questions", "too-many", "damaged"],
)
def test_answers_to_other_questions_are_not_taken(
    finished: Path, tmp_path: Path, edit: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "other")
    file = tmp_path / "other" / "embedded-test" / "answers.jsonl"
    file.write_text("".join(edit(file.read_text().splitlines(keepends=True))))
    content = file.read_bytes()
    assert run(tmp_path / "other") == 2
    assert re.search(message, capsys.readouterr().err)
    assert file.read_bytes() == content


def test_benchmarks_are_tables_of_their_own_and_say_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Questions of the embedded world under the names of two benchmarks."""
    questions = sources.list_questions("embedded:test")[:10]
    for name, part in {"nq/test": questions[:7], "bamboogle": questions[7:]}.items():
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows = [{"id": q.id, "question": q.text, "golden_answers": list(q.golds)} for q in part]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--data", str(tmp_path), "--corpus", "embedded", "--samples", "1"]
    assert run(tmp_path / "out", "--benchmarks", "bamboogle", *options) == 0
    assert run(tmp_path / "out", "--benchmarks", "nq,bamboogle", *options) == 0
    shown = capsys.readouterr().out
    assert "3 of 10 questions were answered before" in shown
    assert "7 of 3,610" in shown
    assert "Average of 2" in shown
    found = results(tmp_path / "out")
    assert {name: (b["questions"], b["published"]) for name, b in found["benchmarks"].items()} == {
        "nq": (7, 3610), "bamboogle": (3, 125),
    }  # fmt: skip
    means = [found["benchmarks"][name]["scores"]["searches"]["mean"] for name in ("nq", "bamboogle")]
    assert found["average"]["searches"]["mean"] == pytest.approx(sum(means) / 2)
    assert run(tmp_path / "out", "--benchmarks", "musique", *options) == 2
    assert f"there is no {tmp_path / 'musique' / 'dev.jsonl'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/nowhere"], "no tokenizer at '/nowhere'"),
        (["--questions", "/nowhere.jsonl", "--corpus", "embedded"], "/nowhere.jsonl"),
        (["--max-context-tokens", "2000"], "reads 1024 tokens, and an episode may have 2000: lower --max-context"),
        (["--retriever", "nothing"], "unknown retriever 'nothing'"),
        (["--device", "magic"], "the device 'magic' cannot be used here"),
        (["--benchmarks", "nq", "--data", "/nowhere", "--corpus", "embedded"], "there is no /nowhere/nq/test.jsonl"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "x", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "2 greedy samples are all the same"),
        (["--temperature", "-1"], "--temperature must be a finite number of at least 0, not -1.0"),
        (["--chunk-questions", "0"], "--chunk-questions must be at least 1, not 0"),
        (["--engine", "vlm"], "unknown engine 'vlm'; there are: hf, vllm; or give a server's http://host:port"),
        (["--benchmarks", "nq"], "--benchmarks and --data go together"),
        (["--benchmarks", "nqq", "--data", "x"], "there is no benchmark 'nqq'; there are: nq, triviaqa"),
        (["--benchmarks", "nq", "--data", "x"], "name the passages with --corpus"),
        (["--questions", "q.jsonl"], "name the passages with --corpus"),
        (["--questions", "q.jsonl", "--benchmarks", "nq"], "--questions and --benchmarks exclude each other"),
        (["--prompt", "magic"], "unknown prompt 'magic'; there are: search-r1"),
        (["--sampels", "2"], "Unrecognized options: --sampels"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path / "x", *options)
    assert exit_.value.code == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())  # it stands in a box, and is broken to fit
    assert message in error
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def refusing() -> Iterator[SearchServer]:
    with SearchServer(0, "--refuse") as one:
        yield one


def test_searches_that_failed_are_counted(
    tmp_path: Path, refusing: SearchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--retriever", refusing.url) == 0
    answers = list(read_jsonl(tmp_path / "embedded-test" / "answers.jsonl"))
    failed = sum(answer.failed_searches for answer in answers)
    assert failed == sum(answer.searches for answer in answers) > 0
    expected = f"{failed} searches failed, of which the policy was told (embedded:test: {failed})."
    assert expected in " ".join(capsys.readouterr().out.split())


def test_the_first_search_that_fails_stops_it_if_asked_to(
    tmp_path: Path, refusing: SearchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--retriever", refusing.url, "--on-search-error", "raise") == 1
    error = capsys.readouterr().err
    assert error.startswith("evaluate: error: the search for ")
    assert error.count("\n") == 1
    assert not (tmp_path / "results.json").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_answers(finished: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *SMALL, "--out", str(tmp_path)]
    file = tmp_path / "embedded-test" / "answers.jsonl"
    process = subprocess.Popen(
        # The chunks are many, so that the signal comes before the last.
        [*command, "--max-questions", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # Whoever runs the tests in the background of a script has SIGINT ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and not (file.exists() and file.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Stopped. Answers are kept: the same command goes on" in output
    assert "Traceback" not in output
    assert file.read_bytes().count(b"\n") % 4 == 0  # whole chunks, of two questions with two samples
    assert not (tmp_path / "results.json").exists()


def test_a_policy_that_a_run_saved_is_evaluated_as_it_is(finished: Path, tmp_path: Path) -> None:
    """The folder of the embedded policy under another name: the same preset, and the same answers."""
    shutil.copytree(models.EMBEDDED, tmp_path / "policy")
    assert run(tmp_path / "out", "--model", str(tmp_path / "policy")) == 0
    assert results(tmp_path / "out")["benchmarks"] == results(finished)["benchmarks"]
    assert results(tmp_path / "out")["weights"] == results(finished)["weights"]


def test_other_weights_in_the_same_place_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(models.EMBEDDED, tmp_path / "policy")
    options = ["--model", str(tmp_path / "policy"), "--max-questions", "2"]
    assert run(tmp_path / "out", *options) == 0
    weights = tmp_path / "policy" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert run(tmp_path / "out", *options) == 2
    assert "weights: " in capsys.readouterr().err
