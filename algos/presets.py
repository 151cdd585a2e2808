"""What other projects compute under the name of an algorithm, as the options that make it so here.

Read in the sources of verl 0.9, TRL 1.16, Search-R1 and the released SAPO; tests/reference holds verl's and TRL's to
their own functions. What is no part of advantages and loss (optimiser, number of updates) is no part of a preset, and
neither are an entropy bonus (Search-R1's PPO: 0.001), TRL's correction of its sampler's log-probs, and norm_tokens, for
which verl takes the width of the batch and TRL the length that a response may have.
"""

from __future__ import annotations

from typing import Any

# verl and Search-R1 let a response that is alone in its group keep its reward; verl's loss has a dual clip of 3.
_VERL: dict[str, Any] = {"aggregation": "token-mean", "dual_clip": 3.0}
_VERL_GROUP = _VERL | {"group_of_one": "reward"}
_SEARCH_R1: dict[str, Any] = {"aggregation": "token-mean", "group_of_one": "reward", "kl_coef": 0.001}
_TRL: dict[str, Any] = {"epsilon": 1e-4}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "verl": {"dual_clip": 3.0},
        # It lets time run over retrieved tokens too: its advantages differ where there are any.
        "search-r1": {"kl_coef": 0.001},
    },
    "grpo": {
        "verl": _VERL_GROUP,
        "trl": _TRL | {"aggregation": "token-mean"},  # its loss_type is "dapo" unless told otherwise
        "search-r1": _SEARCH_R1,
    },
    "sapo": {"released": _SEARCH_R1 | {"variant": "released"}},
    "gspo": {
        "verl": {"variant": "token", "group_of_one": "reward"},
        "trl": _TRL,  # with loss_type="grpo", as its documentation has it; by default "dapo", a token mean
    },
    "dapo": {
        "verl": _VERL_GROUP | {"dual_clip": 10.0},
        "trl": _TRL,
    },
    "dr_grpo": {
        "verl": {"dual_clip": 3.0, "group_of_one": "reward"},
        "trl": _TRL | {"scale_by_std": True},  # loss_type="dr_grpo" alone leaves the std where it is
    },
    "rloo": {
        "verl": _VERL_GROUP,  # its vectorised form gives a group of one 0
        "trl": {"ratio": "response", "kl_coef": 0.05, "kl_estimator": "k1", "kl_in": "reward"},
    },
    "reinforce_pp": {"verl": {"dual_clip": 3.0, "group_of_one": "reward"}},
    "cispo": {
        "verl": {"group_of_one": "reward"},  # with its script's bounds; by default 0.2 on both sides
        "trl": _TRL | {"clip_high": 4.0},  # epsilon_high=5.0, a bound of the ratio itself
    },
    "soft_sapo": {"verl": {"group_of_one": "reward"}, "trl": _TRL},
}
"""{algorithm: {preset: options}}; options that are not named keep the algorithm's default."""


def preset_options(name: str, preset: str) -> dict[str, Any]:
    """The options of a preset of an algorithm."""
    presets = PRESETS.get(name, {})
    if preset not in presets:
        there = ", ".join(presets) or "none"
        raise ValueError(f"{name} has no preset {preset!r}; there are: {there}")
    return presets[preset]
