"""How far the runs of a comparison are, read from their folders, whatever started them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from experiments.launch.job import METRICS, PHASES, PROGRESS, TRACEBACK, Job

State = Literal["waiting", "training", "evaluating", "done", "failed"]
_LAST = 5
"""Steps whose time says how long the others will take."""


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    job: Job
    state: State
    step: int
    """Steps that are logged."""
    rewards: Sequence[float]
    """Of these steps, in order."""
    ratio: float | None
    """The mean ratio of the last of them; None where it is not known."""
    evaluated: int
    """Episodes of the evaluation at the end that are done."""
    seconds_left: float | None
    """By the last steps; None where there is none yet, or the run does not go on."""
    tries: int
    """How many processes have been at it."""


@dataclass
class Watch:
    """Looks at a run, again and again; reads of its log only what is new.

    Args:
        job: the run.
        questions: the number of held-out ones.
    """

    job: Job
    questions: int
    _steps: list[dict[str, Any]] = field(default_factory=list, init=False)
    _read: int = field(default=0, init=False)
    """Bytes of the log."""

    @property
    def evaluations(self) -> int:
        """Episodes in its evaluation: sampled and greedy."""
        return 2 * self.questions

    def look(self) -> Status:
        """How far it is now."""
        self._read_log()
        progress = _json(self.job.folder / PROGRESS)
        evaluated = min(int(progress.get("evaluated", 0)), self.evaluations)
        state = self._state(bool(progress))
        goes_on = state in ("training", "evaluating")
        return Status(
            self.job,
            state,
            len(self._steps),
            [step["reward"] for step in self._steps],
            self._steps[-1].get("ratio") if self._steps else None,
            self.evaluations if state == "done" else evaluated,
            self._seconds_left(evaluated) if goes_on else None,
            int(progress.get("tries", 0)),
        )

    def _state(self, begun: bool) -> State:
        if self.job.done:
            return "done"
        if (self.job.folder / TRACEBACK).exists():
            return "failed"
        if not begun:
            return "waiting"
        trained = not self.job.label or len(self._steps) >= self.job.config.trainer.steps
        return "evaluating" if trained else "training"

    def _seconds_left(self, evaluated: int) -> float | None:
        last = self._steps[-_LAST:]
        if not last:
            return None
        trainer = self.job.config.trainer
        step = mean(sum(row["seconds"].get(phase, 0.0) for phase in PHASES) for row in last)
        episode = mean(row["seconds"]["rollout"] for row in last) / trainer.rollouts
        return step * (trainer.steps - len(self._steps)) + episode * (self.evaluations - evaluated)

    def _read_log(self) -> None:
        """The steps that were logged since; all again where a run went on from a checkpoint and cut its log."""
        path = self.job.folder / METRICS
        size = path.stat().st_size if path.exists() else 0
        if size < self._read or not self._read_on(path):
            self._steps, self._read = [], 0
            self._read_on(path)

    def _read_on(self, path: Path) -> bool:
        """Whether what is new in the log follows on what was read of it."""
        if not path.exists():
            return True
        with path.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            return False
        if [row["step"] for row in rows] != [*range(len(self._steps) + 1, len(self._steps) + len(rows) + 1)]:
            return False
        self._steps += rows
        self._read += len(whole)
        return True


def overall(statuses: Sequence[Status], questions: int) -> float:
    """The share of the episodes that are played of all that are to be, in [0, 1]."""
    played = total = 0
    for status in statuses:
        trainer = status.job.config.trainer
        steps = trainer.steps if status.job.label else 0
        total += steps * trainer.rollouts + 2 * questions
        played += min(status.step, steps) * trainer.rollouts + status.evaluated
    return played / total if total else math.nan


def _json(path: Path) -> dict[str, Any]:
    """{} where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
