"""Checks of the options of an algorithm, written the way a reader would write their ranges."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Real


def check_options(algorithm: object, **ranges: str | Collection[object]) -> None:
    """Raise a ValueError that names the first option outside of its range: an interval ("[0, 1)") or the choices."""
    for name, allowed in ranges.items():
        value = getattr(algorithm, name)
        if isinstance(allowed, str):
            inside, wanted = _inside(value, allowed), f"in {allowed}"
        else:
            inside, wanted = value in allowed, f"one of {', '.join(map(repr, allowed))}"
        if not inside:
            raise ValueError(f"{type(algorithm).__name__}: {name} = {value!r}, but it must be {wanted}")


def _inside(value: object, interval: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number = float(value)
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = low <= number if interval[0] == "[" else low < number
    below = number <= high if interval[-1] == "]" else number < high
    return above and below
