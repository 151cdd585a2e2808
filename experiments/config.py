"""Settings of the experiments: frozen dataclasses that tyro turns into command-line options, and presets as data."""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

import algos
from algos.training.config import TrainerConfig
from algos.training.engines.opening import EngineConfig
from experiments import models
from experiments.games import GAMES, Game
from experiments.launch.config import LaunchConfig
from experiments.presets import COMPARISONS
from experiments.task import Task, check_benchmarks, check_passages

SAVE_EVERY = 4
"""Steps between the checkpoints of a run of a comparison: what it costs to kill one."""
Settings = TypeVar("Settings", "AblateConfig", "EvaluateConfig")
Preset = TypeVar("Preset")


@dataclass(frozen=True)
class AblateConfig:
    """Train every algorithm with every seed from the same start on the same questions, and compare."""

    algos: str = "grpo,sapo"
    """Algorithms, separated by commas: names that `search-gym algos` lists, or package.module:Name. Options follow a
    colon: sapo:gamma=0.05:tau=0.8, grpo:preset=verl; with several values, name the algorithm with each of them:
    sapo:gamma=0.05,sapo:gamma=0.2"""
    preset: str = "quick"
    """What is compared, and how, unless other options say so: quick, paper-table2, tau, stress, zoo or
    scale."""
    seeds: int = 3
    """How many seeds; they are 0, 1, 2, …"""
    model: str = "embedded"
    """The policy at the start: embedded, embedded-small, embedded-large, smollm2, a folder or a hub id. Chooses the
    defaults of the other options. Several of one kind, separated by commas, are compared one after the other."""
    out: Path = Path("runs/ablate")
    """The run folder. Runs that are finished there already are kept, so a comparison that was stopped goes on."""
    device: str = "cpu"
    """Where the policy lives: cpu, cuda, …"""
    batch_episodes: int = 128
    """Episodes side by side in an evaluation."""
    task: Annotated[Task, tyro.conf.arg(name="")] = field(default_factory=Task)
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: TrainerConfig(save_every=SAVE_EVERY)
    )
    launch: Annotated[LaunchConfig, tyro.conf.arg(name="")] = field(default_factory=LaunchConfig)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, not {self.seeds}")
        if self.batch_episodes < 1:
            raise ValueError(f"--batch-episodes must be at least 1, not {self.batch_episodes}")
        self._check_labels()
        models.folder_names(self.model)
        self.task.rules()

    def _check_labels(self) -> None:
        made: dict[str, algos.Algorithm] = {}
        for label in self.labels:
            algorithm = make_algorithm(label)
            same = [other for other, there in made.items() if label == other or algorithm == there]
            if same:
                raise ValueError(f"--algos names an algorithm twice: {same[0]} and {label} are the same")
            taken = [other for other in made if run_folder(other, 0) == run_folder(label, 0)]
            if taken:
                raise ValueError(f"--algos: the runs of {taken[0]} and {label} would share a folder")
            made[label] = algorithm

    @property
    def labels(self) -> list[str]:
        """The algorithms, each with its options as it was written."""
        return [label.strip() for label in self.algos.split(",")]

    def by_model(self) -> list[AblateConfig]:
        """The comparison with each of the models; of several, each in a folder of its own in `out`."""
        folders = models.folder_names(self.model)
        if len(folders) == 1:
            return [self]
        return [replace(self, model=name, out=self.out / folder) for name, folder in folders.items()]


def run_folder(label: str, seed: int) -> str:
    """The name of the folder of a run: the label with "_" for what a folder had better not be called."""
    return f"{re.sub(r'[^A-Za-z0-9._=+-]', '_', label)}-seed{seed}"


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


@dataclass(frozen=True)
class EvaluateConfig:
    """Answer questions with a policy, score the answers, and say how far the scores can be trusted.

    The same command goes on where it was stopped.
    """

    model: str = "embedded"
    """The policy: embedded, smollm2, a folder (such as that of a training run, RUN/policy) or a hub id. Chooses the
    defaults of the other options."""
    questions: str = ""
    """What to answer: a JSONL or parquet file, "hf:NAME:SPLIT", or "embedded:test", which it is where neither this nor
    --benchmarks is given."""
    benchmarks: str = ""
    """What to answer, by name: nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, bamboogle, several of them
    separated by commas, or all. Their splits are those that papers report."""
    data: str = ""
    """Where the benchmarks are: a folder that holds nq/test.jsonl and so on, or nq.jsonl; or "hf:", FlashRAG's
    collection on the Hugging Face hub."""
    max_questions: int | None = None
    """Answer at most so many of each, drawn at random, always the same ones. None: all."""
    samples: int = 1
    """Answers to each question. With several, pass@k is reported too."""
    temperature: float | None = None
    """Of the sampling; 0 is greedy. None: 0 for one sample, 1 for several."""
    seed: int = 0
    """Of the sampling."""
    engine: str = "hf"
    """What samples: hf, in this process; vllm; or http://host:port, a vLLM server."""
    device: str = "cpu"
    """Where the policy of the hf engine lives: cpu, cuda, …"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The number format of the policy."""
    batch_episodes: int = 128
    """Episodes side by side."""
    chunk_questions: int = 64
    """Questions that are answered together and then saved: what it can cost to be stopped."""
    out: Path = Path("runs/evaluate")
    """The folder of the results. Answers that are there already are kept."""
    game: Annotated[Game, tyro.conf.arg(name="")] = field(default_factory=Game)

    def __post_init__(self) -> None:
        for name in ("samples", "batch_episodes", "chunk_questions", "max_questions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if not 0 <= self.decoding_temperature < math.inf:
            raise ValueError(f"--temperature must be a finite number of at least 0, not {self.temperature}")
        if self.samples > 1 and self.decoding_temperature == 0:
            raise ValueError(f"{self.samples} greedy samples are all the same: give a --temperature above 0, or one")
        self.engine_config()
        self._check_questions()
        self.game.rules()

    def _check_questions(self) -> None:
        check_benchmarks(self.benchmarks, self.data, "--questions" if self.questions else "")
        if self.benchmarks or not (self.questions or "embedded").startswith("embedded"):
            check_passages(self.game)

    def engine_config(self) -> EngineConfig:
        """The engine; in its own process nothing is trained beside it, so vLLM gets most of the GPU."""
        return EngineConfig(
            self.engine, dtype=self.dtype, max_model_len=self.game.max_context_tokens, gpu_memory_utilization=0.9
        )

    @property
    def decoding_temperature(self) -> float:
        """`temperature` with its default filled in."""
        return (1.0 if self.samples > 1 else 0.0) if self.temperature is None else self.temperature


# What suits a model, by what `models.kind` says of it: tables of the settings that differ from the dataclasses' own.

# The batches of the ablation of arXiv 2603.10069, but of the 16 steps that are the default here, not of its 300.
_PAPER_TRAINER = TrainerConfig(
    batch_questions=256,
    group_size=5,
    minibatches=4,
    learning_rate=1e-6,
    micro_batch_tokens=GAMES["base"].max_context_tokens,
    save_every=SAVE_EVERY,
)
PRESETS: dict[str, AblateConfig] = {
    "embedded": AblateConfig(),
    # Few episodes, and a row at a time through the backward pass. At temperature 1 this model babbles (half of its
    # episodes hold no search, few an answer), so it samples at 0.5. It is rewarded by F1, for with exact match nearly
    # all groups would have equal rewards and teach nothing.
    "smollm2": AblateConfig(
        model="smollm2",
        out=Path("runs/ablate-smollm2"),
        batch_episodes=8,
        task=Task(**vars(GAMES["smollm2"]), reward="f1", held_out_size=8),
        trainer=TrainerConfig(
            batch_questions=4,
            group_size=4,
            minibatches=2,
            learning_rate=1e-5,
            temperature=0.5,
            micro_batch_tokens=896,
            save_every=1,  # a step takes minutes
        ),
    ),
    "base": AblateConfig(task=Task(**vars(GAMES["base"]), reward="f1"), trainer=_PAPER_TRAINER),
    "chat": AblateConfig(task=Task(**vars(GAMES["chat"]), reward="f1"), trainer=_PAPER_TRAINER),
}
EVALUATIONS: dict[str, EvaluateConfig] = {kind: EvaluateConfig(game=game) for kind, game in GAMES.items()} | {
    "smollm2": EvaluateConfig(game=GAMES["smollm2"], batch_episodes=8, chunk_questions=8)
}


def parse(argv: Sequence[str] | None = None) -> AblateConfig:
    """Settings from the command line, over what suits the models that it names and the comparison.

    Raises:
        ValueError: if there is no such model or comparison, or the models are of several kinds.
    """
    name = option(argv, "--preset", "quick")
    chosen = preset(name, COMPARISONS)
    defaults = {
        kind: replace(suits, preset=name, algos=chosen.algos, trainer=replace(suits.trainer, **chosen.trainer))
        for kind, suits in PRESETS.items()
    }
    out = "runs/ablate" if name == "quick" else f"runs/ablate-{name}"
    return _parse(AblateConfig, defaults, out, argv, chosen.model)


def option(argv: Sequence[str] | None, name: str, default: str) -> str:
    """What the command line gives for an option that decides the defaults of the others, and so is read before them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(name, default=default, dest="value")
    return first.parse_known_args(argv)[0].value


def preset(name: str, presets: Mapping[str, Preset]) -> Preset:
    """The preset of that name. Raises ValueError if there is none."""
    if name not in presets:
        raise ValueError(f"no preset is called {name!r}; there are: {', '.join(presets)}")
    return presets[name]


def parse_evaluation(argv: Sequence[str] | None = None) -> EvaluateConfig:
    """`parse` for an evaluation."""
    return _parse(EvaluateConfig, EVALUATIONS, "runs/evaluate", argv)


def _parse(
    settings: type[Settings],
    presets: Mapping[str, Settings],
    out: str,
    argv: Sequence[str] | None,
    usual: str = "embedded",
) -> Settings:
    model = option(argv, "--model", usual)
    folder = Path(out if model == usual else f"{out}-{'+'.join(models.folder_names(model).values())}")
    default = replace(presets[models.common_kind(model)], model=model, out=folder)
    return tyro.cli(settings, args=argv, default=default, description=inspect.getdoc(settings))
