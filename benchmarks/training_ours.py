"""Two ways of a GRPO step with `algos`: our scores, and those from all logits at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import algos
from algos.batch import Batch
from algos.training.collate import cut_by_length, read_lengths
from algos.training.policy import CausalLMPolicy, Scores
from benchmarks.training_rows import Row


def collate(rows: Sequence[Row]) -> Batch:
    """A minibatch with its advantages."""

    def padded(values: list[list[Any]], dtype: torch.dtype) -> Tensor:
        return pad_sequence([torch.tensor(value, dtype=dtype) for value in values], batch_first=True)

    mask = padded([[0] * len(row.prompt) + row.mask for row in rows], torch.bool)
    batch = Batch(
        ids=padded([row.prompt + row.response for row in rows], torch.int64),
        lengths=torch.tensor([len(row.prompt) + len(row.response) for row in rows]),
        mask=mask,
        old_logprobs=torch.zeros(mask.shape),
        rewards=torch.zeros(len(rows)),
        groups=torch.arange(len(rows)),
    )
    return batch.with_advantages(torch.tensor([row.advantage for row in rows]))


def loss(part: Batch, scores: Scores) -> Tensor:
    """That of the first update on a batch: the policy is the one that sampled."""
    part = replace(part, old_logprobs=scores.logprobs.detach())
    return algos.make("grpo").loss(part, scores.logprobs, scores.entropy).loss


def ours(model: Any, rows: list[Row], micro_rows: int) -> Iterator[Tensor]:
    """`CausalLMPolicy`, with micro-batches of as many tokens as so many of the longest rows have."""
    policy = CausalLMPolicy(model)
    batch = collate(rows)
    lengths = read_lengths(batch.mask)
    for chosen in cut_by_length(lengths.tolist(), micro_rows * int(lengths.max())):
        part = batch.part(chosen)
        yield loss(part, policy(*part.inputs(), part.mask))


def whole_logits(model: Any, rows: list[Row], micro_rows: int) -> Iterator[Tensor]:
    """`model(ids).logits` and `log_softmax`, in the order of the rows."""
    batch = collate(rows)
    for start in range(0, len(rows), micro_rows):
        part = batch.part(list(range(start, min(start + micro_rows, len(rows)))))
        ids, lengths = part.inputs()
        width = int(lengths.max())
        attention = torch.arange(width) < lengths[:, None]
        logits = model(ids[:, :width], attention_mask=attention, use_cache=False).logits[:, :-1].float()
        everything = logits.log_softmax(-1)
        del logits
        logprobs = everything.gather(2, ids[:, 1:width, None]).squeeze(2)
        with torch.no_grad():
            entropy = -(everything.exp() * everything).sum(-1)
        del everything
        zeros = logprobs.new_zeros(ids.shape)
        found, spread = zeros.clone(), zeros
        found[:, 1:width], spread[:, 1:width] = logprobs, entropy
        yield loss(part, Scores(found, spread))
