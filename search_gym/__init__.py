"""search-gym: a Gymnasium environment in which a language model answers questions by searching.

Importing it registers the environments. Everything else is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from search_gym import prompts as prompts
    from search_gym import rewards as rewards
    from search_gym import tokenizers as tokenizers
    from search_gym import trajectory as trajectory
    from search_gym.episode import Episode as Episode
    from search_gym.questions import Question as Question
    from search_gym.questions.world import World as World
    from search_gym.retrieval import Hit as Hit
    from search_gym.retrieval import Passage as Passage
    from search_gym.retrieval import SearchFailed as SearchFailed
    from search_gym.retrieval.strict import SearchError as SearchError
    from search_gym.rewards import Outcome as Outcome
    from search_gym.rules import Rules as Rules
    from search_gym.sources import QuestionSpec as QuestionSpec
    from search_gym.trajectory import Trajectory as Trajectory

__all__ = [
    "Episode", "Hit", "Outcome", "Passage", "Question", "QuestionSpec", "Rules", "SearchError", "SearchFailed",
    "Trajectory", "World", "prompts", "rewards", "tokenizers", "trajectory",
]  # fmt: skip

_MODULES = ("prompts", "rewards", "tokenizers", "trajectory")
_NAMES = {
    "Episode": "search_gym.episode",
    "Hit": "search_gym.retrieval",
    "Outcome": "search_gym.rewards",
    "Passage": "search_gym.retrieval",
    "Question": "search_gym.questions",
    "QuestionSpec": "search_gym.sources",
    "Rules": "search_gym.rules",
    "SearchError": "search_gym.retrieval.strict",
    "SearchFailed": "search_gym.retrieval",
    "Trajectory": "search_gym.trajectory",
    "World": "search_gym.questions.world",
}

register(
    id="SearchQA-v0",
    entry_point="search_gym.env:SearchQAEnv",
    vector_entry_point="search_gym.vector:SearchQAVectorEnv",
)
register(
    id="SearchQATurns-v0",
    entry_point="search_gym.turns:SearchQATurnsEnv",
    vector_entry_point="search_gym.vector:SearchQATurnsVectorEnv",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"search_gym.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'search_gym' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
