"""Recorded trajectories as ids: what `benchmarks.training` has every way train on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from search_gym.tokenizers import Tokenizer

_INSERTED = re.compile(r"(<information>.*?</information>)", re.DOTALL)


@dataclass(frozen=True)
class Row:
    """A prompt and what followed it."""

    prompt: list[int]
    response: list[int]
    """What the policy wrote and the passages that it was given."""
    mask: list[int]
    """1 where the policy wrote the id, for each of `response`."""
    advantage: float


def encode(tokenizer: Tokenizer, prompt: str, response: str, advantage: float) -> Row:
    """A recorded dialogue as ids, piece by piece: what stands in <information> is not the policy's."""
    ids: list[int] = []
    mask: list[int] = []
    for piece in filter(None, _INSERTED.split(response)):
        new = tokenizer.encode(piece)
        ids += new
        mask += [int(not _INSERTED.fullmatch(piece))] * len(new)
    return Row(tokenizer.encode(prompt), ids, mask, advantage)


def read(path: Path, count: int, tokenizer: Tokenizer) -> list[Row]:
    """The first dialogues of a JSONL file with `prompt` and `response`; advantages are 1 and -1 in turn.

    Raises:
        ValueError: if the file holds fewer.
    """
    with path.open(encoding="utf-8") as file:
        records = [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    if len(records) < count:
        raise ValueError(f"{path} holds {len(records)} dialogues, not {count}")
    return [encode(tokenizer, r["prompt"], r["response"], (-1.0) ** i) for i, r in enumerate(records)]


def save(rows: Sequence[Row], path: Path) -> None:
    """Write rows for a process that may know nothing of search_gym."""
    path.write_text(json.dumps([asdict(row) for row in rows]))


def load(path: Path) -> list[Row]:
    """Rows that `save` wrote."""
    return [Row(**row) for row in json.loads(path.read_text())]
