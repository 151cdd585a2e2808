"""What every experiment does to get from names to objects: models, policies, questions, algorithms."""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch

from algos import Algorithm
from algos.training.config import TrainerConfig
from algos.training.distributed import ALONE, Ranks
from algos.training.engines import Engine
from algos.training.engines.opening import EngineConfig, open_engine
from algos.training.learner import Reference
from algos.training.loading import load_policy
from algos.training.lora import add_lora, base_of
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from algos.training.trainer import Trainer
from experiments import models
from experiments.config import make_algorithm
from experiments.task import Task
from experiments.train_config import PolicyConfig
from search_gym import sources, tokenizers
from search_gym.questions import Question, QuestionList, benchmarks
from search_gym.questions.benchmarks import Benchmark
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
        return cls(task, folder, tokenizers.load(folder), task.open_retriever(), train, held_out)

    def evaluate(self, engine: Engine, questions: list[Question], batch_size: int) -> list[Trajectory]:
        """Answer questions greedily with an engine, `batch_size` of them side by side."""
        return play(
            questions,
            engine=engine,
            tokenizer=self.tokenizer,
            retriever=self.retriever,
            rules=self.task.rules(),
            temperature=0.0,
            concurrency=batch_size,
        )


def split_questions(task: Task) -> tuple[list[Question], list[Question]]:
    """Questions to train on and questions to evaluate on, no question in both."""
    train = list(sources.list_questions(task.questions))
    if task.benchmarks:
        named = read_benchmarks(task.benchmarks, task.data, task.held_out_size)
        return train, list(sources.list_questions({b.name: questions for b, questions in named.items()}))
    source = task.held_out or ("embedded:test" if task.questions == "embedded" else "")
    if source:
        return train, sources.list_questions(source)[: task.held_out_size]
    shuffled = random.Random(0).sample(train, len(train))
    size = min(task.held_out_size, len(train) // 2)
    if size < 1:
        raise ValueError(f"{task.questions} has too few questions to hold any out: name others with --held-out")
    return shuffled[size:], shuffled[:size]


def read_benchmarks(names: str, data: str, most: int | None) -> dict[Benchmark, QuestionList]:
    """Questions of benchmarks, at most so many of each, as `benchmarks.select` and `benchmarks.source` name them."""
    chosen = benchmarks.select(names)
    return {benchmark: read_questions(benchmarks.source(benchmark, data), most) for benchmark in chosen}


def read_questions(source: Any, most: int | None) -> QuestionList:
    """Questions of a source, at most so many: drawn at random, always the same ones."""
    questions = sources.list_questions(source)
    return questions if most is None or most >= len(questions) else questions.sample(most, seed=0)


def open_policy(model: str, config: PolicyConfig, device: str | torch.device) -> CausalLMPolicy:
    """A policy as the configuration wants it, adapters included."""
    policy = load_policy(
        model,
        dtype=torch.bfloat16 if config.parameters == "bf16" else torch.float32,
        device=device,
        attention=config.attention or None,
        trust_remote_code=config.trust_remote_code,
    )
    if config.activation_checkpointing:
        policy.recompute_activations()
    if config.lora.rank:
        add_lora(policy, config.lora)
    return policy


def open_trainer(
    setting: Setting,
    label: str,
    config: TrainerConfig,
    *,
    seed: int,
    policy: PolicyConfig = PolicyConfig(),  # noqa: B008  # frozen
    engine: EngineConfig = EngineConfig(),  # noqa: B008
    ranks: Ranks = ALONE,
) -> Trainer:
    """A trainer of a policy that is loaded anew, with whatever its algorithm needs.

    Args:
        setting: the task and the model.
        label: an algorithm with its options, as `make_algorithm` reads it.
        config: of the loop.
        seed: of the sampling, a different one in each process, and of the minibatches.
        policy: how the policy is held.
        engine: what samples.
        ranks: this process among those that train together.
    """
    algorithm = make_algorithm(label)
    trained = open_policy(setting.model, policy, ranks.device)
    # While a copy samples, the policy itself may change, or be cut up over the processes.
    shared = not (config.async_rollouts or ranks.sharded)
    sampled = trained
    if not shared and engine.name == "hf":
        sampled = open_policy(setting.model, policy.plain(), ranks.device)
    opened = open_engine(
        engine,
        model=setting.model,
        policy=sampled,
        tokenizer=setting.tokenizer,
        seed=seed if ranks.count == 1 else seed * 1_000 + ranks.rank,
        shared=shared,
        leader=ranks.leads,
    )
    return Trainer(
        trained,
        algorithm,
        opened,
        setting.tokenizer,
        setting.retriever,
        setting.task.rules(),
        setting.train,
        config,
        seed=seed,
        reference=_reference(algorithm, trained, setting.model, policy),
        ranks=ranks,
    )


def _reference(algorithm: Algorithm, policy: CausalLMPolicy, model: str, config: PolicyConfig) -> Reference | None:
    """The policy at its start, frozen, for an algorithm that compares with it: the adapters switched off, or a copy."""
    if "ref_logprobs" not in getattr(algorithm, "needs", ()):
        return None
    return base_of(policy) if config.lora.rank else open_policy(model, config.plain(), policy.device)


def options_of(algorithm: Algorithm) -> dict[str, Any]:
    """All options of an algorithm, defaults included; {} if it does not say."""
    options = asdict(algorithm) if is_dataclass(algorithm) and not isinstance(algorithm, type) else {}
    return {name: "inf" if value == math.inf else value for name, value in options.items()}  # JSON has no infinity
