"""Records of single tokens: what the updates made of a trajectory, for people who look at it."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from algos.batch import Batch
from algos.primitives import importance_ratio
from algos.training.policy import Scores

Record = dict[str, Any]


def token_records(batch: Batch, scores: Scores) -> list[Record]:
    """One for each row, of JSON's types; `Trajectory.extra["tokens"]` holds it.

    Args:
        batch: with advantages and lengths.
        scores: of the policy after the last update on the batch.

    Returns:
        {"ratio": [float or None, ...], "entropy": the same, "advantage": float, or a list like the others where the
        tokens of a response differ in it (PPO)}. Lists are as long as the ids of the trajectory. None: the policy did
        not sample the token, or the number is not finite. `ratio` is pi / pi_old, in [exp(-20), exp(20)], pi_old being
        `Batch.old_logprobs`. Numbers have 4 significant digits.
    """
    advantages = batch.require("advantages", "call algorithm.advantages(batch) first")
    ratio = importance_ratio(scores.logprobs, batch.old_logprobs, batch.mask)
    records: list[Record] = []
    for row, length in enumerate(batch.inputs()[1].tolist()):
        mask = batch.mask[row, :length]
        lists = [_short(values[row, :length], mask) for values in (ratio, scores.entropy, advantages)]
        found = {value for value, sampled in zip(lists[2], mask.tolist(), strict=True) if sampled}
        advantage = lists[2] if len(found) > 1 else next(iter(found), None)
        records.append({"ratio": lists[0], "entropy": lists[1], "advantage": advantage})
    return records


def _short(values: Tensor, mask: Tensor) -> list[float | None]:
    """The values [T] where the mask [T] is True, short in JSON."""
    pairs = zip(values.tolist(), mask.tolist(), strict=True)
    return [float(f"{value:.4g}") if sampled and math.isfinite(value) else None for value, sampled in pairs]
