"""The ablation, for real but small: the embedded policy, one step, a handful of questions."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import algos
from experiments import ablate, models, running
from experiments.config import (
    PRESETS,
    AblateConfig,
    make_algorithm,
    parse,
    parse_evaluation,
    run_folder,
)
from experiments.games import GAMES
from experiments.presets import COMPARISONS
from experiments.task import Task
from search_gym.trajectory import Trajectory, read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = [
    "--steps", "1", "--batch-questions", "2", "--group-size", "4", "--minibatches", "2", "--held-out-size", "6",
]  # fmt: skip


def run(out: Path, *options: str) -> int:
    return ablate.main([*SMALL, "--out", str(out), *options])


def untimed(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "speed")} for row in rows]


def played(folder: Path) -> list[tuple[int, ...]]:
    return [t.ids for t in read_jsonl(folder / "trajectories.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ablate")
    assert run(out, "--algos", "grpo,sapo:gamma=0.5", "--seeds", "2") == 0
    return out


def test_the_folder_says_what_was_done(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert [(r["algorithm"], r["seed"]) for r in results["runs"]] == [
        ("grpo", 0), ("sapo:gamma=0.5", 0), ("grpo", 1), ("sapo:gamma=0.5", 1),
    ]  # fmt: skip
    for result in results["runs"]:
        for scores in (*result["start"].values(), *result["end"].values()):
            assert scores["questions"] == 6
            assert 0 <= scores["em"] <= scores["f1"] <= 1
    assert results["runs"][0]["start"] == results["runs"][3]["start"]
    assert results["runs"][1]["options"] | {"gamma": 0.1} == {**results["runs"][3]["options"], "gamma": 0.1}
    assert (results["runs"][1]["options"]["gamma"], results["runs"][1]["options"]["dual_clip"]) == (0.5, "inf")
    assert json.loads((finished / "config.json").read_text())["trainer"]["steps"] == 1
    assert set(json.loads((finished / "environment.json").read_text())) >= {"commit", "python", "versions"}
    assert (finished / "figure.png").stat().st_size > 10_000
    assert "sapo:gamma=0.5 − grpo" in (finished / "report.html").read_text(encoding="utf-8")
    assert "view.html#algorithm=sapo%3Agamma%3D0.5&amp;seed=1" in (finished / "report.html").read_text(encoding="utf-8")
    assert [run["collapsed"] for run in results["runs"]] == [None] * 4  # one step is too short for it
    [row] = untimed(finished / "runs" / "grpo-seed0" / "metrics.jsonl")
    assert row.keys() >= {"ratio_min", "lambda_action", "lambda_reasoning", "entropy_action", "entropy_reasoning"}
    for trained in read_jsonl(finished / "runs" / "grpo-seed0" / "trajectories.jsonl"):
        assert len(trained.extra["tokens"]["ratio"]) == len(trained.ids)
    ended = list(read_jsonl(finished / "runs" / "grpo-seed0" / "end" / "greedy.jsonl"))
    assert len(ended) == 6
    assert all(isinstance(t, Trajectory) and t.question_id.startswith("test/") for t in ended)


def test_algorithms_start_from_the_same_policy_and_the_same_random_numbers(finished: Path) -> None:
    folders = finished / "runs"
    assert played(folders / "grpo-seed0") == played(folders / "sapo_gamma=0.5-seed0")
    assert played(folders / "grpo-seed0") != played(folders / "grpo-seed1")
    questions = [{t.question_id for t in read_jsonl(f / "trajectories.jsonl")} for f in folders.iterdir()]
    assert all(asked == questions[0] for asked in questions)


def test_a_comparison_that_was_stopped_goes_on(finished: Path) -> None:
    results, runs = finished / "results.json", finished / "runs"
    before = json.loads(results.read_text())
    kept = (runs / "grpo-seed0" / "result.json").stat().st_mtime_ns
    log = untimed(runs / "grpo-seed1" / "metrics.jsonl")
    (runs / "grpo-seed1" / "result.json").unlink()
    assert run(finished, "--algos", "grpo,sapo:gamma=0.5", "--seeds", "2") == 0
    after = json.loads(results.read_text())
    assert (runs / "grpo-seed0" / "result.json").stat().st_mtime_ns == kept
    assert untimed(runs / "grpo-seed1" / "metrics.jsonl") == log
    for result in (*before["runs"], *after["runs"]):
        result.pop("seconds")
    assert after == before


def test_other_settings_need_another_folder(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(finished, "--learning-rate", "0.5") == 2
    assert "trainer.learning_rate: 0.0001 -> 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "ablate.py"), *SMALL, "--seeds", "9", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        # Whoever runs the tests in the background of a script has SIGINT ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = tmp_path / "runs" / "grpo-seed0" / "result.json"
    for _ in range(1200):
        if first.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Finished runs are kept" in output
    assert "Traceback" not in output
    assert first.exists()
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("grpo:preset=openrlhf", "grpo has no preset 'openrlhf'; there are: verl, trl, search-r1"),
        ("no_module:Mine", "no algorithm at 'no_module:Mine': No module named 'no_module'"),
    ],
)
def test_what_is_wrong_with_a_label_is_said(label: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        ablate.main(["--algos", f"grpo,{label}"])
    assert exit_.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())  # it stands in a box, and is broken to fit


def test_an_unknown_algorithm_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        ablate.main(["--algos", "grpo,magic"])
    assert exit_.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "unknown algorithm 'magic'; there are: " in error
    assert all(name in error for name in algos.available())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--questions", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--model", "/nowhere"], "no tokenizer at '/nowhere'"),
        (["--algos", "sapo:gama=1"], "sapo has no option 'gama'"),
    ],
)
def test_what_is_missing_is_said_at_once(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "x", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_an_algorithm_with_a_critic_and_one_of_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second from a module in the folder in which the command runs."""
    (tmp_path / "their_own.py").write_text("from algos import GRPO\n\n\nclass Mine(GRPO):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(tmp_path / "runs", "--algos", "ppo,their_own:Mine:clip_high=0.3", "--seeds", "1") == 0
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [result["algorithm"] for result in results["runs"]] == ["ppo", "their_own:Mine:clip_high=0.3"]
    assert results["runs"][1]["options"]["clip_high"] == 0.3
    (metrics,) = untimed(tmp_path / "runs" / "runs" / "ppo-seed0" / "metrics.jsonl")
    assert metrics.keys() >= {"critic_grad_norm", "value_error"}


def test_labels_carry_options() -> None:
    assert make_algorithm("sapo:gamma=0.05:variant=released") == make_algorithm("sapo:variant=released:gamma=0.05")
    assert make_algorithm("grpo:preset=verl:dual_clip=inf") == algos.make("grpo", preset="verl", dual_clip=math.inf)
    assert make_algorithm("algos.sapo:SAPO:gamma=0.3") == algos.SAPO(gamma=0.3)
    with pytest.raises(ValueError, match="name=value"):
        make_algorithm("sapo:gamma=0.1:tau")
    with pytest.raises(ValueError, match="no algorithm at 'sapo:gamma'"):
        make_algorithm("sapo:gamma")
    with pytest.raises(ValueError, match="algorithm twice"):
        AblateConfig(algos="grpo,grpo")


def test_an_option_can_be_swept() -> None:
    config = AblateConfig(algos="grpo, sapo:gamma=0.05,sapo:gamma=0.2,sapo:variant=released:gamma=0.2")
    assert config.labels == ["grpo", "sapo:gamma=0.05", "sapo:gamma=0.2", "sapo:variant=released:gamma=0.2"]
    folders = [run_folder(label, 3) for label in config.labels]
    assert folders[1:3] == ["sapo_gamma=0.05-seed3", "sapo_gamma=0.2-seed3"]
    assert len(set(folders)) == 4
    assert run_folder("my.module:Mine:path=../x y", 0) == "my.module_Mine_path=.._x_y-seed0"
    with pytest.raises(ValueError, match=r"sapo and sapo:gamma=0\.10 are the same"):
        AblateConfig(algos="sapo,sapo:gamma=0.10")


class Named:
    """An algorithm of a user's, with a word for an option."""

    def __init__(self, tag: str = "") -> None:
        self.advantages, self.loss = algos.make("grpo").advantages, algos.make("grpo").loss


def test_runs_never_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "named", sys.modules[__name__])
    with pytest.raises(ValueError, match="named:Named:tag=a/b and named:Named:tag=a b would share a folder"):
        AblateConfig(algos="named:Named:tag=a/b,named:Named:tag=a b")


def test_presets_name_what_is_compared() -> None:
    assert sorted(COMPARISONS["zoo"].algos.split(",")) == sorted(algos.available())
    table2 = parse(["--preset", "paper-table2", "--model=smollm2", "--steps", "3"])
    assert table2.labels == ["grpo", "grpo_kl", "grpo_kl_r", "sapo"]
    assert table2.out == Path("runs/ablate-paper-table2-smollm2")
    assert (table2.trainer.steps, table2.trainer.penalty_every) == (3, 4)
    assert (table2.task, table2.trainer.learning_rate) == (PRESETS["smollm2"].task, 1e-5)
    tau = parse(["--preset=tau"])
    assert sorted(algo.tau for algo in map(make_algorithm, tau.labels) if isinstance(algo, algos.SAPO)) == [
        0.6, 0.8, 1.0, 1.2,
    ]  # fmt: skip
    assert parse(["--preset", "tau", "--algos", "grpo"]).labels == ["grpo"]
    stress = parse(["--preset=stress", "--epochs=1"]).trainer
    assert (stress.minibatches, stress.epochs, stress.learning_rate) == (16, 1, 3e-4)
    for name in COMPARISONS:
        assert parse(["--preset", name]).preset == name


def test_a_preset_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate.main(["--preset", "papertable2"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "ablate: error: no preset is called 'papertable2'; there are: quick, paper-table2, tau, stress, zoo, scale\n"
    )


def test_the_model_chooses_the_preset(tmp_path: Path) -> None:
    assert parse([]) == PRESETS["embedded"]
    assert parse(["--model", "smollm2"]) == PRESETS["smollm2"]
    for kind, template in {"base": None, "chat": "{{ messages[0].content }}"}.items():
        folder = tmp_path / kind
        save_tokenizer(folder, template)
        found = parse(["--model", str(folder), "--steps", "7"])
        assert (found.task, found.out) == (PRESETS[kind].task, Path(f"runs/ablate-{kind}"))
        assert (found.trainer.steps, found.trainer.batch_questions) == (7, 256)
        assert parse_evaluation([f"--model={folder}"]).game == GAMES[kind]


def test_a_policy_with_the_embedded_tokenizer_has_the_embedded_preset(tmp_path: Path) -> None:
    shutil.copytree(models.EMBEDDED, tmp_path / "policy")
    assert parse(["--model", str(tmp_path / "policy")]).task == PRESETS["embedded"].task
    assert parse_evaluation(["--model", str(tmp_path / "policy")]).game == GAMES["embedded"]


def save_tokenizer(folder: Path, chat_template: str | None) -> None:
    """The embedded tokenizer with one token more, and a chat template or none."""
    folder.mkdir()
    tokenizer = Tokenizer.from_file(str(models.EMBEDDED / "tokenizer.json"))
    tokenizer.add_tokens(["<more>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>"} | ({"chat_template": chat_template} if chat_template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_file_is_cut_into_questions_to_train_on_and_held_out_ones(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": str(i), "question": f"Number {i}?", "golden_answers": ["x"]} for i in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    train, held_out = running.split_questions(Task(questions=str(path), held_out_size=4))
    assert len(train) == 6
    assert sorted(q.id for q in train + held_out) == sorted(map(str, range(10)))
    assert running.split_questions(Task(questions=str(path), held_out_size=4)) == (train, held_out)
    train, held_out = running.split_questions(Task(questions=str(path), held_out=str(path), held_out_size=3))
    assert (len(train), len(held_out)) == (10, 3)
    path.write_text(json.dumps(rows[0]))
    with pytest.raises(ValueError, match="too few questions"):
        running.split_questions(Task(questions=str(path)))
