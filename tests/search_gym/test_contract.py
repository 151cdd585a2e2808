"""What every registered environment keeps to."""

from __future__ import annotations

import copy
import inspect
import json
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from playing import SMALL, TOKENIZER

import search_gym
from search_gym.env import EpisodeEnv
from search_gym.wrappers import TextActions

IDS = sorted(name for name in gymnasium.registry if name.startswith("SearchQA"))


def test_these_are_registered() -> None:
    assert search_gym.__name__ == "search_gym"
    assert IDS == ["SearchQA-v0", "SearchQATurns-v0"]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("arguments", [{}, SMALL])
def test_check_env_passes_without_a_warning(name: str, arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, **arguments).unwrapped)


def test_check_env_passes_with_text() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*is different from the unwrapped version")  # it is a wrapper that we check
        check_env(TextActions(gymnasium.make("SearchQATurns-v0", **SMALL).unwrapped), skip_render_check=True)


def rollout(env: gymnasium.Env, seed: int) -> list[Any]:
    """All that one episode of random actions shows."""
    env.action_space.seed(seed)
    seen: list[Any] = [env.reset(seed=seed)]
    while not (len(seen) > 1 and (seen[-1][2] or seen[-1][3])):
        seen.append(env.step(env.action_space.sample()))
    return seen


@pytest.mark.parametrize("name", IDS)
def test_a_seed_determines_the_whole_episode(name: str) -> None:
    one, other = gymnasium.make(name, **SMALL), gymnasium.make(name, **SMALL)
    first = rollout(one, 3)
    np.random.seed(5)  # noqa: NPY002  (the global state is what must not matter)
    rollout(other, 9)
    np.testing.assert_equal(rollout(other, 3), first)
    assert rollout(one, 4)[0][1] != first[0][1]


@pytest.mark.parametrize("name", IDS)
def test_results_are_of_their_spaces_and_never_change_afterwards(name: str) -> None:
    env = gymnasium.make(name, **SMALL)
    for seed in range(5):
        seen = rollout(env, seed)
        episode = env.unwrapped.episode  # type: ignore[attr-defined]
        assert sum(step[1] for step in seen[1:]) == pytest.approx(episode.reward)
        kept = copy.deepcopy(seen)
        rollout(env, seed + 100)
        np.testing.assert_equal(seen, kept)
        for step in seen:
            assert step[0] in env.observation_space
            assert type(step[0]["length"]) is np.int64
        for _, reward, terminated, truncated, info in seen[1:]:
            assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
            assert json.loads(json.dumps(info)) == info
            assert len(json.dumps(info)) < 400
            assert ("em" in info) == ("f1" in info) == ("score" in info) == (terminated or truncated)


@pytest.mark.parametrize("name", IDS)
def test_wrappers_of_gymnasium_work_on_top(name: str) -> None:
    env = TimeLimit(RecordEpisodeStatistics(gymnasium.make(name, **SMALL)), 2)
    env.reset(seed=0)
    token = TOKENIZER.encode(" Selby")[0]
    action = token if name == "SearchQA-v0" else [token]
    assert env.step(action)[3] is False
    _, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == (False, True)
    assert "em" not in info
    unwrapped = env.unwrapped
    assert isinstance(unwrapped, EpisodeEnv)
    assert unwrapped.episode is not None
    assert not unwrapped.episode.done


@pytest.mark.parametrize("name", IDS)
def test_misuse_is_refused(name: str) -> None:
    env = gymnasium.make(name, **SMALL).unwrapped
    as_action = (lambda ids: ids[0]) if name == "SearchQA-v0" else (lambda ids: ids)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(as_action([0]))
    env.reset(seed=0)
    for token in (-1, TOKENIZER.vocab_size):
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of {TOKENIZER.vocab_size} ids"):
            env.step(as_action([token]))
    for no_id in (1.5, "a", None):
        with pytest.raises(TypeError):
            env.step(as_action([no_id]))
    answer = TOKENIZER.encode("<answer> x </answer>")
    for action in answer if name == "SearchQA-v0" else [answer]:
        env.step(action)
    with pytest.raises(RuntimeError, match="is over: call reset"):
        env.step(as_action([0]))


@pytest.mark.parametrize("name", IDS)
def test_the_class_is_its_specification(name: str) -> None:
    env = gymnasium.make(name).unwrapped
    for heading in ("Action space", "Observation space", "ewards", "tarting state", "pisode end", "Information"):
        assert heading in (inspect.getdoc(type(env)) or "")
