"""Rollouts that are made ahead: from weights that are one step old, and corrected for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_worker import CONFIG, policy, rows, trainer
from torch import Tensor

import algos
from algos.batch import Batch, Loss
from algos.training.collate import collate
from algos.training.trainer import Trainer, corrected
from search_gym.rewards import Outcome
from search_gym.trajectory import Trajectory

STEPS = 4
LIVE = replace(CONFIG, steps=STEPS, learning_rate=3e-2, save_every=0, minibatches=1)
AHEAD = replace(LIVE, async_rollouts=1)


def disagreement(weights: dict[str, Tensor], trajectories: Sequence[Trajectory]) -> float:
    """How far the log-probs of these weights are from those that were sampled with, at the token where most."""
    scorer = policy()
    scorer.load_state_dict(weights)
    batch = collate(trajectories, [0] * len(trajectories))
    assert batch.rollout_logprobs is not None
    with torch.no_grad():
        scores = scorer(*batch.inputs(), batch.mask, LIVE.temperature)
    return (scores.logprobs - batch.rollout_logprobs)[batch.mask].abs().max().item()


def played(made: Trainer) -> tuple[list[dict[str, Tensor]], list[list[Trajectory]]]:
    """The weights before each step, and the episodes of each step."""
    versions, episodes = [], []
    for _ in range(STEPS):
        versions.append({name: value.clone() for name, value in made.policy.state_dict().items()})
        episodes.append(made.step()[1])
    return versions, episodes


@pytest.mark.parametrize("ahead", [False, True], ids=["in-turn", "ahead"])
def test_rollouts_come_from_weights_that_are_at_most_one_step_old(ahead: bool) -> None:
    versions, episodes = played(trainer(AHEAD if ahead else LIVE))
    for step, trajectories in enumerate(episodes):
        found = [disagreement(weights, trajectories) for weights in versions]
        version = max(0, step - 1) if ahead else step
        assert found[version] < 1e-3, (step, found)
        assert all(error > 1e-2 for other, error in enumerate(found) if other != version), (step, found)


class Spy:
    """GRPO that keeps the batches that it saw, and their policy's log-probs."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, list[tuple[Batch, Tensor, Loss]]()

    def advantages(self, batch: Batch) -> Batch:
        return self.inner.advantages(batch)

    def loss(self, batch: Batch, logprobs: Tensor, entropy: Tensor | None = None) -> Loss:
        out = self.inner.loss(batch, logprobs, entropy)
        self.seen.append((batch, logprobs.detach(), out))
        return out


def test_each_token_weighs_as_much_as_truncated_importance_sampling_says() -> None:
    made = trainer(replace(AHEAD, micro_batch_tokens=10_000), aggregation="token-mean")
    spy = Spy(made.algorithm)
    made.algorithm = made.learner.algorithm = spy
    metrics = [made.step()[0] for _ in range(STEPS)]
    assert metrics[0]["mismatch"] < 1e-3  # the first rollouts are of the policy itself
    assert all(row["mismatch"] > 1e-2 for row in metrics[1:])
    stale = spy.seen[1:]
    assert len(stale) == STEPS - 1
    weighed = False
    for batch, logprobs, out in stale:
        assert batch.rollout_logprobs is not None
        assert batch.advantages is not None
        # One update a batch: pi / pi_old is 1 at every token, so the gain is the advantage times pi_old / pi_sampler.
        weight = (logprobs - batch.rollout_logprobs).exp().clamp(max=2.0)
        gain = (weight * batch.advantages)[batch.mask].mean()
        assert out.loss.item() == pytest.approx(-gain.item(), rel=1e-4, abs=1e-5)
        weighed |= bool((batch.advantages != 0).any())
    assert weighed


def test_a_correction_that_was_chosen_stays_and_one_that_is_missing_is_said() -> None:
    assert getattr(corrected(algos.make("grpo")), "correction", None) == "token-truncate"
    chosen = algos.make("grpo", correction="sequence-mask")
    assert corrected(chosen) is chosen
    with pytest.raises(ValueError, match="needs an algorithm with an option `correction`, and Spy has none"):
        corrected(Spy(chosen))


@pytest.mark.parametrize("name", algos.available())
def test_every_algorithm_can_be_corrected(name: str) -> None:
    assert getattr(corrected(algos.make(name)), "correction", None) == "token-truncate"


def test_where_nothing_is_learnt_it_is_the_same_run(tmp_path: Path) -> None:
    for name, config in {"ahead": AHEAD, "in-turn": LIVE}.items():
        trainer(replace(config, learning_rate=0.0, save_trajectories=6)).train(tmp_path / name)
    logs = [(tmp_path / name / "trajectories.jsonl").read_bytes() for name in ("ahead", "in-turn")]
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") == STEPS * LIVE.rollouts
    for ahead, in_turn in zip(rows(tmp_path / "ahead"), rows(tmp_path / "in-turn"), strict=True):
        assert ahead == pytest.approx(in_turn, abs=1e-6)


def away(outcome: Outcome) -> float:
    raise ConnectionError("the judge is away")


def test_what_goes_wrong_ahead_is_raised_where_the_rollouts_are_taken() -> None:
    made = trainer(AHEAD)
    made.rollouts.rules = replace(made.rules, reward=away)
    made.rollouts.begin()
    with pytest.raises(ConnectionError, match="the judge is away"):
        made.step()
