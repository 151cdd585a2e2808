"""A small run for the tests of resuming: made in the process of the tests, or in one that is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import algos
from algos.training.config import TrainerConfig
from algos.training.engines.hf import HFEngine
from algos.training.lora import LoRAConfig, add_lora, base_of
from algos.training.policy import CausalLMPolicy
from algos.training.trainer import Trainer
from experiments.warm_start import embedded_model
from search_gym import Rules, World, sources, tokenizers
from search_gym.rewards import Outcome

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
QUESTIONS = WORLD.questions("train")[:8]
"""Four batches of two: an epoch of four steps."""
RETRIEVER = sources.open_retriever("bm25", WORLD.corpus)
CONFIG = TrainerConfig(
    steps=8, batch_questions=2, group_size=3, minibatches=2, learning_rate=1e-3, micro_batch_tokens=400, save_every=1
)


def coin(outcome: Outcome) -> float:
    """A reward that the responses to one question often differ in."""
    return float(sum(map(ord, "".join(outcome.turns))) % 2)


RULES = Rules(
    prompt="brief", reward=coin, max_searches=1, max_turn_tokens=5, max_observation_tokens=60, max_context_tokens=200
)


def policy(seed: int = 0) -> CausalLMPolicy:
    """The embedded policy with random weights."""
    torch.manual_seed(seed)
    return CausalLMPolicy(embedded_model(TOKENIZER))


def trainer(
    config: TrainerConfig = CONFIG, algorithm: str = "grpo", *, lora: LoRAConfig | None = None, **options: Any
) -> Trainer:
    """A trainer of the run, at its beginning."""
    start = policy()
    torch.manual_seed(0)
    if lora is not None:
        add_lora(start, lora)
    sampler = start
    if config.async_rollouts:
        sampler = policy()
    reference = None
    if options.get("kl_coef"):
        reference = policy(1) if lora is None else base_of(start)
    return Trainer(
        start,
        algos.make(algorithm, **options),
        HFEngine(sampler, TOKENIZER, shared=sampler is start),
        TOKENIZER,
        RETRIEVER,
        RULES,
        QUESTIONS,
        config,
        reference=reference,
    )


def rows(out: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the machine."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in found:
        del row["seconds"], row["speed"]
    return found


def work(out: Path, steps: int) -> None:
    """Train to the end, from wherever the run in `out` is; then write the weights."""
    torch.set_num_threads(1)
    made = trainer(replace(CONFIG, steps=steps))
    made.train(out, resume=True)
    save_file({name: value.detach() for name, value in made.policy.named_parameters()}, out / "weights.safetensors")
