"""A training step's log-probs, loss and backward pass: ours, TRL's and that from all logits, on recorded trajectories.

python benchmarks/training.py --peers-python .venv-peers/bin/python
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

import torch
import tyro

from benchmarks import training_rows
from benchmarks.serving import environment
from benchmarks.training_worker import WAYS, Request
from experiments.models import resolve
from search_gym import tokenizers

OURS = next(iter(WAYS))
SETTINGS = {
    "float32": {},
    "float32, activation checkpointing": {"checkpointing": True},
    "bfloat16, activation checkpointing": {"bfloat16": True, "checkpointing": True},
    "float32, the head alone": {"head_only": True},
}
"""By what name a setting goes, and the fields of `Request` that it sets."""
TOLERANCE = 1e-3
"""How far the gradients of two ways in float32 may differ, relative to the largest element of each parameter's."""


@dataclass(frozen=True)
class Config:
    """Compare ways of a training step. Each is measured in a process of its own, round after round."""

    recorded: Path = ROOT.parent / "shared" / "data" / "trajectories" / "bamboogle.jsonl"
    """Recorded dialogues, JSONL with `prompt` and `response`."""
    models: tuple[str, ...] = ("smollm2", "embedded")
    """As `--model` of the experiments names them."""
    rows: int = 4
    """Trajectories of a step: the first of the file."""
    micro_rows: tuple[int, ...] = (1, 4)
    """Rows of a micro-batch; for ours, as many tokens as so many of the longest rows have."""
    settings: tuple[str, ...] = tuple(SETTINGS)
    """Which of `SETTINGS`."""
    rounds: int = 1
    """Measurements of each; the tables hold medians, and medians of the ratios within a round."""
    threads: int = 1
    """Of each process. With one, the processor's seconds hardly depend on what else runs."""
    peers_python: Path | None = None
    """The Python of an environment with TRL; without one its ways are left out."""


Measured = Mapping[str, Any]
"""What a worker prints."""


def run(request: Request, python: Path, threads: int) -> Measured:
    """One measurement: a process for the time, and one for the peak of memory, `held_mib`, beside the first's."""
    command = [str(python), "-m", "benchmarks.training_worker", json.dumps(asdict(request))]
    env = environment() | {"OMP_NUM_THREADS": str(threads)}
    # What is freed goes back to the system at once, where glibc keeps much of it for later: then the peak is what the
    # tensors need. It costs time, so it is not the process that is timed.
    exact = env | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    timed, held = (
        json.loads(subprocess.run(command, cwd=ROOT, env=e, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for e in (env, exact)
    )
    return {**timed, "held_mib": held["peak_mib"]}


def difference(one: Path, other: Path) -> float:
    """The greatest of two files of gradients, relative to the largest element of each parameter's."""
    ours, theirs = torch.load(one), torch.load(other)
    if ours.keys() != theirs.keys():
        raise ValueError(f"gradients of {sorted(ours)} cannot be compared with those of {sorted(theirs)}")
    return max(((ours[n] - theirs[n]).abs().max() / ours[n].abs().max()).item() for n in ours)


def compare(request: Request, pythons: Mapping[str, Path], rounds: int, threads: int) -> dict[str, list[Measured]]:
    """Every way, round after round.

    Raises:
        ValueError: if a way's gradients in float32 are not ours: it would not be the same step.
    """
    found: dict[str, list[Measured]] = {way: [] for way in pythons}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for way, python in pythons.items():
                kept = Path(folder) / way
                measured = run(replace(request, way=way, gradients=str(kept)), python, threads)
                apart = math.nan if request.head_only else difference(Path(folder) / OURS, kept)
                if apart > TOLERANCE and not request.bfloat16:
                    raise ValueError(f"{way}: gradients differ from ours by {apart:.1e}, more than {TOLERANCE:.0e}")
                found[way].append({**measured, "apart": apart})
                print(json.dumps({"way": way, **found[way][-1]}), file=sys.stderr, flush=True)
    return found


def table(found: Mapping[str, Sequence[Measured]]) -> Iterator[str]:
    """Medians of a setting, and how much of the time and memory of each other way ours takes."""
    columns = ("processor, s", "tensors, MiB", "process, MiB", "ours, time", "ours, tensors", "gradients apart")
    yield f"| way | {' | '.join(columns)} |"
    yield "| --- " + "| ---: " * len(columns) + "|"
    for way, rows in found.items():

        def middle(name: str, rows: Iterable[Measured] = rows) -> float:
            return median(row[name] for row in rows)

        def share(name: str, rows: Iterable[Measured] = rows) -> str:
            return f"{median(our[name] / row[name] for our, row in zip(found[OURS], rows, strict=True)):.2f}"

        apart = "" if math.isnan(middle("apart")) else f"{middle('apart'):.0e}"
        ratios = "| |" if way == OURS else f"{share('cpu_seconds')} | {share('held_mib')} | {apart}"
        shown = f"{middle('cpu_seconds'):.1f} | {middle('held_mib'):,.0f} | {middle('peak_mib'):,.0f}"
        yield f"| {way} | {shown} | {ratios} |"


def main(config: Config) -> None:
    """Print a table for each model, micro-batch and setting."""
    ours, peers = Path(sys.executable), config.peers_python
    if peers is None:
        print("TRL is left out: give --peers-python")
    pythons = {way: peers if way.startswith("TRL") else ours for way in WAYS}
    known = {way: python.absolute() for way, python in pythons.items() if python is not None}
    with tempfile.TemporaryDirectory() as folder:
        for name in config.models:
            model, path = resolve(name), Path(folder) / f"{name.replace('/', '-')}.json"
            rows = training_rows.read(config.recorded, config.rows, tokenizers.load(model))
            training_rows.save(rows, path)
            tokens, sampled = sum(len(r.prompt) + len(r.response) for r in rows), sum(sum(r.mask) for r in rows)
            print(f"\n### {name}: {len(rows)} trajectories, {tokens:,} tokens, {sampled:,} of them the policy's")
            for setting in config.settings:
                for micro_rows in config.micro_rows:
                    request = Request(OURS, model, str(path), micro_rows, **SETTINGS[setting])
                    print(f"\n{setting}, micro-batches of {micro_rows} rows\n")
                    print("\n".join(table(compare(request, known, config.rounds, config.threads))), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
