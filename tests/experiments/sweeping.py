"""Small comparisons in processes of their own, which tests kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
STEPS = 6
SMALL = [
    "--steps", f"{STEPS}", "--save-every", "2", "--batch-questions", "2", "--group-size", "2", "--minibatches", "2",
    "--held-out-size", "4", "--seeds", "2", "--algos", "grpo,sapo",
]  # fmt: skip
RUNS = [f"{label}-seed{seed}" for seed in range(2) for label in ("grpo", "sapo")]


class Sweep:
    """`experiments/ablate.py` in a process group of its own.

    Args:
        out: its folder.
        options: go over those of `SMALL`.
        cwd: in which it runs.
    """

    def __init__(self, out: Path, *options: str, cwd: Path = ROOT) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "experiments" / "ablate.py"), *SMALL, "--out", str(out), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            # Results are equal, bit for bit, where the number of threads is.
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            start_new_session=True,
            # Whoever runs the tests in the background of a script has SIGINT ignored, and children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, what: Callable[[], object]) -> None:
        """Return when it holds, or when the command has ended."""
        while not what() and self.process.poll() is None:
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it printed."""
        output, _ = self.process.communicate()
        return self.process.returncode, output

    def kill_group(self) -> None:
        """kill -9 of all processes that are in its group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def pid(self, run: str) -> int:
        """The process that is, or was, at work on a run."""
        return json.loads((self.out / "runs" / run / "progress.json").read_text())["pid"]

    def steps(self, run: str) -> int:
        """How many steps of a run are logged."""
        path = self.out / "runs" / run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def at_work(self, runs: Sequence[str]) -> bool:
        """Whether all these runs have begun."""
        return all((self.out / "runs" / run / "progress.json").exists() for run in runs)


def swept(out: Path, *options: str, cwd: Path = ROOT) -> tuple[int, str]:
    """The exit code and the output of a comparison that nobody disturbs."""
    return Sweep(out, *options, cwd=cwd).end()


def results(out: Path) -> dict[str, Any]:
    """results.json without what differs each time."""
    content = json.loads((out / "results.json").read_text())
    for run in content["runs"]:
        assert run.pop("seconds") > 0
    return content


def alive(pid: int) -> bool:
    """Whether there is such a process, and it does something."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int) -> bool:
    """Whether a process ends within a minute."""
    for _ in range(600):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False
