"""DAPO: decoupled clip and dynamic sampling policy optimisation.

Paper: "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv 2503.14476, Eq. 8 to 13.
Maximise, over all policy tokens t of all responses i,

    mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)        r and A as in GRPO.

Differs from GRPO in: the upper clip, which is wider, so that unlikely tokens can become likely (Sec. 3.1); dynamic
sampling (Sec. 3.2), which is left to the loop: `informative` names the groups to keep, those whose rewards differ; the
mean over all tokens, so that long responses weigh more (Sec. 3.3); overlong responses (Sec. 3.4): `overlong_penalty`
is added to the reward of those that come near the limit (shaping), and those that were cut off can be left out of the
loss (filtering); and no KL.

Defaults: clip 0.2 below and 0.28 above, as in the paper; shaping and filtering are off, for the limit is the task's
(the paper: 20,480 tokens of a response, a buffer of 4,096; here prompt and passages count as well); the others as in
GRPO.

Left to the loop: sampling anew until there are enough informative groups (`TrainerConfig.max_sampled_batches`).
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algos.batch import Batch
from algos.grpo import GRPO
from algos.options import check_options


@dataclass(frozen=True)
class DAPO(GRPO):
    """GRPO with other defaults and two more options; `loss` is that of GRPO."""

    aggregation: str = "token-mean"
    """How token losses become one: "token-mean" (the paper), "seq-mean-token-mean" or "seq-mean-token-sum-norm"."""
    clip_high: float = 0.28
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    overlong_limit: int = 0
    """Overlong shaping: the length, prompt and passages included, from which on 1 is subtracted from the reward; 0: no
    shaping."""
    overlong_buffer: int = 0
    """Over how many tokens before overlong_limit the penalty grows."""
    drop_truncated: bool = False
    """Overlong filtering: whether responses that a budget cut off are left out of the loss; their rewards count in
    their groups."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, drop_truncated=(False, True))
        limit, buffer = self.overlong_limit, self.overlong_buffer
        if (limit or buffer) and not 0 < buffer <= limit:
            raise ValueError(f"DAPO: overlong_buffer = {buffer}, but it must be in (0, overlong_limit = {limit}]")

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages, and without the tokens that do not count.

        Call it once per rollout batch, before that is cut: groups must be whole.
        """
        if self.overlong_limit:
            lengths = batch.require("lengths", "the overlong penalty grows with them")
            penalty = overlong_penalty(lengths, self.overlong_limit, self.overlong_buffer)
            batch = replace(batch, rewards=batch.rewards + penalty)
        batch = super().advantages(batch)
        if self.drop_truncated:
            batch = batch.keep(~batch.require("truncated", "drop_truncated asks for it"))
        return batch


def informative(batch: Batch) -> Tensor:
    """[B] bool: the response belongs to a group whose rewards are not all equal (Eq. 11); the others have A = 0.

    Missing rewards (NaN) are not compared.
    """
    kept = torch.zeros(len(batch), dtype=torch.bool, device=batch.rewards.device)
    for number in batch.groups.unique():
        members = batch.groups == number
        rewards = batch.rewards[members & ~batch.rewards.isnan()]
        kept[members] = len(rewards.unique()) > 1
    return kept


def overlong_penalty(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """What to add to the reward of responses of these lengths [B]: 0 to -1 (Eq. 13).

    0 up to `limit - buffer` tokens, then falling in a straight line to -1 at `limit`, and -1 beyond it.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer must be in (0, limit = {limit}], not {buffer}")
    return -((lengths - (limit - buffer)) / buffer).clamp(0, 1)
