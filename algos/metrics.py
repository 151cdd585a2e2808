"""The metrics that losses report, each defined here and nowhere else.

All are means over the policy's tokens of the whole minibatch, so those of its parts sum to those of the whole. `ratio`
and `kl_old` are always of tokens; what the clip fractions count is whatever ratio the algorithm clips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from algos.batch import Batch
from algos.primitives import average, kl_k1, kl_k3, log_ratio


@torch.no_grad()
def token_metrics(batch: Batch, logprobs: Tensor, ratio: Tensor, entropy: Tensor | None = None) -> dict[str, Tensor]:
    """Where the policy stands; `logprobs`, `ratio` and `entropy` [B, T].

    ratio     mean of pi / pi_old: 1 at the first update of a batch, falling where the policy leaves its samples
    kl_old    k1 estimate of KL(pi_old || pi), unbiased as the tokens are samples of pi_old: minus the mean log-ratio
    kl_ref    k3 estimate of KL(pi || pi_ref); only if the batch has `ref_logprobs`
    mismatch  mean |log pi_old - log pi_sampler|, of one policy by two programs; only if it has `rollout_logprobs`
    entropy   mean entropy of the policy's next-token distribution, in nats; only if it is given
    """
    values = {
        "ratio": ratio,
        "kl_old": kl_k1(batch.old_logprobs, logprobs, batch.mask),
    }
    if batch.ref_logprobs is not None:
        values["kl_ref"] = kl_k3(logprobs, batch.ref_logprobs, batch.mask)
    if batch.rollout_logprobs is not None:
        values["mismatch"] = log_ratio(batch.old_logprobs, batch.rollout_logprobs, batch.mask).abs()
    if entropy is not None:
        values["entropy"] = entropy
    return {name: average(value, batch, "token-mean") for name, value in values.items()}


def clip_metrics(
    batch: Batch, ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float = math.inf
) -> dict[str, Tensor]:
    """Share of tokens whose gain is the clipped one, which has no gradient by the ratio; `ratio`, `advantages` [B, T].

    clip_fraction_low    r < 1 - clip_low and A < 0
    clip_fraction_high   r > 1 + clip_high and A > 0
    clip_fraction_dual   r > dual_clip and A < 0; only if there is such a bound
    clip_fraction        their sum
    """
    clipped = {
        "clip_fraction_low": (ratio < 1 - clip_low) & (advantages < 0),
        "clip_fraction_high": (ratio > 1 + clip_high) & (advantages > 0),
    }
    if dual_clip < math.inf:
        clipped["clip_fraction_dual"] = (ratio > dual_clip) & (advantages < 0)
    return clip_shares(batch, clipped)


def clip_shares(batch: Batch, clipped: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The shares of tokens at which conditions [B, T] hold that exclude each other, and their sum "clip_fraction"."""
    exact = torch.promote_types(batch.old_logprobs.dtype, torch.float32)
    shares = {name: average(where.to(exact), batch, "token-mean") for name, where in clipped.items()}
    return {"clip_fraction": torch.stack(list(shares.values())).sum()} | shares


@torch.no_grad()
def value_metrics(batch: Batch, values: Tensor) -> dict[str, Tensor]:
    """How well a critic knows what comes; `values` [B, T], as they are now.

    value            mean value
    value_error      mean squared difference of value and return
    """
    returns = batch.require("returns", "call algorithm.advantages(batch) first")
    shown = {"value": values, "value_error": (values - returns).square()}
    return {name: average(value, batch, "token-mean") for name, value in shown.items()}
