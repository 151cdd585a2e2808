"""Soft SAPO: soft adaptive policy optimisation. (Its authors say SAPO, the name of another algorithm here.)

Paper: "Soft Adaptive Policy Optimization", arXiv 2511.20347.
Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i mean_t  gate(r) A,    gate(r) = 4 / temperature * sigmoid(temperature (r - 1))        r and A as in GRPO.

Differs from GRPO in: the clip. The slope of the gate is 1 at r = 1, as that of r is, and falls off smoothly to both
sides instead of ending at a bound; a little faster for A < 0, whose gradients spread over the whole vocabulary.

Defaults: temperature 1.0 for A > 0 and 1.05 for A < 0, as in the paper; the others as in GRPO. The gate is 2 /
temperature at r = 1, so the value of the loss means nothing by itself: compare gradients and scores.

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import token_metrics
from algos.options import check_options
from algos.primitives import AGGREGATIONS, NORM_TOKENS, average, group_advantages, importance_ratio, reference_kl


@dataclass(frozen=True)
class SoftSAPO:
    """Options, and the two functions that they determine."""

    temperature: float = 1.0
    """How fast the gate closes for a token with A > 0."""
    temperature_negative: float = 1.05
    """How fast it closes for a token with A < 0."""
    aggregation: str = "seq-mean-token-mean"
    """How token losses become one: "seq-mean-token-mean" (the paper), or another of `GRPO`'s."""
    norm_tokens: float = NORM_TOKENS
    """By what "seq-mean-token-sum-norm" divides: the most tokens that a response may have, or any other constant."""
    epsilon: float = 1e-6
    """Added to the std of a group's rewards."""
    ddof: int = 1
    """1: sample std of a group's rewards; 0: population std."""
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(pi || pi_ref); above 0 the batch must hold `ref_logprobs`."""

    def __post_init__(self) -> None:
        check_options(self, temperature="(0, inf)", temperature_negative="(0, inf)")
        check_options(self, epsilon="[0, inf)", kl_coef="[0, inf)", aggregation=AGGREGATIONS, ddof=(0, 1))
        check_options(self, norm_tokens="(0, inf)")

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: groups must be whole."""
        advantages = group_advantages(batch.rewards, batch.groups, ddof=self.ddof, epsilon=self.epsilon)
        return batch.with_advantages(advantages)

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        temperature = torch.where(advantages > 0, self.temperature, self.temperature_negative).to(ratio.dtype)
        gain = 4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantages

        # Penalties
        kl = reference_kl(batch, logprobs, self.kl_coef)

        # Average
        loss = average(kl - gain, batch, self.aggregation, self.norm_tokens)
        return Loss(loss, token_metrics(batch, logprobs, ratio, entropy))
