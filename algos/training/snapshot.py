"""What a checkpoint of a run holds, and how a run goes on from it: exactly, bit for bit on a CPU with the hf engine."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from algos.training.checkpoint import CheckpointError, folders, newest, read_json, write
from algos.training.distributed import Ranks, whole
from algos.training.learner import Learner
from algos.training.lora import weights
from search_gym.progress import no_progress_bars

if TYPE_CHECKING:
    from algos.training.trainer import Trainer

LOGS = ("metrics.jsonl", "trajectories.jsonl")
"""The files of a run that grow; a run that goes on cuts them to what they were at its checkpoint."""
MAY_CHANGE = frozenset(
    [
        *("steps", "micro_batch_tokens", "concurrency", "overlap_searches", "save_trajectories", "save_every"),
        *("keep_checkpoints", "max_skips", "drift_alarm"),
    ]
)
"""Settings of the loop that may be others when a run goes on: they change its length, speed, memory or files."""

_Made = TypeVar("_Made")


def save(trainer: Trainer, out: Path) -> None:
    """Write a checkpoint of the run in the folder `out`. All processes must call it; the leading one writes.

    Raises:
        CheckpointError: in every process, if it cannot be written.
    """
    learner, ranks = trainer.learner, trainer.ranks
    groups = _tensors(learner)
    states = ranks.gather(_state_of_rank(trainer))
    state = {
        "steps_done": trainer.steps_done,
        "processes": ranks.count,
        "skipped_in_a_row": learner.skipped_in_a_row,
        "settings": settings(trainer),
        "logs": {name: _synced_size(out / name) for name in LOGS} if ranks.leads else {},
    }
    size = sum(tensor.nbytes for group in groups.values() for tensor in group.values())

    def fill(folder: Path) -> None:
        for name, group in groups.items():
            _write_tensors(folder / name, group, learner)
        for rank, of_rank in enumerate(states):
            torch.save(of_rank, folder / f"rank-{rank}.pt")
        (folder / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")

    keep = trainer.config.keep_checkpoints
    by_leader(ranks, lambda: write(out, trainer.steps_done, fill, size=size, keep=keep))


def load(trainer: Trainer, out: Path) -> Path | None:
    """Go on from the newest whole checkpoint in the run folder `out`, which all processes must see.

    Returns:
        The checkpoint; None, with nothing changed, if there is none.

    Raises:
        CheckpointError: if it cannot be read, or is that of another run.
    """
    folder = by_leader(trainer.ranks, lambda: newest(out))
    if folder is None:
        return None
    state, ranks, learner = _read_state(folder / "state.json"), trainer.ranks, trainer.learner
    if state["processes"] != ranks.count:
        raise CheckpointError(
            f"{folder} was saved by {state['processes']} processes, and here are {ranks.count}: each goes on with "
            "random numbers of its own, so start as many again"
        )
    _require_equal(state["settings"], settings(trainer), folder)
    _read_tensors(folder, learner)
    _set_state_of_rank(trainer, _read_pt(folder / f"rank-{ranks.rank}.pt"))
    trainer.steps_done, learner.skipped_in_a_row = state["steps_done"], state["skipped_in_a_row"]
    if ranks.leads:
        for name, size in state["logs"].items():
            if (out / name).exists():
                os.truncate(out / name, min(size, (out / name).stat().st_size))
    trainer.engine.sync(lambda: weights(trainer.policy))
    return folder


def require_none(ranks: Ranks, out: Path) -> None:
    """Raise CheckpointError in every process if the run folder holds checkpoints, which a new run would mix with."""

    def check() -> None:
        if found := folders(out):
            raise CheckpointError(
                f"{out} holds {len(found)} checkpoints of an earlier run: go on with it (--resume), or train into "
                "another folder"
            )

    by_leader(ranks, check)


def by_leader(ranks: Ranks, work: Callable[[], _Made]) -> _Made:
    """Work for the leading process alone; every process gets what it made, or its CheckpointError."""
    outcome: tuple[Any, str | None] = (None, None)
    if ranks.leads:
        try:
            outcome = work(), None
        except CheckpointError as error:
            if ranks.count == 1:
                raise
            outcome = None, str(error)
    made, problem = ranks.gather(outcome)[0]
    if problem is not None:
        raise CheckpointError(problem)
    return made


def settings(trainer: Trainer) -> dict[str, Any]:
    """What must not change within a run, as JSON holds it."""
    loop = {f"config.{name}": value for name, value in asdict(trainer.config).items() if name not in MAY_CHANGE}
    found = {"seed": trainer.seed, "questions": len(trainer.questions), **loop}
    for part, held in (("algorithm", trainer.algorithm), ("rules", trainer.rules)):
        found[part] = type(held).__name__
        if is_dataclass(held) and not isinstance(held, type):
            found |= {f"{part}.{field.name}": _plain(getattr(held, field.name)) for field in fields(held)}
    return found


def _read_state(path: Path) -> dict[str, Any]:
    state = read_json(path)
    parts = ("steps_done", "processes", "skipped_in_a_row", "settings", "logs")
    if missing := [part for part in parts if not isinstance(state, dict) or part not in state]:
        raise CheckpointError(f"{path} lacks {', '.join(missing)}: delete that checkpoint to go on from the one before")
    return state


def _plain(value: Any) -> Any:
    """A setting as JSON gives it back: functions and objects by their names."""
    if value is None or isinstance(value, int | float | str):
        return value
    return getattr(value, "__qualname__", None) or (repr(value) if is_dataclass(value) else type(value).__qualname__)


def _require_equal(saved: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    changed = [
        f"{name} is {present[name]!r}, and was {saved[name]!r}"
        for name in present
        if name in saved and saved[name] != present[name]
    ]
    if changed:
        raise CheckpointError(
            f"this run cannot go on from {folder} with other settings: {'; '.join(changed)}. Take the old ones, or "
            "train into another folder"
        )


def _modules(learner: Learner) -> Iterator[tuple[str, nn.Module]]:
    """What is trained, by the name of its file. Unwrapped: the names of parameters are the same however they are
    spread over processes."""
    yield "policy", learner.policy.model
    if learner.critic is not None:
        yield "critic", learner.critic


@torch.no_grad()
def _tensors(learner: Learner) -> dict[str, dict[str, Tensor]]:
    """Parameters and the optimiser's state, by file and name, whole and on the CPU; in the leading process alone."""
    found: dict[str, dict[str, Tensor]] = {}

    def put(file: str, name: str, value: Tensor) -> None:
        value = whole(value)  # all processes must come here
        if learner.ranks.leads:
            found.setdefault(file, {})[name] = value.cpu().contiguous()

    for part, module in _modules(learner):
        seen: set[int] = set()  # tied parameters have two names
        for name, value in module.state_dict(keep_vars=True).items():
            frozen = isinstance(value, nn.Parameter) and not value.requires_grad
            if not frozen and id(value) not in seen:
                put(part, name, value)
            seen.add(id(value))
        for name, parameter in module.named_parameters():
            for key, value in learner.optimizer.state.get(parameter, {}).items():
                put(f"{part}-optimizer", f"{name}/{key}", value)
    return found


def _write_tensors(path: Path, group: dict[str, Tensor], learner: Learner) -> None:
    model = learner.policy.model
    if path.name != "policy":
        save_file(group, path.with_suffix(".safetensors"))
    elif all(parameter.requires_grad for parameter in model.parameters()):
        with no_progress_bars():
            # The names of the parameters as they are, so that they are found again one by one.
            model.save_pretrained(path, state_dict=group, save_original_format=False)
    else:
        path.mkdir()
        save_file(group, path / "adapters.safetensors")


class _Tensors:
    """The tensors of safetensors files, each read when it is asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self._where: dict[str, Path] = {}
        for path in paths:
            try:
                with safe_open(path, "pt") as file:
                    self._where |= dict.fromkeys(file.keys(), path)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._where if name.startswith(prefix)]

    def get(self, name: str, like: Tensor | None = None) -> Tensor:
        """The tensor, spread over the processes as `like` is."""
        if name not in self._where:
            files = ", ".join(map(str, sorted(set(self._where.values())))) or "the checkpoint"
            raise CheckpointError(f"{files} lacks {name}: was this run trained with other options, or another model?")
        path = self._where[name]
        with safe_open(path, "pt") as file:
            value: Tensor = file.get_tensor(name)
        if like is None:
            return value
        if value.shape != like.shape:
            raise CheckpointError(f"{name} has shape {[*value.shape]} in {path}, and {[*like.shape]} in the model")
        if isinstance(like, DTensor):
            return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
        return value


@torch.no_grad()
def _read_tensors(folder: Path, learner: Learner) -> None:
    numbers = {
        id(parameter): number
        for number, parameter in enumerate(p for group in learner.optimizer.param_groups for p in group["params"])
    }
    states: dict[int, dict[str, Tensor]] = {}
    for part, module in _modules(learner):
        files = sorted((folder / part).glob("*.safetensors")) or [folder / f"{part}.safetensors"]
        found = _Tensors(files)
        optimizer = _Tensors([path for path in [folder / f"{part}-optimizer.safetensors"] if path.exists()])
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(found.get(name, parameter))
                states[numbers[id(parameter)]] = {
                    key.removeprefix(f"{name}/"): optimizer.get(key, None if key.endswith("/step") else parameter)
                    for key in optimizer.names(f"{name}/")
                }
        for name, buffer in module.named_buffers():
            if found.names(name):
                buffer.copy_(found.get(name, buffer))
    optimizer_state = {"state": {number: state for number, state in states.items() if state}}
    learner.optimizer.load_state_dict(
        optimizer_state | {"param_groups": learner.optimizer.state_dict()["param_groups"]}
    )


def _state_of_rank(trainer: Trainer) -> dict[str, Any]:
    """What differs between processes: random states, and where the rollouts are."""
    on_gpu = trainer.policy.device.type == "cuda"
    return {
        "rollouts": trainer.rollouts.state_dict(),  # first: it waits for a thread that may draw random numbers
        "minibatches": trainer.learner.generator.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(trainer.policy.device) if on_gpu else None,
    }


def _set_state_of_rank(trainer: Trainer, state: Mapping[str, Any]) -> None:
    trainer.rollouts.load_state_dict(state["rollouts"])
    trainer.learner.generator.set_state(state["minibatches"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and trainer.policy.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], trainer.policy.device)


def _read_pt(path: Path) -> dict[str, Any]:
    """What torch.save wrote; runs no code, whatever the file holds."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _synced_size(path: Path) -> int:
    """The size of a log in bytes, once so much of it is on the disk; 0 if it is not there."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
