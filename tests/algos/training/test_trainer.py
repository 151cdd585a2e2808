"""The loop: repeatable, exact under micro-batches, and it learns."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import algos
from algos.batch import Batch, Loss
from algos.dapo import informative
from algos.training.collate import collate
from algos.training.config import TrainerConfig
from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy, Scores
from algos.training.records import token_records
from algos.training.rollouts import QuestionOrder
from algos.training.trainer import Trainer
from experiments.warm_start import embedded_model
from search_gym import Question, Rules, World, sources, tokenizers
from search_gym.rewards import Outcome
from search_gym.trajectory import Trajectory, read_jsonl

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
CONFIG = TrainerConfig(
    steps=2, batch_questions=3, group_size=4, minibatches=2, learning_rate=1e-3, micro_batch_tokens=400
)
RULES = Rules(prompt="brief", max_searches=1, max_turn_tokens=6, max_observation_tokens=60, max_context_tokens=200)


def policy(seed: int = 0) -> CausalLMPolicy:
    torch.manual_seed(seed)
    return CausalLMPolicy(embedded_model(TOKENIZER))


def trainer(config: TrainerConfig = CONFIG, rules: Rules = RULES, **options: Any) -> Trainer:
    start = policy()
    return Trainer(
        start,
        algos.make("grpo", **options),
        HFEngine(start, TOKENIZER, seed=0),
        TOKENIZER,
        sources.open_retriever("bm25", WORLD.corpus),
        rules,
        WORLD.questions("train"),
        config,
    )


def coin(outcome: Outcome) -> float:
    """A reward that the responses to one question often differ in."""
    return float(sum(map(ord, "".join(outcome.turns))) % 2)


class Lively:
    """An algorithm that has a gradient whatever the rewards are: it makes every sampled token more likely."""

    def advantages(self, batch: Batch) -> Batch:
        return batch.with_advantages(torch.ones_like(batch.rewards))

    def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> Loss:
        return algos.make("grpo").loss(batch, logprobs, entropy)


def lively(config: TrainerConfig = CONFIG) -> Trainer:
    made = trainer(config)
    return replace(made, algorithm=Lively())


def weights(of: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in of.policy.parameters()])


def test_a_run_repeats_to_the_last_digit(tmp_path: Path) -> None:
    logs = []
    for name in ("a", "b"):
        lively().train(tmp_path / name)
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        phases = {"rollout", "sampling", "search", "score", "update", "sync"}
        assert all(set(row.pop("seconds")) == phases for row in rows)
        assert all(row.pop("speed")["peak_memory_gib"] > 0 for row in rows)
        logs.append(rows)
    assert logs[0] == logs[1]
    assert [row["step"] for row in logs[0]] == [1, 2]
    assert [t.extra["step"] for t in read_jsonl(tmp_path / "a" / "trajectories.jsonl")] == [1] * 8 + [2] * 8


def test_micro_batches_change_nothing() -> None:
    made = [lively(replace(CONFIG, micro_batch_tokens=tokens)) for tokens in (1, 10_000)]
    metrics = [one.step()[0] for one in made]
    for name, value in metrics[0].items():
        if name not in ("seconds", "speed"):
            assert value == pytest.approx(metrics[1][name], rel=1e-3, abs=1e-5), name
    assert torch.allclose(weights(made[0]), weights(made[1]), atol=1e-4)


def test_the_first_update_sees_ratios_of_exactly_one() -> None:
    seen: list[Batch] = []

    class Spy(Lively):
        def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> Loss:
            seen.append(replace(batch, ref_logprobs=logprobs.detach()))
            return super().loss(batch, logprobs, entropy)

    replace(trainer(replace(CONFIG, micro_batch_tokens=10_000)), algorithm=Spy()).step()
    first, second = seen
    assert torch.equal(first.old_logprobs, first.require("ref_logprobs", ""))
    assert not torch.equal(second.old_logprobs[second.mask], second.require("ref_logprobs", "")[second.mask])


def test_a_batch_without_a_difference_changes_nothing() -> None:
    # All rewards are 0, so every advantage is: GRPO has nothing to say, and says nothing.
    made = trainer()
    before = weights(made)
    metrics, trajectories = made.step()
    assert {t.reward for t in trajectories} == {0.0}
    assert torch.equal(weights(made), before)
    assert (metrics["grad_norm"], metrics["ratio"], metrics["updates"]) == (0.0, 1.0, 2)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    # A3
    class Broken(Lively):
        def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> Loss:
            out = super().loss(batch, logprobs, entropy)
            return Loss(out.loss * float("nan"), out.metrics)

    made = replace(trainer(), algorithm=Broken())
    before = weights(made)
    metrics, _ = made.step()
    assert torch.equal(weights(made), before)
    assert not made.learner.optimizer.state
    assert (metrics["skipped"], metrics["loss"], metrics["grad_norm"]) == (1.0, None, None)
    json.dumps(metrics, allow_nan=False)


def test_a_reference_policy_enters_the_batch() -> None:
    made = trainer(kl_coef=0.1)
    with pytest.raises(ValueError, match="ref_logprobs"):
        made.step()
    metrics, _ = replace(trainer(kl_coef=0.1), reference=policy(1)).step()
    assert metrics["kl_ref"] > 0.01


def test_a_critic_is_made_for_an_algorithm_that_needs_one() -> None:
    assert trainer().learner.critic is None
    made = replace(trainer(rules=replace(RULES, reward=coin)), algorithm=algos.make("ppo"))
    assert made.learner.critic is not None
    before = made.learner.critic.value.weight.detach().clone()
    metrics, _ = made.step()
    assert not torch.equal(made.learner.critic.value.weight, before)
    assert metrics["critic_grad_norm"] > 0
    assert metrics["value_error"] >= 0


def test_a_critic_learns_at_its_own_rate() -> None:
    still = replace(trainer(replace(CONFIG, critic_learning_rate=0.0)), algorithm=algos.make("ppo"))
    still.step()
    assert still.learner.critic is not None
    assert not still.learner.critic.value.weight.any()


def test_a_critic_s_gradient_that_is_not_finite_stops_both() -> None:
    # A3
    class Broken(algos.PPO):
        def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: Any = None, values: Any = None) -> Loss:
            out = super().loss(batch, logprobs, entropy, values)
            return Loss(out.loss + (values * float("nan")).sum(), out.metrics)

    made = replace(trainer(), algorithm=Broken())
    before = weights(made)
    metrics, _ = made.step()
    assert torch.equal(weights(made), before)
    assert not made.learner.optimizer.state
    assert metrics["skipped"] == 1.0
    assert metrics["critic_grad_norm"] is None


def test_dynamic_sampling_fills_a_batch_with_groups_whose_rewards_differ() -> None:
    seen: list[Batch] = []

    class Spy(Lively):
        def advantages(self, batch: Batch) -> Batch:
            seen.append(batch)
            return super().advantages(batch)

    config = replace(CONFIG, batch_questions=8, group_size=2, max_sampled_batches=20)
    made = replace(trainer(config, replace(RULES, reward=coin)), algorithm=Spy())
    metrics, trajectories = made.step()
    (batch,) = seen
    assert len(batch) == config.rollouts == 16
    assert bool(informative(batch).all())
    assert metrics["episodes"] == len(trajectories) > 16
    assert metrics["episodes"] % 16 == 0


def test_dynamic_sampling_ends_even_where_all_rewards_are_equal() -> None:
    made = trainer(replace(CONFIG, max_sampled_batches=2))
    before = weights(made)
    metrics, trajectories = made.step()
    assert metrics["episodes"] == len(trajectories) == 2 * CONFIG.rollouts
    assert torch.equal(weights(made), before)
    json.dumps(metrics, allow_nan=False)


class RewardingEvenIds:
    """An algorithm whose reward is the share of even ids in a response: half for a policy that knows nothing."""

    def __init__(self, inner: algos.Algorithm) -> None:
        self.inner, self.rewards = inner, []
        self.needs = getattr(inner, "needs", ())

    def advantages(self, batch: Batch) -> Batch:
        rewards = ((batch.inputs()[0] % 2 == 0) & batch.mask).sum(1) / batch.mask.sum(1)
        self.rewards.append(rewards.mean().item())
        return self.inner.advantages(replace(batch, rewards=rewards))

    def loss(
        self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None, **critic: torch.Tensor
    ) -> Loss:
        return self.inner.loss(batch, logprobs, entropy, **critic)


class Penalised(Lively):
    """A quarter of its loss is a penalty."""

    def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> Loss:
        out = super().loss(batch, logprobs, entropy)
        return replace(out, penalty=0.25 * out.loss)


def test_the_gradient_of_a_penalty_is_measured_every_so_many_steps() -> None:
    """At a learning rate of 0 the policy stays what it was, and so does its gradient."""
    still = replace(CONFIG, minibatches=1, learning_rate=0.0, penalty_every=2)
    made = replace(trainer(still), algorithm=Penalised())
    steps = [made.step()[0] for _ in range(3)]
    assert ["penalty_grad_norm" in step for step in steps] == [True, False, True]
    for step in steps[::2]:
        assert step["penalty_grad_norm"] == pytest.approx(0.25 * step["grad_norm"], rel=1e-3)
        assert step["objective_grad_norm"] == pytest.approx(0.75 * step["grad_norm"], rel=1e-3)
    assert "penalty_grad_norm" not in lively(still).step()[0]


def test_measuring_a_penalty_changes_nothing() -> None:
    runs = [replace(trainer(replace(CONFIG, penalty_every=every)), algorithm=Penalised()) for every in (0, 1)]
    plain, measured = [[made.step()[0] for _ in range(2)][-1] for made in runs]
    assert measured.keys() - plain.keys() == {"penalty_grad_norm", "objective_grad_norm"}
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_a_saved_trajectory_says_what_the_updates_made_of_its_tokens() -> None:
    made = lively(replace(CONFIG, save_trajectories=5, learning_rate=3e-3))
    _, trajectories = made.step()
    assert ["tokens" in t.extra for t in trajectories] == [True] * 5 + [False] * 7
    assert all((t.extra["step"], t.extra["seed"]) == (1, 0) for t in trajectories)
    moved = 0.0
    for row, t in enumerate(trajectories[:5]):
        batch = collate([t], [0])
        now = made.policy(*batch.inputs(), batch.mask)
        tokens = t.extra["tokens"]
        assert tokens["advantage"] == 1.0
        for name, expected in (("ratio", (now.logprobs - batch.old_logprobs).exp()), ("entropy", now.entropy)):
            assert [value is None for value in tokens[name]] == [not sampled for sampled in t.mask], row
            found = torch.tensor([value for value in tokens[name] if value is not None])
            assert torch.allclose(found, expected[batch.mask], rtol=2e-3, atol=1e-4), name
        moved = max(moved, *(abs(value - 1) for value in tokens["ratio"] if value is not None))
        assert Trajectory.from_json(t.to_json()) == t
    assert moved > 0.01


def test_what_was_not_learnt_from_says_nothing() -> None:
    config = replace(CONFIG, batch_questions=8, group_size=2, max_sampled_batches=2, save_trajectories=100)
    made = replace(trainer(config, replace(RULES, reward=coin)), algorithm=Lively())
    _, trajectories = made.step()
    differ = [a.reward != b.reward for a, b in zip(trajectories[::2], trajectories[1::2], strict=True)]
    said = ["tokens" in t.extra for t in trajectories]
    assert said[::2] == said[1::2]
    assert 0 < sum(said[::2]) < len(differ)
    assert said[::2] == [d and sum(differ[:i]) < 8 for i, d in enumerate(differ)]


def test_records_of_numbers_that_json_lacks() -> None:
    batch = replace(
        collate([replace(trainer().step()[1][0], mask=(0, 1, 1, 1), ids=(1, 2, 3, 4), logprobs=(0.0,) * 4)], [0]),
        advantages=torch.tensor([[9.0, 0.5, -0.123456, 0.5]]),
    )
    logprobs = torch.tensor([[0.0, math.nan, -math.inf, 0.1]])
    (record,) = token_records(batch, Scores(logprobs, torch.tensor([[9.0, math.inf, 0.00123456, 0.0]])))
    assert record["ratio"] == [None, None, pytest.approx(math.exp(-20), rel=1e-3), 1.105]
    assert record["entropy"] == [None, None, 0.001235, 0.0]
    assert record["advantage"] == [None, 0.5, -0.1235, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("name", algos.available())
def test_it_learns_what_is_rewarded(name: str) -> None:
    made = trainer(
        TrainerConfig(batch_questions=8, group_size=8, minibatches=2, learning_rate=4e-3),
        rules=replace(RULES, max_turns=1, max_turn_tokens=8),
    )
    algorithm = RewardingEvenIds(algos.make(name))
    made = replace(made, algorithm=algorithm)
    for _ in range(12):
        made.step()
    assert abs(algorithm.rewards[0] - 0.5) < 0.1
    assert algorithm.rewards[-1] > 0.8, algorithm.rewards


def test_every_question_comes_once_a_pass_and_the_order_is_the_seed_s() -> None:
    questions = [Question(str(i), "?", ("x",)) for i in range(5)]

    def ids(order: QuestionOrder, count: int) -> list[str]:
        return [question.id for question in order.take(count)]

    order = QuestionOrder(questions, seed=3)
    first, second = ids(order, 5), ids(order, 5)
    assert sorted(first) == sorted(second) == ["0", "1", "2", "3", "4"]
    assert first != second
    again = QuestionOrder(questions, seed=3)
    again.position = 3
    assert ids(again, 7) == (first + second)[3:]
    assert ids(QuestionOrder(questions, seed=4), 10) != first + second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"minibatches": 9, "batch_questions": 2, "group_size": 4}, "9 minibatches cannot be cut"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerConfig(**settings)
