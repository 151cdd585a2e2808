"""RLOO: REINFORCE with a leave-one-out baseline.

Paper: "Back to Basics", arXiv 2402.14740, Eq. 8; the baseline is that of Kool et al., "Buy 4 REINFORCE Samples, Get a
Baseline for Free!", 2019. Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_coef KL(pi || pi_ref)

    A = R_i - mean_{j != i} R_j        over the other responses to the same question; 0 where there is none.

Differs from GRPO in: the advantage, which is not divided by the group's std, and is unbiased.

The paper updates once per batch, without a ratio, and sums over the tokens of a response. For later updates r is that
of each token (ratio="token", as in verl and SkyRL), or the product over a response, which the paper treats as one
action (ratio="response", as in TRL). At r = 1 the second has the paper's gradient; the first has it, up to a constant,
with "seq-mean-token-sum-norm", and divides by the length of the response with the default.

Defaults: clip 0.2, the mean over the tokens of a response first, and kl_coef 0, as in GRPO.

Left to the loop: several updates per rollout, gradient clipping. Left to the reward: what a good answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_metrics, token_metrics
from algos.objective import Objective
from algos.options import check_options
from algos.primitives import clipped_gain, importance_ratio, leave_one_out_advantages, response_ratio


@dataclass(frozen=True)
class RLOO(Objective):
    """Options, and the two functions that they determine."""

    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    dual_clip: float = math.inf
    """The gain of a token with A < 0 has no gradient once its ratio is above dual_clip; inf: no such bound. In (1,
    inf]."""
    group_of_one: str = "zero"
    """The advantage of a response that has no other to compare with: "zero", or "reward", its reward as it is."""
    ratio: str = "token"
    """Whose ratio weighs and clips the advantage: that of each "token", or of the whole "response"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1)", clip_high="[0, inf)", dual_clip="(1, inf]")
        check_options(self, group_of_one=("zero", "reward"), ratio=("token", "response"))

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: groups must be whole."""
        return batch.with_advantages(leave_one_out_advantages(self.rewards(batch), batch.groups, self.group_of_one))

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = token_ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)
        if self.ratio == "response":
            ratio = response_ratio(logprobs, batch.old_logprobs, batch.mask)[:, None].expand_as(token_ratio)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        metrics = token_metrics(batch, logprobs, token_ratio, entropy)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics)
