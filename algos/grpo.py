"""GRPO: group-relative policy optimisation. The reference of this zoo: read it first.

Paper: "DeepSeekMath", arXiv 2402.03300, Eq. 3.
Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_coef KL(pi || pi_ref)

    r = pi(token) / pi_old(token),    A = (R_i - mean R) / (std R + epsilon), the same for all tokens of response i.

Defaults: clip 0.2 on both sides, as in PPO and every implementation; the sample std (ddof 1) and epsilon 1e-6 as in
verl, SkyRL and Search-R1 (TRL: 1e-4); kl_coef 0 as in TRL and verl (Search-R1 and SAPO: 0.001; the paper: 0.04).

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_metrics, token_metrics
from algos.objective import GroupObjective
from algos.options import check_options
from algos.primitives import clipped_gain, importance_ratio


@dataclass(frozen=True)
class GRPO(GroupObjective):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    dual_clip: float = math.inf
    """The gain of a token with A < 0 has no gradient once its ratio is above dual_clip; inf: no such bound. In (1,
    inf]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1)", clip_high="[0, inf)", dual_clip="(1, inf]")

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        metrics = token_metrics(batch, logprobs, ratio, entropy)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics)
