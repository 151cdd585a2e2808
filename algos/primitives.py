"""The mathematics that algorithms share. Pure functions of tensors.

Shapes: B responses, T tokens. `mask` [B, T] is True where the policy sampled the token. Log-probs and values may hold
anything, NaN and -inf included, where mask is False: such places are replaced before any arithmetic, because 0 * NaN is
NaN in a backward pass too, so masking a result comes too late for its gradient.
Half precision is computed in float32, for the ratio of two near probabilities has no digits left in bfloat16; float64
stays float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from algos.batch import Batch

LOG_RATIO_BOUND = 20.0
"""exp(20) = 4.9e8: far outside of any clip, and finite in float32 together with its square."""


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


# Averages


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of `values` over the places where `mask` is True, along `dim` or over all; 0 where there is no such place.

    `values` and `mask` have the same shape; the result is a scalar, or lacks `dim`.
    """
    kept = torch.where(mask, _wide(values), 0)
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)


NORM_TOKENS = 1024.0
"""By what "seq-mean-token-sum-norm" divides, unless it is told: about the most tokens that a response may have."""


def _token_mean(mask: Tensor, whole: Tensor, norm: float) -> Tensor:
    return mask / whole.sum().clamp(min=1)  # the least count of 1 only keeps 0/0 away: an empty sum is 0 already


def _seq_mean_token_mean(mask: Tensor, whole: Tensor, norm: float) -> Tensor:
    # A row in which the policy sampled nothing has no mean; it counts neither above nor below the line.
    return mask / mask.sum(1, keepdim=True).clamp(min=1) / whole.any(1).sum().clamp(min=1)


def _seq_mean_token_sum_norm(mask: Tensor, whole: Tensor, norm: float) -> Tensor:
    return mask / norm / whole.any(1).sum().clamp(min=1)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
    "token-mean": _token_mean,
}
"""(mask, mask of the whole minibatch, norm) -> the weight [B, T] of each token. Add an entry to add an aggregation."""


def average(values: Tensor, batch: Batch, aggregation: str, norm: float = NORM_TOKENS) -> Tensor:
    """A scalar from `values` [B, T]: this batch's share of the average over the whole minibatch that it was cut from.

    "seq-mean-token-mean": mean over the tokens of a response, then over responses (GRPO, arXiv 2402.03300, Eq. 3).
    "token-mean": mean over all tokens, so that long responses weigh more (DAPO, arXiv 2503.14476, Eq. 8).
    "seq-mean-token-sum-norm": sum over the tokens of a response, divided by the constant `norm`, then mean over
    responses: a token weighs the same in a short response as in a long one (Dr. GRPO, arXiv 2503.20783, Sec. 3.1).
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {aggregation!r}; there are: {', '.join(AGGREGATIONS)}")
    kept = torch.where(batch.mask, _wide(values), 0)
    # In the values' own precision: a third in float32 is wrong in the eighth digit of a float64 loss.
    weights = AGGREGATIONS[aggregation](batch.mask.to(kept.dtype), batch.minibatch.mask, norm)
    return (weights * kept).sum()


# Advantages


def group_advantages(
    rewards: Tensor, groups: Tensor, *, scale_by_std: bool = True, ddof: int = 1, epsilon: float = 1e-6
) -> Tensor:
    """(R - mean) / (std + epsilon) within each group, [B], from `rewards` [B] and `groups` [B].

    Source: GRPO, arXiv 2402.03300, Sec. 4.1.2. Without `scale_by_std`: R - mean (Dr. GRPO, arXiv 2503.20783).
    `ddof` 1 is the sample std, 0 the population's. A NaN reward is a missing one: it enters no mean and gets 0.
    A group of one, or of equal rewards, gets exactly 0.
    """
    rewards = _wide(rewards)
    present = ~rewards.isnan()
    advantages = torch.zeros_like(rewards)
    # A loop, not a scatter: floating-point scatters add in no fixed order on a GPU, and runs must repeat.
    for number in groups.unique():
        members = present & (groups == number)
        group = rewards[members]
        # Equal rewards are asked for as such: rounding can leave their mean beside them, and epsilon would divide that.
        if len(group) > 1 and group.min() < group.max():
            scale = group.std(correction=ddof) + epsilon if scale_by_std else 1.0
            advantages[members] = (group - group.mean()) / scale
    return advantages


def leave_one_out_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """R minus the mean reward of the other members of the group, [B], from `rewards` [B] and `groups` [B].

    Source: RLOO, arXiv 2402.14740, Eq. 8. A NaN reward is a missing one: it enters no mean and gets 0. A group of one
    gets 0, and so does one of equal rewards.
    """
    centred, advantages = group_advantages(rewards, groups, scale_by_std=False), torch.zeros_like(_wide(rewards))
    for number in groups.unique():
        members = ~rewards.isnan() & (groups == number)
        count = int(members.sum())
        if count > 1:
            advantages[members] = centred[members] * count / (count - 1)
    return advantages


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> Tensor:
    """Generalised advantage estimates [B, T] (arXiv 1506.02438, Eq. 16), over the policy's tokens alone; 0 elsewhere.

    `rewards`, `values` [B, T]; gamma, lam in [0, 1]. A masked span takes no time: the token before it is followed by
    the token after it. The value after a row's last token is 0. The returns are `gae(...) + values`.
    """
    rewards, values = (torch.where(mask, _wide(given), 0) for given in (rewards, values))
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = next_advantage
    return torch.where(mask, advantages, 0)


# Ratios


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """log(pi / pi_old) [B, T], unbounded; 0, with a gradient of 0, where mask is False."""
    if logprobs.shape != old_logprobs.shape or (mask is not None and mask.shape != logprobs.shape):
        shapes = [list(given.shape) for given in (logprobs, old_logprobs, mask) if given is not None]
        raise ValueError(f"log-probs, those to compare with and mask must have one shape; got {shapes}")
    logprobs, old_logprobs = _wide(logprobs), _wide(old_logprobs)
    if mask is not None:
        logprobs, old_logprobs = torch.where(mask, logprobs, 0), torch.where(mask, old_logprobs, 0)
    return logprobs - old_logprobs


def _bounded(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """r = pi / pi_old [B, T], in [exp(-20), exp(20)]; 1, with a gradient of 0, where mask is False.

    Beyond the bounds the gradient is 0 on purpose. Above, r A with A < 0 is the one gain that no clip holds, and a
    gradient of 5e8 from one token would, once the norm is clipped, erase those of all others. Below, the true one is
    under 3e-9.
    """
    return _bounded(log_ratio(logprobs, old_logprobs, mask)).exp()


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """s = (prod_t r_t)^(1 / length) [B], bounded as r is; 1 for an empty row (GSPO, arXiv 2507.18071, Eq. 7)."""
    return _bounded(masked_mean(log_ratio(logprobs, old_logprobs, mask), mask, dim=1)).exp()


def clipped_gain(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), elementwise (PPO, arXiv 1707.06347, Eq. 7)."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


# Divergences


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """log(p / q), elementwise: estimates KL(p || q) on samples of p; unbiased, of either sign.

    Here p is `logprobs` and q is `ref_logprobs`, of one shape. Source of k1, k2 and k3: J. Schulman, "Approximating KL
    Divergence", 2020, joschu.net/blog/kl-approx.html.
    """
    return log_ratio(logprobs, ref_logprobs, mask)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """(log(p / q))^2 / 2, elementwise, >= 0: biased, of low variance; its gradient is the KL's. Source: see `kl_k1`."""
    return 0.5 * log_ratio(logprobs, ref_logprobs, mask).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """q / p - 1 - log(q / p), elementwise, >= 0: unbiased, of low variance. Source: see `kl_k1`.

    log(q / p) is bounded above in both terms: bounding only the exponential would leave a gradient of the wrong sign.
    """
    inverse = log_ratio(ref_logprobs, logprobs, mask).clamp(max=LOG_RATIO_BOUND)
    return inverse.exp() - 1 - inverse


def reference_kl(batch: Batch, logprobs: Tensor, kl_coef: float) -> Tensor | float:
    """kl_coef times the k3 estimate of KL(pi || pi_ref) [B, T], to be minimised; 0, and no reference needed, at 0."""
    if kl_coef == 0:
        return 0.0
    return kl_coef * kl_k3(logprobs, batch.require("ref_logprobs", "kl_coef > 0 compares with them"), batch.mask)


def conditional_kl(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    tau: float = 1.0,
    *,
    inclusive: bool = False,
) -> Tensor:
    """1[r < tau and A > 0] * (-log r) [B, T], to be minimised; >= 0 where tau <= 1 (SAPO, arXiv 2603.10069, Eq. 10).

    `advantages` [B, T], tau > 0. `inclusive`: r <= tau and A >= 0, as in the released code. The condition is a constant
    for the gradient. log r is not bounded here: its gradient is 1 wherever the ratio is, and the tokens that have
    drifted furthest are those that need it.
    """
    log_r = log_ratio(logprobs, old_logprobs, mask)
    ratio = log_r.detach().exp()
    drifted, wanted = (ratio <= tau, advantages >= 0) if inclusive else (ratio < tau, advantages > 0)
    return torch.where(mask & drifted & wanted, -log_r, 0)
