"""SearchQA-v0 as Gymnasium sees it."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics

import search_gym
from search_gym import tokenizers
from search_gym.env import SearchQAEnv
from search_gym.questions import Question
from search_gym.retrieval import Passage

TOKENIZER = tokenizers.embedded()
SMALL: dict[str, Any] = {
    "prompt": "brief",
    "max_context_tokens": 300,
    "max_observation_tokens": 100,
    "max_turn_tokens": 40,
}


def unwrapped(env: gymnasium.Env) -> SearchQAEnv:
    assert isinstance(env.unwrapped, SearchQAEnv)
    return env.unwrapped


def test_check_env_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("SearchQA-v0").unwrapped)


@pytest.mark.parametrize("name", ["SearchQA-v0", "search_gym:SearchQA-v0"])
def test_it_is_made_offline_with_no_argument(name: str) -> None:
    env = gymnasium.make(name)
    observation, info = env.reset(seed=1)
    text = TOKENIZER.decode(observation["tokens"][: observation["length"]])
    question = unwrapped(env).episode
    assert question is not None
    assert question.question.text in text
    assert info["question_id"] == question.question.id


def test_an_episode_token_by_token() -> None:
    env = RecordEpisodeStatistics(gymnasium.make("SearchQA-v0", **SMALL))
    _, info = env.reset(seed=3)
    world = search_gym.World(0)
    question = next(q for q in world.questions("train") if q.id == info["question_id"])
    text = [f"<search> {hop.subject.name} </search>" for hop in world.hops(question)]
    text.append(f"<answer> {question.golds[0]} </answer>")
    sampled = TOKENIZER.encode("".join(text))
    rewards, observation, terminated = [], {}, False
    for token in sampled:
        observation, reward, terminated, truncated, info = env.step(token)
        rewards.append(reward)
        assert observation in env.observation_space
        assert not truncated
        json.dumps({k: v for k, v in info.items() if k != "episode"})
    assert terminated
    assert rewards == [0.0] * (len(sampled) - 1) + [1.0]
    assert (info["em"], info["f1"], info["searches"]) == (1.0, 1.0, len(text) - 1)
    assert info["episode"]["r"] == 1.0
    policy = observation["tokens"][observation["loss_mask"] == 1]
    assert policy.tolist() == sampled


def test_a_seed_fixes_the_questions_whatever_the_global_random_state() -> None:
    # G1
    def asked(env: gymnasium.Env) -> list[str]:
        first = env.reset(seed=3)[1]["question_id"]
        return [first] + [env.reset()[1]["question_id"] for _ in range(3)]

    env, other = gymnasium.make("SearchQA-v0", **SMALL), gymnasium.make("SearchQA-v0", **SMALL)
    once = asked(env)
    np.random.seed(5)  # noqa: NPY002  (the global state is what must not matter)
    other.reset(seed=9)
    assert asked(env) == once == asked(other)
    assert len(set(once)) == 4
    assert env.reset(seed=4)[1]["question_id"] != once[0]


def test_every_question_is_asked_once_before_any_is_asked_again() -> None:
    questions = [Question(str(i), f"Number {i}?", ("x",)) for i in range(5)]
    env = SearchQAEnv(questions=questions, corpus=[Passage("1", "a", "b")])
    env.reset(seed=0)
    env.reset(seed=0)
    asked = [env.reset()[1]["question_id"] for _ in range(14)]
    assert sorted(asked[4:9]) == sorted(asked[9:14]) == ["0", "1", "2", "3", "4"]


def test_questions_come_in_their_own_order_where_asked() -> None:
    questions = [Question(str(i), f"Number {i}?", ("x",)) for i in range(3)]
    env = SearchQAEnv(questions=questions, corpus=[Passage("1", "a", "b")], order="sequential")
    assert [env.reset()[1]["question_id"] for _ in range(5)] == ["0", "1", "2", "0", "1"]
    assert env.reset(seed=7)[1]["question_id"] == "0"


def test_a_question_can_be_chosen() -> None:
    env = gymnasium.make("SearchQA-v0", questions="embedded:test", **SMALL)
    assert env.reset(options={"question": "test/2hop/5"})[1]["question_id"] == "test/2hop/5"
    with pytest.raises(ValueError, match="no question has the id 'x'"):
        env.reset(options={"question": "x"})
    with pytest.raises(ValueError, match="knows the options question; not qestion"):
        env.reset(options={"qestion": "x"})


def test_a_vector_environment_batches_it() -> None:
    envs = gymnasium.make_vec("SearchQA-v0", num_envs=3, vectorization_mode="sync", **SMALL)
    observations, _ = envs.reset(seed=0)
    assert observations["tokens"].shape == (3, 300)
    assert observations["loss_mask"].shape == (3, 300)
    assert envs.step(envs.action_space.sample())[1].tolist() == [0.0] * 3
    envs.close()


def test_random_tokens_end_without_an_exception() -> None:
    env = gymnasium.make("SearchQA-v0", **SMALL)
    env.action_space.seed(0)
    ends = set()
    for episode in range(20):
        env.reset(seed=episode)
        terminated = truncated = False
        info: dict = {}
        while not (terminated or truncated):
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
        ends.add((terminated, truncated))
        assert info["em"] <= info["f1"]
    assert (False, True) in ends


def test_misuse_is_refused() -> None:
    env = SearchQAEnv(**SMALL)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        env.step(TOKENIZER.vocab_size)
    for token in TOKENIZER.encode("<answer> x </answer>"):
        env.step(token)
    with pytest.raises(RuntimeError, match="is over"):
        env.step(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retriever": "google"}, "unknown retriever 'google'; there are: bm25"),
        ({"questions": []}, "at least one question"),
        ({"questions": "embedded:validation"}, "unknown split 'validation'"),
        ({"questions": [Question("a", "b?", ("c",))] * 2}, "two questions have the id 'a'"),
        ({"corpus": []}, "empty"),
        ({"render_mode": "rgb_array"}, "unknown render_mode 'rgb_array'; there are: ansi, human"),
        ({"order": "random"}, "unknown order 'random'; there are: shuffled, sequential"),
        ({"max_search": 3}, "unknown argument max_search; there are: questions, .*max_searches"),
        ({"reward": "bleu"}, "bleu"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchQAEnv(**arguments)
