"""DAPO: decoupled clip and dynamic sampling policy optimisation.

Paper: "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv 2503.14476, Eq. 8 to 13.
Maximise, over all policy tokens t of all responses i,

    mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)        r and A as in GRPO.

Differs from GRPO in: the upper clip, which is wider, so that unlikely tokens can become likely (Sec. 3.1); dynamic
sampling (Sec. 3.2): `informative` says which responses to keep, those of groups whose rewards differ; the mean over all
tokens, so that long responses weigh more (Sec. 3.3); overlong responses (Sec. 3.4): `overlong_penalty` is added to the
reward of those that come near the limit, `without_truncated` takes those that were cut off out of the loss; and no KL.

Defaults: clip 0.2 below and 0.28 above, as in the paper; the others as in GRPO.

Left to the loop: sampling anew until there are enough informative groups. Left to the reward: the penalty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algos.batch import Batch
from algos.grpo import GRPO


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO with other defaults; `advantages` and `loss` are its own."""

    clip_high: float = 0.28
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high."""
    aggregation: str = "token-mean"
    """How token losses become one: "token-mean" (the paper), or another of `GRPO`'s."""


def informative(batch: Batch) -> Tensor:
    """[B] bool: the response belongs to a group whose rewards are not all equal (Eq. 11); the others have A = 0.

    Missing rewards (NaN) are not compared. Keep `batch.select(informative(batch))`.
    """
    kept = torch.zeros(len(batch), dtype=torch.bool, device=batch.rewards.device)
    for number in batch.groups.unique():
        members = batch.groups == number
        rewards = batch.rewards[members & ~batch.rewards.isnan()]
        kept[members] = len(rewards) > 0 and bool(rewards.min() < rewards.max())
    return kept


def overlong_penalty(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """What to add to the reward of responses of these lengths [B]: 0 to -1 (Eq. 13).

    0 up to `limit - buffer` tokens, then falling in a straight line to -1 at `limit`, and -1 beyond it.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer must be in (0, limit = {limit}], not {buffer}")
    return -((lengths - (limit - buffer)) / buffer).clamp(0, 1)


def without_truncated(batch: Batch, truncated: Tensor) -> Batch:
    """The batch without the tokens of the responses that were cut off; `truncated` [B] bool.

    Use it after `advantages`, so that their rewards still count in their groups, or before, so that they do not: the
    paper's "overlong filtering" masks the loss.
    """
    if batch.whole is not None:
        raise ValueError("leave truncated responses out before the batch is cut into parts")
    return batch.only(lambda rows: ~truncated[:, None].expand_as(rows.mask))
