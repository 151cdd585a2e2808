"""What every retriever here refuses to be asked."""

from __future__ import annotations

from collections.abc import Sequence


def check(queries: Sequence[str], k: int) -> None:
    """Raise ValueError if k < 1, and TypeError if `queries` is a single string."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if isinstance(queries, str):
        raise TypeError(f"queries must be a list of strings, not a string: search([{queries!r:.80}], k)")
