"""The batch: what it refuses, and that cutting it into parts changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

import algos
from algos.batch import Batch
from algos.primitives import average


def batch_of(mask: Tensor, **fields: Any) -> Batch:
    rows = len(mask)
    defaults = {
        "old_logprobs": torch.zeros(mask.shape, dtype=torch.float64),
        "rewards": torch.arange(rows, dtype=torch.float64),
        "groups": torch.zeros(rows, dtype=torch.int64),
    }
    return Batch(mask=mask, **{**defaults, **fields})


def ragged() -> Batch:
    mask = tensor([[1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
    return algos.make("grpo").advantages(batch_of(mask, ids=torch.arange(16).reshape(4, 4)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mask", torch.ones(4, dtype=torch.bool), r"Batch.mask has shape \[4\]; expected \[B, T\]"),
        ("mask", torch.ones(4, 4), r"Batch.mask is of type torch.float32; expected bool"),
        ("old_logprobs", torch.zeros(4, 3), r"Batch.old_logprobs has shape \[4, 3\]; expected \[4, 4\], \[B, T\]"),
        ("rewards", torch.zeros(4, 1), r"Batch.rewards has shape \[4, 1\]; expected \[4\], \[B\]"),
        ("rewards", torch.zeros(4, dtype=torch.int64), r"Batch.rewards is of type torch.int64; expected float"),
        ("groups", torch.zeros(3, dtype=torch.int64), r"Batch.groups has shape \[3\]; expected \[4\]"),
        ("groups", torch.zeros(4), r"Batch.groups is of type torch.float32; expected int64"),
        ("advantages", torch.zeros(4), r"Batch.advantages has shape \[4\]; expected \[4, 4\]"),
        ("ref_logprobs", torch.zeros(4, 5), r"Batch.ref_logprobs has shape \[4, 5\]"),
        ("lengths", torch.zeros(4, 4, dtype=torch.int64), r"Batch.lengths has shape \[4, 4\]; expected \[4\]"),
    ],
)
def test_a_bad_field_is_named(field: str, value: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ragged(), **{field: value})


@pytest.mark.parametrize("rows", [slice(1, 3), [1, 2], tensor([1, 2]), tensor([False, True, True, False])])
def test_select_and_part_take_rows(rows) -> None:
    batch = ragged()
    selected, part = batch.select(rows), batch.part(rows)
    for name, value in batch.tensors().items():
        assert torch.equal(selected.tensors()[name], value[1:3])
        assert torch.equal(part.tensors()[name], value[1:3])
    assert selected.whole is None
    assert part.whole is batch
    assert part.part([0]).whole is batch
    assert part.select([0]).whole is None


def test_only_narrows_the_whole_too() -> None:
    narrowed = ragged().part([0, 1]).only(lambda rows: rows.require("ids", "the test reads them") > 2)
    assert narrowed.mask.tolist() == [[False, False, False, True], [True, True, False, False]]
    assert narrowed.minibatch.mask.sum() == 5


def test_to_moves_the_whole_too() -> None:
    part = ragged().part([0]).to("meta")
    assert part.mask.device.type == part.minibatch.mask.device.type == "meta"


def test_advantages_need_whole_groups() -> None:
    with pytest.raises(ValueError, match="before cutting into parts"):
        algos.make("grpo").advantages(ragged().part([0, 1]))


@pytest.mark.parametrize("name", ["grpo", "sapo"])
def test_what_is_missing_is_named(name: str) -> None:
    logprobs = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"Batch.advantages is missing: call algorithm.advantages\(batch\) first"):
        algos.make(name).loss(replace(ragged(), advantages=None), logprobs)
    with pytest.raises(ValueError, match=r"Batch.ref_logprobs is missing: kl_coef > 0"):
        algos.make(name, kl_coef=0.1).loss(ragged(), logprobs)
    with pytest.raises(ValueError, match=r"must have one shape; got \[\[4, 1\], \[4, 4\]"):
        algos.make(name).loss(ragged(), logprobs[:, :1])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("aggregation", "expected"), [("token-mean", 1.0), ("seq-mean-token-mean", 2.0)])
def test_micro_batches_do_not_change_an_average(aggregation: str, expected: float, size: int) -> None:
    """Case A1: token losses [4] and [0, 0, 0]."""
    batch = batch_of(tensor([[1, 0, 0], [1, 1, 1]], dtype=torch.bool))
    values = tensor([[4.0, torch.nan, torch.nan], [0, 0, 0]], requires_grad=True)
    parts = [slice(start, start + size) for start in range(0, 2, size)]
    total = sum((average(values[rows], batch.part(rows), aggregation) for rows in parts), torch.zeros(()))
    total.backward()
    assert total.item() == expected
    weights = {"token-mean": [[0.25, 0, 0], [0.25] * 3], "seq-mean-token-mean": [[0.5, 0, 0], [1 / 6] * 3]}
    torch.testing.assert_close(values.grad, tensor(weights[aggregation]))


def test_a_row_without_policy_tokens_is_no_response() -> None:
    batch = batch_of(tensor([[1, 1], [0, 0]], dtype=torch.bool))
    assert average(torch.ones(2, 2), batch, "seq-mean-token-mean") == 1.0
    assert average(torch.ones(2, 2), batch, "seq-mean-token-sum-norm", norm=4) == 0.5


def test_unknown_aggregation_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown aggregation 'sum'; there are: seq-mean-token-mean, .*token-mean"):
        average(torch.ones(4, 4), ragged(), "sum")
