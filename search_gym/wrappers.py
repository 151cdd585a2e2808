"""Wrappers of the environments, one concern each: text in and out, and recording."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper

from search_gym.env import EpisodeEnv
from search_gym.episode import Episode
from search_gym.setting import Info, Observation
from search_gym.trajectory import Trajectory, write_jsonl
from search_gym.turns import SearchQATurnsEnv
from search_gym.vector import EpisodeVectorEnv


class AnyText(spaces.Space[str]):
    """Any text of up to `max_length` characters, of all of Unicode. `gymnasium.spaces.Text` holds listed ones alone.

    Samples are short, of printable ASCII with a few other characters.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {max_length}")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text is no array."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random text."""
        if mask is not None or probability is not None:
            raise ValueError("a sample of any text takes neither a mask nor probabilities")
        characters = [chr(i) for i in range(0x20, 0x7F)] + list("\néß€😀")
        length = int(self.np_random.integers(min(self.max_length, 40) + 1))
        return "".join(characters[i] for i in self.np_random.integers(len(characters), size=length))

    def contains(self, x: Any) -> bool:
        """Whether x is a text that UTF-8 can write, and not too long."""
        return isinstance(x, str) and len(x) <= self.max_length and not any("\ud800" <= c <= "\udfff" for c in x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


class TextActions(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Turns of text instead of ids, for agents that think in strings: `TextActions(make("SearchQATurns-v0"))`.

    An action is the text of one turn, any Unicode text; the observation is the dialogue so far. The text of an action
    is encoded once, and nothing in it is a control token. The environment below keeps ids: train on those, for a text
    may have several encodings.

    Args:
        env: SearchQATurns-v0, perhaps wrapped.

    Raises:
        TypeError: if the environment takes no whole turns.
    """

    def __init__(self, env: gymnasium.Env[Observation, Any]) -> None:
        if not isinstance(env.unwrapped, SearchQATurnsEnv):
            raise TypeError(f"TextActions wraps SearchQATurns-v0, whose actions are whole turns, not {env.unwrapped}")
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        # A token of no vocabulary here is longer than this, so no dialogue is longer than the space allows.
        self._longest = env.unwrapped.setting.rules.max_turn_tokens * 256
        self.observation_space = AnyText(env.unwrapped.setting.rules.max_context_tokens * 256)
        self.action_space = AnyText(self._longest)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Begin the next question; the observation is the prompt."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._dialogue(), info

    def step(self, action: str) -> tuple[str, Any, bool, bool, Info]:
        """Take one turn of text."""
        if not isinstance(action, str):
            raise TypeError(f"an action is the text of a turn, not {type(action).__name__}")
        if action not in self.action_space:
            raise ValueError(
                f"the text of {len(action)} characters cannot be an action: it holds half a surrogate pair, or has "
                f"more than {self._longest} characters"
            )
        _, reward, terminated, truncated, info = self.env.step(_episode(self).tokenizer.encode(action))
        return self._dialogue(), reward, terminated, truncated, info

    def _dialogue(self) -> str:
        return _episode(self).text


class RecordTrajectories(gymnasium.Wrapper, RecordConstructorArgs):
    """Writes every episode that ends to a JSONL file, a `search_gym.Trajectory` a line.

    An episode that is given up by an early `reset()` is not written. `search_gym.trajectory.read_jsonl` reads the file.

    Args:
        env: SearchQA-v0 or SearchQATurns-v0, perhaps wrapped.
        path: the file; its folder is made where there is none. Episodes are added to what it holds.
        extra: goes into the `extra` of every trajectory: a policy's name, a step.
    """

    def __init__(self, env: gymnasium.Env, path: str | PathLike[str], **extra: Any) -> None:
        if not isinstance(env.unwrapped, EpisodeEnv):
            raise TypeError(f"RecordTrajectories wraps SearchQA-v0 or SearchQATurns-v0, not {env.unwrapped}")
        RecordConstructorArgs.__init__(self, path=str(path), **extra)
        super().__init__(env)
        self.path, self.extra = _prepared(path), extra

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Take the action, and write the episode if that ends it."""
        result = self.env.step(action)
        if result[2] or result[3]:
            write_jsonl(self.path, [_record(_episode(self), self.extra)], append=True)
        return result


class RecordVectorTrajectories(VectorWrapper):
    """`RecordTrajectories` for the vector environments; a line also says in which place the episode was played."""

    def __init__(self, env: VectorEnv, path: str | PathLike[str], **extra: Any) -> None:
        if not isinstance(env.unwrapped, EpisodeVectorEnv):
            raise TypeError(f"RecordVectorTrajectories wraps a vector environment of search_gym, not {env.unwrapped}")
        super().__init__(env)
        self.path, self.extra = _prepared(path), extra

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        """Take the actions, and write the episodes that they end."""
        result = self.env.step(actions)
        env = self.env.unwrapped
        assert isinstance(env, EpisodeVectorEnv)
        ended = (_record(episode, {**self.extra, "place": i}) for i, episode in sorted(env.ended.items()))
        write_jsonl(self.path, ended, append=True)
        return result


def _prepared(path: str | PathLike[str]) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)


def _record(episode: Episode, extra: dict[str, Any]) -> Trajectory:
    # An episode that goes on by its own rules was cut off by a limit around it.
    return episode.trajectory(**extra) if episode.done else episode.trajectory(**extra, time_limit=True)


def _episode(wrapper: gymnasium.Wrapper) -> Episode:
    env = wrapper.unwrapped
    assert isinstance(env, EpisodeEnv)
    if env.episode is None:
        raise RuntimeError("call reset() before step()")
    return env.episode
