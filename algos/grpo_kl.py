"""GRPO with a KL to the old policy: two rows of SAPO's ablation, "+ KL" and "+ KL_r".

Paper: "Improving Search Agent with One Line of Code", arXiv 2603.10069, Table 2. Maximise

    GRPO + gamma 1[r < tau] log r        averaged as the rest is.

Differs from SAPO in: the condition on the advantage, which is missing. `grpo_kl` has no condition at all (tau = inf);
`grpo_kl_r` has that on the ratio (tau = 1). Without the one on the advantage, bad tokens are pulled back as well.

Defaults: gamma 0.1 and, in `grpo_kl_r`, tau 1.0, as for SAPO; the others as in GRPO.

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from algos.batch import Batch, Loss
from algos.grpo import GRPO
from algos.options import check_options
from algos.primitives import conditional_kl


@dataclass(frozen=True)
class GRPOKL(GRPO):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    gamma: float = 0.1
    """Weight of the KL to the old policy; 0 is GRPO. In [0, inf)."""
    tau: float = math.inf
    """Ratios below it are pulled back; inf: all of them. In [0, inf]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, gamma="[0, inf)", tau="[0, inf]")

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        grpo = super().loss(batch, logprobs, entropy)
        penalty = self.average(conditional_kl(logprobs, batch.old_logprobs, batch.mask, self.tau), batch)
        metrics = grpo.metrics | {"penalty": penalty.detach()}
        return Loss(grpo.loss + self.gamma * penalty, metrics, self.gamma * penalty)


@dataclass(frozen=True)
class GRPOKLR(GRPOKL):
    """The row "+ KL_r": only ratios below tau."""

    tau: float = 1.0
    """Ratios below it are pulled back. In [0, inf]."""
