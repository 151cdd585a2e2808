"""Checkpoint folders: whole or absent, verified, and the newest ones kept."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resume_worker import CONFIG, rows, trainer, work
from safetensors.torch import load_file

from algos.training import checkpoint
from algos.training.checkpoint import CheckpointError, folders, newest, verify, write

THREE = replace(CONFIG, steps=3, keep_checkpoints=3)


def filled(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "a.txt").write_text(text)
        (folder / "b.txt").write_text(text * 2)

    return fill


def save(out: Path, step: int, keep: int = 2) -> Path:
    return write(out, step, filled(f"step {step}"), size=100, keep=keep)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").iterdir())


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_the_newest_ones_are_kept(gaps: list[int], keep: int) -> None:
    steps = [999_900 + sum(gaps[: number + 1]) for number in range(len(gaps))]  # some have seven digits
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        for count, step in enumerate(steps, start=1):
            assert newest(out) == (folders(out)[-1] if count > 1 else None)
            assert save(out, step, keep) == newest(out)
            assert [f.name for f in folders(out)] == [f"step-{s:06d}" for s in steps[max(0, count - keep) : count]]


def test_what_a_killed_run_left_is_removed_at_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "checkpoints" / "step-000001", tmp_path / "checkpoints" / "step-000002.tmp")
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    save(tmp_path, 3)
    assert names(tmp_path) == ["step-000001", "step-000003"]


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [damage_cut, damage_bit, Path.unlink], ids=["cut", "bit", "gone"])
@pytest.mark.parametrize("name", ["part/a.txt", "b.txt", "manifest.json"])
def test_a_damaged_one_is_refused_by_the_name_of_its_file(
    tmp_path: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    damage(tmp_path / "checkpoints" / "step-000002" / name)
    named = name
    if name == "manifest.json" and damage is damage_bit:
        named = ""  # the flipped bit may be in any name or digest
    with pytest.raises(CheckpointError, match=f"step-000002.*{named}"):
        verify(tmp_path / "checkpoints" / "step-000002")
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    assert "step-000002" in caplog.text
    assert "trying the one before" in caplog.text


def test_with_every_one_damaged_a_run_does_not_begin_anew(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "b.txt").write_text("else")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole: .*b\.txt"):
        newest(tmp_path)


def test_a_damaged_one_is_replaced_by_a_run_that_comes_to_its_step_again(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "b.txt").write_text("else")
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    save(tmp_path, 2)
    assert newest(tmp_path) == tmp_path / "checkpoints" / "step-000002"
    assert names(tmp_path) == ["step-000001", "step-000002"]


def test_a_run_goes_on_from_the_one_before_a_damaged_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer(THREE).train(tmp_path)
    logged = rows(tmp_path)
    damage_bit(tmp_path / "checkpoints" / "step-000003" / "policy" / "model.safetensors")
    seen: list[int] = []
    with caplog.at_level(logging.WARNING):
        trainer(THREE).train(tmp_path, lambda metrics: seen.append(metrics["step"]), resume=True)
    assert "step-000003/policy/model.safetensors is not what was written" in caplog.text
    assert seen == [3]
    assert rows(tmp_path) == logged
    verify(tmp_path / "checkpoints" / "step-000003")


def test_a_disk_that_is_too_full_is_said_before_anything_is_written(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"step 2 .* too full\. It needs about 953,674,316\.4 MiB, and .* free"):
        write(tmp_path, 2, filled("x"), size=10**15, keep=1)
    assert names(tmp_path) == ["step-000001"]
    verify(tmp_path / "checkpoints" / "step-000001")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MiB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("said", [True, False], ids=["foreseen", "met"])
def test_a_full_disk_leaves_the_earlier_ones_whole(
    small_disk: Path, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not said:  # it fills while the checkpoint is written: somebody else's files
        usage = shutil.disk_usage(small_disk)
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage)
    last: list[int] = []
    with pytest.raises(CheckpointError, match=r"could not be written to .*: .* needs about 1\d\.\d MiB, and .*free"):
        trainer(replace(CONFIG, keep_checkpoints=9)).train(small_disk, lambda metrics: last.append(metrics["step"]))
    step = last[-1] - 1
    assert step >= 1
    assert newest(small_disk) == small_disk / "checkpoints" / f"step-{step:06d}"
    assert names(small_disk) == [f"step-{number:06d}" for number in range(1, step + 1)]


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        synced.append(path.relative_to(tmp_path / "checkpoints").as_posix())

    monkeypatch.setattr(os, "fsync", fsync)
    save(tmp_path, 1)
    assert synced.pop() == "."  # the new name itself
    written = ["", "part", "part/a.txt", "b.txt", "manifest.json"]
    assert sorted(synced) == sorted(str(Path("step-000001.tmp") / name) for name in written)
    assert synced[-1] == "step-000001.tmp"


def wait_for(out: Path, pattern: str, process: ForkServerProcess) -> None:
    """Wait until the run has such a folder among its checkpoints."""
    while not list((out / "checkpoints").glob(pattern)):
        assert process.is_alive()
        time.sleep(0.001)


@pytest.mark.slow
def test_killed_twenty_times_a_run_ends_as_if_it_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A server that has imported everything forks each process: starting twenty of them anew would take minutes.
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parents[2]}")
    context = get_context("forkserver")
    context.set_forkserver_preload(["resume_worker"])
    out, whole, endless = tmp_path / "killed", tmp_path / "whole", 10**6

    def start(folder: Path, steps: int) -> ForkServerProcess:
        process = context.Process(target=work, args=(folder, steps))
        process.start()
        return process

    start(tmp_path / "first", 0).join()  # from here on everything is imported
    moments, done, begun = random.Random(0), 0, time.monotonic()
    first = 0.0  # how long it takes to start and to come to a checkpoint
    for kill in range(20):
        if kill % 2:  # in the middle of saving; what a life before left there is no sign of it
            for leftover in (out / "checkpoints").glob("*.tmp"):
                shutil.rmtree(leftover)
        process = start(out, endless)
        if kill == 0:
            wait_for(out, "step-000001", process)
            first = time.monotonic() - begun
        elif kill % 2:
            wait_for(out, "*.tmp", process)
            time.sleep(moments.random() * 0.02)
        else:
            time.sleep(moments.random() * 1.5 * first)
        process.kill()
        process.join()
        assert process.exitcode == -9
        for folder in folders(out):
            verify(folder)
        found = newest(out)
        assert found is not None
        now = json.loads((found / "state.json").read_text())["steps_done"]
        assert now >= done
        done = now
    for folder in (out, whole):
        process = start(folder, done + 2)
        process.join()
        assert process.exitcode == 0
    assert caplog.records == []
    assert rows(out) == rows(whole)
    assert [row["step"] for row in rows(out)] == [*range(1, done + 3)]
    assert (out / "trajectories.jsonl").read_bytes() == (whole / "trajectories.jsonl").read_bytes()
    weights = [load_file(folder / "weights.safetensors") for folder in (out, whole)]
    assert [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])] == []
