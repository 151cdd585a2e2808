"""What an episode leaves behind: frozen records for whoever trains on them or looks at them, to and from JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from search_gym import jsonl

TurnKind = Literal["search", "answer", "invalid", "unfinished"]


@dataclass(frozen=True)
class Turn:
    """One turn of the policy, and what the environment put after it."""

    kind: TurnKind
    """What the turn was read as; "unfinished" where a budget ran out in its middle."""
    text: str
    """The policy's own text of the turn, derived from its ids."""
    argument: str
    """The query of a search, the text of an answer, the reason why a turn is invalid or unfinished."""
    policy: tuple[int, int]
    """Half-open span of the sampled ids in `Trajectory.ids` (mask 1)."""
    inserted: tuple[int, int]
    """Half-open span of the ids that the environment inserted afterwards (mask 0); empty where there is none."""
    hits: tuple[str, ...] = ()
    """Ids of the passages that were inserted, in order."""
    cut: bool = False
    """Whether the inserted passages were cut to fit a budget."""
    failed: str = ""
    """Why the search could not be carried out; empty where it was."""


@dataclass(frozen=True)
class Trajectory:
    """One episode from the prompt to its end.

    `ids[t]` is the id at position t, `mask[t]` whether the policy sampled it (only such ids take part in a loss), and
    `logprobs[t]` the log-probability that the sampler gave it: 0.0 where mask is 0, all 0.0 where none were handed in.
    """

    question_id: str
    question: str
    golds: tuple[str, ...]
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_length: int
    """The first `prompt_length` ids are the prompt."""
    turns: tuple[Turn, ...] = ()
    answer: str | None = None
    """The text of the final answer; None where the episode ended without one."""
    reward: float = 0.0
    em: float = 0.0
    f1: float = 0.0
    terminated: bool = False
    """The policy answered."""
    truncated: str = ""
    """The budget that ran out ("turns", "context"); empty where none did."""
    text: str = ""
    """The whole dialogue, prompt included, as text: for people, never encoded again."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What a caller adds: an algorithm's name, a seed, a training step."""

    @property
    def searches(self) -> int:
        """How many searches were made."""
        return sum(turn.kind == "search" for turn in self.turns)

    @property
    def failed_searches(self) -> int:
        """How many of them could not be carried out."""
        return sum(bool(turn.failed) for turn in self.turns)

    @property
    def invalid_actions(self) -> int:
        """How many turns could not be read as an action."""
        return sum(turn.kind == "invalid" for turn in self.turns)

    def to_json(self) -> str:
        """One line of JSON without a line break in it."""
        return json.dumps(asdict(self), ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Trajectory:
        """The inverse of `to_json`."""
        return cls.from_row(json.loads(line))

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Trajectory:
        """A trajectory of what JSON holds. Raises ValueError where that is something else."""
        try:
            fields = _frozen(row)
            fields["turns"] = tuple(Turn(**_frozen(turn)) for turn in row["turns"])
            return cls(**fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a trajectory: {error}") from error


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def write_jsonl(path: str | PathLike[str], trajectories: Iterable[Trajectory], *, append: bool = False) -> None:
    """Write one trajectory a line."""
    with Path(path).open("a" if append else "w", encoding="utf-8") as file:
        file.writelines(trajectory.to_json() + "\n" for trajectory in trajectories)


def read_jsonl(path: str | PathLike[str]) -> Iterator[Trajectory]:
    """Read what `write_jsonl` wrote. A bad line raises ValueError with the file, the line and the reason."""
    for _, trajectory in jsonl.read(path, Trajectory.from_row):
        yield trajectory
