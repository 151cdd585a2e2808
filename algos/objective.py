"""What the algorithms have in common: the options that all of them take, and what those do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algos.batch import Batch
from algos.options import check_options
from algos.primitives import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    NORM_TOKENS,
    average,
    group_advantages,
    mismatch_weights,
)

_REFERENCE = "kl_coef > 0 compares with them"


@dataclass(frozen=True)
class Objective:
    """How token losses are averaged, the KL to a reference policy, and the correction of the sampler's log-probs."""

    aggregation: str = "seq-mean-token-mean"
    """How token losses become one: "seq-mean-token-mean", "token-mean" or "seq-mean-token-sum-norm"."""
    norm_tokens: float = NORM_TOKENS
    """By what "seq-mean-token-sum-norm" divides: the most tokens that a response may have, or any other constant. In
    (0, inf)."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; above 0 the batch must hold `ref_logprobs`. In [0, inf)."""
    kl_estimator: str = "k3"
    """How the KL is estimated from a sampled token: "k1", "k2" or "k3". The gradient of k1 is 0 in expectation over
    the policy's own samples, so in the loss it only adds noise."""
    kl_in: str = "loss"
    """"loss": the KL of the policy as it is now is a term of the loss. "reward": that of the policy before its first
    update on the batch is subtracted from the reward."""
    correction: str = "none"
    """Weight pi_old / pi_sampler of the gain, for a sampler whose log-probs differ from the trainer's: "none",
    "token-truncate", "token-mask", "sequence-truncate" or "sequence-mask"."""
    correction_low: float = 0.0
    """Weights below it are raised to it, or masked. In [0, 1]."""
    correction_high: float = 2.0
    """Weights above it are lowered to it, or masked. In [1, inf)."""

    def __post_init__(self) -> None:
        check_options(self, aggregation=AGGREGATIONS, norm_tokens="(0, inf)")
        check_options(self, kl_coef="[0, inf)", kl_estimator=KL_ESTIMATORS, kl_in=("loss", "reward"))
        check_options(self, correction=("none", *CORRECTIONS), correction_low="[0, 1]", correction_high="[1, inf)")

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields of a batch that the loop must fill in beside those that every batch has."""
        return ("ref_logprobs",) if self.kl_coef > 0 else ()

    def average(self, values: Tensor, batch: Batch) -> Tensor:
        """A scalar from `values` [B, T], by the aggregation that was chosen."""
        return average(values, batch, self.aggregation, self.norm_tokens)

    def rewards(self, batch: Batch) -> Tensor:
        """[B]: the reward of a response, minus the KL of its tokens where it is in the reward; NaN if missing."""
        return batch.rewards - self._reward_kl(batch).sum(1)

    def token_rewards(self, batch: Batch) -> Tensor:
        """[B, T]: the reward of a response at the last token of its policy, minus the KL where it is in the reward.

        A missing reward counts as 0 here: whoever calls must leave that response out.
        """
        last = batch.mask & (batch.mask.flip(1).cumsum(1).flip(1) == 1)
        return torch.where(last, batch.rewards.nan_to_num(0.0)[:, None], 0) - self._reward_kl(batch)

    def _reward_kl(self, batch: Batch) -> Tensor:
        """[B, T]: what the KL costs at each token, where it is in the reward; 0 where it is not."""
        if self.kl_coef == 0 or self.kl_in == "loss":
            return torch.zeros_like(batch.old_logprobs)
        reference = batch.require("ref_logprobs", _REFERENCE)
        return self.kl_coef * KL_ESTIMATORS[self.kl_estimator](batch.old_logprobs, reference, batch.mask)

    def reference_kl(self, batch: Batch, logprobs: Tensor) -> Tensor | float:
        """kl_coef times the estimate of KL(pi || pi_ref) [B, T], to be minimised; 0 where it is not in the loss."""
        if self.kl_coef == 0 or self.kl_in == "reward":
            return 0.0
        reference = batch.require("ref_logprobs", _REFERENCE)
        return self.kl_coef * KL_ESTIMATORS[self.kl_estimator](logprobs, reference, batch.mask)

    def corrected(self, batch: Batch, gain: Tensor) -> Tensor:
        """The gain [B, T] times the weight of the correction; a weight has no gradient."""
        if self.correction == "none":
            return gain
        sampled = batch.require("rollout_logprobs", "the correction compares with the log-probs that the sampler gave")
        bounds = self.correction_low, self.correction_high
        return gain * mismatch_weights(batch.old_logprobs, sampled, batch.mask, self.correction, *bounds)


@dataclass(frozen=True)
class GroupObjective(Objective):
    """Advantages that compare the responses to one question, so that no critic is needed.

        A_i = (R_i - mean R) / (std R + epsilon), the same for all tokens of response i.

    Source: GRPO, arXiv 2402.03300, Sec. 4.1.2.
    """

    scale_by_std: bool = True
    """Whether the advantage is divided by the std of the group's rewards."""
    epsilon: float = 1e-6
    """Added to the std of a group's rewards. In [0, inf)."""
    ddof: int = 1
    """1: sample std of a group's rewards; 0: population std."""
    group_of_one: str = "zero"
    """The advantage of a response that has no other to compare with: "zero", or "reward", its reward as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, scale_by_std=(False, True), epsilon="[0, inf)", ddof=(0, 1))
        check_options(self, group_of_one=("zero", "reward"))

    def advantages(self, batch: Batch) -> Batch:
        """The batch with its advantages. Call it once per rollout batch, before that is cut: groups must be whole."""
        advantages = group_advantages(
            self.rewards(batch),
            batch.groups,
            scale_by_std=self.scale_by_std,
            ddof=self.ddof,
            epsilon=self.epsilon,
            group_of_one=self.group_of_one,
        )
        return batch.with_advantages(advantages)
