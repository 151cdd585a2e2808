"""What starts the runs of a comparison, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from algos.training.distributed import usable_device
from experiments.launch.job import Bench, Failure, Job, Say
from experiments.launch.local import InProcess, Processes
from experiments.launch.on_ray import RayTasks


class Launcher(Protocol):
    """Carries runs out, somewhere."""

    def __call__(self, jobs: Sequence[Job], say: Say) -> list[Failure]:
        """Carry runs out; those that failed, of which none keeps the others from going on.

        Args:
            jobs: which; each is begun anew, or gone on with from the checkpoints in its folder.
            say: for what people should know meanwhile.
        """
        ...

    def close(self) -> None:
        """End what still runs, and leave no process behind."""
        ...


def open_launcher(bench: Bench) -> Launcher:
    """The launcher that the settings name.

    Raises:
        ValueError: if it cannot be used here.
    """
    config = bench.config
    if config.launch.launcher == "ray":
        return RayTasks(config)
    if config.launch.workers > 1:
        return Processes(config)
    usable_device(config.device)
    return InProcess(bench)
