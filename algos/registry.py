"""Algorithms by name: those of this zoo, those that a program registers, and those of installed packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from torch import Tensor

from algos.batch import Batch, Loss
from algos.cispo import CISPO
from algos.dapo import DAPO
from algos.dr_grpo import DrGRPO
from algos.grpo import GRPO
from algos.grpo_kl import GRPOKL, GRPOKLR
from algos.gspo import GSPO
from algos.lld import LLD
from algos.ppo import PPO
from algos.presets import preset_options
from algos.reinforce_pp import ReinforcePP
from algos.rloo import RLOO
from algos.sapo import SAPO
from algos.soft_sapo import SoftSAPO

ENTRY_POINTS = "search_gym.algorithms"
"""The entry-point group in which a package names its algorithms."""


class Algorithm(Protocol):
    """What an algorithm is: two pure functions, determined by the options that it was made with.

    One that needs fields of a batch beyond those that every batch has says so in an attribute `needs`, a tuple of their
    names; the loop fills in "ref_logprobs" and "values". With "values" it has a critic, and `loss` is also given
    `values=`, [B, T], those of the critic as it is now.
    """

    def advantages(self, batch: Batch) -> Batch:
        """A whole rollout batch with `advantages` filled in, the same rows."""
        ...

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch, or of a part of one, from the log-probs [B, T] of the policy as it is now."""
        ...


Factory = Callable[..., Algorithm]

_factories: dict[str, Factory] = {
    "cispo": CISPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "grpo": GRPO,
    "grpo_kl": GRPOKL,
    "grpo_kl_r": GRPOKLR,
    "gspo": GSPO,
    "lld": LLD,
    "ppo": PPO,
    "reinforce_pp": ReinforcePP,
    "rloo": RLOO,
    "sapo": SAPO,
    "soft_sapo": SoftSAPO,
}


def available() -> tuple[str, ...]:
    """The names that `make` knows, in alphabetical order: of this zoo, registered, and of installed packages."""
    return tuple(sorted({*_factories, *_installed()}))


def register(name: str, factory: Factory) -> None:
    """Make `make(name, **options)` call `factory(**options)`; the parameters of the factory are the options."""
    if name in _factories:
        raise ValueError(f"an algorithm named {name!r} is registered already; there are: {', '.join(available())}")
    _factories[name] = factory


def factory(name: str) -> Factory:
    """What makes the algorithm of that name.

    Args:
        name: one of `available()`, or "package.module:Name" for anything that can be imported.

    Raises:
        ValueError: if there is no such algorithm.
    """
    if name in _factories:
        return _factories[name]
    if ":" in name:
        return _imported(name)
    installed = _installed()
    if name in installed:
        return installed[name].load()
    there = ", ".join(available())
    raise ValueError(f"unknown algorithm {name!r}; there are: {there}; or name a class as package.module:Name")


def make(name: str, *, preset: str | None = None, **options: object) -> Algorithm:
    """The algorithm of that name with these options; options left out have the defaults that its file documents.

    Args:
        name: as `factory` takes it.
        preset: "verl", "trl", "search-r1", …: other defaults, those of another project. See `algos.presets`.
        options: of the algorithm; they win over the preset's.
    """
    if preset is not None:
        options = {**preset_options(name, preset), **options}
    maker = factory(name)
    parameters = inspect.signature(maker).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            raise TypeError(f"{name} has no option {option!r}; it has: {', '.join(parameters)}")
    return maker(**options)


def _installed() -> dict[str, EntryPoint]:
    """Algorithms that installed packages offer; a name of this zoo stays this zoo's."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in _factories}


def _imported(path: str) -> Factory:
    module, _, name = path.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no algorithm at {path!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"no algorithm at {path!r}: it is no class or function")
    return cast(Factory, found)
