"""GRPO: group-relative policy optimisation. The reference of this zoo: read it first.

Paper: "DeepSeekMath", arXiv 2402.03300, Eq. 3.
Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_coef KL(pi || pi_ref)

    r = pi(token) / pi_old(token),    A = (R_i - mean R) / (std R + epsilon), the same for all tokens of response i.

Defaults: clip 0.2 on both sides, as in PPO and every implementation; the sample std (ddof 1) and epsilon 1e-6 as in
verl, SkyRL and Search-R1 (TRL: 1e-4); kl_coef 0 as in TRL and verl (Search-R1 and SAPO: 0.001).

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_metrics, token_metrics
from algos.options import check_options
from algos.primitives import (
    AGGREGATIONS,
    NORM_TOKENS,
    average,
    clipped_gain,
    group_advantages,
    importance_ratio,
    reference_kl,
)


@dataclass(frozen=True)
class GRPO:
    """Options, and the two functions that they determine."""

    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high."""
    aggregation: str = "seq-mean-token-mean"
    """How token losses become one: "seq-mean-token-mean" (the paper), "token-mean" (verl, Search-R1) or
    "seq-mean-token-sum-norm"."""
    norm_tokens: float = NORM_TOKENS
    """By what "seq-mean-token-sum-norm" divides: the most tokens that a response may have, or any other constant."""
    scale_by_std: bool = True
    """Whether the advantage is divided by the std of the group's rewards."""
    epsilon: float = 1e-6
    """Added to the std of a group's rewards."""
    ddof: int = 1
    """1: sample std of a group's rewards; 0: population std."""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(pi || pi_ref); above 0 the batch must hold `ref_logprobs`."""

    def __post_init__(self) -> None:
        check_options(self, clip_low="[0, 1)", clip_high="[0, 1)", epsilon="[0, inf)", kl_coef="[0, inf)")
        check_options(self, aggregation=AGGREGATIONS, norm_tokens="(0, inf)", scale_by_std=(False, True), ddof=(0, 1))

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: groups must be whole."""
        advantages = group_advantages(
            batch.rewards, batch.groups, scale_by_std=self.scale_by_std, ddof=self.ddof, epsilon=self.epsilon
        )
        return batch.with_advantages(advantages)

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high)

        # Penalties
        kl = reference_kl(batch, logprobs, self.kl_coef)

        # Average
        loss = average(kl - gain, batch, self.aggregation, self.norm_tokens)
        metrics = token_metrics(batch, logprobs, ratio, entropy)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high)
        return Loss(loss, metrics)
