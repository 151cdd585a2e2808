"""SAPO: search agent policy optimisation. (Others call Soft Adaptive Policy Optimization, arXiv 2511.20347, "sapo".)

Paper: "Improving Search Agent with One Line of Code", arXiv 2603.10069, Eq. 9 to 11.
Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_coef KL(pi || pi_ref)
                   + gamma 1[r < tau and A > 0] log r

    r = pi(token) / pi_old(token),    A = (R_i - mean R) / (std R + epsilon), the same for all tokens of response i.

Differs from GRPO in: the last term. Where a token of a good response has become less likely, its gradient under GRPO
shrinks with r; that of log r does not, and pulls the token back before its ratio drifts to 0.

Defaults: gamma 0.1 and tau 1.0 as in the paper's text and the released loss (the name of the run in the training script
says 0.2 and 1.2); the others as in GRPO. The authors set kl_coef 0.001. Their code is variant="released",
aggregation="token-mean".

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
from algos.primitives import average, clipped_gain, conditional_kl, importance_ratio


@dataclass(frozen=True)
class SAPO(GroupObjective):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    dual_clip: float = math.inf
    """The gain of a token with A < 0 has no gradient once its ratio is above dual_clip; inf: no such bound. In (1,
    inf]."""
    gamma: float = 0.1
    """Weight of the conditional KL to the old policy; 0 is GRPO. In [0, inf)."""
    tau: float = 1.0
    """Ratios below it are pulled back; 0: none, which is GRPO. Above 1, the penalty is negative for tokens with a ratio
    between 1 and tau. In [0, inf)."""
    variant: str = "paper"
    """Which conditional KL: "paper" (Eq. 10) or "released" (the authors' code)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1)", clip_high="[0, inf)", dual_clip="(1, inf]")
        check_options(self, gamma="[0, inf)", tau="[0, inf)", variant=("paper", "released"))

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)
        penalty = self.penalty(batch, logprobs, advantages)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch) + self.gamma * penalty
        metrics = token_metrics(batch, logprobs, ratio, entropy) | {"penalty": penalty.detach()}
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics, self.gamma * penalty)

    def penalty(self, batch: Batch, logprobs: Tensor, advantages: Tensor) -> Tensor:
        """The average of 1[r < tau and A > 0] (-log r), before gamma.

        The released code asks for r <= tau and A >= 0: it also lifts responses of groups in which all rewards are
        equal, and has a gradient at r = 1. And it divides by the number of policy tokens of the responses with A >= 0;
        where there are none, its 0/0 is 0 here. A response without a reward is none of them, though its A is 0.
        """
        if self.variant == "paper":
            return self.average(conditional_kl(logprobs, batch.old_logprobs, batch.mask, self.tau, advantages), batch)
        wanted = batch.only(lambda rows: (rows.require("advantages", "it counts A >= 0") >= 0) & rows.rewarded)
        terms = conditional_kl(logprobs, batch.old_logprobs, wanted.mask, self.tau, advantages, inclusive=True)
        return average(terms, wanted, "token-mean")
