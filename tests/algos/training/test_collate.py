"""Trajectories become batches, and batches micro-batches, without losing or moving a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algos.training.collate import collate, cut_by_length, read_lengths
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
