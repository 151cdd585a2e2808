"""Settings of the experiments: frozen dataclasses that tyro turns into command-line options, and presets as data."""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

import algos
from algos.training.config import TrainerConfig
from search_gym.retrieval.strict import OnSearchError
from search_gym.rules import Rules


@dataclass(frozen=True)
class Task:
    """What is answered, and by the rules of which game."""

    questions: str = "embedded"
    """Questions to train on: "embedded", a JSONL or parquet file, or "hf:NAME:SPLIT"."""
    held_out: str = ""
    """Questions to evaluate on, likewise. Empty: the embedded world's own test split, or a part of the file that is
    then not trained on."""
    held_out_size: int = 512
    """How many questions to evaluate on, at most; of a file that is trained on too, at most a half."""
    corpus: str = ""
    """Passages to search: "embedded", a file or data set of passages, or a folder that `search-gym index` made. Empty:
    "embedded", or what the retriever brings."""
    retriever: str = "bm25"
    """What searches in it: bm25, dense, hybrid or rerank. Or what brings its own passages: a folder that `search-gym
    index` made, or http://host:port, a server."""
    on_search_error: OnSearchError = "tell"
    """What becomes of a search that fails: the policy is told, and the run says at its end how many did; or the run
    stops."""
    search_cache: Path | None = None
    """A file in which the results of searches are kept, for all runs and processes. A comparison that is gone on with
    may use another one."""
    prompt: str = "brief"
    """Template of the prompt: search-r1, sapo, chat, few-shot or brief."""
    reward: str = "em"
    """What is rewarded: em, f1, cover, format, or a sum such as em+0.2*format."""
    search_cost: float = 0.0
    """Subtracted from the reward for every search."""
    invalid_cost: float = 0.0
    """Subtracted from the reward for every turn that is no action."""
    max_searches: int = 4
    """Searches in an episode."""
    top_k: int = 3
    """Passages for a search."""
    max_turn_tokens: int = 40
    """Tokens that a turn may have."""
    max_observation_tokens: int = 128
    """Tokens that the passages of a search may have."""
    max_context_tokens: int = 512
    """Tokens of an episode in all."""

    def rules(self) -> Rules:
        """The rules of the episodes."""
        return Rules(
            prompt=self.prompt,
            reward=self.reward,
            search_cost=self.search_cost,
            invalid_cost=self.invalid_cost,
            max_searches=self.max_searches,
            top_k=self.top_k,
            max_turn_tokens=self.max_turn_tokens,
            max_observation_tokens=self.max_observation_tokens,
            max_context_tokens=self.max_context_tokens,
        )


@dataclass(frozen=True)
class AblateConfig:
    """Train every algorithm with every seed from the same start on the same questions, and compare."""

    algos: str = "grpo,sapo"
    """Algorithms, separated by commas: names that `search-gym algos` lists, or package.module:Name. Options follow a
    colon: sapo:gamma=0.05:tau=0.8, grpo:preset=verl"""
    seeds: int = 3
    """How many seeds; they are 0, 1, 2, …"""
    model: str = "embedded"
    """The policy at the start: embedded, smollm2, a folder or a hub id. Chooses the defaults of the other options."""
    out: Path = Path("runs/ablate")
    """The run folder. Runs that are finished there already are kept, so a comparison that was stopped goes on."""
    device: str = "cpu"
    """Where the policy lives: cpu, cuda, …"""
    batch_episodes: int = 128
    """Episodes side by side in an evaluation."""
    task: Annotated[Task, tyro.conf.arg(name="")] = field(default_factory=Task)
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")] = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {self.seeds}")
        for label in self.labels:
            make_algorithm(label)
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"--algos names an algorithm twice: {self.algos}")
        self.task.rules()

    @property
    def labels(self) -> list[str]:
        """The algorithms, each with its options as it was written."""
        return [label.strip() for label in self.algos.split(",")]


def make_algorithm(label: str) -> algos.Algorithm:
    """An algorithm from its label.

    Args:
        label: a name and options, "sapo:gamma=0.05:tau=0.8" or "grpo:preset=verl"; the name may be the path of a class,
            "my_package.my_module:MyAlgorithm:scale=2", from anywhere on the path.
    """
    name, *pairs = label.split(":")
    if pairs and "=" not in pairs[0]:
        name = f"{name}:{pairs.pop(0)}"
    options: dict[str, Any] = {}
    for pair in pairs:
        option, given, value = pair.partition("=")
        if not given:
            raise ValueError(f"{label!r}: an option is written name=value, not {pair!r}")
        try:
            options[option] = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a word, such as variant=released
            options[option] = math.inf if value == "inf" else value
    return algos.make(name, **options)


# What suits a model: a table of the settings that differ from the dataclasses' own.
PRESETS: dict[str, AblateConfig] = {
    "embedded": AblateConfig(),
    # A model of 135 M parameters on two cores: few episodes, short ones, and a row at a time through the backward pass.
    # At temperature 1 this model babbles (half of its episodes hold no search, few an answer), so it samples at 0.5. It
    # is rewarded by F1, for with exact match nearly all groups would have equal rewards and teach nothing.
    "smollm2": AblateConfig(
        model="smollm2",
        out=Path("runs/ablate-smollm2"),
        batch_episodes=8,
        task=Task(
            prompt="few-shot",
            reward="f1",
            held_out_size=8,
            max_searches=2,
            top_k=2,
            max_turn_tokens=48,
            max_observation_tokens=224,
            max_context_tokens=896,
        ),
        trainer=TrainerConfig(
            batch_questions=4,
            group_size=4,
            minibatches=2,
            learning_rate=1e-5,
            temperature=0.5,
            micro_batch_tokens=896,
        ),
    ),
}


def parse(argv: Sequence[str] | None = None) -> AblateConfig:
    """Settings from the command line, over the preset of the model that it names."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--model", default="embedded")
    model = first.parse_known_args(argv)[0].model
    default = PRESETS.get(model) or replace(
        PRESETS["smollm2"], model=model, out=Path("runs") / f"ablate-{Path(model).name}"
    )
    return tyro.cli(AblateConfig, args=argv, default=default, description=AblateConfig.__doc__)
