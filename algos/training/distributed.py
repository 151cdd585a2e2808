"""Ranks: the processes that train one policy together, and this one among them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Ranks:
    """One process, alone. `Together` is the same over several."""

    rank: int = 0
    """The number of this process."""
    count: int = 1
    """How many there are."""

    @property
    def leads(self) -> bool:
        """Whether this process is the one that logs and saves."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module as it is to be called in training; its gradients become the mean over all processes."""
        return module

    def accumulate(self, module: nn.Module, last: bool) -> None:
        """Say before a pass whether its gradients are the last before an optimiser step: they are shared there."""

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor that may be cut up over the processes, in one piece."""
        return tensor

    def gather(self, items: Any) -> list[Any]:
        """What each process holds, by rank. All of them must call it."""
        return [items]


ALONE = Ranks()


def share(parts: list[list[int]], rank: int, count: int) -> list[list[int]]:
    """The micro-batches that fall to a rank, as many for each; [] where a rank has nothing to do.

    Neighbours, which are of similar length, are dealt out in turn, so that no rank waits long for another.
    """
    rounds = -(-len(parts) // count)
    mine = parts[rank::count]
    return mine + [[]] * (rounds - len(mine))
