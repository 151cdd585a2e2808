"""One rule book: recorded dialogues played token by token, turn by turn and side by side are the same episodes."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from playing import SMALL, TOKENIZER, WORLD, turn_ids

from search_gym import jsonl
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.rules import Rules
from search_gym.score import own_text
from search_gym.searching import carry_out
from search_gym.sources import open_retriever
from search_gym.trajectory import Trajectory

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TURN = re.compile(r".*?</(search|answer)>", re.DOTALL)
PLACES = 16
Info = dict[str, Any]
Played = list[tuple[Trajectory, float, Info]]


def by_episode(questions: list[Question], turns: list[list[list[int]]], setting: dict[str, Any]) -> Played:
    """The reference: what a training loop does."""
    rules = Rules(**{key: value for key, value in setting.items() if key in Rules.__dataclass_fields__})
    retriever = open_retriever("bm25", setting.get("corpus", "embedded"))
    played: Played = []
    for question, plan in zip(questions, turns, strict=True):
        episode = Episode(question, TOKENIZER, rules)
        for ids in plan:
            episode.feed(ids)
            carry_out([episode], retriever)
        played.append((episode.trajectory(), episode.reward, {}))
    return played


def by_environment(name: str, questions: list[Question], turns: list[list[list[int]]], setting: dict) -> Played:
    env = gymnasium.make(name, questions=questions, **setting).unwrapped
    played: Played = []
    for question, plan in zip(questions, turns, strict=True):
        observation, info = env.reset(options={"question": question.id})
        terminated, truncated, total = False, False, 0.0
        for action in [i for ids in plan for i in ids] if name == "SearchQA-v0" else plan:
            observation, reward, terminated, truncated, info = env.step(action)
            total += float(reward)
        episode: Episode = env.episode  # type: ignore[attr-defined]
        assert (terminated, truncated) == (episode.terminated, bool(episode.truncated))
        length = observation["length"]
        assert observation["tokens"][:length].tolist() == episode.ids
        assert observation["loss_mask"][:length].tolist() == episode.mask
        played.append((episode.trajectory(), total, info))
    return played


def by_vector(name: str, questions: list[Question], turns: list[list[list[int]]], setting: dict) -> Played:
    env = gymnasium.make_vec(
        name, num_envs=PLACES, autoreset_mode=AutoresetMode.DISABLED, questions=questions, **setting
    )
    played: Played = []
    for start in range(0, len(questions), PLACES):
        # The last batch is filled up with questions that were played before.
        places = [i % len(questions) for i in range(start, start + PLACES)]
        plans = [turns[i] if name == "SearchQATurns-v0" else [x for ids in turns[i] for x in ids] for i in places]
        env.reset(options={"question": [questions[i].id for i in places]})
        mine: list[Any] = [None] * PLACES
        totals, at = np.zeros(PLACES), [0] * PLACES
        while any(record is None for record in mine):
            # Those that are over begin again, and play the first action of their plan until the others are done.
            over = np.array([episode.done for episode in env.unwrapped.episodes])  # type: ignore[attr-defined]
            if over.any():
                env.reset(options={"question": [questions[i].id for i in places], "reset_mask": over})
                at = [0 if done else position for done, position in zip(over, at, strict=True)]
            actions = [plan[position] for plan, position in zip(plans, at, strict=True)]
            _, rewards, terminated, truncated, infos = env.step(
                np.array(actions) if name == "SearchQA-v0" else tuple(actions)
            )
            at = [position + 1 for position in at]
            for i in range(PLACES):
                if mine[i] is None:
                    totals[i] += rewards[i]
                    if terminated[i] or truncated[i]:
                        info = {key: value[i] for key, value in infos.items() if key[0] != "_" and infos["_" + key][i]}
                        mine[i] = (env.unwrapped.ended[i].trajectory(), totals[i], info)  # type: ignore[attr-defined]
        played += mine[: len(questions) - start]
    return played


def assert_all_the_same(questions: list[Question], turns: list[list[list[int]]], setting: dict[str, Any]) -> Played:
    reference = by_episode(questions, turns, setting)
    tokens = by_environment("SearchQA-v0", questions, turns, setting)
    for name, drive in (
        ("SearchQATurns-v0", by_environment),
        ("SearchQA-v0", by_vector),
        ("SearchQATurns-v0", by_vector),
    ):
        for want, base, got in zip(reference, tokens, drive(name, questions, turns, setting), strict=True):
            assert got[0] == base[0] == want[0]
            assert got[1] == pytest.approx(want[1])
            assert base[1] == pytest.approx(want[1])
            assert got[2] | {"unused_ids": 0} == base[2] | {"unused_ids": 0}
            assert got[2].get("unused_ids", 0) == 0
    return reference


def test_dialogues_of_the_embedded_world() -> None:
    rng, retriever = random.Random(0), open_retriever("bm25")
    rules = Rules(**SMALL)
    questions = WORLD.questions("dev")[:80]
    turns = []
    for question in questions:
        episode, plan = Episode(question, TOKENIZER, rules), []
        while not episode.done:
            plan.append(turn_ids(question, rng, episode.room))
            episode.feed_turn(plan[-1])
            carry_out([episode], retriever)
        turns.append(plan)
    played = assert_all_the_same(questions, turns, SMALL)
    assert {t.terminated for t, _, _ in played} == {True, False}
    assert {turn.kind for t, _, _ in played for turn in t.turns} >= {"search", "answer", "invalid"}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the recorded trajectories (../shared/data) are not here")
def test_recorded_dialogues_of_a_trained_model() -> None:
    rows = [row for _, row in jsonl.read(DATA / "trajectories" / "bamboogle.jsonl", dict)]
    questions = [Question(str(i), row["question"], tuple(row["golden_answers"])) for i, row in enumerate(rows)]
    # Up to its tag, for what the recording holds after it was written by the environment.
    own = [[TURN.match(piece) for piece in own_text(row["response"])] for row in rows]
    turns = [[TOKENIZER.encode(turn.group()) for turn in dialogue if turn] for dialogue in own]
    setting = {
        "corpus": DATA / "wiki18" / "corpus.jsonl",
        "max_searches": 8,
        "max_turn_tokens": 4000,
        "max_context_tokens": 24_000,
        "max_observation_tokens": 1500,
    }
    played = assert_all_the_same(questions, turns, setting)
    assert len(played) == 125
    for (trajectory, _, _), row in zip(played, rows, strict=True):
        assert trajectory.em == row["em"]
        assert trajectory.f1 == pytest.approx(row["f1"], abs=1e-12)
