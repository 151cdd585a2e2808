"""Engines: what samples tokens from a policy."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Request:
    """One sequence that is to be continued until its turn ends."""

    key: Hashable
    """Names the sequence: an engine that keeps a cache reads only the ids that are new since the last request with
    this key."""
    ids: Sequence[int]
    """All ids so far, the prompt and what was inserted included."""
    max_tokens: int
    """How many ids to sample at most, >= 1."""


@dataclass(frozen=True)
class Sample:
    """What was sampled for a request."""

    ids: list[int]
    logprobs: list[float]
    """The log-probability of each id under the distribution that it was drawn from (temperature included)."""
    stopped: Literal["tag", "eos", "length"]
    """A closing tag, an end-of-sequence id, or `max_tokens`."""


class Engine(Protocol):
    """Gives ids, gets ids."""

    def sample(self, requests: Sequence[Request], temperature: float) -> list[Sample]:
        """Continue every sequence up to the end of its turn.

        Args:
            requests: the sequences. A sequence that an earlier call had and this one leaves out is forgotten.
            temperature: divides the logits; 0 takes the most likely id, whose log-probability is then that at
                temperature 1.

        Returns:
            One sample a request, in order.
        """
        ...

    def reset(self) -> None:
        """Forget all sequences: the policy has changed."""
        ...
