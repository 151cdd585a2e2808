"""How far the policy has drifted from the one that sampled: importance-sampling distribution drift (ISDD).

Source: "Improving Search Agent with One Line of Code", arXiv 2603.10069, Def. 1 and Prop. 1. Each metric is defined
here alone, but for the plain means over tokens, which losses report: the mean ratio, the clip fractions below and
above, the entropy, the KL to the old policy and to the reference are those of `algos.metrics`.

With r = pi / pi_old of a token that the policy sampled, sums and means over such tokens alone:

    ratio_last                         mean r
    ratio_min                          min r
    ratio_p05, ratio_p50, ratio_p95    quantiles of r
    drifted                            share of the trajectories with  prod_t r_t < 0.01            (Def. 1)
    lambda_action, lambda_reasoning    mean(log r) + var(log r) / 2, of the tokens of that kind     (Prop. 1)
    entropy_action, entropy_reasoning  mean entropy of the next-token distribution, in nats, likewise
    positive_below_tau                 share of the tokens with A > 0 that have  r < tau
    penalty_grad_norm                  2-norm of the gradient of the penalty, its weight included
    objective_grad_norm                2-norm of the gradient of the rest of the loss

A token is of an action where `Batch.actions` says so: <search>…</search> or <answer>…</answer>, tags included. Where a
batch holds no token that a metric is about, the metric is left out.

The last two are over the parameters of the policy, made by `Learner` from backward passes of their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algos.batch import Batch

COLLAPSED = 1e-2
"""A trajectory counts as drifted away when the product of its ratios is below this (epsilon of Def. 1)."""
TAU = 1.0
"""The ratio below which a token with A > 0 is counted where the algorithm has no tau of its own (that of the paper)."""


@torch.no_grad()
def drift(batch: Batch, log_ratio: Tensor, entropy: Tensor, tau: float = TAU) -> dict[str, float]:
    """All of the above that need no gradient, of one update.

    Args:
        batch: the whole minibatch, with its advantages.
        log_ratio: [B, T] log(pi / pi_old); anything where mask is False.
        entropy: [B, T] in nats, likewise.
        tau: bound of `positive_below_tau`, >= 0; inf: all tokens are below it.

    Returns:
        The metrics by name; {} where the policy sampled nothing.
    """
    found = ratio_drift(log_ratio, batch.mask)
    if batch.actions is not None:
        for kind, where in (("action", batch.mask & batch.actions), ("reasoning", batch.mask & ~batch.actions)):
            if bool(where.any()):
                found[f"lambda_{kind}"] = drift_rate(log_ratio[where])
                found[f"entropy_{kind}"] = entropy[where].double().mean().item()
    positive = batch.mask & (batch.require("advantages", "call algorithm.advantages(batch) first") > 0)
    if bool(positive.any()):
        bound = math.log(tau) if tau > 0 else -math.inf
        found["positive_below_tau"] = (log_ratio[positive] < bound).double().mean().item()
    return found


@torch.no_grad()
def ratio_drift(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """Statistics of r = pi / pi_old over the policy's tokens.

    Quantiles stand beside the mean because a few very large ratios can hold the mean up while most ratios fall.

    Args:
        log_ratio: [B, T]; anything where mask is False.
        mask: bool [B, T].

    Returns:
        ratio_last, ratio_min, ratio_p05, ratio_p50, ratio_p95; and drifted, of the trajectories with a policy token.
        Empty where the policy sampled nothing.
    """
    if not bool(mask.any()):
        return {}
    tokens = log_ratio[mask].double()
    quantiles = tokens.quantile(tokens.new_tensor([0.05, 0.5, 0.95])).exp().tolist()
    products = torch.where(mask, log_ratio, 0).double().sum(1)[mask.any(1)]
    drifted = (products < torch.tensor(COLLAPSED).log()).double().mean().item()
    named = dict(zip(("ratio_p05", "ratio_p50", "ratio_p95"), quantiles, strict=True))
    return (
        {"ratio_last": tokens.exp().mean().item(), "ratio_min": tokens.min().exp().item()}
        | named
        | {"drifted": drifted}
    )


def drift_rate(log_ratio: Tensor) -> float:
    """lambda = mu + sigma^2 / 2, with the mean mu and the variance sigma^2 (ddof 0) of log-ratios [N], N > 0.

    Where they are normal, lambda = log E[r], and E[prod_t r_t] = exp(lambda L) over L independent tokens (arXiv
    2603.10069, Prop. 1): below 0, the ratio of a trajectory vanishes with its length. Ratios of tokens that pi_old
    sampled have E[r] = 1, hence lambda = 0: another value says that they are not normal, or no longer fresh samples.
    """
    tokens = log_ratio.double()
    return (tokens.mean() + tokens.var(correction=0) / 2).item()
