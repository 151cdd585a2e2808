"""The rules of an episode, and the events that it answers a policy with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_gym import prompts, rewards
from search_gym.prompts import PromptTemplate
from search_gym.rewards import Reward


@dataclass(frozen=True)
class Search:
    """The policy asks for passages: hand them to `Episode.observe`."""

    query: str


@dataclass(frozen=True)
class Answer:
    """The policy answered: the episode is terminated and scored."""

    text: str


@dataclass(frozen=True)
class Invalid:
    """The turn held no action that can be read or carried out; a notice was inserted where a turn is left."""

    reason: str


@dataclass(frozen=True)
class Truncated:
    """A budget ran out before an answer."""

    budget: str
    """The one that ran out: "turns" or "context"."""


Event = Search | Answer | Invalid | Truncated


@dataclass(frozen=True)
class Rules:
    """What an episode allows, and how it is worded and rewarded.

    Raises:
        ValueError: if a budget is too small to play with, a cost is negative, or a name is unknown.
    """

    prompt: str | PromptTemplate = "search-r1"
    """A name in `search_gym.prompts.TEMPLATES`, or a template."""
    reward: str | Reward = "em"
    """What the end is worth: anything that `search_gym.rewards.make` takes, such as "f1" or "em+0.2*format"."""
    search_cost: float = 0.0
    """Subtracted from the reward for every search that is carried out."""
    invalid_cost: float = 0.0
    """Subtracted for every invalid turn: it cannot be read, or asks for a search when none is left."""
    max_searches: int = 4
    """A search past this number is answered by a notice."""
    top_k: int = 3
    """How many passages a search asks for."""
    max_turns: int | None = None
    """Turns in all; None: `max_searches` + 2, which leaves one for the answer and one for a mistake."""
    max_turn_tokens: int = 512
    """Sampled tokens in one turn; a turn that reaches it without an action is invalid."""
    max_observation_tokens: int = 512
    """Inserted tokens after one search; passages are cut to fit, their closing tag is kept."""
    max_context_tokens: int = 4096
    """Prompt, turns and observations together."""

    def __post_init__(self) -> None:
        least = {
            "max_searches": 0, "top_k": 1, "max_turns": 1, "max_turn_tokens": 1, "max_observation_tokens": 1,
            "max_context_tokens": 2,
        }  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if value is None and name == "max_turns":
                continue
            if not isinstance(value, int) or value < bound:
                raise ValueError(f"{name} must be a whole number of at least {bound}, not {value!r}")
        for name in ("search_cost", "invalid_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number and at least 0, not {getattr(self, name)}")
        prompts.get(self.prompt)
        rewards.make(self.reward)

    @property
    def turns(self) -> int:
        """`max_turns` with its default filled in."""
        return self.max_searches + 2 if self.max_turns is None else self.max_turns
