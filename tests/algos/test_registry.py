"""Making algorithms by name: what is wrong is named, and so is what there is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import algos
from algos import registry
from algos.presets import PRESETS


def test_available_and_make() -> None:
    named = {"cispo", "dapo", "dr_grpo", "grpo", "grpo_kl", "grpo_kl_r", "gspo", "lld", "ppo", "reinforce_pp", "rloo"}
    named |= {"sapo", "soft_sapo"}
    assert named <= set(algos.available())
    assert algos.available() == tuple(sorted(algos.available()))
    for name in algos.available():
        assert algos.make(name) == algos.make(name)
    assert algos.make("sapo", gamma=0.2, tau=1.2) == algos.SAPO(gamma=0.2, tau=1.2)


def test_unknown_algorithm_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown algorithm 'gpro'; there are: .*grpo, .*sapo"):
        algos.make("gpro")


def test_unknown_option_lists_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"grpo has no option 'gamma'; it has: aggregation, .*clip_high, dual_clip$"):
        algos.make("grpo", gamma=0.1)


@pytest.mark.parametrize("name", ["grpo", "sapo"])
@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("clip_low", -0.1, r"in \[0, 1\)"),
        ("clip_low", 1.0, r"in \[0, 1\)"),
        ("clip_high", float("nan"), r"in \[0, inf\)"),
        ("clip_high", "0.2", r"in \[0, inf\)"),
        ("dual_clip", 1.0, r"in \(1, inf\]"),
        ("kl_estimator", "k4", "one of 'k1', 'k2', 'k3'"),
        ("kl_in", "both", "one of 'loss', 'reward'"),
        ("correction", "token", "one of 'none', 'token-truncate', .*'sequence-mask'"),
        ("correction_low", 1.5, r"in \[0, 1\]"),
        ("correction_high", 0.5, r"in \[1, inf\)"),
        ("group_of_one", 0, "one of 'zero', 'reward'"),
        ("epsilon", -1e-6, r"in \[0, inf\)"),
        ("kl_coef", float("inf"), r"in \[0, inf\)"),
        ("ddof", 2, "one of 0, 1"),
        ("aggregation", "mean", "one of 'seq-mean-token-mean', .*'token-mean'"),
    ],
)
def test_option_out_of_range(name: str, option: str, value: Any, allowed: str) -> None:
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
def test_sapo_option_out_of_range(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"SAPO: {option} = .*{allowed}"):
        algos.make("sapo", **{option: value})


def test_presets_are_other_defaults() -> None:
    assert algos.make("grpo", preset="verl") == algos.GRPO(
        aggregation="token-mean", dual_clip=3.0, group_of_one="reward"
    )
    mixed = algos.make("grpo", preset="verl", dual_clip=10.0)
    assert mixed == algos.GRPO(aggregation="token-mean", dual_clip=10.0, group_of_one="reward")


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for name in PRESETS for preset in PRESETS[name]])
def test_every_preset_can_be_made_and_differs_from_the_default(name: str, preset: str) -> None:
    assert algos.make(name, preset=preset) != algos.make(name)


def test_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match="grpo has no preset 'openrlhf'; there are: verl, trl, search-r1"):
        algos.make("grpo", preset="openrlhf")
    with pytest.raises(ValueError, match="grpo_kl has no preset 'verl'; there are: none"):
        algos.make("grpo_kl", preset="verl")


def test_a_class_of_another_module_by_its_path() -> None:
    assert algos.make("algos.sapo:SAPO", gamma=0.3) == algos.SAPO(gamma=0.3)
    with pytest.raises(TypeError, match=r"algos.sapo:SAPO has no option 'gama'; it has: .*gamma"):
        algos.make("algos.sapo:SAPO", gama=0.3)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module:SAPO", "No module named 'no_such_module'"),
        ("algos.sapo:SOPA", "module 'algos.sapo' has no attribute 'SOPA'"),
        ("algos.presets:PRESETS", "it is no class or function"),
    ],
)
def test_a_wrong_path_says_what_is_wrong(path: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"no algorithm at '{path}': {reason}"):
        algos.make(path)


def test_installed_packages_offer_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution on the path: a module and the metadata that an installer would write."""
    (tmp_path / "their_algorithms.py").write_text("from algos import GRPO\n\n\nclass Mine(GRPO):\n    pass\n")
    info = tmp_path / "their_algorithms-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-algorithms\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[search_gym.algorithms]\nmine = their_algorithms:Mine\ngrpo = their_algorithms:Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in algos.available()
    assert type(algos.make("mine", clip_low=0.1)).__name__ == "Mine"
    assert type(algos.make("grpo")) is algos.GRPO  # a package does not replace what is here
    monkeypatch.delitem(sys.modules, "their_algorithms")


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    algos.register("grpo_wide", lambda clip_high=0.5: algos.GRPO(clip_high=clip_high))
    assert "grpo_wide" in algos.available()
    assert algos.make("grpo_wide") == algos.GRPO(clip_high=0.5)
    with pytest.raises(TypeError, match="grpo_wide has no option 'clip_low'; it has: clip_high"):
        algos.make("grpo_wide", clip_low=0.1)
    with pytest.raises(ValueError, match="'grpo' is registered already"):
        algos.register("grpo", algos.SAPO)
