"""Runs as tasks of Ray, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.config import AblateConfig
from experiments.launch.job import LOG, TRIES, Failure, Job, Say, attempt


class RayTasks:
    """Runs as tasks, as many at once as the resources of the cluster allow.

    A task whose worker or machine is lost is started again by Ray, on another machine perhaps, and goes on from the
    checkpoints in its folder.

    Args:
        config: says on which cluster, and what a run needs.

    Raises:
        ValueError: if Ray is not installed, there is no such cluster, or it can never run a task.
    """

    def __init__(self, config: AblateConfig) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ValueError("--launcher ray needs Ray: pip install 'search-gym[ray]'") from error
        self._ray, launch = ray, config.launch
        _require_listening(launch.ray_address)
        local: dict[str, Any] = {} if launch.ray_address else {"include_dashboard": False}
        try:
            ray.init(launch.ray_address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
        except (ConnectionError, RuntimeError) as error:
            hint = "" if launch.ray_address == "auto" else " (a cluster that wants a token: set RAY_AUTH_MODE=token)"
            raise ValueError(f"no Ray cluster at --ray-address {launch.ray_address}: {error}{hint}") from error
        needs = {"CPU": launch.run_cpus, "GPU": launch.gpus(config.device)}
        self._run = ray.remote(max_retries=TRIES - 1, num_cpus=needs["CPU"], num_gpus=needs["GPU"])(_remotely)
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._fits = any(all(has.get(name, 0) >= much for name, much in needs.items()) for has in machines)
        self._needs = " and ".join(f"{much:g} {name}" for name, much in needs.items() if much)
        if not self._fits and not launch.ray_address:
            self.close()
            raise ValueError(f"a run needs {self._needs}, and this machine has less: see --run-cpus and --run-gpus")

    def __call__(self, jobs: Sequence[Job], say: Say) -> list[Failure]:
        """Carry them out; those that failed."""
        ray = self._ray
        if not self._fits:
            say(f"A run needs {self._needs}, and no machine of the cluster has it now: the runs wait for one.")
        tasks = {self._run.remote(absolute(job), str(Path.cwd())): job for job in jobs}
        waiting, failures = list(tasks), list[Failure]()
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=1.0)
            for task in ready:
                if reason := self._outcome(task):
                    failures.append(Failure.note(tasks[task], reason))
        return failures

    def _outcome(self, task: Any) -> str:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            return f"Ray lost it, and {TRIES - 1} times again: {first}; {LOG} beside may say more"

    def close(self) -> None:
        """End what still runs, and Ray with it where it is this command's own."""
        self._ray.shutdown()


def _require_listening(address: str) -> None:
    """Raise ValueError if HOST:PORT takes no connection: Ray itself says so after more than five minutes."""
    host, separator, port = address.rpartition("://")[2].rpartition(":")
    if not separator:
        return  # "auto" and "local", which Ray looks up on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"no Ray cluster at --ray-address {address}: {error}") from error


def absolute(job: Job) -> Job:
    """The same run, for a process in another folder."""
    return replace(job, config=replace(job.config, out=job.config.out.resolve()))


def _remotely(job: Job, folder: str) -> str:
    """`attempt` in a worker of Ray, in the folder in which the command runs."""
    shared = job.config.out / "config.json"
    if not (Path(folder).is_dir() and shared.exists()):
        return (
            f"{socket.gethostname()} does not see {shared}: the run folder and {folder} must be on a shared filesystem"
        )
    os.chdir(folder)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))  # set by Ray, maybe after torch was loaded
    return attempt(job)
