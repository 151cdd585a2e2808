"""Where and how the runs of a comparison take place: settings that change no result."""

from __future__ import annotations

import math
from dataclasses import dataclass

LAUNCHERS = ("local", "ray")


@dataclass(frozen=True)
class LaunchConfig:
    """Where and how the runs take place. None of it changes what they find."""

    launcher: str = "local"
    """What starts the runs: local, on this machine; or ray, as tasks of Ray, here or on a cluster."""
    workers: int = 1
    """Of local: runs side by side. 1: in this process, one after the other. More: each in a process of its own, with
    its share of the cores (unless OMP_NUM_THREADS is set) and, with --device cuda, a GPU."""
    ray_address: str = ""
    """Of ray: the cluster, such as "auto" or HOST:PORT. Empty: a Ray of its own on this machine, which ends with the
    command. All machines must share the run folder."""
    run_cpus: float = 1.0
    """Of ray: cores that a run needs, and threads that it computes with."""
    run_gpus: float | None = None
    """Of ray: GPUs that a run needs; several runs share one where it is below 1. None: 1 with --device cuda, else 0."""
    live: bool = False
    """Show all runs while they go on: state, step, reward, ratio, time left."""
    keep_run_checkpoints: bool = False
    """Keep the checkpoints of a run that is finished."""

    def check(self, device: str) -> None:
        """Raise ValueError if these settings do not go together, or with the device of the runs."""
        if self.launcher not in LAUNCHERS:
            raise ValueError(f"no launcher is called {self.launcher!r}; there are: {', '.join(LAUNCHERS)}")
        if self.workers < 1:
            raise ValueError(f"--workers must be at least 1, not {self.workers}")
        if not 0 < self.run_cpus < math.inf:
            raise ValueError(f"--run-cpus must be above 0, not {self.run_cpus:g}")
        if not 0 <= (self.run_gpus or 0) < math.inf:
            raise ValueError(f"--run-gpus must be at least 0, not {self.run_gpus:g}")
        if self.launcher == "ray" and self.workers > 1:
            raise ValueError(
                "--workers is of --launcher local: Ray runs as many at once as --run-cpus and --run-gpus allow"
            )
        of_ray = {"--ray-address": self.ray_address, "--run-gpus": self.run_gpus, "--run-cpus": self.run_cpus != 1}
        if self.launcher == "local" and (given := [name for name, value in of_ray.items() if value]):
            raise ValueError(f"{' and '.join(given)} cannot be used without --launcher ray")
        if self.launcher == "ray" and device.startswith("cuda:"):
            raise ValueError(f"with --launcher ray, Ray chooses the GPU of a run: --device cuda, not {device}")

    def gpus(self, device: str) -> float:
        """`run_gpus` with its default filled in."""
        return float(device.startswith("cuda")) if self.run_gpus is None else self.run_gpus
