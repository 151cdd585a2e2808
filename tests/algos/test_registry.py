"""Making algorithms by name: what is wrong is named, and so is what there is."""

from __future__ import annotations

import pytest

import algos
from algos import _factories


def test_available_and_make() -> None:
    named = {"cispo", "dapo", "dr_grpo", "grpo", "grpo_kl", "grpo_kl_r", "gspo", "rloo", "sapo", "soft_sapo"}
    assert named <= set(algos.available())
    assert algos.available() == tuple(sorted(algos.available()))
    for name in algos.available():
        assert algos.make(name) == algos.make(name)
    assert algos.make("sapo", gamma=0.2, tau=1.2) == algos.SAPO(gamma=0.2, tau=1.2)


def test_unknown_algorithm_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown algorithm 'gpro'; there are: .*grpo, .*sapo"):
        algos.make("gpro")


def test_unknown_option_lists_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"grpo has no option 'gamma'; it has: clip_low, clip_high, .*kl_coef$"):
        algos.make("grpo", gamma=0.1)


@pytest.mark.parametrize("name", ["grpo", "sapo"])
@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("clip_low", -0.1, r"in \[0, 1\)"),
        ("clip_low", 1.0, r"in \[0, 1\)"),
        ("clip_high", float("nan"), r"in \[0, 1\)"),
        ("clip_high", "0.2", r"in \[0, 1\)"),
        ("epsilon", -1e-6, r"in \[0, inf\)"),
        ("kl_coef", float("inf"), r"in \[0, inf\)"),
        ("ddof", 2, "one of 0, 1"),
        ("aggregation", "mean", "one of 'seq-mean-token-mean', .*'token-mean'"),
    ],
)
def test_option_out_of_range(name: str, option: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{option} = .*{allowed}"):
        algos.make(name, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("gamma", -0.1, r"in \[0, inf\)"),
        ("tau", -1, r"in \[0, inf\)"),
        ("tau", True, r"in \[0, inf\)"),
        ("variant", "code", "one of 'paper', 'released'"),
    ],
)
def test_sapo_option_out_of_range(option: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"SAPO: {option} = .*{allowed}"):
        algos.make("sapo", **{option: value})


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algos, "_factories", dict(_factories))
    algos.register("grpo_wide", lambda clip_high=0.5: algos.GRPO(clip_high=clip_high))
    assert "grpo_wide" in algos.available()
    assert algos.make("grpo_wide") == algos.GRPO(clip_high=0.5)
    with pytest.raises(TypeError, match="grpo_wide has no option 'clip_low'; it has: clip_high"):
        algos.make("grpo_wide", clip_low=0.1)
    with pytest.raises(ValueError, match="'grpo' is registered already"):
        algos.register("grpo", algos.SAPO)
