"""How far the policy has drifted from the one that sampled: importance-sampling distribution drift (ISDD).

Source: "Improving Search Agent with One Line of Code", arXiv 2603.10069, Def. 1. Each metric is defined here alone; the
plain means over tokens (ratio, clip fraction) are those of `algos.metrics`.
"""

from __future__ import annotations

import torch
from torch import Tensor

COLLAPSED = 1e-2
"""A trajectory counts as drifted away when the product of its ratios is below this (epsilon of Def. 1)."""


@torch.no_grad()
def ratio_drift(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """Statistics of r = pi / pi_old over the policy's tokens.

    Quantiles stand beside the mean because a few very large ratios can hold the mean up while most ratios fall.

    Args:
        log_ratio: [B, T]; anything where mask is False.
        mask: bool [B, T].

    Returns:
        ratio_last: the mean over tokens, of the update that this is called for alone;
        ratio_p05, ratio_p50, ratio_p95: quantiles over tokens;
        drifted: share of the trajectories (with a policy token) whose product of ratios is below `COLLAPSED`.
        Empty where the policy sampled nothing.
    """
    if not bool(mask.any()):
        return {}
    tokens = log_ratio[mask].double()
    quantiles = tokens.quantile(tokens.new_tensor([0.05, 0.5, 0.95])).exp().tolist()
    products = torch.where(mask, log_ratio, 0).double().sum(1)[mask.any(1)]
    drifted = (products < torch.tensor(COLLAPSED).log()).double().mean().item()
    named = dict(zip(("ratio_p05", "ratio_p50", "ratio_p95"), quantiles, strict=True))
    return {"ratio_last": tokens.exp().mean().item()} | named | {"drifted": drifted}
