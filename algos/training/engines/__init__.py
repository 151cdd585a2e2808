"""Engines: what samples tokens from a policy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

Weights = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Gives the present parameters of the policy, whole and by their Hugging Face names, when called."""


@dataclass(frozen=True)
class Request:
    """One sequence that is to be continued until its turn ends."""

    key: Hashable
    ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0


@dataclass(frozen=True)
class Sample:
    """What was sampled for a request."""

    key: Hashable
    ids: list[int]
    logprobs: list[float]
    stopped: Literal["tag", "eos", "length"]


class Engine(Protocol):
    """Gives ids, gets ids."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin."""
        ...

    def collect(self) -> list[Sample]:
        """Sample."""
        ...

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Stop."""
        ...

    def sync(self, weights: Weights) -> None:
        """Changed."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """State."""
        ...
