"""What the page draws over training steps. What each metric is, is defined where it is logged: `algos.metrics` for the
means over tokens, `algos.training.drift` for the rest; the words here are for readers of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.report.curves import Steps
from experiments.report.picture import PANELS

PENALTY_SHARE = "penalty_share"
"""penalty_grad_norm / objective_grad_norm, made from the two."""


@dataclass(frozen=True)
class Panel:
    """A metric over training steps."""

    key: str
    """Of metrics.jsonl, or `PENALTY_SHARE`."""
    title: str
    unit: str
    meaning: str = ""
    """One sentence."""
    percent: bool = False
    """A share, shown in percent from 0 on."""
    wide: bool = False
    """Positive, and may go over orders of magnitude: on a logarithmic scale where it does."""
    line: float | None = None
    """The value where nothing has drifted, drawn as a line."""
    sparse: bool = False
    """Measured at some steps alone."""


@dataclass(frozen=True)
class Section:
    """Panels under a heading."""

    anchor: str
    title: str
    text: str
    panels: tuple[Panel, ...]


_TITLES = {key: title for key, title, _ in PANELS}
_REWARD = Panel("reward", _TITLES["reward"], "mean per rollout", "What was trained on, over the rollouts of a step.")

LEARNING = Section(
    "learning",
    "Learning curves",
    "Of the rollouts that were trained on, not of the held-out questions.",
    (
        _REWARD,
        Panel("em", "Exact match", "mean per rollout"),
        Panel("f1", "Token F1", "mean per rollout"),
        Panel("searches", "Searches", "per rollout"),
        Panel("policy_tokens", "Length", "policy tokens per rollout"),
        Panel("truncated", "Cut off by a budget", "% of rollouts", percent=True),
    ),
)

FIGURE = Section(
    "figure",
    "Ratio, clipping, entropy, reward",
    "The four panels of Figure 1 of arXiv 2603.10069.",
    (
        Panel(
            "ratio",
            _TITLES["ratio"],
            "π / π_old",
            "Over the policy tokens of all updates of a step.",
            wide=True,
            line=1.0,
        ),
        Panel("clip_fraction", _TITLES["clip_fraction"], "% of policy tokens", percent=True),
        Panel("entropy", _TITLES["entropy"], "nats per policy token"),
        _REWARD,
    ),
)

DRIFT = Section(
    "drift",
    "Drift",
    "How far the policy has moved from the one that sampled. r is the ratio π / π_old of a token that the policy "
    "sampled; ratios, products and λ are those of the last update of a step.",
    (
        Panel("ratio_last", "Mean ratio, last update", "r", wide=True, line=1.0),
        Panel("ratio_p05", "Ratio, 5 % quantile", "r", "5 % of the tokens lie below.", wide=True, line=1.0),
        Panel("ratio_p50", "Ratio, median", "r", wide=True, line=1.0),
        Panel("ratio_p95", "Ratio, 95 % quantile", "r", "5 % of the tokens lie above.", wide=True, line=1.0),
        Panel("ratio_min", "Lowest ratio", "r", wide=True, line=1.0),
        Panel("drifted", "Drifted trajectories", "% of trajectories", "Those with Π r < 0.01 (Def. 1).", percent=True),
        Panel("lambda_action", "λ of action tokens", "per token",
              "mean(log r) + var(log r) / 2 inside <search> and <answer>.",
              line=0.0),
        Panel("lambda_reasoning", "λ of reasoning tokens", "per token",
              "The same of other tokens (Prop. 1 compares both).", line=0.0),
        Panel("positive_below_tau", "Positive tokens with r < τ", "% of tokens with A > 0",
              "What SAPO's penalty acts on; τ is the algorithm's, or 1.", percent=True),
        Panel("clip_fraction_low", "Clipped below", "% of policy tokens", "r < 1 − ε and A < 0.", percent=True),
        Panel("clip_fraction_high", "Clipped above", "% of policy tokens", "r > 1 + ε and A > 0.", percent=True),
        Panel("kl_old", "KL to the old policy", "nats per token", "k1 estimate: minus the mean log-ratio.", line=0.0),
        Panel("kl_ref", "KL to the reference", "nats per token", "k3 estimate.", line=0.0),
        Panel("entropy_action", "Entropy of action tokens", "nats per token"),
        Panel("entropy_reasoning", "Entropy of reasoning tokens", "nats per token"),
        Panel("grad_norm", "Gradient norm", "before clipping", wide=True),
        Panel(PENALTY_SHARE, "Gradient of the penalty", "× the objective's",
              "Norm against norm; above 1 the penalty is the stronger.", wide=True, line=1.0, sparse=True),
    ),
)  # fmt: skip
SECTIONS = (LEARNING, FIGURE, DRIFT)


def with_shares(seed: Steps) -> dict[int, dict[str, float]]:
    """The metrics of a run with what is made from them."""
    return {step: {**values, **_penalty_share(values)} for step, values in seed.items()}


def _penalty_share(values: Mapping[str, float]) -> dict[str, float]:
    penalty, objective = values.get("penalty_grad_norm"), values.get("objective_grad_norm")
    if penalty is None or objective is None:
        return {}
    return {PENALTY_SHARE: penalty / objective if objective else float("nan")}


def logged(panels: Sequence[Panel], runs: Sequence[Steps]) -> list[Panel]:
    """The panels of which any run has a value. A reward that is the exact match, or F1, is not drawn twice."""
    present = {key for run in runs for values in run.values() for key in values}
    rewards = [values.get("reward") for run in runs for values in run.values()]

    def repeats(key: str) -> bool:
        return key in ("em", "f1") and rewards == [values.get(key) for run in runs for values in run.values()]

    return [panel for panel in panels if panel.key in present and not repeats(panel.key)]
