"""Runs on this machine: in this process, or each in a process of its own."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from experiments.config import AblateConfig
from experiments.launch.job import LOG, TRACEBACK, TRIES, Bench, Failure, Job, Say, attempt


class InProcess:
    """Runs one after the other, in this process.

    Args:
        bench: what they share.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __call__(self, jobs: Sequence[Job], say: Say) -> list[Failure]:
        """Carry them out; those that failed."""
        return [Failure(job, reason) for job in jobs if (reason := attempt(job, self._bench))]

    def close(self) -> None:
        """Nothing is left to be closed."""


@dataclass
class Processes:
    """Runs side by side, each in a process of its own, which is started again where it dies.

    Args:
        config: says how many, and on which device.

    Raises:
        ValueError: if there are fewer GPUs than processes that are to have one each.
    """

    config: AblateConfig
    _running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = field(default_factory=dict, init=False)
    """By place: a process has the GPU of its place."""

    def __post_init__(self) -> None:
        self._gpus = _visible_gpus() if self.config.device == "cuda" else []
        if self.config.device == "cuda" and len(self._gpus) < self.config.launch.workers:
            raise ValueError(
                f"--workers {self.config.launch.workers} with --device cuda takes a GPU each, and there are "
                f"{len(self._gpus)} here; --device cuda:0 has all of them share one"
            )

    def __call__(self, jobs: Sequence[Job], say: Say) -> list[Failure]:
        """Carry them out; those that failed."""
        waiting, tries, failures = deque(jobs), Counter[str](), list[Failure]()
        while waiting or self._running:
            for place in range(self.config.launch.workers):
                if waiting and place not in self._running:
                    job = waiting.popleft()
                    tries[job.name] += 1
                    self._running[place] = job, self._start(job, place)
            time.sleep(0.1)
            for place, (job, process) in list(self._running.items()):
                code = process.poll()
                if code is None:
                    continue
                process.communicate()  # closes the pipe
                del self._running[place]
                if job.done:
                    continue
                if code < 0 and tries[job.name] < TRIES:
                    say(f"{job.name}: its process died ({_signal(code)}); another one goes on from its checkpoint.")
                    waiting.appendleft(job)
                else:
                    failures.append(Failure.note(job, _reason(job, code)))
        return failures

    def _start(self, job: Job, place: int) -> subprocess.Popen[bytes]:
        # The modules of the user and of this repository, from wherever this process has them.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.config.launch.workers)))
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[place]
        job.folder.mkdir(parents=True, exist_ok=True)
        with (job.folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "experiments.launch.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
            )
        assert process.stdin is not None
        # It stays open: that it closes tells the process that this one has ended.
        sent = pickle.dumps(job)
        with suppress(BrokenPipeError):  # it died at once, which is seen later
            process.stdin.write(b"%d\n" % len(sent) + sent)
            process.stdin.flush()
        return process

    def close(self) -> None:
        """End all that still run; they are safe to be killed at any moment."""
        for _, process in self._running.values():
            process.kill()
        for _, process in self._running.values():
            process.communicate()
        self._running.clear()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _visible_gpus() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [name.strip() for name in named.split(",")][:count] if named else [str(number) for number in range(count)]


def _reason(job: Job, code: int) -> str:
    """Why a process did not end well."""
    if code < 0:
        return f"its process died {TRIES} times ({_signal(code)}): was memory short? {LOG} beside may say more"
    trace = job.folder / TRACEBACK
    if trace.exists():
        return trace.read_text(encoding="utf-8").splitlines()[0]
    return f"its process ended with exit code {code}: {LOG} beside says why"


def _signal(code: int) -> str:
    return signal.Signals(-code).name
