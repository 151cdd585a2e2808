"""A run that was stopped goes on as if it had not been."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_worker import CONFIG, QUESTIONS, rows, trainer
from torch import Tensor

from algos.training.checkpoint import CheckpointError, folders
from algos.training.learner import Metrics
from algos.training.loading import load_policy
from algos.training.lora import LoRAConfig
from algos.training.snapshot import MAY_CHANGE
from algos.training.trainer import Trainer
from search_gym.trajectory import read_jsonl

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for it

TWO = replace(CONFIG, steps=2)
EIGHT = replace(CONFIG, steps=8, save_every=3)
KINDS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": "ppo"},
    "kl": {"kl_coef": 0.1},
    "lora": {"lora": LoRAConfig(rank=2), "kl_coef": 0.1},
    "dropout": {"lora": LoRAConfig(rank=2, dropout=0.2)},
    "dynamic": {"config": replace(EIGHT, max_sampled_batches=3)},
    "ahead": {"config": replace(EIGHT, async_rollouts=1)},
    "schedule": {"config": replace(EIGHT, schedule="cosine", warmup_steps=2, epochs=2, weight_decay=0.1)},
}


class Stopped(Exception):
    """What stops a run from outside."""


def stop_after(step: int) -> Any:
    def on_step(metrics: Metrics) -> None:
        if metrics["step"] == step:
            raise Stopped

    return on_step


def state(of: Trainer) -> dict[str, Tensor]:
    """All that training changed, by name."""
    held = {f"policy {name}": value for name, value in of.policy.state_dict().items()}
    if of.learner.critic is not None:
        held |= {f"critic {name}": value for name, value in of.learner.critic.state_dict().items()}
    for number, entries in of.learner.optimizer.state_dict()["state"].items():
        held |= {f"optimizer {number} {name}": value for name, value in entries.items()}
    return held | {"minibatches": of.learner.generator.get_state(), "torch": torch.get_rng_state()}


def questions_of(out: Path) -> list[tuple[int, str]]:
    """The step and the question of every episode."""
    found = read_jsonl(out / "trajectories.jsonl")
    return [(trajectory.extra["step"], trajectory.question_id) for trajectory in found]


def differing(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    assert first.keys() == second.keys()
    return [name for name, value in first.items() if not torch.equal(value, second[name])]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"config": EIGHT} | KINDS[kind]
    straight = trainer(**options)
    straight.train(tmp_path / "straight")
    final = state(straight)
    assert any(name.startswith("optimizer") and value.abs().sum() > 0 for name, value in final.items())
    # Stopped in the fifth step: the fourth and the fifth, which were logged, are cut off again and repeated.
    with pytest.raises(Stopped):
        trainer(**options).train(tmp_path / "cut", stop_after(5))
    resumed = trainer(**options)
    torch.manual_seed(99)
    resumed.train(tmp_path / "cut", resume=True)
    assert differing(final, state(resumed)) == []
    assert rows(tmp_path / "cut") == rows(tmp_path / "straight")
    logs = [(tmp_path / name / "trajectories.jsonl").read_bytes() for name in ("cut", "straight")]
    assert logs[0] == logs[1]


def test_eight_steps_are_three_and_five(tmp_path: Path) -> None:
    # Case H1: 4 steps an epoch, 2 epochs.
    config = replace(CONFIG, save_trajectories=6)
    straight = trainer(replace(config, save_every=0))
    straight.train(tmp_path / "straight")
    final = state(straight)
    seen: list[int] = []
    begun: list[int] = []
    for steps in (3, 8):
        last = trainer(replace(config, steps=steps))
        last.train(
            tmp_path / "parts",
            lambda metrics: seen.append(metrics["step"]),
            resume=steps == 8,
            on_start=lambda run=last: begun.append(run.steps_done),
        )
    assert seen == [*range(1, 9)]
    assert begun == [0, 3]
    assert differing(final, state(last)) == []
    asked = questions_of(tmp_path / "parts")
    assert asked == questions_of(tmp_path / "straight")
    for epoch in (range(1, 5), range(5, 9)):
        assert {question for step, question in asked if step in epoch} == {question.id for question in QUESTIONS}


def test_saved_after_an_epoch_it_trains_another(tmp_path: Path) -> None:
    trainer(replace(CONFIG, steps=4, save_every=4)).train(tmp_path)
    resumed, seen = trainer(replace(CONFIG, save_every=4)), list[int]()
    resumed.train(tmp_path, lambda metrics: seen.append(metrics["step"]), resume=True)
    assert seen == [5, 6, 7, 8]
    assert [folder.name for folder in folders(tmp_path)] == ["step-000004", "step-000008"]


def test_saving_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for name, every in (("saved", 1), ("unsaved", 0)):
        made = trainer(replace(CONFIG, steps=2, save_every=every))
        made.train(tmp_path / name)
        ends.append(state(made))
    assert differing(*ends) == []
    assert rows(tmp_path / "saved") == rows(tmp_path / "unsaved")
    assert folders(tmp_path / "unsaved") == []


def test_a_run_that_is_done_is_left_as_it_is(tmp_path: Path) -> None:
    trainer(TWO).train(tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    trainer(TWO).train(tmp_path, resume=True)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


def test_nothing_to_go_on_from_is_a_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trainer(TWO).train(tmp_path, resume=True)
    assert "beginning anew" in caplog.text
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_an_earlier_run_is_never_lost(tmp_path: Path) -> None:
    trainer(TWO).train(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"2 checkpoints of an earlier run.*--resume"):
        trainer(TWO).train(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert len(folders(tmp_path)) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": replace(TWO, group_size=4)}, "config.group_size is 4, and was 3"),
        ({"config": replace(TWO, learning_rate=0.5)}, "config.learning_rate is 0.5, and was 0.001"),
        ({"algorithm": "gspo"}, "algorithm is 'GSPO', and was 'GRPO'"),
        ({"clip_high": 0.5}, "algorithm.clip_high is 0.5, and was 0.2"),
        ({"kl_coef": 0.5}, "algorithm.kl_coef is 0.5, and was 0.0"),
    ],
    ids=["group_size", "learning_rate", "algorithm", "option", "kl"],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    trainer(TWO).train(tmp_path)
    options: dict[str, Any] = {"config": TWO} | change
    with pytest.raises(CheckpointError, match="other settings") as caught:
        trainer(**options).train(tmp_path, resume=True)
    assert named in str(caught.value)


def test_settings_of_length_speed_and_files_may_change(tmp_path: Path) -> None:
    trainer(TWO).train(tmp_path)
    assert {field.name for field in fields(TWO)} > MAY_CHANGE
    config = replace(TWO, steps=3, micro_batch_tokens=10, concurrency=2, save_trajectories=1, save_every=5)
    config = replace(config, overlap_searches=True, keep_checkpoints=5, max_skips=1, drift_alarm=0.1)
    assert all(getattr(config, name) != getattr(TWO, name) for name in MAY_CHANGE)
    trainer(config).train(tmp_path, resume=True)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer(TWO, lora=LoRAConfig(rank=2)).train(tmp_path / "lora")
    with pytest.raises(CheckpointError, match=r"lacks model.embed_tokens.weight: .*another model"):
        trainer(TWO).train(tmp_path / "lora", resume=True)
    with pytest.raises(CheckpointError, match=r"lora_A.* has shape \[2, 128\] in .*, and \[4, 128\] in the model"):
        trainer(TWO, lora=LoRAConfig(rank=4)).train(tmp_path / "lora", resume=True)


def test_the_policy_of_a_checkpoint_is_a_model(tmp_path: Path) -> None:
    made = trainer(TWO)
    made.train(tmp_path)
    loaded = load_policy(tmp_path / "checkpoints" / "step-000002" / "policy")
    assert differing(made.policy.state_dict(), loaded.state_dict()) == []


def test_logs_that_were_removed_do_not_stop_a_run(tmp_path: Path) -> None:
    trainer(TWO).train(tmp_path)
    (tmp_path / "trajectories.jsonl").unlink()
    trainer(replace(TWO, steps=3)).train(tmp_path, resume=True)
    assert {step for step, _ in questions_of(tmp_path)} == {3}
