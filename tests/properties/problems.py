"""Random problems for the laws: ragged masks, masked spans inside, empty rows, extreme values; and how to solve one.

Masked places hold NaN and -inf in all of them, so each law is also a law about leaks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import algos
from algos.batch import Batch
from algos.primitives import AGGREGATIONS

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "30"))


def law(**strategies: st.SearchStrategy) -> Callable:
    """A test of examples drawn from these; the same examples in every run."""
    return lambda test: settings(max_examples=EXAMPLES, deadline=None, derandomize=True)(given(**strategies)(test))


def objectives() -> Iterator[tuple[str, dict]]:
    """Every algorithm under every aggregation that it knows."""
    for name in algos.available():
        for aggregation in AGGREGATIONS:
            try:
                algos.make(name, aggregation=aggregation)
            except TypeError:  # it has no such option
                yield name, {}
                break
            yield name, {"aggregation": aggregation}


def label(case: object) -> str:
    return "-".join(map(str, case.values())) or "default" if isinstance(case, dict) else str(case)


OBJECTIVES = list(objectives())
VARIANTS = [
    *((name, {"aggregation": aggregation}) for name in ("grpo", "sapo", "ppo") for aggregation in AGGREGATIONS),
    ("grpo", {"kl_coef": 0.1}),
    ("grpo", {"kl_coef": 0.1, "kl_estimator": "k1", "kl_in": "reward", "group_of_one": "reward"}),
    ("grpo", {"kl_coef": 0.1, "kl_estimator": "k2", "dual_clip": 1.5}),
    ("grpo", {"correction": "token-truncate", "correction_low": 0.5}),
    ("dapo", {"correction": "token-mask", "correction_low": 0.5, "drop_truncated": True}),
    ("sapo", {"correction": "sequence-truncate", "dual_clip": 3.0}),
    ("gspo", {"correction": "sequence-mask"}),
    ("ppo", {"gamma": 0.9, "lam": 0.8, "kl_coef": 0.1, "dual_clip": 3.0, "bootstrap_truncated": True}),
    ("ppo", {"whiten_advantages": False, "value_clip": 0.1, "kl_coef": 0.1, "kl_estimator": "k2", "kl_in": "loss"}),
    ("reinforce_pp", {"baseline": "group", "gamma": 0.9, "kl_coef": 0.1, "dual_clip": 3.0}),
    ("rloo", {"ratio": "response", "kl_coef": 0.1, "kl_estimator": "k1", "kl_in": "reward"}),
    ("lld", {"gate": "response", "lambda_": 0.7}),
    ("gspo", {"variant": "token"}),
    ("gspo", {"variant": "token", "aggregation": "token-mean", "kl_coef": 0.1}),
    ("cispo", {"clip_low": 0.2, "clip_high": 4.0, "kl_coef": 0.1}),
    ("soft_sapo", {"temperature": 2.0, "temperature_negative": 0.5, "kl_coef": 0.1}),
    ("grpo_kl_r", {"tau": 1.2, "gamma": 0.7}),
    ("sapo", {"variant": "released"}),
    ("sapo", {"variant": "released", "aggregation": "token-mean", "tau": 1.2, "kl_coef": 0.1}),
    ("sapo", {"tau": 1.2, "gamma": 0.7}),
]
# Their losses hold a factor that the gradient takes for a constant, so the gradient is not that of the value.
STOPPED = ("cispo", "gspo token")
# Its KL has no condition, so it pulls at every sampled token, at a ratio of 1 as well.
PULLING = ("grpo_kl",)
each_objective = pytest.mark.parametrize(("name", "options"), OBJECTIVES, ids=label)
DEFAULTS: list[tuple[str, dict]] = [(name, {}) for name in algos.available()]
each_variant = pytest.mark.parametrize(("name", "options"), [*DEFAULTS, *VARIANTS], ids=label)
each_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch without advantages, and the log-probs to score it with."""

    batch: Batch
    logprobs: Tensor

    def poisoned(self, *values: float) -> Problem:
        """Other contents at the masked places."""
        mask = self.batch.mask
        filler = torch.tensor(values, dtype=torch.float64).repeat(mask.numel())[: mask.numel()].reshape(mask.shape)
        fields = {key: value for key, value in self.batch.tensors().items() if key.endswith(("logprobs", "values"))}
        fields = {key: value for key, value in fields.items() if value.ndim == 2}
        fields = {key: torch.where(mask, value, filler) for key, value in fields.items()}
        return Problem(replace(self.batch, **fields), torch.where(mask, self.logprobs, filler))


SMOOTH = torch.tensor([-1.5, -0.7, -0.4, -0.1, 0.1, 0.35, 0.6], dtype=torch.float64)
"""Log-ratios away from the kinks of clip 0.2 and of tau 1 and 1.2."""


@st.composite
def problems(draw: st.DrawFn, spreads: tuple[float, ...] = (0.0, 0.3, 3.0, 1e4), smooth: bool = False) -> Problem:
    """Sizes and shapes are drawn one by one, so that they shrink; the numbers come from a drawn seed, for speed."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    density, spread = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])), draw(st.sampled_from(spreads))
    rewards = draw(st.lists(st.sampled_from([0.0, 1.0, 0.4, -2.0, math.nan]), min_size=rows, max_size=rows))
    groups = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))

    def uniform() -> Tensor:
        return torch.rand(rows, width, generator=generator, dtype=torch.float64)

    mask = (uniform() < density) & (uniform()[:, :1] < 0.8)
    log_ratio = spread * (2 * uniform() - 1) * (uniform() < 0.8)
    if smooth:
        log_ratio = SMOOTH[(uniform() * len(SMOOTH)).long()] + 0.02 * (2 * uniform() - 1)
    old = -3 * uniform()
    batch = Batch(
        mask=mask,
        old_logprobs=old,
        ref_logprobs=old + 2 * uniform() - 1,
        rollout_logprobs=old + spread * (2 * uniform() - 1) / 10,
        values=2 * uniform() - 1,
        final_values=2 * uniform()[:, 0] - 1,
        truncated=uniform()[:, 0] < 0.3,
        rewards=torch.tensor(rewards, dtype=torch.float64),
        groups=torch.tensor(groups),
    )
    return Problem(batch, old + log_ratio).poisoned(math.nan, -math.inf)


def critic(algorithm: algos.Algorithm, batch: Batch) -> dict[str, Tensor]:
    """The further argument of a loss that has a critic: the values of one that has moved since it scored the batch."""
    needed = "values" in getattr(algorithm, "needs", ())
    return {"values": -batch.require("values", "problems have them")} if needed else {}


def evaluate(algorithm: algos.Algorithm, batch: Batch, logprobs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, gradient and metrics."""
    logprobs = logprobs.detach().clone().requires_grad_()
    out = algorithm.loss(batch, logprobs, **critic(algorithm, batch))
    (gradient,) = torch.autograd.grad(out.loss, logprobs)
    return out.loss.detach(), gradient, out.metrics


def solve(name: str, options: dict, problem: Problem) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    algorithm = algos.make(name, **options)
    return evaluate(algorithm, algorithm.advantages(problem.batch), problem.logprobs)


def assert_same(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
