"""Numbers as people read them on a page: with a real minus sign, and intervals in brackets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """With so many significant digits; powers of ten where a number is very large or small; – for none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return _minus(f"{mantissa}e{int(exponent)}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return _minus(text.rstrip("0").rstrip(".") if "." in text else text)


def score(value: float | None) -> str:
    """A mean score, with three decimals."""
    return MISSING if value is None else _minus(f"{value:z.3f}")


def chance(value: float | None) -> str:
    """A probability, with two decimals."""
    return MISSING if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    """A difference of scores, with its sign."""
    return MISSING if value is None else _minus(f"{value:+z.3f}")


def interval(value: Mapping[str, Any], sign: bool = False, decimals: int = 3) -> str:
    """The ends in brackets; empty where there are none."""
    if value["low"] is None:
        return ""
    spec = f"{'+' if sign else ''}z.{decimals}f"
    return _minus(f"[{value['low']:{spec}}, {value['high']:{spec}}]")


def seeds(numbers: Sequence[int]) -> str:
    """Seeds in order, runs of them as a range: 0–4, 7."""
    parts: list[list[int]] = []
    for seed in sorted(numbers):
        if parts and seed == parts[-1][1] + 1:
            parts[-1][1] = seed
        else:
            parts.append([seed, seed])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts) or MISSING


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
