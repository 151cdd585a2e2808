"""Checkpoint folders: written whole or not at all, and checked before they are read.

OUT/checkpoints/step-000012/
    policy/              the policy; a plain Hugging Face folder unless only adapters are trained
    *.safetensors        the optimiser's state, and a critic
    rank-0.pt            random states and rollouts of each process
    state.json           where the run stands
    manifest.json        sizes and digests of all other files; written last
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

_log = logging.getLogger(__name__)

_FOLDER, _MANIFEST, _TEMPORARY = "checkpoints", "manifest.json", ".tmp"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, cannot be read, or is not one of this run."""


def folders(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, damaged ones too."""
    return sorted((out / _FOLDER).glob("step-*[0-9]"), key=_step)


def write(out: Path, step: int, fill: Callable[[Path], None], *, size: int, keep: int) -> Path:
    """Write a checkpoint, then remove older ones.

    It is written into a folder beside and renamed when all of it is on the disk: a process that is killed at any moment
    leaves either the whole checkpoint or none.

    Args:
        out: the run folder.
        step: names the checkpoint; one that is there for the same step is replaced.
        fill: writes the files into the folder that it gets.
        size: about how many bytes that will be.
        keep: how many checkpoints stay, >= 1: this one and those before it.

    Raises:
        CheckpointError: if it cannot be written. The older ones are as they were.
    """
    parent = out / _FOLDER
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"*{_TEMPORARY}"):  # of a run that was killed
        shutil.rmtree(leftover)
    target = parent / f"step-{step:06d}"
    temporary = parent / f"{target.name}{_TEMPORARY}"
    try:
        if shutil.disk_usage(parent).free < size:
            raise OSError("the disk is too full")
        temporary.mkdir()
        fill(temporary)
        _seal(temporary)
        _remove(target)
        temporary.rename(target)
        _sync(parent)
    except (OSError, SafetensorError, RuntimeError) as error:  # each writer has an error of its own for a full disk
        shutil.rmtree(temporary, ignore_errors=True)
        free = shutil.disk_usage(parent).free
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {parent}: {error}. It needs about {_mib(size)}, "
            f"and {_mib(free)} are free. Earlier checkpoints are whole: make room, then go on with --resume"
        ) from error
    earlier = [folder for folder in folders(out) if _step(folder) < step]
    for folder in earlier[: max(0, len(earlier) - (keep - 1))]:
        _remove(folder)
    return target


def newest(out: Path) -> Path | None:
    """The newest whole checkpoint of a run; None if it has none at all. Warns of damaged ones that are newer.

    Raises:
        CheckpointError: if there are checkpoints, and every one is damaged.
    """
    problems: list[str] = []
    for folder in reversed(folders(out)):
        try:
            verify(folder)
        except CheckpointError as error:
            _log.warning("%s; trying the one before", error)
            problems.append(str(error))
        else:
            return folder
    if problems:
        raise CheckpointError(f"no checkpoint in {out / _FOLDER} is whole: {'; '.join(problems)}")
    return None


def verify(folder: Path) -> None:
    """Raise CheckpointError, with the name of the file, unless every file is as it was written."""
    try:
        files = read_json(folder / _MANIFEST)["files"]
        expected = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder / _MANIFEST} is damaged: {error!r}") from error
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: the checkpoint is damaged")
        if path.stat().st_size != size or _digest(path) != digest:
            raise CheckpointError(f"{path} is not what was written (size or SHA-256): the checkpoint is damaged")


def read_json(path: Path) -> Any:
    """What the file holds. Raises CheckpointError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _seal(folder: Path) -> None:
    """Write the manifest, and see that everything is on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in paths
    }
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"files": entries}, indent=1), encoding="utf-8")
    for path in (*paths, manifest, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a checkpoint if it is there; one that is removed by half must not look like a checkpoint."""
    if folder.exists():
        gone = folder.rename(folder.with_name(f"removed-{folder.name}{_TEMPORARY}"))
        shutil.rmtree(gone)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
