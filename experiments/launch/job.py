"""One run of a comparison: a function of settings, algorithm and seed that any process can carry out alone."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

from algos.training.checkpoint import folders as checkpoints
from algos.training.distributed import Ranks
from algos.training.engines.hf import HFEngine
from algos.training.evaluation import evaluate_decodings
from algos.training.loading import load_policy
from algos.training.policy import CausalLMPolicy
from experiments.comparisons import collapsed
from experiments.config import AblateConfig, run_folder
from experiments.groups import by_group
from experiments.provenance import write_json
from experiments.running import Setting, open_trainer, options_of
from search_gym.trajectory import write_jsonl

# Evaluations sample with random numbers of their own, the same for every run: they differ by their policies alone.
EVALUATION_SEED = 1_000_003
RESULT, PROGRESS, METRICS, TRACEBACK, LOG = (
    "result.json", "progress.json", "metrics.jsonl", "traceback.txt", "log.txt",
)  # fmt: skip
PHASES = ("rollout", "score", "update", "sync")
"""Of the seconds of a step in `METRICS`: those that make it up."""
TRIES = 4
"""How often a run is begun whose process dies."""


@dataclass(frozen=True)
class Job:
    """One run, or the evaluation of the policy that all of them start from."""

    config: AblateConfig
    """`out` and other paths in it are those of the process that made it."""
    label: str = ""
    """The algorithm; empty: the evaluation of the start."""
    seed: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.label} seed {self.seed}" if self.label else "start"

    @property
    def folder(self) -> Path:
        """Where all that it leaves goes."""
        return self.config.out / "runs" / run_folder(self.label, self.seed) if self.label else self.config.out / "start"

    @property
    def done(self) -> bool:
        """Whether it has its result, which is written last."""
        return (self.folder / RESULT).exists()

    def forget(self) -> None:
        """Remove what an earlier command left to say how far it came; not the checkpoints."""
        for name in (PROGRESS, TRACEBACK):
            (self.folder / name).unlink(missing_ok=True)


class Failure(NamedTuple):
    """A run that failed."""

    job: Job
    reason: str
    """In one line, with which `TRACEBACK` in its folder begins."""

    @classmethod
    def note(cls, job: Job, reason: str) -> Failure:
        """The failure, also in the folder of the run, unless its process has left it there."""
        path = job.folder / TRACEBACK
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{reason}\n", encoding="utf-8")
        return cls(job, reason)


Say = Callable[[str], None]
"""Shows a line to whoever waits."""


@dataclass(frozen=True)
class Bench:
    """What all runs of a comparison share."""

    config: AblateConfig
    setting: Setting

    @classmethod
    def open(cls, config: AblateConfig) -> Bench:
        """Load everything that the runs share, so that what is missing is said at once."""
        return cls(config, Setting.open(config.task, config.model))

    def evaluate(self, policy: CausalLMPolicy, out: Path, advance: Callable[[int], None]) -> dict[str, Any]:
        """Answers to the held-out questions, sampled as in training and greedy; the dialogues go to `out`."""
        setting = self.setting
        found = evaluate_decodings(
            setting.held_out,
            temperature=self.config.trainer.temperature,
            engine=HFEngine(policy, setting.tokenizer, EVALUATION_SEED),
            tokenizer=setting.tokenizer,
            retriever=setting.retriever,
            rules=self.config.task.rules(),
            batch_size=self.config.batch_episodes,
            on_batch=advance,
        )
        out.mkdir(parents=True, exist_ok=True)
        scores: dict[str, Any] = {}
        for decoding, (result, answers) in found.items():
            write_jsonl(out / f"{decoding}.jsonl", answers)
            groups = {name: asdict(part) for name, part in by_group(setting.held_out, answers).items()}
            scores[decoding] = asdict(result) | {"groups": groups}
        return scores


@dataclass
class Progress:
    """progress.json of a run: which it is, which process is at work, how many were before it, and how far its
    evaluation is.

    {"algorithm": str, "seed": int, "pid": int, "host": str, "tries": int, "evaluated": episodes}; algorithm and seed
    are absent where the start is evaluated.
    """

    job: Job
    tries: int = 1
    evaluated: int = 0
    _written: float = field(default=-1.0, repr=False)

    @classmethod
    def begin(cls, job: Job) -> Progress:
        """This process takes over.

        Raises:
            RuntimeError: if `TRIES` processes have died of this run already.
        """
        path = job.folder / PROGRESS
        before = json.loads(path.read_text(encoding="utf-8"))["tries"] if path.exists() else 0
        if before >= TRIES:
            raise RuntimeError(f"{before} processes died at it: was memory short? {LOG} beside may say more")
        begun = cls(job, before + 1)
        begun.write()
        return begun

    def write(self) -> None:
        """Bring it to the disk."""
        run = {"algorithm": self.job.label, "seed": self.job.seed} if self.job.label else {}
        process = {"pid": os.getpid(), "host": socket.gethostname(), "tries": self.tries}
        write_json(self.job.folder / PROGRESS, {**run, **process, "evaluated": self.evaluated})
        self._written = time.monotonic()

    def advance(self, episodes: int) -> None:
        """So many episodes more are evaluated; on the disk it is at most a second old."""
        self.evaluated += episodes
        if time.monotonic() - self._written > 1:
            self.write()


def attempt(job: Job, bench: Bench | None = None) -> str:
    """Carry a run out, or go on with it where another process stopped. Its log goes to `LOG` in its folder.

    Args:
        job: which.
        bench: what the runs share; loaded if it is not given.

    Returns:
        Why it failed, in one line, with which `TRACEBACK` begins. Empty if it did not.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    log = logging.FileHandler(job.folder / LOG, encoding="utf-8")
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(log)
    try:
        perform(job, bench)
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
        with suppress(OSError):  # the disk may be full
            (job.folder / TRACEBACK).write_text(f"{reason}\n\n{traceback.format_exc()}", encoding="utf-8")
        return reason
    finally:
        logging.getLogger().removeHandler(log)
        log.close()
    return ""


def perform(job: Job, bench: Bench | None = None) -> None:
    """Train, evaluate, write: the result comes last, so a run that was stopped has none, and goes on when it is
    performed again.

    Raises:
        Timeout: if another process is at work on it for a minute on.
    """
    # A worker of Ray can outlive the command that it served by some seconds: two must never write to one folder.
    with FileLock(job.folder / ".lock", timeout=60):
        if not job.done:
            _perform(job, bench)


def _perform(job: Job, bench: Bench | None) -> None:
    progress = Progress.begin(job)
    bench = bench or Bench.open(job.config)
    torch.manual_seed(job.seed)  # for algorithms of others: nothing here draws from the global generator
    if not job.label:
        policy = load_policy(bench.setting.model, device=job.config.device)
        write_json(job.folder / RESULT, bench.evaluate(policy, job.folder, progress.advance))
    else:
        write_json(job.folder / RESULT, _train(job, bench, progress))
    if not job.config.launch.keep_run_checkpoints:
        shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)


def _train(job: Job, bench: Bench, progress: Progress) -> dict[str, Any]:
    """The run, and what its result.json says of it."""
    config, out = job.config, job.folder
    trainer = open_trainer(bench.setting, job.label, config.trainer, seed=job.seed, ranks=Ranks(config.device))
    trainer.train(out, resume=bool(checkpoints(out)))
    began = time.perf_counter()
    end = bench.evaluate(trainer.policy, out / "end", progress.advance)
    seconds = time.perf_counter() - began
    # What this process has seen may be the last part of the run.
    with (out / METRICS).open(encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines]
    return {
        "algorithm": job.label,
        "seed": job.seed,
        "start": json.loads((config.out / "start" / RESULT).read_text(encoding="utf-8")),
        "end": end,
        "steps": trainer.steps_done,
        "options": options_of(trainer.algorithm),
        "failed_searches": sum(round(step["failed_searches"] * step["episodes"]) for step in steps),
        "collapsed": collapsed([step["reward"] for step in steps]),
        "seconds": round(seconds + sum(step["seconds"].get(phase, 0.0) for step in steps for phase in PHASES), 1),
    }
