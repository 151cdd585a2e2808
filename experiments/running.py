"""What every experiment does to get from names to objects: models, policies, questions, algorithms."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch

from algos import Algorithm
from algos.training.engines import Engine
from algos.training.evaluation import Evaluation, evaluate
from algos.training.learner import Reference
from algos.training.loading import load_policy
from algos.training.lora import add_lora, base_of
from algos.training.policy import CausalLMPolicy
from experiments import models
from experiments.config import ModelConfig, Task
from search_gym import sources, tokenizers
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


@dataclass(frozen=True)
class Setting:
    """What all runs on a task with a model share, loaded."""

    task: Task
    model: str
    """Folder or hub id."""
    tokenizer: Tokenizer
    retriever: Retriever
    train: list[Question]
    held_out: list[Question]

    @classmethod
    def open(cls, task: Task, model: str) -> Setting:
        """Load it, so that what is missing is said at once."""
        folder = models.resolve(model)
        train, held_out = split_questions(task)
        retriever = sources.open_retriever(
            task.retriever, task.corpus or None, on_search_error=task.on_search_error, cache=task.search_cache
        )
        return cls(task, folder, tokenizers.load(folder), retriever, train, held_out)

    def evaluate(
        self, engine: Engine, questions: list[Question], temperature: float, **settings: Any
    ) -> tuple[Evaluation, list[Trajectory]]:
        """Answer questions with an engine; the `settings` are those of `algos.training.evaluation.evaluate`."""
        return evaluate(
            questions,
            engine=engine,
            tokenizer=self.tokenizer,
            retriever=self.retriever,
            rules=self.task.rules(),
            temperature=temperature,
            **settings,
        )


def split_questions(task: Task) -> tuple[list[Question], list[Question]]:
    """Questions to train on and questions to evaluate on, no question in both."""
    train = list(sources.list_questions(task.questions))
    source = task.held_out or ("embedded:test" if task.questions == "embedded" else "")
    if source:
        return train, sources.list_questions(source)[: task.held_out_size]
    shuffled = random.Random(0).sample(train, len(train))
    size = min(task.held_out_size, len(train) // 2)
    if size < 1:
        raise ValueError(f"{task.questions} has too few questions to hold any out: name others with --held-out")
    return shuffled[size:], shuffled[:size]


def open_policy(model: str, config: ModelConfig, device: str | torch.device) -> CausalLMPolicy:
    """A policy as the configuration wants it, adapters included."""
    policy = load_policy(
        model,
        dtype=torch.bfloat16 if config.parameters == "bf16" else torch.float32,
        device=device,
        attention=config.attention or None,
        trust_remote_code=config.trust_remote_code,
    )
    if config.activation_checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.lora.rank:
        add_lora(policy, config.lora)
    return policy


def reference_for(algorithm: Algorithm, policy: CausalLMPolicy, model: str, config: ModelConfig) -> Reference | None:
    """The policy at its start, frozen, for an algorithm that compares with it: the adapters switched off, or a copy."""
    if "ref_logprobs" not in getattr(algorithm, "needs", ()):
        return None
    if config.lora.rank:
        return base_of(policy)
    return open_policy(model, config, policy.device).requires_grad_(False)


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """All options of an algorithm, defaults included; {} if it does not say."""
    options = asdict(algorithm) if is_dataclass(algorithm) and not isinstance(algorithm, type) else {}
    return {name: "inf" if value == math.inf else value for name, value in options.items()}  # JSON has no infinity
