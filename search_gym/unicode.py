"""Strings that Python and JSON can hold and UTF-8 cannot."""

from __future__ import annotations


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
