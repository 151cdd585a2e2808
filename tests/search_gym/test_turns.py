"""SearchQATurns-v0: whole turns in, the same episodes out."""

from __future__ import annotations

import numpy as np
import pytest
from playing import SMALL, TOKENIZER

from search_gym.turns import SearchQATurnsEnv


@pytest.fixture
def env() -> SearchQATurnsEnv:
    env = SearchQATurnsEnv(questions="embedded:test", **SMALL)
    env.reset(seed=0)
    return env


def test_a_turn_brings_its_passages_and_keeps_its_ids(env: SearchQATurnsEnv) -> None:
    before = env.reset()[0]["length"]
    ids = TOKENIZER.encode("<search> Selby </search>")
    observation, reward, terminated, truncated, info = env.step(np.array(ids))
    assert (reward, terminated, truncated) == (-SMALL["search_cost"], False, False)
    assert observation["tokens"][before : before + len(ids)].tolist() == ids
    assert observation["loss_mask"][: observation["length"]].sum() == len(ids)
    assert observation["length"] > before + len(ids)
    assert (info["searches"], info["unused_ids"]) == (1, 0)


def test_ids_after_the_end_of_the_turn_are_counted_and_left_out(env: SearchQATurnsEnv) -> None:
    turn, more = TOKENIZER.encode("<search> Selby </search>"), TOKENIZER.encode(" and so on")
    observation, _, _, _, info = env.step(turn + more)
    assert info["unused_ids"] == len(more)
    assert observation["loss_mask"].sum() == len(turn)
    long = TOKENIZER.encode(" Ravenna" * 50)
    observation, _, _, _, info = env.step(long)
    assert info["unused_ids"] == len(long) - SMALL["max_turn_tokens"]
    assert info["invalid_actions"] == 1
    assert env.step(TOKENIZER.encode("<answer> x </answer>"))[4]["unused_ids"] == 0


@pytest.mark.parametrize("ids", [[], [3], (3, 4), np.array([], np.int64), np.array([]), TOKENIZER.encode("<search> a")])
def test_a_run_without_an_action_is_an_invalid_turn(env: SearchQATurnsEnv, ids: object) -> None:
    _, reward, _, _, info = env.step(ids)  # type: ignore[arg-type]
    assert (reward, info["invalid_actions"], info["searches"]) == (-SMALL["invalid_cost"], 1, 0)
    assert env.episode is not None
    assert env.episode.turns[0].argument == "the turn ended without an action"


def test_turns_without_an_action_run_out(env: SearchQATurnsEnv) -> None:
    assert env.episode is not None
    ends = [env.step([])[2:4] for _ in range(env.episode.rules.turns)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]
    assert env.episode.truncated == "turns"


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        ("<search> a </search>", TypeError, "TextActions"),
        (3, TypeError, "a run of token ids, not int"),
        (np.zeros((2, 2), int), ValueError, r"with shape \(2, 2\)"),
        (np.array([1.0]), ValueError, "an array of float64"),
        ([3, 1.5], TypeError, "float"),
    ],
)
def test_what_is_no_turn_is_refused_and_moves_nothing(
    env: SearchQATurnsEnv, action: object, error: type[Exception], message: str
) -> None:
    assert env.episode is not None
    before = list(env.episode.ids)
    with pytest.raises(error, match=message):
        env.step(action)  # type: ignore[arg-type]
    assert env.episode.ids == before
