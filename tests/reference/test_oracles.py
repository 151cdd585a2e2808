"""verl and TRL, installed and called, as independent oracles: the same loss and gradient from the same batch.

oracle.py runs once in the environment that `make peers` makes. README.md beside this file has what was found, and what
could not be compared.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import algos
from algos.batch import Batch
from algos.primitives import AGGREGATIONS, KL_ESTIMATORS, average, mismatch_weights, sequence_ratio

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers/bin/python"
ROWS, WIDTH, GROUP = 8, 12, 4


# Batches


@dataclass(frozen=True, eq=False)
class Sample:
    """A batch, and what the policy and the critic make of it now."""

    batch: Batch
    logprobs: Tensor
    new_values: Tensor


def sample(kind: str, seed: int) -> Sample:
    """Ragged rows with masked spans inside. Masked places hold what any other does: the peers multiply by the mask, so
    it must be finite, and whatever lets one through is off by far."""
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    def around(given: Tensor | float, most: float) -> Tensor:
        return given + most * (2 * uniform() - 1)

    column = torch.arange(WIDTH)
    lengths = torch.randint(4, WIDTH + 1, (ROWS,), generator=generator)
    mask = (column < lengths[:, None]) & ((column == 0) | (uniform() < 0.7))
    groups = torch.arange(ROWS) // GROUP  # TRL has groups of one size, one after the other
    rewards = uniform()[:, 0]
    if seed % 2:
        rewards = (rewards < 0.5).double()
    if kind == "uneven":  # groups of 5, 2 and 1, mixed, and a row in which the policy sampled nothing
        groups = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])[torch.randperm(ROWS, generator=generator)]
        mask[int(groups.argmin())] = False
    if kind == "missing":
        rewards[torch.tensor([1, 4, 5, 6])] = torch.nan  # of one group, one reward; of the other, all but one
    old = around(-2.0, 1.9)
    spread = {"wide": 3.0, "far": 30.0}.get(kind, (0.3, 1.5)[seed % 2])
    values = around(0.0, 1.0)
    batch = Batch(
        mask=mask,
        old_logprobs=old,
        rewards=rewards,
        groups=groups,
        ref_logprobs=around(old, 0.5),
        rollout_logprobs=around(old, 0.5),
        values=values,
        lengths=lengths,
    )
    return Sample(batch, logprobs=around(old, spread), new_values=around(values, 1.0))


KINDS = {"near": 8, "wide": 4, "uneven": 4, "far": 2, "missing": 2}
SAMPLES = {f"{kind}-{seed}": sample(kind, seed) for kind, count in KINDS.items() for seed in range(count)}
VERL = ("near", "wide", "uneven", "far")  # verl knows no missing reward
TRL = ("near", "wide", "missing")  # TRL bounds no log-ratio, and counts empty rows where it averages over rows


# Ours

Answer = dict[str, Tensor]
Ours = Callable[[Sample], Answer]


def gradients(loss: Tensor, **inputs: Tensor) -> Answer:
    return {"loss": loss.detach(), **dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))}


def loss_of(name: str, preset: str | None = None, **options: Any) -> Ours:
    """The loss of an algorithm with these options, from rewards to gradient."""
    algorithm = algos.make(name, preset=preset, **options)

    def compute(given: Sample) -> Answer:
        batch = algorithm.advantages(given.batch)
        inputs = {"gradient": given.logprobs.clone().requires_grad_()}
        critic = {}
        if name == "ppo":
            inputs["value_gradient"] = critic["values"] = given.new_values.clone().requires_grad_()
        answer = gradients(algorithm.loss(batch, inputs["gradient"], **critic).loss, **inputs)
        answer["advantages"] = batch.require("advantages", "just made")
        if critic:
            answer["returns"] = batch.require("returns", "just made")
        return answer

    return compute


def average_of(aggregation: str, norm: float = 1.0, rows: int | None = None) -> Ours:
    def compute(given: Sample) -> Answer:
        logprobs = given.logprobs.clone().requires_grad_()
        return gradients(average(logprobs[:rows], given.batch.part(slice(rows)), aggregation, norm), gradient=logprobs)

    return compute


def kl_of(estimator: str) -> Ours:
    def compute(given: Sample) -> Answer:
        logprobs = given.logprobs.clone().requires_grad_()
        reference = given.batch.require("ref_logprobs", "samples have them")
        kl = KL_ESTIMATORS[estimator](logprobs, reference, given.batch.mask)
        return {"kl": kl.detach()} | gradients(kl.sum(), gradient=logprobs)

    return compute


def weights(given: Sample, name: str, low: float, high: float) -> Tensor:
    batch = given.batch
    sampled = batch.require("rollout_logprobs", "samples have them")
    return mismatch_weights(batch.old_logprobs, sampled, batch.mask, name, low, high) * batch.mask


def weights_of(name: str, low: float, high: float) -> Ours:
    return lambda given: {"weights": weights(given, name, low, high)}


def kept_of(name: str, low: float, high: float) -> Ours:
    """What a correction by leaving out keeps, as a mask."""
    return lambda given: {"kept": (weights(given, name, low, high) > 0).double()}


def kept_by_the_mean(low: float, high: float) -> Ours:
    def compute(given: Sample) -> Answer:
        batch = given.batch
        ratio = sequence_ratio(batch.old_logprobs, batch.require("rollout_logprobs", "samples have them"), batch.mask)
        return {"kept": batch.mask * ((ratio >= low) & (ratio <= high)).double()[:, None]}

    return compute


# Cases


@dataclass(frozen=True)
class Case:
    """A peer's function with options, what says the same here, and how far apart they may be."""

    function: str
    options: Mapping[str, Any]
    ours: Ours
    tolerance: float
    """Relative to the largest entry, for the loss to 1 if that is more."""
    kinds: tuple[str, ...]


EXACT = 1e-14
"""The same operations but for their order."""
PER_ROW = 1e-8
"""verl's mean over a row divides by its length + 1e-8."""
WHITENED = 1e-9
"""verl's mean and variance, by which it whitens, divide by the number of tokens + 1e-8."""

CASES: dict[str, Case] = {}


def verl(name: str, ours: Ours, tolerance: float = EXACT, kinds: tuple[str, ...] = VERL, **options: Any) -> None:
    CASES[f"verl {name}"] = Case("verl_loss", options, ours, tolerance, kinds)


def trl(name: str, ours: Ours, tolerance: float = EXACT, **options: Any) -> None:
    CASES[f"trl {name}"] = Case("trl_grpo_loss", options, ours, tolerance, TRL)


def other(
    name: str, function: str, ours: Ours, tolerance: float = EXACT, kinds: tuple[str, ...] = VERL, **options: Any
):
    CASES[name] = Case(function, options, ours, tolerance, kinds)


MEAN: dict[str, Any] = {"mode": "seq-mean-token-mean"}
NORM: dict[str, Any] = {"mode": "seq-mean-token-sum-norm"}

verl("grpo", loss_of("grpo", "verl"), estimator="grpo")
verl("grpo, mean of means", loss_of("grpo", "verl", aggregation=MEAN["mode"]), PER_ROW, estimator="grpo", **MEAN)
# verl has no switch for its dual clip, so here it is out of reach.
verl("grpo, no dual clip", loss_of("grpo", "verl", dual_clip=math.inf), estimator="grpo", config={"clip_ratio_c": 1e30})
verl("dapo", loss_of("dapo", "verl"), estimator="grpo", config={"clip_ratio_high": 0.28, "clip_ratio_c": 10.0})
# verl divides by the width of the batch unless it is told.
scale: dict[str, Any] = {"loss_scale_factor": 1024}
verl("dr_grpo", loss_of("dr_grpo", "verl"), estimator="grpo", scale_by_std=False, aggregation=scale, **NORM)
verl("dr_grpo, width", loss_of("dr_grpo", "verl", norm_tokens=WIDTH), estimator="grpo", scale_by_std=False, **NORM)
verl("rloo", loss_of("rloo", "verl"), estimator="rloo")
for penalty in KL_ESTIMATORS:
    # verl cuts k3 off at 10, and with it the gradient; here only the ratio in it is bounded. So no wide log-ratios.
    near = ("near", "uneven") if penalty == "k3" else VERL
    ours = loss_of("grpo", "verl", kl_coef=0.05, kl_estimator=penalty)
    verl(f"grpo, {penalty} in the loss", ours, kinds=near, estimator="grpo", loss_kl=(penalty, 0.05))
    other(f"verl {penalty}", "verl_kl", kl_of(penalty), kinds=near, penalty=penalty)

pp = "reinforce_plus_plus"
verl("reinforce_pp", loss_of("reinforce_pp", "verl"), WHITENED, estimator=pp)
verl("reinforce_pp, gamma", loss_of("reinforce_pp", "verl", gamma=0.9), WHITENED, estimator=pp, gamma=0.9)
verl("reinforce_pp, kl", loss_of("reinforce_pp", "verl", kl_coef=0.05), WHITENED, estimator=pp, reward_kl=0.05)
pp += "_baseline"
verl("reinforce_pp, baseline", loss_of("reinforce_pp", "verl", baseline="group"), WHITENED, estimator=pp)

verl("ppo", loss_of("ppo", "verl"), WHITENED, estimator="gae")
time: dict[str, Any] = {"gamma": 0.99, "lam": 0.95}
verl("ppo, gamma and lambda", loss_of("ppo", "verl", **time), WHITENED, estimator="gae", **time)
verl("ppo, kl", loss_of("ppo", "verl", kl_coef=0.05), WHITENED, estimator="gae", reward_kl=0.05)
ours = loss_of("ppo", "verl", aggregation=MEAN["mode"], value_clip=0.2)
verl("ppo, mean of means", ours, PER_ROW, estimator="gae", value_clip=0.2, **MEAN)

# verl bounds log s by 10, here the bound is 20: they part where the mean log-ratio of a response is above 10.
tame = ("near", "wide", "uneven")
narrow: dict[str, Any] = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
gspo: dict[str, Any] = {"estimator": "grpo", "policy_loss": "gspo"}
verl("gspo", loss_of("gspo", "verl"), PER_ROW, tame, config=narrow, **gspo, **MEAN)
ours = loss_of("gspo", "verl", aggregation="token-mean", clip_low=0.2, clip_high=0.2)
verl("gspo, token-mean and wide", ours, EXACT, tame, **gspo)
cispo: dict[str, Any] = {"estimator": "grpo", "policy_loss": "cispo"}
verl("cispo", loss_of("cispo", "verl"), config={"clip_ratio_low": 10.0, "clip_ratio_high": 0.2}, **cispo)
verl("cispo, bounded below", loss_of("cispo", "verl", clip_low=0.2), **cispo)
verl("soft_sapo", loss_of("soft_sapo", "verl"), PER_ROW, estimator="grpo", policy_loss="sapo")

for mode in AGGREGATIONS:
    size = PER_ROW if mode == MEAN["mode"] else EXACT
    other(f"verl {mode}", "verl_aggregation", average_of(mode, 1024), size, mode=mode, scale=1024)
    part = average_of(mode, 1024, rows=3)
    other(f"verl {mode}, a part", "verl_aggregation", part, size, mode=mode, scale=1024, rows=3)
other("verl seq-mean-token-sum", "verl_aggregation", average_of(NORM["mode"], 1.0), mode="seq-mean-token-sum")

for correction, (low, high, threshold) in {"truncate": (0.0, 1.2, 1.2), "mask": (0.7, 1.3, "0.7_1.3")}.items():
    for level in ("token", "sequence"):
        name = f"{level}-{correction}"
        options = {"correction": name, "correction_low": low, "correction_high": high}
        verl(f"grpo, {name}", loss_of("grpo", "verl", **options), estimator="grpo", weights=(level, threshold))
        ours = weights_of(name, low, high)
        other(f"verl weights, {name}", "verl_weights", ours, level=level, threshold=threshold)
# Its criterion is the inverse of the weight: the bounds change places.
bounds = (1 / 1.3, 1 / 0.8)
for level, criterion in (("token", "token_k1"), ("sequence", "seq_sum_k1")):
    ours = kept_of(f"{level}-mask", *bounds)
    other(f"verl rejection, {criterion}", "verl_rejection", ours, criterion=criterion, threshold="0.8_1.3")
ours = kept_by_the_mean(1 / 1.05, 1 / 0.95)
other("verl rejection, seq_mean_k1", "verl_rejection", ours, criterion="seq_mean_k1", threshold="0.95_1.05")

trl("grpo", loss_of("grpo", "trl"), loss_type="dapo")
trl("grpo, loss_type grpo", loss_of("grpo", "trl", aggregation=MEAN["mode"]), loss_type="grpo")
trl("grpo, loss_type bnpo", loss_of("grpo", "trl"), loss_type="bnpo")
trl("grpo, delta", loss_of("grpo", "trl", dual_clip=1.5), loss_type="dapo", delta=1.5)
# TRL also multiplies the KL by the ratio, unless it is told not to.
trl("grpo, kl", loss_of("grpo", "trl", kl_coef=0.05), loss_type="dapo", kl_coef=0.05, weigh_kl=False)
trl("dapo", loss_of("dapo", "trl"), loss_type="dapo", high=0.28)
trl("dr_grpo", loss_of("dr_grpo", "trl"), loss_type="dr_grpo", max_length=1024)
plain = loss_of("dr_grpo", "trl", scale_by_std=False, norm_tokens=512)
trl("dr_grpo, scale_rewards none", plain, loss_type="dr_grpo", scale_rewards="none")
trl("gspo", loss_of("gspo", "trl"), loss_type="grpo", level="sequence", low=3e-4, high=4e-4)
ours = loss_of("gspo", "trl", clip_low=0.2, clip_high=0.2, aggregation="token-mean")
trl("gspo, loss_type dapo and wide", ours, loss_type="dapo", level="sequence")
ours = loss_of("gspo", "trl", clip_low=0.2, clip_high=0.2, aggregation=NORM["mode"], norm_tokens=1)
trl("gspo, loss_type luspo", ours, loss_type="luspo", level="sequence")
trl("cispo", loss_of("cispo", "trl"), loss_type="cispo", high=5.0)
trl("soft_sapo", loss_of("soft_sapo", "trl"), loss_type="sapo")
for rule, (low, high) in {"truncate": (0.9, 1.2), "mask": (0.7, 1.3)}.items():
    for level in ("token", "sequence"):
        ours = loss_of("grpo", "trl", correction=f"{level}-{rule}", correction_low=low, correction_high=high)
        trl(f"grpo, {level}-{rule}", ours, loss_type="dapo", correct=(f"{level}_{rule}", low, high))
other("trl rloo", "trl_rloo_loss", loss_of("rloo", "trl"), kinds=TRL)


# The comparison


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Answer]]:
    """{case: {sample: what the peer computed}}."""
    if not any(ROOT.glob(".venv-peers/lib/*/site-packages/verl")):
        pytest.skip("verl and TRL are not installed: make peers")
    request, target = (tmp_path_factory.mktemp("oracles") / name for name in ("request.pt", "answer.pt"))
    batches = {
        name: {**given.batch.tensors(), "logprobs": given.logprobs, "new_values": given.new_values}
        for name, given in SAMPLES.items()
    }
    cases = {
        name: {"function": case.function, "options": dict(case.options), "batches": samples_of(case)}
        for name, case in CASES.items()
    }
    torch.save({"batches": batches, "cases": cases}, request)
    command = [PYTHON, Path(__file__).with_name("oracle.py"), request, target]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(target)


def samples_of(case: Case) -> list[str]:
    return [name for name in SAMPLES if name.split("-")[0] in case.kinds]


def difference(name: str, ours: Tensor, theirs: Tensor) -> float:
    """The largest, by the largest entry; that of the loss by 1 if that is more, for a loss can be 0 by chance."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.float64
    size = theirs.abs().max().item()
    size = max(1.0, size) if name == "loss" else size or 1.0
    return (ours - theirs).abs().max().item() / size


@pytest.mark.parametrize("name", CASES)
def test_a_peer_computes_the_same(name: str, answers: dict[str, dict[str, Answer]]) -> None:
    case = CASES[name]
    for key in samples_of(case):
        found, expected = case.ours(SAMPLES[key]), answers[name][key]
        assert found.keys() == expected.keys()
        for what, value in found.items():
            assert difference(what, value, expected[what]) <= case.tolerance, (key, what)
