"""GSPO: group sequence policy optimisation.

Paper: "Group Sequence Policy Optimization", arXiv 2507.18071, Eq. 5 to 7; the token form, Eq. 13 and 14.
Maximise, over the responses i of a question,

    mean_i  min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) - kl_coef KL(pi || pi_ref)

    s = (prod_t r_t)^(1 / length),    r and A as in GRPO.

Differs from GRPO in: the ratio. One for a whole response, the geometric mean of those of its tokens, is clipped as a
whole: a response is trained on with all of its tokens or with none. Its deviations from 1 are far smaller than those of
tokens, and so are the bounds.

The token form puts sg[s] r_t / sg[r_t] in the place of s, where sg stops the gradient. It has the value of s at every
token; with one advantage (and one weight of a correction) for a whole response its gradient is that of s, and it allows
an advantage for each token.

Defaults: clip 3e-4 below and 4e-4 above (the paper's Sec. 5.1); the others as in GRPO. verl and SkyRL have the token
form, TRL that of the sequence.

Left to the loop: several updates per rollout (that is what makes s differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.grpo import GRPO
from algos.metrics import clip_metrics, token_metrics
from algos.options import check_options
from algos.primitives import clipped_gain, importance_ratio, sequence_ratio


@dataclass(frozen=True)
class GSPO(GRPO):
    """Options, and the two functions that they determine; `advantages` is that of `GroupObjective`."""

    clip_low: float = 3e-4
    """A response with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 4e-4
    """A response with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    variant: str = "sequence"
    """Which ratio the gradient goes through: "sequence" (Eq. 7) or "token" (Eq. 14)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, variant=("sequence", "token"))

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        token_ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)
        ratio = sequence_ratio(logprobs, batch.old_logprobs, batch.mask)[:, None].expand_as(token_ratio)
        if self.variant == "token":
            # Of a logarithm, for the gradient of a bounded ratio ends where its bound begins, and this one must not.
            own = logprobs.where(batch.mask, 0)
            ratio = ratio.detach() * (own - own.detach()).exp()

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        metrics = token_metrics(batch, logprobs, token_ratio, entropy)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics)
