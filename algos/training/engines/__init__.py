"""Engines: what samples tokens from a policy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

Weights = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Gives the present parameters of the policy, whole and by their Hugging Face names, when called."""


class EngineError(RuntimeError):
    """What an engine samples with, such as a server, cannot be reached or refuses."""


@dataclass(frozen=True)
class Request:
    """One sequence that is to be continued until its turn ends.

    Raises:
        ValueError: if there is no id to continue, no token is asked for, or the temperature is negative.
    """

    key: Hashable
    """Names the sequence: an engine that keeps a cache reads only ids that are new since the last request with this
    key. The ids of a key only ever grow, until it is forgotten."""
    ids: Sequence[int]
    """All ids so far, the prompt and what was inserted included; at least one."""
    max_tokens: int
    """How many ids to sample at most, >= 1."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely id, whose log-probability is then that at temperature 1."""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError(f"request {self.key!r} has no ids: there is nothing to continue")
        if self.max_tokens < 1:
            raise ValueError(
                f"request {self.key!r} asks for less than one token ({self.max_tokens}): leave sequences without room "
                "out"
            )
        if not self.temperature >= 0:
            raise ValueError(f"the temperature of request {self.key!r} must be at least 0, not {self.temperature}")


@dataclass(frozen=True)
class Sample:
    """What was sampled for a request: one turn."""

    key: Hashable
    """That of the request."""
    ids: list[int]
    """At least one. Where a tag or an end-of-sequence id ended the turn, the last id is the one that did."""
    logprobs: list[float]
    """The log-probability of each id under the distribution that it was drawn from (temperature included)."""
    stopped: Literal["tag", "eos", "length"]
    """A closing tag (as `search_gym.actions.TurnReader` finds it), an end-of-sequence id, or `max_tokens`."""


class Engine(Protocol):
    """Gives ids, gets ids: nothing is decoded and encoded again.

    Requests go in by `submit` and come back by `collect` in the order in which their turns end. A sequence is kept from
    its first request until `forget`, so that its next turn reads only what is new.
    """

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin to continue these sequences, each up to the end of its turn.

        May be called while others are being sampled.

        Raises:
            ValueError: if a sequence is being sampled already, or its ids do not go on from what the engine has of it.
                None of the requests is taken then.
        """
        ...

    def collect(self) -> list[Sample]:
        """Sample until some sequences have ended their turn, and give those; [] only if none is being sampled."""
        ...

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These are not continued: stop them if they are being sampled, free what is kept of them.

        Unknown keys are fine.
        """
        ...

    def sync(self, weights: Weights) -> None:
        """The policy has changed: sample from these weights from now on, and forget all sequences.

        An engine that shares the policy's own parameters does not call `weights`.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for sampling to go on exactly: the random state, but no sequence.

        Of types that `torch.load(weights_only=True)` reads; {} if it cannot be exact.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        ...
