"""Rewards by name, and sums of them that a text describes. Laws first, then the cases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym.rewards import REWARDS, Outcome, make
from search_gym.rules import Rules

TERMS = st.tuples(st.sampled_from([1, -1]), st.none() | st.floats(0, 1e6), st.sampled_from(sorted(REWARDS)))
SPACE = st.sampled_from(["", " ", "  "])
PARTLY = Outcome("in Oslo", ("Oslo",), ("<answer>in Oslo</answer>",))


@given(st.lists(TERMS, min_size=1, max_size=4), SPACE, st.booleans())
def test_a_description_means_its_sum(terms: list[tuple[int, float | None, str]], space: str, plus: bool) -> None:
    spec = ""
    for sign, weight, name in terms:
        mark = "-" if sign < 0 else "+" if spec or plus else ""
        spec += f"{space}{mark}{space}" + ("" if weight is None else f"{weight!r}{space}*{space}") + name
    expected = math.fsum(s * (1 if w is None else w) * REWARDS[name](PARTLY) for s, w, name in terms)
    assert make(spec + space)(PARTLY) == pytest.approx(expected, abs=1e-9)


@given(st.text(st.sampled_from("emf1+-*. 0e9:_infxcovr"), max_size=12) | st.text())
def test_any_text_is_a_reward_or_is_refused_with_the_place(spec: str) -> None:
    try:
        reward = make(spec)
    except ValueError as error:
        refused = str(error)
    else:
        assert math.isfinite(reward(PARTLY))
        return
    assert refused.startswith(f"cannot read reward {spec!r}")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("bleu", "'bleu' at character 1: there is no reward 'bleu'; there are: em, em:unicode, f1"),
        ("em+0.2*fromat", "at character 4: there is no reward 'fromat'"),
        ("f1:german", "there is no reward 'f1:german'.* f1:hotpotqa, f1:hotpotqa:unicode"),
        ("", "at character 1: a name is missing"),
        ("em +", "at character 5: a name is missing"),
        ("em++f1", "at character 4: a name is missing"),
        ("0.2*", "at character 1: a name is missing"),
        ("em+0.2format", "at character 4: there is no reward '0.2format'"),
        ("em + f1*0.2", "at character 6: 'f1' is no number; a weight stands before its name"),
        ("em f1", "there is no reward 'em f1'"),
        ("nan*em", "at character 1: the weight nan is not finite"),
        ("em-inf*f1", "at character 4: the weight inf is not finite"),
        ("1e999*em", "the weight 1e999 is not finite"),
        ("1e308*em-1e308*f1", "its weights are too large"),
    ],
)
def test_a_bad_description_is_refused(spec: str, reason: str) -> None:
    for refuse in (make, lambda reward: Rules(reward=reward)):
        with pytest.raises(ValueError, match=reason):
            refuse(spec)


@pytest.mark.parametrize(
    ("answer", "turn", "reward"),
    [
        ("Oslo", "<answer>Oslo</answer>", 1.0),
        ("Oslo", "<think><answer>Oslo</answer>", 0.8),
        ("Rome", "<answer>Rome</answer>", 0.2),
        ("Rome", "<think><answer>Rome</answer>", 0.0),
        (None, "", 0.0),
    ],
)
def test_the_reward_of_search_r1_with_format(answer: str | None, turn: str, reward: float) -> None:
    assert make("0.8*em+0.2*format")(Outcome(answer, ("Oslo",), (turn,))) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("name", "answer", "gold", "score"),
    [
        ("em", "Paris, France", "Paris", 0),
        ("f1", "Paris, France", "Paris", 2 / 3),
        ("cover", "Paris, France", "Paris", 1),
        ("em", "3.14", "314", 1),
        ("em:unicode", "3.14", "314", 0),
        ("f1:unicode", "in 1914–1918", "1914-1918", 2 / 3),
        ("cover:unicode", "in 1914–1918", "1914-1918", 1),
        ("f1", "yes it was", "yes", 0.5),
        ("f1:hotpotqa", "yes it was", "yes", 0),
        ("f1:hotpotqa:unicode", "“yes” it was", "yes", 0),
        ("f1:hotpotqa:unicode", "“Yes”", "yes", 1),
    ],
)
def test_rewards_by_name(name: str, answer: str, gold: str, score: float) -> None:
    assert make(name)(Outcome(answer, (gold,))) == pytest.approx(score)
    assert make(name)(Outcome(None, (gold,))) == 0
    assert make(name) is REWARDS[name]
