"""Questions with their accepted answers, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Question:
    """A question and the answers that count as right.

    Raises:
        ValueError: if `golds` holds no non-empty answer, for such a question can never be rewarded.
    """

    id: str
    text: str
    golds: tuple[str, ...]
    """The accepted answers, none of them empty, at least one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.golds or not all(gold.strip() for gold in self.golds):
            raise ValueError(f"question {self.id!r} has an empty list of answers or an empty answer: {self.golds!r}")
