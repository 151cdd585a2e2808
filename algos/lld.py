"""GRPO with LLDS: likelihood-preserving regularisation against lazy likelihood displacement.

Paper: "On Group Relative Policy Optimization Collapse in Agent Search: The Lazy Likelihood-Displacement",
arXiv 2512.04220; where it leaves a choice, the authors' released code. Minimise

    GRPO + lambda_ mean_t 1[A >= 0] 1[the action has become less likely] max(0, -log r)

    the action has become less likely: sum of log r over its tokens < 0. An action is a run of policy tokens, a turn.

Differs from GRPO in: the last term. A response that is not bad must not lose likelihood, and where one of its actions
does, the tokens responsible are pulled back. (One without a reward is not known to be good: it is left alone.) Differs
from SAPO in: the gate, which asks the whole action first, and in that responses with A = 0 are preserved too.

Defaults: lambda_ 0.2, gate="action" and token-mean of the penalty over all policy tokens of the batch, as in the
released training script, which trains by a token-mean throughout; gate="response" asks the whole response instead. The
released code can weigh the tokens of the answer differently; that is not done here.

Left to the loop: several updates per rollout (that is what makes r differ from 1), gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algos.batch import Batch, Loss
from algos.grpo import GRPO
from algos.options import check_options
from algos.primitives import log_ratio


@dataclass(frozen=True)
class LLD(GRPO):
    """Options, and the function that they determine; `advantages` is that of `GroupObjective`."""

    aggregation: str = "token-mean"
    """How token losses become one: "token-mean" (the released code), "seq-mean-token-mean" or
    "seq-mean-token-sum-norm"."""
    lambda_: float = 0.2
    """Weight of the penalty; 0 is GRPO. In [0, inf)."""
    gate: str = "action"
    """What must have become less likely for its tokens to be pulled back: the "action" or the "response"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, lambda_="[0, inf)", gate=("action", "response"))

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        grpo = super().loss(batch, logprobs, entropy)
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")
        log_r = log_ratio(logprobs, batch.old_logprobs, batch.mask)
        # A condition instead of max(0, -log r), whose gradient at r = 1, where all tokens begin, is a matter of taste.
        fallen = (self.change(batch, log_r.detach()) < 0) & (log_r < 0)
        touched = fallen & (advantages >= 0) & batch.rewarded
        penalty = self.average(torch.where(touched, -log_r, 0), batch)
        metrics = grpo.metrics | {"penalty": penalty.detach()}
        return Loss(grpo.loss + self.lambda_ * penalty, metrics, self.lambda_ * penalty)

    def change(self, batch: Batch, log_r: Tensor) -> Tensor:
        """By how much the action, or the response, of each token has become more likely [B, T]; `log_r` likewise."""
        if self.gate == "response":
            return log_r.sum(1, keepdim=True).expand_as(log_r)
        before = torch.nn.functional.pad(batch.mask[:, :-1], (1, 0))
        actions = (batch.mask & ~before).cumsum(1)  # numbered from 1; a masked token has the number of the last one
        change = torch.zeros_like(log_r)
        # A loop, not a scatter: floating-point scatters add in no fixed order on a GPU, and runs must repeat.
        for number in range(1, int(actions.max()) + 1):
            of_action = actions == number
            change = torch.where(of_action, log_r.where(of_action, 0).sum(1, keepdim=True), change)
        return change
