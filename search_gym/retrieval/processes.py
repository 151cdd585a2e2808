"""Things that processes must not share: connections, locks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A thing that every process makes for itself when it first needs it.

    What a fork inherits is neither used nor closed in the child, for the parent goes on with it.

    Args:
        make: makes one.
        close: closes one.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], object] = lambda _: None) -> None:
        self._make, self._close = make, close
        self._made: dict[int, T] = {}

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
        made = self._made.pop(os.getpid(), None)
        if made is not None:
            self._close(made)
