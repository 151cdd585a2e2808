"""Policy-optimisation algorithms, one short file each. They need torch and nothing else.

For each batch of rollouts, and then for each minibatch of it, or each part of one:

    algo = algos.make("sapo", gamma=0.1)
    batch = algo.advantages(batch)
    out = algo.loss(batch.part(rows), logprobs)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from algos.batch import Batch, Loss
from algos.cispo import CISPO
from algos.dapo import DAPO
from algos.dr_grpo import DrGRPO
from algos.grpo import GRPO
from algos.grpo_kl import GRPOKL, GRPOKLR
from algos.gspo import GSPO
from algos.rloo import RLOO
from algos.sapo import SAPO
from algos.soft_sapo import SoftSAPO

__all__ = [
    "CISPO", "DAPO", "GRPO", "GRPOKL", "GRPOKLR", "GSPO", "RLOO", "SAPO", "Algorithm", "Batch", "DrGRPO", "Loss",
    "SoftSAPO", "available", "make", "register",
]  # fmt: skip


class Algorithm(Protocol):
    """What an algorithm is: two pure functions, determined by the options that it was made with."""

    def advantages(self, batch: Batch) -> Batch:
        """A whole rollout batch with `advantages` filled in."""
        ...

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch, or of a part of one, from the log-probs [B, T] of the policy as it is now."""
        ...


_factories: dict[str, Callable[..., Algorithm]] = {
    "cispo": CISPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "grpo": GRPO,
    "grpo_kl": GRPOKL,
    "grpo_kl_r": GRPOKLR,
    "gspo": GSPO,
    "rloo": RLOO,
    "sapo": SAPO,
    "soft_sapo": SoftSAPO,
}


def available() -> tuple[str, ...]:
    """The names that `make` knows, in alphabetical order."""
    return tuple(sorted(_factories))


def register(name: str, factory: Callable[..., Algorithm]) -> None:
    """Make `make(name, **options)` call `factory(**options)`; the parameters of the factory are the options."""
    if name in _factories:
        raise ValueError(f"an algorithm named {name!r} is registered already; there are: {', '.join(available())}")
    _factories[name] = factory


def make(name: str, **options: object) -> Algorithm:
    """The algorithm of that name with these options; options left out have the defaults that its file documents."""
    if name not in _factories:
        raise ValueError(f"unknown algorithm {name!r}; there are: {', '.join(available())}")
    parameters = inspect.signature(_factories[name]).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            raise TypeError(f"{name} has no option {option!r}; it has: {', '.join(parameters)}")
    return _factories[name](**options)
