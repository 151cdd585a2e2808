"""REINFORCE++: one baseline and one scale for the whole batch, and PPO's clip.

Paper: "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", arXiv 2501.03262.
Maximise, over all policy tokens t of all responses i,

    mean_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    A = (G - mean G) / std G over all tokens of the batch,    G_t = sum_{s >= t} gamma^(s - t) (reward_s - kl_coef KL_s)

    reward_s is the reward of the response at its last policy token and 0 before it.

Differs from GRPO in: the advantage. It compares with the whole batch instead of the group, so one response to a
question is enough; with baseline="group", the mean of the group's rewards is subtracted first (a group of equal rewards
then gets what the whitening, over the tokens of the batch, makes of 0). The KL is part of the reward (k1).

Defaults: gamma 1 and clip 0.2, as in the paper and in verl; token-mean. kl_coef is 0 as everywhere here.

Masked spans take no time and reset nothing: a token before a retrieved passage gets the return of those after it, as in
verl. (SkyRL multiplies the running return by the mask, so that there the return of earlier turns is lost.) With
baseline="group", verl adds up the reward and the KL of a response first and gives the difference to each of its tokens,
so that gamma has no effect; here the KL stays with its token. Without gamma and KL both are the same.

Left to the loop: several updates per rollout, gradient clipping. Left to the reward: what a good answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algos.batch import Batch, Loss
from algos.metrics import clip_metrics, token_metrics
from algos.objective import Objective
from algos.options import check_options
from algos.primitives import clipped_gain, gae, group_advantages, importance_ratio, whiten


@dataclass(frozen=True)
class ReinforcePP(Objective):
    """Options, and the two functions that they determine."""

    aggregation: str = "token-mean"
    """How token losses become one: "token-mean" (the paper), "seq-mean-token-mean" or "seq-mean-token-sum-norm"."""
    kl_estimator: str = "k1"
    """How the KL is estimated from a sampled token: "k1" (the paper), "k2" or "k3". In the loss, k1 only adds noise."""
    kl_in: str = "reward"
    """"reward" (the paper): the KL of the policy before its first update on the batch is subtracted from the reward.
    "loss": that of the policy as it is now is a term of the loss."""
    clip_low: float = 0.2
    """The gain of a token with A < 0 has no gradient once its ratio is below 1 - clip_low. In [0, 1)."""
    clip_high: float = 0.2
    """The gain of a token with A > 0 has no gradient once its ratio is above 1 + clip_high. In [0, inf)."""
    dual_clip: float = math.inf
    """The gain of a token with A < 0 has no gradient once its ratio is above dual_clip; inf: no such bound. In (1,
    inf]."""
    gamma: float = 1.0
    """How much a reward is worth one token earlier. In [0, 1]."""
    baseline: str = "batch"
    """What rewards are compared with: the whole "batch", or first the "group" (REINFORCE++-baseline)."""
    group_of_one: str = "zero"
    """With baseline="group", what is left of the reward of a response that has no other to compare with: "zero", or
    "reward", all of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, clip_low="[0, 1)", clip_high="[0, inf)", dual_clip="(1, inf]")
        check_options(self, gamma="[0, 1]", baseline=("batch", "group"), group_of_one=("zero", "reward"))

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: they compare all of it."""
        compared = batch.mask & ~batch.rewards.isnan()[:, None]
        centred = batch
        if self.baseline == "group":
            options = {"scale_by_std": False, "group_of_one": self.group_of_one}
            centred = replace(batch, rewards=group_advantages(batch.rewards, batch.groups, **options))
        rewards = self.token_rewards(centred)
        # Without values and with lambda 1, the estimate of the advantage is the return.
        returns = gae(rewards, torch.zeros_like(rewards), compared, self.gamma, lam=1.0)
        return batch.with_advantages(whiten(returns, compared))

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        """The loss of a minibatch or of a part; `logprobs` [B, T] carry the gradient, `entropy` [B, T] is reported."""
        advantages = batch.require("advantages", "call algorithm.advantages(batch) first")

        # Ratio
        ratio = importance_ratio(logprobs, batch.old_logprobs, batch.mask)

        # Gain
        gain = clipped_gain(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)

        # Penalties
        kl = self.reference_kl(batch, logprobs)

        # Average
        loss = self.average(kl - self.corrected(batch, gain), batch)
        metrics = token_metrics(batch, logprobs, ratio, entropy)
        metrics |= clip_metrics(batch, ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)
        return Loss(loss, metrics)
