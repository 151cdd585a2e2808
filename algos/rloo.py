"""RLOO: REINFORCE with a leave-one-out baseline.

Paper: "Back to Basics", arXiv 2402.14740, Eq. 8; the baseline is that of Kool et al., "Buy 4 REINFORCE Samples, Get a
Baseline for Free!", 2019.

    A = R_i - mean_{j != i} R_j        over the other responses to the same question; 0 where there is none.

Differs from GRPO in: the advantage, which is no multiple of the group's std, and unbiased. The loss is that of GRPO, as
in verl and SkyRL: at the first update of a batch, where r = 1, it is REINFORCE. (TRL takes the ratio of the whole
response, without a root, and clips that.)

Defaults: the mean over the tokens of a response first, as in GRPO. The paper weighs whole responses: "token-mean"
is closer to it.

Left to the loop: several updates per rollout, gradient clipping. Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from algos.batch import Batch
from algos.grpo import GRPO
from algos.primitives import leave_one_out_advantages


@dataclass(frozen=True)
class RLOO(GRPO):
    """GRPO with other advantages: `epsilon` and `ddof` are of no use here."""

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: groups must be whole."""
        return batch.with_advantages(leave_one_out_advantages(batch.rewards, batch.groups))
