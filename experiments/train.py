"""Trains a policy: one algorithm, one seed, on one machine or many, safe to interrupt.

python experiments/train.py --model smollm2 --algo sapo
accelerate launch --num_processes 8 experiments/train.py --preset sapo-3b
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# See experiments/ablate.py.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rich.console import Console
from rich.logging import RichHandler

from algos.training import snapshot
from algos.training.checkpoint import CheckpointError
from algos.training.checkpoint import folders as checkpoints
from algos.training.distributed import Ranks, open_ranks
from algos.training.engines import EngineError
from algos.training.learner import Diverged, Metrics
from algos.training.loading import save_policy
from algos.training.lora import weights
from algos.training.tracking import Trackers
from algos.training.trainer import Trainer, of_rollouts
from experiments.folders import as_saved
from experiments.provenance import environment, write_json
from experiments.running import Setting, open_trainer, options_of
from experiments.train_config import TrainConfig, parse
from search_gym import tokenizers
from search_gym.retrieval.strict import SearchError
from search_gym.trajectory import write_jsonl


@dataclass
class Run:
    """A run that is set up."""

    config: TrainConfig
    setting: Setting
    ranks: Ranks
    trainer: Trainer
    trackers: Trackers
    console: Console

    @classmethod
    def open(cls, config: TrainConfig, ranks: Ranks, console: Console) -> Run:
        """Load everything, so that what is missing is said before anything is trained.

        Raises:
            CheckpointError: if the run folder holds another run that has checkpoints.
        """
        trackers = Trackers(config.track)
        if not config.resume:
            snapshot.require_none(ranks, config.out)
        setting = Setting.open(config.task, config.model)
        trainer = open_trainer(
            setting,
            config.algo,
            config.trainer,
            seed=config.seed,
            policy=config.policy,
            engine=config.engine,
            ranks=ranks,
        )
        return cls(config, setting, ranks, trainer, trackers, console)

    def train(self) -> None:
        """Train to the end; evaluate on the way; leave the policy, its dialogues and a result in the run folder."""
        config, out, trainer = self.config, self.config.out, self.trainer
        try:
            trainer.train(out, self._after_step, resume=config.resume, on_start=self._begin)
            trainer.save(out)
            held_out = self.evaluate(trainer.steps_done)
            self.trackers.log({"step": trainer.steps_done, "held_out": held_out})
        finally:
            self.trackers.close()
        save_policy(trainer.policy, out / "policy", leads=self.ranks.leads)
        if self.ranks.leads:
            tokenizers.copy_files(self.setting.model, out / "policy")
            write_json(out / "result.json", {"algorithm": config.algo, "seed": config.seed, "held_out": held_out})
            self.console.print(f"Policy: {out / 'policy'}\nMetrics: {out / 'metrics.jsonl'}", soft_wrap=True)

    def _begin(self) -> None:
        """Once it is sure that the run may go on in its folder."""
        config, out = self.config, self.config.out
        settings = as_saved(asdict(config))
        if self.ranks.leads:
            write_json(out / "config.json", settings | {"options": options_of(self.trainer.algorithm)})
            write_json(out / "environment.json", environment())
            self.trackers.open(out, settings)
        if config.evaluate_every and self.trainer.steps_done == 0:
            self.trackers.log({"step": 0, "held_out": self.evaluate(0)})

    def _after_step(self, metrics: Metrics) -> None:
        step, steps, every = metrics["step"], self.config.trainer.steps, self.config.evaluate_every
        if self.ranks.leads:
            self.console.print(line(metrics, steps), soft_wrap=True)
        if every and step % every == 0 and step < steps:
            metrics = metrics | {"held_out": self.evaluate(step)}
        self.trackers.log(metrics)

    def evaluate(self, step: int) -> dict[str, Any]:
        """Answer the held-out questions greedily, each process its share: evaluations/step-000012.jsonl."""
        folder = self.config.out / "evaluations"
        share = self.setting.held_out[self.ranks.rank :: self.ranks.count]
        with self.trainer.rollouts.paused() as engine:
            engine.sync(lambda: weights(self.trainer.policy))
            answered = self.setting.evaluate(engine, share, self.config.batch_episodes) if share else []
        trajectories = [t for part in self.ranks.gather(answered) for t in part]
        found = of_rollouts(trajectories)
        if self.ranks.leads:
            folder.mkdir(parents=True, exist_ok=True)
            write_jsonl(folder / f"step-{step:06}.jsonl", trajectories)
            self.console.print(
                f"step {step}: held out, greedy, {len(trajectories)} questions: EM {found['em']:.3f}  F1 "
                f"{found['f1']:.3f}  searches {found['searches']:.2f}",
                soft_wrap=True,
            )
        return found


def line(metrics: Metrics, steps: int) -> str:
    """A step in one line."""
    parts = [f"step {metrics['step']}/{steps}"]
    parts += [f"{name} {metrics[name]:.3f}" for name in ("reward", "em", "searches")]
    for name, digits in (("ratio", 4), ("entropy", 3), ("grad_norm", 3)):
        if metrics.get(name) is not None:
            parts.append(f"{name.replace('_', ' ')} {metrics[name]:.{digits}f}")
    seconds = metrics["seconds"]
    parts.append(f"{sum(seconds.get(phase, 0) for phase in ('rollout', 'score', 'update', 'sync')):.1f} s")
    return "  ".join(parts)


def how_to_go_on(out: Path) -> str:
    """What to do after a run was stopped."""
    saved = checkpoints(out)
    if saved:
        return f"The same command with --resume goes on from {saved[-1].name}."
    return "There was no checkpoint yet: the same command begins anew, and --save-every 1 saves after every step."


def attempt(argv: list[str] | None, console: Console) -> int:
    """Set a run up and train; a user's mistake and what stops a run become a line and an exit code."""
    try:
        config = parse(argv)
        if config.resume and not (config.out / "config.json").exists():
            raise ValueError(f"--resume: there is no run in {config.out}; name its folder with --out, or begin one")
        run = Run.open(config, open_ranks(config.shard, config.device or None), console)
    except (ValueError, TypeError, ImportError, OSError, EngineError, CheckpointError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2
    try:
        run.train()
    except (SearchError, EngineError, Diverged, CheckpointError, OSError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print(f"\nStopped. {how_to_go_on(config.out)}", soft_wrap=True)
        return 130
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when all is done, 1 when the run had to stop, 2 for settings that cannot be used, 130 when it was
    stopped."""
    console = Console()
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=console, show_path=False)])
    logging.getLogger("algos").setLevel(logging.INFO)
    sys.path.append(str(Path.cwd()))  # for --algo package.module:Name; a script has its own folder on the path instead
    try:
        return attempt(argv, console)
    except KeyboardInterrupt:
        console.print("\nStopped before anything was trained.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
