"""Presets of the training command: what suits a model, and the settings of the paper."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import algos
from experiments.config import PRESETS as ABLATION
from experiments.config import make_algorithm
from experiments.train_config import PRESETS, parse


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, lambda *_: pytest.fail("it asked the network"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it asked the network"))


@pytest.mark.usefixtures("no_network")
def test_the_preset_has_the_numbers_of_the_paper() -> None:
    # arXiv 2603.10069, Table 4 and text, read there and not in the preset.
    config = parse(["--preset", "sapo-3b"])
    assert config.model == "Qwen/Qwen2.5-3B-Instruct"
    algorithm = make_algorithm(config.algo)
    assert isinstance(algorithm, algos.SAPO)
    assert (algorithm.gamma, algorithm.tau, algorithm.variant) == (0.1, 1.0, "paper")
    assert (algorithm.kl_coef, algorithm.kl_estimator, algorithm.kl_in) == (0.001, "k3", "loss")
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.2)
    trainer = config.trainer
    assert (trainer.steps, trainer.batch_questions, trainer.group_size) == (420, 256, 10)
    assert (trainer.learning_rate, trainer.schedule, trainer.temperature) == (1e-6, "constant", 1.0)
    rules = config.task.rules()
    assert (rules.reward, rules.max_searches, rules.top_k) == ("f1", 5, 3)
    assert (rules.max_observation_tokens, rules.max_turn_tokens) == (512, 2048)
    assert rules.max_context_tokens >= 2048 + 5 * 512
    assert "nq_hotpotqa" in config.task.questions


@pytest.mark.usefixtures("no_network")
def test_options_go_over_a_preset() -> None:
    changed = parse(["--preset", "sapo-3b", "--steps", "7", "--algo", "grpo", "--model", "a/model", "--no-shard"])
    assert (changed.trainer.steps, changed.algo, changed.model, changed.shard) == (7, "grpo", "a/model", False)
    assert changed.trainer.batch_questions == PRESETS["sapo-3b"].trainer.batch_questions
    assert changed.out == Path("runs/sapo-3b")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_called_by_its_name_and_saves_on_the_way(name: str) -> None:
    assert parse([f"--preset={name}"]) == PRESETS[name]
    assert PRESETS[name].preset == name
    assert 0 < PRESETS[name].trainer.save_every < PRESETS[name].trainer.steps


@pytest.mark.parametrize("model", ["embedded", "smollm2"])
def test_without_a_preset_the_model_chooses(model: str) -> None:
    config = parse(["--model", model])
    expected = ABLATION[model]
    assert (config.model, config.task, config.batch_episodes) == (model, expected.task, expected.batch_episodes)
    assert config.trainer.learning_rate == expected.trainer.learning_rate
    assert config.trainer.save_every > 0  # a run that is stopped can go on
    assert config.out == Path("runs/train" if model == "embedded" else f"runs/train-{model}")
