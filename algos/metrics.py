"""The metrics that losses report, each defined here and nowhere else.

All are means over the policy's tokens of the whole minibatch, so those of its parts sum to those of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.primitives import average, kl_k1, kl_k3


@torch.no_grad()
def token_metrics(batch: Batch, logprobs: Tensor, ratio: Tensor, entropy: Tensor | None = None) -> dict[str, Tensor]:
    """Where the policy stands; `logprobs`, `ratio` and `entropy` [B, T].

    ratio     mean of pi / pi_old: 1 at the first update of a batch, falling where the policy leaves its samples
    kl_old    k1 estimate of KL(pi_old || pi), unbiased as the tokens are samples of pi_old: minus the mean log-ratio
    kl_ref    k3 estimate of KL(pi || pi_ref); only if the batch has `ref_logprobs`
    entropy   mean entropy of the policy's next-token distribution, in nats; only if it is given
    """
    values = {
        "ratio": ratio,
        "kl_old": kl_k1(batch.old_logprobs, logprobs, batch.mask),
    }
    if batch.ref_logprobs is not None:
        values["kl_ref"] = kl_k3(logprobs, batch.ref_logprobs, batch.mask)
    if entropy is not None:
        values["entropy"] = entropy
    return {name: average(value, batch, "token-mean") for name, value in values.items()}


@torch.no_grad()
def clip_metrics(
    batch: Batch, ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> dict[str, Tensor]:
    """Share of tokens whose gain is the clipped branch, hence without a gradient; `ratio`, `advantages` [B, T].

    clip_fraction_low    r < 1 - clip_low and A < 0
    clip_fraction_high   r > 1 + clip_high and A > 0
    clip_fraction        their sum
    """
    below = (ratio < 1 - clip_low) & (advantages < 0)
    above = (ratio > 1 + clip_high) & (advantages > 0)
    low, high = (average(clipped.to(ratio.dtype), batch, "token-mean") for clipped in (below, above))
    return {"clip_fraction": low + high, "clip_fraction_low": low, "clip_fraction_high": high}
