"""Comparisons that have a name: which algorithms, with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ComparisonPreset:
    """What `--preset` names; it goes over what suits the model."""

    algos: str
    """As in `AblateConfig`; the first is the baseline of the others."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `TrainerConfig` that differ."""
    model: str = "embedded"
    """As in `AblateConfig`, where the command line names none."""


COMPARISONS: dict[str, ComparisonPreset] = {
    "quick": ComparisonPreset("grpo,sapo"),
    # arXiv 2603.10069, Table 2.
    "paper-table2": ComparisonPreset("grpo,grpo_kl,grpo_kl_r,sapo", {"penalty_every": 4}),
    # Its sweep of the threshold, with the default, 1.0, as the baseline.
    "tau": ComparisonPreset("sapo:tau=1.0,sapo:tau=0.6,sapo:tau=0.8,sapo:tau=1.2", {"penalty_every": 4}),
    # Where GRPO collapses on the embedded world: found by the search in docs/findings.md.
    "stress": ComparisonPreset(
        "grpo,sapo,sapo:variant=released,grpo_kl,grpo_kl_r",
        {
            "steps": 24,
            "batch_questions": 8,
            "minibatches": 16,
            "epochs": 2,
            "learning_rate": 3e-4,
            "penalty_every": 4,
        },
    ),
    "zoo": ComparisonPreset(
        "grpo,ppo,sapo,grpo_kl,grpo_kl_r,lld,gspo,dapo,dr_grpo,rloo,reinforce_pp,cispo,soft_sapo",
    ),
    # What is the same in policies of 0.3, 0.95 and 3 million parameters?
    "scale": ComparisonPreset("grpo,sapo", model="embedded-small,embedded,embedded-large"),
}
