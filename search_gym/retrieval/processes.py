"""Things that processes must not share: connections, locks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A thing that every process makes for itself when it first needs it.

    What a fork inherits is neither used nor closed in the child, for the parent goes on with it. It is closed at the
    latest when nobody has this object any more, or the program ends.

    Args:
        make: makes one.
        close: closes one. Neither this nor what is made may refer to this object: it would live to the program's end.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], object] = lambda _: None) -> None:
        self._make, self._close = make, close
        self._made: dict[int, T] = {}
        weakref.finalize(self, _discard, self._made, close)

    def get(self) -> T:
        """That of this process."""
        process = os.getpid()
        ours = self._made.get(process)
        if ours is None:
            made = self._make()
            ours = self._made.setdefault(process, made)
            if ours is not made:  # another thread was faster
                self._close(made)
        return ours

    def close(self) -> None:
        """Close that of this process; the next `get` makes another."""
        _discard(self._made, self._close)


def _discard(made: dict[int, T], close: Callable[[T], object]) -> None:
    """Close what this process made."""
    ours = made.pop(os.getpid(), None)
    if ours is not None:
        close(ours)
