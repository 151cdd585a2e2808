"""What the folders around a file of dialogues say about it: the algorithm, the seed, the step, the tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# What experiments/train.py, ablate.py and evaluate.py leave.
PATTERNS = (
    "**/trajectories*.jsonl",
    "**/evaluations/*.jsonl",
    "**/start/*.jsonl",
    "**/end/*.jsonl",
    "**/answers.jsonl",
)
# From COMPARISON/runs/LABEL-seedN/end/greedy.jsonl to COMPARISON/config.json.
_LEVELS = 4
_STEP = re.compile(r"step-(\d+)")
_RUN = re.compile(r"(.+)-seed(\d+)")


@dataclass(frozen=True)
class Context:
    """What is known of a file by its place; empty or None where nothing is."""

    algorithm: str = ""
    seed: int | None = None
    step: int | None = None
    tokenizer: str = ""
    """A folder with tokenizer.json, or what the run's settings call its model."""


def files(folder: Path) -> list[Path]:
    """The files of dialogues in a run folder that are not empty, in order.

    Raises:
        ValueError: if there is none.
    """
    found = sorted({path for pattern in PATTERNS for path in folder.glob(pattern) if path.stat().st_size})
    if not found:
        raise ValueError(
            f"{folder}: no trajectories here: name a run folder of train.py, ablate.py or evaluate.py "
            f"({', '.join(PATTERNS)}), or a file"
        )
    return found


def context(file: Path) -> Context:
    """What the folders around a file say. What lies nearest counts."""
    known = Context()
    step = _STEP.fullmatch(file.name.removesuffix(".gz").removesuffix(".jsonl"))
    if step:
        known = replace(known, step=int(step[1]))
    for folder in _around(file):
        said = _said(folder, file)
        known = Context(
            algorithm=known.algorithm or said.algorithm,
            seed=said.seed if known.seed is None else known.seed,
            step=said.step if known.step is None else known.step,
            tokenizer=known.tokenizer or said.tokenizer,
        )
    return known


def _around(file: Path) -> Iterator[Path]:
    yield from list(file.resolve().parents)[:_LEVELS]


def _said(folder: Path, file: Path) -> Context:
    """What one folder says."""
    config, result = _json(folder / "config.json"), _json(folder / "result.json")
    named = result or _json(folder / "progress.json")  # of a run that goes on, or that was stopped
    run = _RUN.fullmatch(folder.name)
    algorithm = named.get("algorithm") or config.get("algo") or (run[1] if run else "")
    seed = named.get("seed", config.get("seed", int(run[2]) if run else None))
    # The start of a comparison belongs to no algorithm; its end is after the last step.
    ended = result.get("steps") if file.parent == folder / "end" else None
    local = next((at for at in (folder / "policy", folder) if (at / "tokenizer.json").is_file()), None)
    return Context(
        algorithm=algorithm if isinstance(algorithm, str) else "",
        seed=whole(seed),
        step=0 if folder.name == "start" else whole(ended),
        tokenizer=str(local or config.get("model") or ""),
    )


def whole(value: Any) -> int | None:
    """A whole number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is none, for the folders around may be anybody's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
