"""CISPO: clipped importance-sampling policy optimisation.

Paper: "MiniMax-M1", arXiv 2506.13585, Eq. 4 and 5.
Maximise, over all policy tokens t of all responses i,

    mean_t  sg[clip(r, 1 - clip_low, 1 + clip_high)] A log pi(token)        r and A as in GRPO; sg stops the gradient.

Differs from GRPO in: what is clipped. The ratio only weighs the gradient of REINFORCE, and clipping bounds this weight;
no token loses its gradient. The value of the loss means nothing by itself: compare gradients and scores.

Defaults: clip_low 1, which is no bound below, as the paper has it; clip_high 0.2 as in verl's script (the paper tunes
it and gives no figure; TRL and SkyRL bound the ratio itself by 5, which is clip_high = 4); token-mean as in the paper.

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_shares, token_metrics
from algos.objective import GroupObjective
from algos.options import check_options
from algos.primitives import importance_ratio


@dataclass(frozen=True)
class CISPO(GroupObjective):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    aggregation: str = "token-mean"
    """How token losses become one: "token-mean" (the paper), "seq-mean-token-mean" or "seq-mean-token-sum-norm"."""

    clip_low: float = 1.0
    """The weight of a token is at least 1 - clip_low; 1: no bound. In [0, 1]."""
    clip_high: float = 0.2
    """The weight of a token is at most 1 + clip_high. In [0, inf)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1]", clip_high="[0, inf)")

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask).detach()

        # Gain
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        gain = weight * advantages * logprobs

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        metrics = token_metrics(batch, logprobs, ratio, entropy)
        # Whatever the sign of A: these tokens have a gradient still, of a bounded weight.
        bounded = {
            "clip_fraction_low": ratio < 1 - self.clip_low,
            "clip_fraction_high": ratio > 1 + self.clip_high,
        }
        metrics |= clip_shares(batch, bounded)
        return Loss(loss, metrics)
