"""Episodes side by side: batched searches, whatever the order, and the records of the environment itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algos.training.engines import Engine, Request, Sample, Weights
from algos.training.evaluation import evaluate
from algos.training.rollout import play
from search_gym import Hit, Question, Rules, tokenizers
from search_gym.env import SearchQAEnv
from search_gym.retrieval import Retriever
from search_gym.trajectory import Trajectory

TOKENIZER = tokenizers.embedded()
RULES = Rules(prompt="brief", max_searches=3, max_turn_tokens=20)
SCRIPTS = {
    "one": ["<search> a </search>", "<answer> gold </answer>"],
    "two": ["<search> b </search>", "<search> c </search>", "<answer> wrong </answer>"],
    "none": ["<answer> gold </answer>"],
    "bad": ["</search>", "<search> d </search>", "<answer> gold </answer>"],
}


def number_of(request: Request) -> int:
    """Which of the questions it is."""
    assert isinstance(request.key, tuple)
    return request.key[1]


class Scripted:
    """An engine that says what a script says for each question, so many turns at a time."""

    def __init__(self, names: Sequence[str], at_once: int = 1000) -> None:
        self.names, self.turns, self.at_once = names, [0] * len(names), at_once
        self.running: list[Request] = []
        self.kept: set[Hashable] = set()
        self.most = 0
        """The most sequences that were kept at once."""

    def submit(self, requests: Sequence[Request]) -> None:
        self.running += requests
        self.kept |= {request.key for request in requests}
        self.most = max(self.most, len(self.kept))

    def collect(self) -> list[Sample]:
        ended, self.running = self.running[: self.at_once], self.running[self.at_once :]
        return [self.sample(request) for request in ended]

    def sample(self, request: Request) -> Sample:
        number = number_of(request)
        ids = TOKENIZER.encode(SCRIPTS[self.names[number]][self.turns[number]])[: request.max_tokens]
        self.turns[number] += 1
        return Sample(request.key, ids, [-1.0] * len(ids), "tag")

    def forget(self, keys: Iterable[Hashable]) -> None:
        gone = set(keys)
        self.kept -= gone
        self.running = [request for request in self.running if request.key not in gone]

    def sync(self, weights: Weights) -> None:
        self.kept.clear()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert not state


class Recording:
    """A retriever that remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return [[Hit(query, query, f"about {query}", 1.0)][:k] for query in queries]


def named(names: Sequence[str]) -> list[Question]:
    return [Question(name, f"{name}?", ("gold",)) for name in names]


def played(engine: Engine, questions: Sequence[Question], retriever: Retriever, **how: Any) -> list[Trajectory]:
    return play(questions, engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES, **how)


def test_those_who_ask_together_are_searched_for_together() -> None:
    names, retriever = list(SCRIPTS), Recording()
    trajectories = played(Scripted(names), named(names), retriever)
    assert [sorted(batch) for batch in retriever.batches] == [["a", "b"], ["c", "d"]]
    assert [t.em for t in trajectories] == [1.0, 0.0, 1.0, 1.0]
    assert [t.searches for t in trajectories] == [1, 2, 0, 1]
    assert [t.invalid_actions for t in trajectories] == [0, 0, 0, 1]
    for t in trajectories:
        assert all(logprob == -1.0 * m for logprob, m in zip(t.logprobs, t.mask, strict=True))


@given(
    st.lists(st.sampled_from(list(SCRIPTS)), max_size=9),
    st.integers(1, 4),
    st.none() | st.integers(1, 10),
    st.booleans(),
)
@settings(max_examples=40)
def test_the_order_of_play_changes_no_episode(names, at_once, concurrency, overlap) -> None:
    engine, ended = Scripted(names, at_once), []
    trajectories = played(
        engine, named(names), Recording(), concurrency=concurrency, overlap_searches=overlap, on_done=ended.append
    )
    alone = [played(Scripted([name]), named([name]), Recording())[0] for name in names]
    assert trajectories == alone
    assert engine.kept == set()
    assert engine.most <= (concurrency or len(names))
    assert sum(ended) == len(names)
    assert all(ended)


def test_the_environment_gives_the_same_record_token_by_token() -> None:
    # One rule book: what the trainer plays and what Gymnasium plays are the same episode.
    questions = named(list(SCRIPTS))
    trajectories = played(Scripted(list(SCRIPTS)), questions, Recording())
    env = SearchQAEnv(questions=questions, retriever=Recording(), prompt="brief", max_searches=3, max_turn_tokens=20)
    for expected in trajectories:
        observation, _ = env.reset(options={"question": expected.question_id})
        rewards, ended = [], False
        for token, sampled in zip(expected.ids, expected.mask, strict=True):
            if sampled:
                observation, reward, ended, _, _ = env.step(token)
                rewards.append(reward)
        assert ended
        assert tuple(observation["tokens"][: observation["length"]].tolist()) == expected.ids
        assert tuple(observation["loss_mask"][: observation["length"]].tolist()) == expected.mask
        assert sum(rewards) == expected.reward


class Slow(Recording):
    """A retriever that answers the first search only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = Event()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        assert self.may_answer.wait(60)
        return super().search(queries, k)


def test_the_engine_goes_on_while_a_search_is_out() -> None:
    names, retriever = ["one", "two", "none", "none"], Slow()

    class Watching(Scripted):
        def sample(self, request: Request) -> Sample:
            if number_of(request) == 3:
                retriever.may_answer.set()  # a play that waited for the passages would never come here
            return super().sample(request)

    trajectories = played(Watching(names, at_once=1), named(names), retriever, overlap_searches=True)
    assert [t.searches for t in trajectories] == [1, 2, 0, 0]
    assert retriever.batches[0] == ["a"]
    assert sorted(query for batch in retriever.batches for query in batch) == ["a", "b", "c"]


class Broken(Exception):
    pass


@pytest.mark.parametrize("overlap", [False, True], ids=["in-turn", "overlapped"])
def test_what_a_search_raises_is_raised_and_nothing_is_left_behind(overlap: bool) -> None:
    class Failing:
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            raise Broken

    engine = Scripted(["one", "one", "two"], at_once=1)
    with pytest.raises(Broken):
        played(engine, named(engine.names), Failing(), overlap_searches=overlap)
    assert not engine.kept
    assert not engine.running


def test_at_least_one_episode_is_played_at_once() -> None:
    with pytest.raises(ValueError, match="at least one episode is played at once, not 0"):
        played(Scripted(["one"]), named(["one"]), Recording(), concurrency=0)


def test_an_evaluation_goes_over_every_question_once() -> None:
    questions = [Question(str(i), f"{i}?", ("gold",)) for i in range(5)]
    counted: list[int] = []
    result, trajectories = evaluate(
        questions,
        engine=Scripted(["one", "two"] * 2 + ["one"]),
        tokenizer=TOKENIZER,
        retriever=Recording(),
        rules=RULES,
        temperature=0.0,
        batch_size=2,
        on_batch=counted.append,
    )
    assert sum(counted) == 5
    assert len(counted) > 2
    assert [t.question_id for t in trajectories] == ["0", "1", "2", "3", "4"]
    assert (result.questions, result.em, result.searches) == (5, 0.6, pytest.approx(7 / 5))
    with pytest.raises(ValueError, match="no question"):
        evaluate(
            [], engine=Scripted([]), tokenizer=TOKENIZER, retriever=Recording(), rules=RULES, temperature=0.0
        )  # fmt: skip
