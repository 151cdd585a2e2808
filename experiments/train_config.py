"""Settings of a training run, and presets as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from algos.training.config import TrainerConfig
from algos.training.engines.opening import EngineConfig
from algos.training.lora import LoRAConfig
from algos.training.tracking import TRACKERS
from experiments import config as ablation
from experiments import models
from experiments.config import make_algorithm
from experiments.games import GAMES
from experiments.task import Task


@dataclass(frozen=True)
class PolicyConfig:
    """How a policy is held and computed."""

    parameters: Literal["fp32", "bf16"] = "fp32"
    """In which format the parameters are kept. An optimiser step at a learning rate of 1e-6 is lost in the rounding of
    bf16: keep fp32, and compute in bf16 by --precision."""
    attention: str = ""
    """sdpa, flash_attention_2, …; transformers' own choice unless given."""
    activation_checkpointing: bool = False
    """Compute the activations of a layer anew in the backward pass: less memory for a third more time."""
    trust_remote_code: bool = False
    """Run the Python code that comes with a model, should it bring some."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)

    def plain(self) -> PolicyConfig:
        """The same for a copy that samples and is not trained."""
        return replace(self, activation_checkpointing=False, lora=LoRAConfig())


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy with one algorithm. Several processes, started by accelerate or torchrun, train it together."""

    algo: str = "grpo"
    """A name that `search-gym algos` lists, or package.module:Name. Options follow a colon: sapo:gamma=0.05:tau=0.8"""
    preset: str = ""
    """Where the defaults of all other options come from: sapo-3b; what suits the model, unless given."""
    model: str = "embedded"
    """The policy at the start: embedded, smollm2, a folder or a hub id."""
    out: Path = Path("runs/train")
    """The run folder."""
    resume: bool = False
    """Go on from the newest checkpoint in the run folder, or begin anew if the run was stopped before its first."""
    seed: int = 0
    """Of the sampling and of the minibatches."""
    device: str = ""
    """Where the policy lives: cpu, cuda, …; a GPU if there is one, unless given."""
    shard: bool = False
    """Cut parameters, gradients and optimiser up over the processes (FSDP2), rather than hold them in each (DDP)."""
    evaluate_every: int = 0
    """Steps between evaluations on the held-out questions; 0: only at the end."""
    batch_episodes: int = 128
    """Episodes side by side in an evaluation."""
    track: tuple[str, ...] = ()
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    policy: Annotated[PolicyConfig, tyro.conf.arg(name="")] = field(default_factory=PolicyConfig)
    task: Annotated[Task, tyro.conf.arg(name="")] = field(default_factory=Task)
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")] = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        make_algorithm(self.algo)
        if unknown := set(self.track) - set(TRACKERS):
            raise ValueError(f"--track: no tracker is called {', '.join(unknown)}; there are: {', '.join(TRACKERS)}")
        if self.evaluate_every < 0:
            raise ValueError(f"--evaluate-every must be at least 0, not {self.evaluate_every}")
        if self.batch_episodes < 1:
            raise ValueError(f"--batch-episodes must be at least 1, not {self.batch_episodes}")
        self.task.rules()


PRESETS: dict[str, TrainConfig] = {
    # arXiv 2603.10069, Table 4: SAPO on Qwen2.5-3B-Instruct, for eight GPUs of 80 GB. docs/train-qwen2.5-3b.md says
    # how to start it, and where the paper's settings have no counterpart here.
    "sapo-3b": TrainConfig(
        algo="sapo:gamma=0.1:tau=1.0:kl_coef=0.001:kl_estimator=k3",
        preset="sapo-3b",
        model="Qwen/Qwen2.5-3B-Instruct",
        out=Path("runs/sapo-3b"),
        shard=True,
        evaluate_every=50,
        engine=EngineConfig(name="vllm", gpu_memory_utilization=0.4),
        policy=PolicyConfig(activation_checkpointing=True),
        task=Task(
            **vars(replace(GAMES["chat"], retriever="http://127.0.0.1:8000")),
            questions="hf:PeterJinGo/nq_hotpotqa_train:train",
            held_out="hf:RUC-NLPIR/FlashRAG_datasets:hotpotqa:dev",
            reward="f1",
        ),
        trainer=TrainerConfig(
            steps=420,
            batch_questions=256,
            group_size=10,
            minibatches=4,
            learning_rate=1e-6,
            precision="bf16",
            micro_batch_tokens=16_384,
            overlap_searches=True,
            save_every=20,
        ),
    ),
}
"""Runs that are ready to start."""

_SAVE_EVERY = 5
"""Steps between checkpoints where nothing else is said: a run that is stopped is to lose minutes, not all."""


def parse(argv: Sequence[str] | None = None) -> TrainConfig:
    """Settings from the command line, over a preset, or over what suits the model that it names."""
    model, preset = ablation.option(argv, "--model", "embedded"), ablation.option(argv, "--preset", "")
    if preset:
        default = ablation.preset(preset, PRESETS)
    else:
        of_model = ablation.PRESETS[models.kind(model)]
        name = "" if model == "embedded" else f"-{Path(model).name}"
        default = TrainConfig(
            model=model,
            out=Path(f"runs/train{name}"),
            batch_episodes=of_model.batch_episodes,
            task=of_model.task,
            trainer=replace(of_model.trainer, save_every=_SAVE_EVERY),
        )
    return tyro.cli(TrainConfig, args=argv, default=default, description=TrainConfig.__doc__)
