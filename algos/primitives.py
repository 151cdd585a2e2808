"""The mathematics that algorithms share. Pure functions of tensors.

Shapes: B responses, T tokens. `mask` [B, T] is True where the policy sampled the token. Log-probs and values may hold
anything, NaN and -inf included, where mask is False: such places are replaced before any arithmetic, because 0 * NaN is
NaN in a backward pass too, so masking a result comes too late for its gradient.
Half precision is computed in float32, for the ratio of two near probabilities has no digits left in bfloat16; float64
stays float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from algos.batch import Batch

LOG_RATIO_BOUND = 20.0
"""exp(20) = 4.9e8: far outside of any clip, and finite in float32 together with its square."""
LOG_RATIO_BOUND_HALF = 8.0
"""For float16 log-probs, whose gradient ends at 65,504: exp(8) = 2,981 leaves room for an advantage of 20."""


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
    rewards: Tensor,
    groups: Tensor,
    *,
    scale_by_std: bool = True,
    ddof: int = 1,
    epsilon: float = 1e-6,
    group_of_one: str = "zero",
) -> Tensor:
    """(R - mean) / (std + epsilon) within each group, [B], from `rewards` [B] and `groups` [B].

    Source: GRPO, arXiv 2402.03300, Sec. 4.1.2. Without `scale_by_std`: R - mean (Dr. GRPO, arXiv 2503.20783).
    `ddof` 1 is the sample std, 0 the population's. A NaN reward is a missing one: it enters no mean and gets 0.
    A group of equal rewards gets exactly 0, and so does one of one, unless `group_of_one` is "reward": then its mean
    counts as 0 and its std as 1, as in verl and Search-R1.
    """
    rewards = _wide(rewards)
    present = ~rewards.isnan()
    advantages = torch.zeros_like(rewards)
    # A loop, not a scatter: floating-point scatters add in no fixed order on a GPU, and runs must repeat.
    for number in groups.unique():
        members = present & (groups == number)
        group = rewards[members]
        # Equal rewards are asked for as such: rounding can leave their mean beside them, and epsilon would divide that.
        if len(group.unique()) > 1:
            scale = group.std(correction=ddof) + epsilon if scale_by_std else 1.0
            advantages[members] = (group - group.mean()) / scale
        elif len(group) == 1 and group_of_one == "reward":
            advantages[members] = group / (1 + epsilon if scale_by_std else 1.0)
    return advantages


def leave_one_out_advantages(rewards: Tensor, groups: Tensor, group_of_one: str = "zero") -> Tensor:
    """R minus the mean reward of the other members of the group, [B], from `rewards` [B] and `groups` [B].

    Source: RLOO, arXiv 2402.14740, Eq. 8. A NaN reward is a missing one: it enters no mean and gets 0. A group of equal
    rewards gets 0, and so does one of one, unless `group_of_one` is "reward": then it keeps its reward.
    """
    advantages = group_advantages(rewards, groups, scale_by_std=False, group_of_one=group_of_one)
    for number in groups.unique():
        members = ~rewards.isnan() & (groups == number)
        count = int(members.sum())
        if count > 1:
            advantages[members] *= count / (count - 1)
    return advantages


WHITENING_EPSILON = 1e-8
"""Added to the variance, as in verl, SkyRL and TRL."""


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-8) over the places where `mask` is True, [B, T]; 0 elsewhere.

    The variance is the sample's (ddof 1). Values that are all equal become exactly 0, and so does a single one.
    """
    kept = _wide(values)[mask]
    whitened = torch.zeros_like(_wide(values))
    # Equal values are asked for as such: rounding can leave their mean beside them, and epsilon would divide that.
    if len(kept.unique()) > 1:
        whitened[mask] = (kept - kept.mean()) * (kept.var() + WHITENING_EPSILON).rsqrt()
    return whitened


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    final_values: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimates [B, T] (arXiv 1506.02438, Eq. 16), over the policy's tokens alone; 0 elsewhere.

    `rewards`, `values` [B, T]; gamma, lam in [0, 1]. A masked span takes no time: the token before it is followed by
    the token after it. `final_values` [B] is the value of the state after a row's last token: 0 where the episode
    ended, which is the default for all. The returns are `gae(...) + values`.
    """
    rewards, values = _wide(rewards), _wide(values)
    advantages = torch.zeros_like(values)
    next_advantage = torch.zeros_like(values[:, 0])
    next_value = next_advantage if final_values is None else final_values.to(values.dtype)
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


def _bound(logprobs: Tensor) -> float:
    return LOG_RATIO_BOUND_HALF if logprobs.dtype == torch.float16 else LOG_RATIO_BOUND


def _exp(log_ratios: Tensor, logprobs: Tensor) -> Tensor:
    """exp of log-ratios, bounded so that it is finite and its gradient is, in the type of the log-probs."""
    bound = _bound(logprobs)
    return log_ratios.clamp(-bound, bound).exp()


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """r = pi / pi_old [B, T], in [exp(-20), exp(20)]; 1, with a gradient of 0, where mask is False. (float16: 8.)

    Beyond the bounds its gradient is 0 on purpose. Above, r A with A < 0 is the one gain that no clip holds, and a
    gradient of 5e8 from one token would, once the norm is clipped, erase those of all others. Below, the true one is
    under 3e-9.
    """
    return _exp(log_ratio(logprobs, old_logprobs, mask), logprobs)


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """s = (prod_t r_t)^(1 / length) [B], bounded as r is; 1 for an empty row (GSPO, arXiv 2507.18071, Eq. 7)."""
    return _exp(masked_mean(log_ratio(logprobs, old_logprobs, mask), mask, dim=1), logprobs)


def response_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """prod_t r_t [B], bounded as r is: the ratio of a response taken as one action; 1 for an empty row."""
    return _exp(log_ratio(logprobs, old_logprobs, mask).sum(1), logprobs)


def clipped_gain(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float = math.inf
) -> Tensor:
    """min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), elementwise (PPO, arXiv 1707.06347, Eq. 7).

    Where A < 0 it is not let below `dual_clip` A, > 1 (dual-clip PPO, arXiv 1912.09729): r has no upper bound
    there otherwise.
    """
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip == math.inf:
        return gain
    return torch.where(advantages < 0, torch.maximum(gain, dual_clip * advantages), gain)


CORRECTIONS = ("token-truncate", "token-mask", "sequence-truncate", "sequence-mask")
"""How `mismatch_weights` corrects: at each token or for a whole response, by a bound or by leaving out."""


def mismatch_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, correction: str, low: float = 0.0, high: float = 2.0
) -> Tensor:
    """w = pi_old / pi_sampler [B, T], for tokens drawn by a sampler that is not quite the policy; without a gradient.

    "token-…": w of each token; "sequence-…": the product over the tokens of a response, at each of them.
    "…-truncate": w is clamped to [low, high] (truncated importance sampling, Yao et al., "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training", 2025); "…-mask": w is 0 outside of [low, high] (IcePop, arXiv
    2510.18855). 1 where mask is False.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"unknown correction {correction!r}; there are: {', '.join(CORRECTIONS)}")
    level, _, rule = correction.partition("-")
    log_weights = log_ratio(old_logprobs, rollout_logprobs, mask).detach()
    if level == "sequence":
        log_weights = log_weights.sum(1, keepdim=True).expand_as(log_weights)
    weights = _exp(log_weights, old_logprobs)
    kept = weights.clamp(low, high) if rule == "truncate" else weights.where((weights >= low) & (weights <= high), 0)
    return torch.where(mask, kept, 1)


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float = math.inf) -> Tensor:
    """max((V - G)^2, (V_clipped - G)^2) / 2 [B, T], V_clipped = V_old + clip(V - V_old, -clip, clip); 0 where masked.

    All are [B, T]. Source: the clipped value loss of OpenAI Baselines' PPO2, which the paper does not describe.
    """
    values, old_values, returns = (torch.where(mask, _wide(given), 0) for given in (values, old_values, returns))
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())


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
    inverse = log_ratio(ref_logprobs, logprobs, mask).clamp(max=_bound(logprobs))
    return inverse.exp() - 1 - inverse


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "k1": kl_k1,
    "k2": kl_k2,
    "k3": kl_k3,
}
"""The estimators of KL(p || q) by name: (log p, log q, mask) [B, T] -> [B, T]."""


def conditional_kl(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    tau: float = 1.0,
    advantages: Tensor | None = None,
    *,
    inclusive: bool = False,
) -> Tensor:
    """1[r < tau and A > 0] * (-log r) [B, T], to be minimised; >= 0 where tau <= 1 (SAPO, arXiv 2603.10069, Eq. 10).

    tau >= 0, inf for none; `advantages` [B, T], None for no condition on them. `inclusive`: r <= tau and A >= 0, as in
    the released code. The condition is a constant for the gradient. log r is not bounded here: its gradient is 1
    wherever the ratio is, and the tokens that have drifted furthest are those that need it.
    """
    log_r = log_ratio(logprobs, old_logprobs, mask)
    bound = math.log(tau) if tau > 0 else -math.inf  # of log r, for r itself overflows
    touched = mask & ((log_r <= bound) if inclusive else (log_r < bound))
    if advantages is not None:
        touched = touched & ((advantages >= 0) if inclusive else (advantages > 0))
    return torch.where(touched, -log_r, 0)
