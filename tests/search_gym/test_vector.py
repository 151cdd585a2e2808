"""The vector environments: as many single ones, but for the searching."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from playing import SMALL, TOKENIZER, turn_ids

from search_gym.retrieval import Hit, Passage
from search_gym.sources import open_retriever
from search_gym.vector import EpisodeVectorEnv, SearchQATurnsVectorEnv, SearchQAVectorEnv

IDS = ("SearchQA-v0", "SearchQATurns-v0")


class Counting:
    """A retriever that keeps how many queries came at once."""

    def __init__(self) -> None:
        self.inner = open_retriever("bm25")
        self.sizes: list[int] = []

    def search(self, queries: Any, k: int) -> Any:
        self.sizes.append(len(queries))
        return self.inner.search(queries, k)


def assert_same(one: Any, other: Any, at: str = "") -> None:
    """Equal values of equal types, through dictionaries and arrays of objects."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), at
        for key in one:
            assert_same(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), at
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{at}[{i}]")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, at
        assert one.shape == other.shape, at
        if one.dtype == object:
            for i, (a, b) in enumerate(zip(one, other, strict=True)):
                assert_same(a, b, f"{at}[{i}]")
        else:
            np.testing.assert_array_equal(one, other, at)
    else:
        assert type(one) is type(other), at
        assert one == other, at


def actions(name: str, env: EpisodeVectorEnv, plans: list[list[int]], rng: random.Random) -> Any:
    """An action for each place; `plans` holds what is left of each place's turn."""
    chosen = []
    for i, episode in enumerate(env.episodes):
        assert episode is not None
        if not plans[i]:
            plans[i] = turn_ids(episode.question, rng, max(episode.room, 1)) or [TOKENIZER.eos_id]
        if name == "SearchQA-v0":
            chosen.append(plans[i].pop(0))
        else:
            chosen.append(np.array(plans[i], np.int64))
            plans[i] = []
    return np.array(chosen) if name == "SearchQA-v0" else tuple(chosen)


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", IDS)
def test_it_is_what_single_environments_side_by_side_are(name: str, mode: AutoresetMode, limit: int | None) -> None:
    def single() -> gymnasium.Env:
        env = gymnasium.make(name, **SMALL).unwrapped
        return env if limit is None else TimeLimit(env, limit)

    ours = gymnasium.make_vec(name, num_envs=3, autoreset_mode=mode, max_episode_steps=limit, **SMALL)
    assert isinstance(ours, EpisodeVectorEnv)
    theirs = SyncVectorEnv([single] * 3, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(seed=5), theirs.reset(seed=5))
    rng, plans = random.Random(1), [[], [], []]
    ends = np.zeros(2, int)
    for _ in range(400 if name == "SearchQA-v0" else 60):
        action = actions(name, ours, plans, rng)
        result = ours.step(action)
        assert_same(result, theirs.step(action))
        assert result[0] in ours.observation_space
        over = result[2] | result[3]
        ends += [result[2].sum(), result[3].sum()]
        plans = [[] if done else plan for done, plan in zip(over, plans, strict=True)]
        if mode is AutoresetMode.NEXT_STEP and over.any():  # the next action of those places is not looked at
            plans = [[0] if done else plan for done, plan in zip(over, plans, strict=True)]
    assert ends[1] > 0
    assert ends[0] > 0 or limit is not None
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.reset(seed=[3, None, 4]), theirs.reset(seed=[3, None, 4]))


def test_searches_of_a_step_go_out_together() -> None:
    retriever = Counting()
    env = SearchQATurnsVectorEnv(4, retriever=retriever, **SMALL)
    env.reset(seed=0)
    search, answer = TOKENIZER.encode("<search> Selby </search>"), TOKENIZER.encode("<answer> x </answer>")
    env.step([search, search, answer, search])
    env.step([search, answer, search, search])  # place 2 begins an episode: its action is not looked at
    env.step([answer, answer, answer, answer])
    assert retriever.sizes == [3, 2]


def test_disabled_autoreset_leaves_it_to_the_caller() -> None:
    env = SearchQATurnsVectorEnv(3, autoreset_mode="disabled", **SMALL)
    _, before = env.reset(seed=0)
    answer, search = TOKENIZER.encode("<answer> x </answer>"), TOKENIZER.encode("<search> Selby </search>")
    _, _, terminated, _, _ = env.step([answer, search, answer])
    assert terminated.tolist() == [True, False, True]
    with pytest.raises(RuntimeError, match=r"the episodes \[0, 2\] are over"):
        env.step([search] * 3)
    options = {"reset_mask": terminated}
    observations, infos = env.reset(options=options)
    assert list(options) == ["reset_mask"]
    assert infos["_question_id"].tolist() == [True, False, True]
    assert infos["question_id"][0] != before["question_id"][0]
    assert observations["loss_mask"].sum(1).tolist() == [0, len(search), 0]
    assert env.step([search] * 3)[4]["searches"].tolist() == [1, 2, 1]
    for mask in ([True, False, True], np.array([1, 0, 1]), np.array([True]), np.zeros(3, bool)):
        with pytest.raises(ValueError, match="reset_mask"):
            env.reset(options={"reset_mask": mask})


def test_in_order_every_question_is_asked_once_by_all_places_together() -> None:
    env = SearchQATurnsVectorEnv(3, order="sequential", questions="embedded:dev", autoreset_mode="same_step", **SMALL)
    _, infos = env.reset(seed=0)
    asked = infos["question_id"].tolist()
    for _ in range(3):
        asked += env.step([TOKENIZER.encode("<answer> x </answer>")] * 3)[4]["question_id"].tolist()
    assert asked == [question.id for question in env.setting.questions.one_pass(None)][:12]


def test_questions_can_be_chosen_for_each_place() -> None:
    env = SearchQAVectorEnv(2, questions="embedded:test", **SMALL)
    ids = ["test/2hop/5", "test/1hop/3"]
    assert env.reset(options={"question": ids})[1]["question_id"].tolist() == ids
    assert env.reset(options={"question": ids[0]})[1]["question_id"].tolist() == [ids[0]] * 2
    with pytest.raises(ValueError, match="question holds 1 values for 2 environments"):
        env.reset(options={"question": ids[:1]})


def test_an_action_that_cannot_be_taken_moves_nothing() -> None:
    tokens = SearchQAVectorEnv(2, **SMALL)
    tokens.reset(seed=0)
    before = [list(episode.ids) for episode in tokens.episodes if episode]
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokens.step(np.array([0, TOKENIZER.vocab_size]))
    with pytest.raises(ValueError, match="3 actions for 2 environments"):
        tokens.step(np.array([0, 1, 2]))
    turns = SearchQATurnsVectorEnv(2, **SMALL)
    turns.reset(seed=0)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        turns.step([[1, 2], [3, -1]])
    for env in (tokens, turns):
        assert [episode.ids for episode in env.episodes if episode] == before


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        SearchQAVectorEnv(0)
    with pytest.raises(ValueError, match="unknown autoreset_mode 'never'; there are: next_step, same_step, disabled"):
        SearchQAVectorEnv(1, autoreset_mode="never")
    with pytest.raises(ValueError, match="max_episode_steps must be at least 1"):
        SearchQAVectorEnv(1, max_episode_steps=0)
    with pytest.raises(ValueError, match="prints no dialogues"):
        SearchQAVectorEnv(1, render_mode="human")
    with pytest.raises(RuntimeError, match="call reset"):
        SearchQAVectorEnv(1).step(np.array([0]))

    with pytest.raises(ValueError, match="the first reset"):
        SearchQAVectorEnv(2).reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="seed holds 1 values for 2 environments"):
        SearchQAVectorEnv(2).reset(seed=[1])

    class Short:
        def search(self, queries: Any, k: int) -> list[list[Hit]]:
            return [[]]

    env = SearchQATurnsVectorEnv(2, retriever=Short(), corpus=[Passage("1", "a", "b")], **SMALL)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Short\.search was asked 2 queries and gave 1 results"):
        env.step([TOKENIZER.encode("<search> Selby </search>")] * 2)


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_wrappers_of_gymnasium_work_on_top(name: str, mode: AutoresetMode) -> None:
    env = RecordEpisodeStatistics(gymnasium.make_vec(name, num_envs=2, autoreset_mode=mode, **SMALL))
    _, infos = env.reset(seed=0)
    terminated = np.zeros(2, bool)
    answer = TOKENIZER.encode("<answer> x </answer>")
    plan = [(i, i) for i in answer] if name == "SearchQA-v0" else [(answer, answer)]
    for actions in plan:
        _, _, terminated, _, infos = env.step(np.array(actions) if name == "SearchQA-v0" else actions)
    assert terminated.all()
    final = infos["final_info"] if mode is AutoresetMode.SAME_STEP and "episode" not in infos else infos
    assert final["episode"]["l"].tolist() == [len(plan)] * 2
