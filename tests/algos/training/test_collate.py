"""Trajectories become batches, and batches micro-batches, without losing or moving a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algos.training.collate import action_tokens, collate, cut_by_length, read_lengths
from search_gym import Episode, Question, Rules, tokenizers
from search_gym.actions import action_span
from search_gym.retrieval import Hit
from search_gym.rules import Search
from search_gym.trajectory import Trajectory


def trajectory(prompt: list[int], response: list[int], reward: float = 0.0) -> Trajectory:
    return Trajectory(
        question_id="q", question="?", golds=("x",), ids=(*prompt, *response), prompt_length=len(prompt), reward=reward,
        mask=(0,) * len(prompt) + (1,) * len(response), logprobs=(0.0,) * len(prompt) + (-1.5,) * len(response),
    )  # fmt: skip


def test_a_sampled_padding_id_counts_and_padding_does_not() -> None:
    # P4: pad = eos = 0; the response [7, 8, 0] is padded with two zeros
    batch = collate([trajectory([], [7, 8, 0]), trajectory([1], [2, 3, 4, 5])], groups=[0, 1])
    assert batch.mask.tolist() == [[True, True, True, False, False], [False, True, True, True, True]]
    assert batch.inputs()[0].tolist() == [[7, 8, 0, 0, 0], [1, 2, 3, 4, 5]]
    assert batch.inputs()[1].tolist() == [3, 5]
    assert batch.old_logprobs[0].tolist() == [-1.5, -1.5, -1.5, 0.0, 0.0]


def test_which_responses_were_cut_off_is_kept() -> None:
    rows = [trajectory([1], [2]), replace(trajectory([1], [2]), truncated="tokens")]
    assert collate(rows, groups=[0, 0]).require("truncated", "collate sets it").tolist() == [False, True]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.floats(0, 1, width=32)), min_size=1, max_size=6))
def test_rows_come_back(shapes: list[tuple[int, int, float]]) -> None:
    rows = [trajectory(list(range(p)), list(range(r)), reward) for p, r, reward in shapes]
    batch = collate(rows, range(len(rows)))
    ids, lengths = batch.inputs()
    for row, i, mask, length in zip(rows, ids, batch.mask, lengths, strict=True):
        assert tuple(i[:length].tolist()) == row.ids
        assert tuple(mask[:length].int().tolist()) == row.mask
        assert not mask[length:].any()
    assert batch.rewards.tolist() == [row.reward for row in rows]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], tokens: int) -> None:
    parts = cut_by_length(lengths, tokens)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= tokens


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)))
def test_what_must_be_read_ends_before_the_last_sampled_id(rows: list[list[bool]]) -> None:
    expected = [max([1, *(column for column, sampled in enumerate(row) if sampled)]) for row in rows]
    assert read_lengths(torch.tensor(rows)).tolist() == expected


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        cut_by_length([1], 0)
    with pytest.raises(ValueError, match="came with 2 groups"):
        collate([trajectory([1], [2])], [0, 1])


def test_groups_are_int64() -> None:
    assert collate([trajectory([1], [2])], [3]).groups.dtype == torch.int64


EMBEDDED = tokenizers.embedded()


def played(*turns: str) -> Trajectory:
    """A game in which the policy writes these turns."""
    hit = Hit("1", "Oslo", "Who <search>knows</search>?", 1.0)
    episode = Episode(Question("q", "Where?", ("Oslo",)), EMBEDDED, Rules(prompt="brief", max_searches=2))
    for text in turns:
        events, _ = episode.feed_turn(EMBEDDED.encode(text))
        if isinstance(events[-1], Search):
            episode.observe([hit])
    return episode.trajectory()


def texts(trajectory: Trajectory) -> list[str]:
    """The actions of a trajectory as text, each run of their tokens."""
    runs, of_action = list[list[int]](), False
    for i, action in zip(trajectory.ids, action_tokens(trajectory, EMBEDDED), strict=True):
        if action and not of_action:
            runs.append([])
        if action:
            runs[-1].append(i)
        of_action = action
    return [EMBEDDED.decode(run) for run in runs]


def test_tokens_of_actions_are_those_between_tags_that_the_policy_wrote() -> None:
    trajectory = played(
        "So é<search>a b</search>", "no action", "<think>x</think><search>c</search>", "I<answer>d</answer>"
    )
    assert texts(trajectory) == ["<search>a b</search>", "<search>c</search>", "<answer>d</answer>"]
    assert all(m for m, action in zip(trajectory.mask, action_tokens(trajectory, EMBEDDED), strict=True) if action)


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("x<search>a", []),
        ("x a</search>", []),
        ("<answer>x<search>a</search>", ["<search>a</search>"]),
        ("<search>x<search>a</search>", ["<search>x<search>a</search>"]),
        ("<search></search>", ["<search></search>"]),
    ],
    ids=["not closed", "not opened", "opened twice", "nested", "empty"],
)
def test_tags_that_no_action_can_be_read_from(turn: str, expected: list[str]) -> None:
    assert texts(played(turn)) == expected


@given(st.lists(st.sampled_from(["<", "é", "a ", "<search>", "</search>", "\U0001f600", "<answer>", "</answer>"])))
def test_action_tokens_hold_all_of_an_action_however_text_is_cut_into_ids(pieces: list[str]) -> None:
    text = "".join(pieces) + "x"
    trajectory = played(text)
    found = action_tokens(trajectory, EMBEDDED)
    [turn] = trajectory.turns
    span = action_span(turn.text)
    expected = "" if span is None else turn.text[slice(*span)]
    decoded = EMBEDDED.decode([i for i, action in zip(trajectory.ids, found, strict=True) if action])
    assert decoded in (expected, f" {expected}")  # there is a token " <search>"


def test_a_token_with_characters_of_an_action_is_of_the_action() -> None:
    ids = EMBEDDED.encode("so <search>a</search>")
    assert " <search>" in map(EMBEDDED.piece, ids)
    assert texts(played("so <search>a</search>")) == [" <search>a</search>"]


def test_a_batch_knows_actions_where_there_is_a_tokenizer() -> None:
    rows = [played("é <search>a b</search>"), played("<answer>d</answer>")]
    assert collate(rows, [0, 0]).actions is None
    actions = collate(rows, [0, 0], tokenizer=EMBEDDED).actions
    assert actions is not None
    for row, found in zip(rows, actions.tolist(), strict=True):
        expected = action_tokens(row, EMBEDDED)
        assert found == expected + [False] * (len(found) - len(expected))
