"""PPO: proximal policy optimisation, with a critic.

Paper: "Proximal Policy Optimization Algorithms", arXiv 1707.06347, Eq. 7 and 9; the advantages are those of
"High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv 1506.02438, Eq. 16.
Minimise, over all policy tokens t of all responses,

    mean_t  -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + value_coef max((V - G)^2, (V_clipped - G)^2) / 2

    GAE_t = sum_l (gamma lam)^l delta_{t+l},    delta_t = reward_t + gamma V_old_{t+1} - V_old_t
    A = whitened GAE,    G = GAE + V_old,    V_clipped = V_old + clip(V - V_old, -value_clip, value_clip)
    reward_t is the reward of the response at its last policy token, minus kl_coef KL_t everywhere.

Differs from GRPO in: the baseline, which a critic learns for each state, so one response to a question is enough and
tokens of one response differ in their advantage. The KL is part of the reward (k1).

Time runs over the policy's tokens alone: the token before a retrieved passage is followed by the token after it, as in
verl. (Search-R1, SkyRL and TRL let it run over the passage as well.) A budget that cuts a response off is an end like
any other, for it is part of the task, unless bootstrap_truncated: then, by Gymnasium's rule, V of the state after its
last token stands for what is still to come.

Defaults: clip 0.2 as in the paper; gamma, lam 1 and value_clip 0.5 as in verl and Search-R1; whitened advantages as in
all of them; value_coef 1, which says little where the critic has its own optimiser.

Left to the loop: a critic (`loss` takes its values), several updates per rollout, gradient clipping.
Left to the reward: what a good answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_metrics, token_metrics, value_metrics
from algos.objective import Objective
from algos.options import check_options
from algos.primitives import clipped_gain, gae, importance_ratio, value_losses, whiten


@dataclass(frozen=True)
class PPO(Objective):
    """Options, and the two functions that they determine."""

    aggregation: str = "token-mean"
    """How token losses become one: "token-mean", "seq-mean-token-mean" or "seq-mean-token-sum-norm"."""
    kl_estimator: str = "k1"
    """How the KL is estimated from a sampled token: "k1", "k2" or "k3". In the loss, k1 only adds noise."""
    kl_in: str = "reward"
    """"reward": the KL of the policy before its first update on the batch is subtracted from the reward. "loss": that
    of the policy as it is now is a term of the loss."""
    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    dual_clip: float = math.inf
    """The gain of a token with A < 0 has no gradient once its ratio is above dual_clip; inf: no such bound. In (1,
    inf]."""
    gamma: float = 1.0
    """How much a reward is worth one token earlier. In [0, 1]."""
    lam: float = 1.0
    """How far the estimate of an advantage trusts rewards over values: 1 knows rewards only, 0 the next value. In [0,
    1]."""
    whiten_advantages: bool = True
    """Whether advantages get mean 0 and variance 1 over all policy tokens of the rollout batch."""
    value_clip: float = 0.5
    """The value of a token has no gradient once it is further than this from what it was before the first update, on
    the side of its return; inf: no such bound. In (0, inf]."""
    value_coef: float = 1.0
    """Weight of the critic's loss. In [0, inf)."""
    bootstrap_truncated: bool = False
    """Whether a response that a budget cut off goes on, for its advantages, with the value of its last state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1)", clip_high="[0, inf)", dual_clip="(1, inf]")
        check_options(self, gamma="[0, 1]", lam="[0, 1]", whiten_advantages=(False, True))
        check_options(self, value_clip="(0, inf]", value_coef="[0, inf)", bootstrap_truncated=(False, True))

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of a batch that the loop must fill in beside those that every batch has."""
        return (*super().needs, "values")

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages and returns. Call it once per rollout batch: whitening compares all of it."""
        values = batch.require("values", "a critic must score the batch first").where(batch.mask, 0)
        learnt = batch.mask & ~batch.rewards.isnan()[:, None]
        final = None
        if self.bootstrap_truncated:
            reason = "bootstrap_truncated asks for it"
            final = batch.require("final_values", reason).where(batch.require("truncated", reason), 0)
        advantages = gae(self.token_rewards(batch), values, learnt, self.gamma, self.lam, final)
        # Where the reward is missing, the value is as right as it can be.
        batch = replace(batch, returns=advantages + values)
        return batch.with_advantages(whiten(advantages, learnt) if self.whiten_advantages else advantages)

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None, values: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part.

        `logprobs` [B, T] and `values` [B, T], those of the critic as it is now, carry the gradient; `entropy` [B, T]
        is reported.
        """
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")
        if values is None:
            raise ValueError("PPO has a critic: its loss takes the values [B, T] that the critic gives now")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)
        old_values, returns = (
            batch.require(name, "call algorithm.advantages(batch) first") for name in ("values", "returns")
        )
        error = value_losses(values, old_values, returns, batch.mask, self.value_clip)

        # Average
        loss = self.average(kl - self.corrected(batch, gain) + self.value_coef * error, batch)
        metrics = token_metrics(batch, logprobs, ratio, entropy) | value_metrics(batch, values)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics)
