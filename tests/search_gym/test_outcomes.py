"""Rewards of whole episodes: what they see, the format, functions, costs. Laws first, then the cases."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym import rewards
from search_gym.episode import Episode
from search_gym.prompts import PromptTemplate
from search_gym.questions import Question
from search_gym.retrieval import Hit
from search_gym.rewards import REWARDS, Outcome, evaluate, make, well_formed
from search_gym.rules import Rules, Search
from search_gym.tokenizers import embedded

TAGS = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>"]
FOREIGN = ["<information>", "</information>", "<documents>", "</documents>"]
WORDS = ["Oslo", " ", "\n", "<", "</", "<SEARCH>"]
WRITINGS = st.lists(st.sampled_from([*TAGS, *TAGS, *FOREIGN, *WORDS, *WORDS]), max_size=14).map("".join)
PASSAGES = st.lists(st.sampled_from([*TAGS, *FOREIGN, "<answer>Oslo</answer>", "Oslo"]), max_size=8).map("".join)
PLENTY = {"max_turns": 40, "max_context_tokens": 10_000}


def play(text: str, passage: str = "Oslo", prompt: str = "brief", **rules: Any) -> Episode:
    """An episode in which the policy writes `text`; it stops where the episode does."""
    template = PromptTemplate(prompt + "{question}", "<information>", "</information>") if prompt != "brief" else prompt
    episode = Episode(Question("q7", "Where?", ("Oslo",)), embedded(), Rules(**{"prompt": template, **PLENTY, **rules}))
    for token in embedded().encode(text):
        if episode.done:
            break
        if any(isinstance(event, Search) for event in episode.feed([token])):
            episode.observe([Hit("h", "T", passage, 1.0)])
    return episode


# What a reward sees.


@given(WRITINGS, PASSAGES, PASSAGES, st.integers(1, 4))
def test_a_reward_sees_what_the_policy_wrote_and_nothing_else(
    text: str, passage: str, prompt: str, max_turns: int
) -> None:  # S1, P3
    seen: list[Outcome] = []

    def reward(outcome: Outcome) -> float:
        seen.append(outcome)
        return 0.5

    text += "<answer>Oslo</answer>" * 2  # the first may close nothing that can be read; the second ends the episode
    budget: dict[str, Any] = {"max_turns": max_turns} if max_turns < 4 else {}
    for around in ({"passage": passage, "prompt": f"For example: {prompt} "}, {}):
        episode = play(text, **around, reward=reward, **budget)
        sampled = [token for token, own in zip(episode.ids, episode.mask, strict=True) if own]
        assert "".join(seen[-1].turns) == embedded().decode(sampled)
        assert (seen[-1].answer, seen[-1].golds) == (episode.answer, ("Oslo",))
        assert (seen[-1].answer is None) == bool(episode.truncated)
    assert len(seen) == 2
    assert seen[0] == seen[1]


@given(WRITINGS, st.sampled_from(sorted(REWARDS)))
def test_exact_match_and_f1_are_there_whatever_the_reward(text: str, name: str) -> None:
    episode = play(text + "<answer>Oslo</answer>" * 2, reward=name, max_turns=5)
    assert episode.em == rewards.exact_match(episode.answer, ["Oslo"])
    assert episode.f1 == rewards.token_f1(episode.answer, ["Oslo"])
    assert episode.reward == episode.score == make(name)(outcome_of(episode))
    assert 0 <= episode.score <= 1


def outcome_of(episode: Episode) -> Outcome:
    return Outcome(episode.answer, ("Oslo",), tuple(turn.text for turn in episode.turns))


# The format.

TEXT = st.lists(st.sampled_from([*WORDS, "is", "<b>", "&"]), max_size=4).map("".join)
BODY = st.tuples(TEXT, st.just("q"), TEXT).map("".join)
THOUGHT = st.tuples(TEXT, st.just("<think>"), TEXT, st.just("</think>"))


@st.composite
def turns(draw: st.DrawFn, kind: str) -> list[str]:
    """The pieces of a well-formed turn, each a tag or a text."""
    before = [piece for thought in draw(st.lists(THOUGHT, max_size=2)) for piece in thought]
    after = draw(st.sampled_from(["", " ", "\n\n"]))
    return [*before, draw(TEXT), f"<{kind}>", draw(BODY), f"</{kind}>", after]


DIALOGUES = st.tuples(st.lists(turns("search"), max_size=3), turns("answer")).map(lambda both: [*both[0], both[1]])


def joined(dialogue: list[list[str]]) -> list[str]:
    return ["".join(turn) for turn in dialogue]


@given(DIALOGUES, st.data())
def test_a_well_formed_dialogue_has_no_tag_too_many_or_too_few(dialogue: list[list[str]], data: st.DataObject) -> None:
    assert well_formed(joined(dialogue)) == 1
    turn = data.draw(st.sampled_from(dialogue))
    place = data.draw(st.integers(0, len(turn)))
    turn.insert(place, data.draw(st.sampled_from([*TAGS, *FOREIGN])))
    assert well_formed(joined(dialogue)) == 0
    del turn[place]
    del turn[data.draw(st.sampled_from([i for i, piece in enumerate(turn) if piece in TAGS]))]
    assert well_formed(joined(dialogue)) == 0


@given(DIALOGUES)
def test_a_well_formed_dialogue_answers_once_and_last(dialogue: list[list[str]]) -> None:
    written = joined(dialogue)
    assert well_formed(written[:-1]) == 0
    assert well_formed([*written, written[-1]]) == 0
    assert well_formed([*written, ""]) == 0
    assert well_formed([*written[:-1], written[-1] + "."]) == 0


def read_by_states(turn: str) -> str:
    """The state in which a reader is after a turn, "lost" where it is ill-formed: not by a pattern."""
    moves = {
        ("free", "<think>"): "thinking", ("thinking", "</think>"): "free", ("free", "<search>"): "searching",
        ("searching", "</search>"): "search", ("free", "<answer>"): "answering", ("answering", "</answer>"): "answer",
    }  # fmt: skip
    state, body = "free", ""
    for piece in re.split(f"({'|'.join([*TAGS, *FOREIGN])})", turn):
        if piece in TAGS or piece in FOREIGN:
            state = moves.get((state, piece), "lost")
        elif state in ("searching", "answering"):
            body += piece
        elif state in ("search", "answer") and piece.strip():
            return "lost"
    return state if body.strip() else "lost"


@given(WRITINGS)
def test_an_episode_of_good_format_was_read_without_a_doubt(text: str) -> None:
    episode = play(text + "<answer>Oslo</answer>", reward="format", max_searches=1)
    if not episode.done:
        return
    states = [read_by_states(turn.text) for turn in episode.turns]
    assert episode.score == float(states[-1] == "answer" and set(states[:-1]) <= {"search"})
    if episode.score:
        assert episode.terminated
        assert episode.answer
        assert all(turn.kind != "invalid" or turn.argument == "no search is left" for turn in episode.turns)


@pytest.mark.parametrize(
    ("written", "score"),
    [
        (["<answer>Oslo</answer>"], 1),
        (["<think>hm</think>\n<search> x </search>\n\n", "so it is\n<answer>\nOslo\n</answer>"], 1),
        (["<think></think><think>again</think> well <answer>Oslo</answer>"], 1),
        (["</search> x <search>", "<answer>Oslo</answer>"], 0),
        (["<search>a<search>b</search>", "<answer>Oslo</answer>"], 0),
        (["<think>so <answer>P</answer>"], 0),
        (["so</think><answer>P</answer>"], 0),
        (["<think>a<think>b</think></think><answer>P</answer>"], 0),
        (["<search> </search>", "<answer>Oslo</answer>"], 0),
        (["<answer> \n</answer>"], 0),
        (["<search>x</search><answer>Oslo</answer>"], 0),
        (["<answer>Oslo</answer> I think"], 0),
        (["<think><information>x</information></think><answer>Oslo</answer>"], 0),
        (["no action", "<answer>Oslo</answer>"], 0),
        (["<search>x</search>"], 0),
        (["<answer>Oslo"], 0),
        ([""], 0),
        ([], 0),
    ],
)
def test_the_format(written: list[str], score: float) -> None:  # P2
    assert well_formed(written) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>hm</think><search>x</search><answer>Oslo</answer>", 1),
        ("</search> x <search>y</search><answer>Oslo</answer>", 0),
        ("<search>a<search>b</search><answer>Oslo</answer>", 0),
        ("<think>so <answer>Oslo</answer>", 0),
        ("<search></search><answer>Oslo</answer>", 0),
        ("<answer></answer>", 0),
    ],
)
def test_the_format_in_an_episode(text: str, score: float) -> None:  # P2, S2
    episode = play(text, reward="format")
    assert (episode.terminated, episode.score) == (True, score)


# Functions.

PARTLY = Outcome("in Oslo", ("Oslo",), ("<answer>in Oslo</answer>",))


def test_a_function_is_a_reward() -> None:
    def brevity(outcome: Outcome) -> float:
        return 1 / len(outcome.turns)

    assert make(brevity) is brevity
    assert play("<search>x</search><answer>Rome</answer>", reward=brevity).reward == 0.5


@pytest.mark.parametrize("value", [1, True, 0.25, Fraction(1, 4), np.float32(0.5), np.array(0.5), np.int64(-3)])
def test_a_number_of_any_kind_will_do(value: Any) -> None:
    number = evaluate(lambda outcome: value, PARTLY, "q")
    assert type(number) is float
    assert number == value


@pytest.mark.parametrize(
    "value",
    [math.nan, -math.inf, np.float32("nan"), None, "0.5", b"1", [1.0], 1j, np.ones(2), 10**400, object()],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_ends_the_episode_with_an_error(value: Any) -> None:
    def broken(outcome: Outcome) -> Any:
        return value

    with pytest.raises(ValueError, match=r"reward .*broken gave .* for question 'q7': it must give a finite number"):
        play("<answer>Oslo</answer>", reward=broken)
    with pytest.raises(ValueError, match="question 'q7'"):
        play("</answer>", reward=broken, max_turns=1)


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (rewards.token_f1, "reward token_f1 must take one argument, an Outcome: missing .* 'golds'"),
        (lambda: 1.0, "must take one argument"),
        (0.5, "a reward is a name, a sum of names or a function, not 0.5"),
        (None, "not None"),
    ],
)
def test_what_cannot_be_called_with_an_outcome_is_refused_at_once(reward: Any, reason: str) -> None:
    refused: list[Callable[[Any], object]] = [make, lambda reward: Rules(reward=reward)]
    for refuse in refused:
        with pytest.raises(ValueError, match=reason):
            refuse(reward)


# Costs.


@given(WRITINGS, st.floats(0, 2), st.floats(0, 2), st.integers(0, 3), st.integers(1, 6))
def test_costs_are_subtracted_when_they_arise(
    text: str, search_cost: float, invalid_cost: float, max_searches: int, max_turns: int
) -> None:
    costs = {"search_cost": search_cost, "invalid_cost": invalid_cost}
    budget: dict[str, Any] = {"max_searches": max_searches, "max_turns": max_turns}
    text += "<search>x</search><answer>Oslo</answer>"
    for end in range(len(text)):
        episode = play(text[: end + 1], reward="f1", **costs, **budget)
        invalid = sum(turn.kind == "invalid" for turn in episode.turns)
        spent = search_cost * episode.searches + invalid_cost * invalid
        assert episode.reward == pytest.approx(episode.score - spent, abs=1e-9)
        assert episode.score == (episode.f1 if episode.done else 0)
        assert episode.trajectory().reward == episode.reward


def test_a_search_that_is_not_carried_out_has_another_price() -> None:
    costs: dict[str, Any] = {"search_cost": 0.25, "invalid_cost": 0.5, "max_searches": 1}
    assert play("<search>x</search>", **costs).reward == -0.25
    assert play("<search>x</search><search>y</search>", **costs).reward == -0.75
    assert play("<search>x</search><search>y</search><answer>Oslo</answer>", **costs).reward == 0.25
    assert play("<search>x</search>", **costs, max_turns=1).reward == 0  # the last turn: nobody would read the passages


@pytest.mark.parametrize("name", ["search_cost", "invalid_cost"])
@pytest.mark.parametrize("cost", [-0.1, math.nan, math.inf])
def test_a_bad_cost_is_refused(name: str, cost: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a finite number and at least 0"):
        Rules(**{name: cost})  # pyright: ignore[reportArgumentType]
