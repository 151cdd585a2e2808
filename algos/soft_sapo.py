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
from algos.objective import GroupObjective
from algos.options import check_options
from algos.primitives import importance_ratio


@dataclass(frozen=True)
class SoftSAPO(GroupObjective):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    temperature: float = 1.0
    """How fast the gate closes for a token with A > 0. In (0, inf)."""
    temperature_negative: float = 1.05
    """How fast it closes for a token with A < 0. In (0, inf)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, temperature="(0, inf)", temperature_negative="(0, inf)")

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        # Numbers of the ratio's type: bare ones would be rounded to float32.
        positive, negative = map(ratio.new_tensor, (self.temperature, self.temperature_negative))
        temperature = torch.where(advantages > 0, positive, negative)
        gain = 4 / temperature * torch.sigmoid(temperature * (ratio - 1)) * advantages

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        return Loss(loss, token_metrics(batch, logprobs, ratio, entropy))
