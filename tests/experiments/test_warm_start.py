"""The embedded policy, its recipe, and the demonstrations that it learned from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import LlamaConfig

from algos.training.engines.hf import HFEngine
from algos.training.evaluation import evaluate
from algos.training.loading import load_policy
from experiments import models, warm_start
from experiments.demonstrations import Demonstrator, Noise
from experiments.task import Task
from search_gym import World, sources, tokenizers

TOKENIZER = tokenizers.embedded()
WORLD = World(7, {"train": 3})
QUESTIONS = WORLD.questions("train")[:240]


def demonstrate(noise: Noise) -> list:
    retriever = sources.open_retriever("bm25", WORLD.corpus)
    demonstrator = Demonstrator(WORLD, retriever, TOKENIZER, Task().rules(), noise, random.Random(0))
    return demonstrator.demonstrate(QUESTIONS)


def test_without_noise_every_demonstration_is_right() -> None:
    for question, shown in zip(QUESTIONS, demonstrate(Noise(0, 0, 0)), strict=True):
        assert shown.em == 1.0
        assert shown.searches == question.metadata["hops"]
        assert shown.invalid_actions == 0


@pytest.mark.parametrize(("noise", "searches"), [(Noise(1, 0, 0), 0), (Noise(0, 1, 0), 1), (Noise(0, 0, 1), 1)])
def test_each_kind_of_noise_does_what_it_says(noise: Noise, searches: int) -> None:
    for question, shown in zip(QUESTIONS, demonstrate(noise), strict=True):
        assert shown.searches == searches
        assert shown.terminated
        if noise.early:
            assert shown.answer == WORLD.hops(question)[0].answer
            assert shown.em == (question.metadata["hops"] == 1)
    assert noise.early or sum(shown.em for shown in demonstrate(noise)) < 0.35 * len(QUESTIONS)


@pytest.mark.parametrize("size", ["small", "medium"])
def test_a_policy_that_comes_along_speaks_the_embedded_tokenizer_s_ids(size: str) -> None:
    saved = tokenizers.load(models.embedded_folder(size))
    hint = f"the words of the world changed: run python experiments/warm_start.py --size {size}"
    assert json.loads(saved.backend.to_str()) == json.loads(TOKENIZER.backend.to_str()), hint
    assert saved.eos_ids == TOKENIZER.eos_ids


@pytest.mark.slow
@pytest.mark.parametrize(("model", "least", "most"), [("embedded", 0.25, 0.5), ("embedded-small", 0.1, 0.5)])
def test_a_policy_that_comes_along_leaves_work_to_do(model: str, least: float, most: float) -> None:
    policy = load_policy(models.resolve(model))
    result, _ = evaluate(
        sources.list_questions("embedded:test")[:512],
        engine=HFEngine(policy, TOKENIZER),
        tokenizer=TOKENIZER,
        retriever=sources.open_retriever("bm25"),
        rules=Task().rules(),
        temperature=0.0,
    )
    assert least <= result.em <= most
    recorded = json.loads((Path(models.resolve(model)) / "recipe.json").read_text())["held_out"]["greedy"]
    assert result.em == pytest.approx(recorded["em"], abs=0.01)  # kernels differ from machine to machine


@pytest.mark.parametrize(
    ("size", "parameters", "steps"), [("small", 308_928, 1800), ("medium", 945_536, 1800), ("large", 3_005_184, 540)]
)
def test_a_size_chooses_shape_and_recipe(size: str, parameters: int, steps: int) -> None:
    config = warm_start.parse([f"--size={size}"])
    assert (config.size, config.out, config.steps) == (size, models.embedded_folder(size), steps)
    made = warm_start.embedded_model(TOKENIZER, size)
    assert sum(p.numel() for p in made.parameters()) == parameters
    assert warm_start.parse(["--size", size, "--steps", "7"]).steps == 7


@pytest.mark.parametrize("size", ["small", "medium"])
def test_a_policy_that_comes_along_has_the_shape_of_its_size(size: str) -> None:
    saved = LlamaConfig.from_pretrained(models.embedded_folder(size)).to_dict()
    made = warm_start.embedded_model(TOKENIZER, size).config.to_dict()
    assert saved | {"architectures": None, "dtype": None} == made


def test_a_size_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_start.main(["--size", "huge"]) == 2
    assert capsys.readouterr().err == "warm_start: error: no size is called 'huge'; there are: small, medium, large\n"


@pytest.mark.slow
def test_the_recipe_makes_a_folder_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "policy"
    assert warm_start.main(["--out", str(out), "--steps", "2", "--batch-size", "4", "--held-out-size", "8"]) == 0
    assert "greedy: EM 0.000" in capsys.readouterr().out
    assert tokenizers.load(out).vocab_size == load_policy(out).model.config.vocab_size == TOKENIZER.vocab_size
    assert json.loads((out / "recipe.json").read_text())["settings"]["steps"] == 2
