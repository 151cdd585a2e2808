"""Reading dialogues from files and run folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from search_gym import jsonl, tokenizers
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory
from search_gym.viewer import runs
from search_gym.viewer.dialogues import Dialogue, Origin, of_recorded, of_trajectory


@dataclass(frozen=True)
class Reading:
    """What was read."""

    dialogues: list[Dialogue]
    total: int
    """How many there are; more than `dialogues` where some were left out."""
    notes: list[str] = field(default_factory=list)
    """What the reader should know, such as a tokenizer that was not found."""


class Tokenizers:
    """The tokenizer of each file: by name or place, each loaded once."""

    def __init__(self, named: str | None = None) -> None:
        self._named = named
        self._loaded: dict[str, Tokenizer | str] = {}
        self.notes: dict[Path, str] = {}
        """By file, why its dialogues are not shown token by token."""

    def get(self, file: Path, found: str) -> Tokenizer | None:
        """The one that was named, or the one `found` around the file; None where there is none, which is noted.

        Raises:
            ValueError: if the one that was named cannot be loaded.
        """
        if self._named is not None:
            loaded = self._load(self._named)
        else:
            loaded = self._load(found) if found else "there is no run around the file"
        if isinstance(loaded, Tokenizer):
            return loaded
        self.note(file, f"no tokenizer ({loaded})")
        return None

    def note(self, file: Path, reason: str) -> None:
        """Say that a file is not shown token by token."""
        self.notes.setdefault(file, f"{file}: shown without tokens: {reason}; name one with --tokenizer")

    def _load(self, source: str) -> Tokenizer | str:
        """A tokenizer, or why it cannot be loaded."""
        if source not in self._loaded:
            try:
                self._loaded[source] = tokenizers.load(source)
            except ValueError as error:
                if source == self._named:
                    raise
                self._loaded[source] = str(error)
        return self._loaded[source]


def read(source: Path, *, tokenizer: str | None = None, limit: int = 0) -> Reading:
    """Read the dialogues of a file or run folder.

    Args:
        source: a file of trajectories or of recorded dialogues, or a folder of runs.
        tokenizer: what `tokenizers.load` takes; the run's own unless given.
        limit: keep at most so many, evenly over all; 0: all.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: if there are no dialogues, or a line is none: "file:line: reason".
    """
    known = Tokenizers(tokenizer)
    files = runs.files(source) if source.is_dir() else [source]
    root = source if source.is_dir() else source.parent
    kept: list[Dialogue] = []
    total, stride = 0, 1
    for make in (make for file in files for make in _rows(file, root, known)):
        if total % stride == 0:
            kept.append(make())
        total += 1
        if limit and len(kept) > limit:
            kept, stride = kept[::2], stride * 2
    if not kept:
        raise ValueError(f"{source}: the file is empty: it needs a trajectory or a recorded dialogue a line")
    notes = [*known.notes.values()]
    if len(kept) < total:
        notes.append(f"{len(kept):,} of {total:,} dialogues are shown, evenly over all; --limit 0 shows all")
    return Reading(kept, total, notes)


def _rows(file: Path, root: Path, known: Tokenizers) -> Iterator[Callable[[], Dialogue]]:
    """What makes the dialogue of each line: most of the time goes into cutting it into tokens."""
    around = runs.context(file)
    name = file.relative_to(root).as_posix()
    for line, row in jsonl.read(file, _recognised):

        def make(line: int = line, row: Trajectory | jsonl.Row = row) -> Dialogue:
            try:
                return _dialogue(row, file, _origin(row, name, line, around), around, known)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}:{line}: {error}") from error

        yield make


def _recognised(row: jsonl.Row) -> Trajectory | jsonl.Row:
    if "ids" in row and "turns" in row:
        return Trajectory.from_row(row)
    if "response" in row:
        return row
    raise ValueError(
        f"neither a trajectory (ids, turns) nor a recorded dialogue (prompt, response); there are: {[*row]}"
    )


def _origin(row: Trajectory | jsonl.Row, name: str, line: int, around: runs.Context) -> Origin:
    extra: dict[str, Any] = row.extra if isinstance(row, Trajectory) else {}
    seed, step = runs.whole(extra.get("seed")), runs.whole(extra.get("step"))
    return Origin(
        file=name,
        line=line,
        algorithm=str(extra.get("algorithm") or around.algorithm),
        seed=around.seed if seed is None else seed,
        step=around.step if step is None else step,
    )


def _dialogue(
    row: Trajectory | jsonl.Row, file: Path, origin: Origin, around: runs.Context, known: Tokenizers
) -> Dialogue:
    if not isinstance(row, Trajectory):
        return of_recorded(row, origin)
    tokenizer = known.get(file, around.tokenizer)
    made = of_trajectory(row, tokenizer, origin)
    if tokenizer is not None and not made.tokens:
        known.note(file, f"the tokenizer {tokenizer.name} does not give back the text of line {origin.line}")
    return made
