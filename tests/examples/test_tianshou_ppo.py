"""The Tianshou example in short form. It needs what is not among the requirements of the tests, and is skipped else."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

pytest.importorskip("tianshou", reason="needs Tianshou: pip install 'search-gym[tianshou]'")

import torch
from tianshou.data import Collector, VectorReplayBuffer  # pyright: ignore[reportMissingImports]
from tianshou.env import DummyVectorEnv  # pyright: ignore[reportMissingImports]

from examples import tianshou_ppo as example


def places(count: int, **changes: Any) -> example.Places:
    arguments = {**example.years(0), **changes}
    env = gymnasium.make_vec("SearchQA-v0", count, autoreset_mode=AutoresetMode.DISABLED, **arguments)
    return example.Places(env, bootstrap=True)  # type: ignore[arg-type]


def singles(count: int) -> DummyVectorEnv:
    return DummyVectorEnv([lambda: gymnasium.make("SearchQA-v0", **example.years(0))] * count)


def test_the_vector_form_gives_a_collector_what_single_environments_give() -> None:
    """Also where only some places are stepped and reset, as a collector does that counts episodes."""
    vector, dummy, rng = places(3), singles(3), np.random.default_rng(0)
    for envs in (vector, dummy):
        envs.seed(5)
    tags = vector.env.setting.tokenizer.encode(f" {example.TAGS}")
    ended = 0
    for step in range(120):
        # From the half on, place 1 is left out; it begins nothing that anybody asks for.
        at = [0, 1, 2] if step < 60 else [0, 2]
        words = vector.env.setting.tokenizer.encode(" the film Silver Harbor")
        actions = np.array([rng.choice(tags if rng.random() < 0.7 else words) for _ in at])
        ours, theirs = vector.step(actions, at), dummy.step(actions, at)
        for key in ("tokens", "length", "loss_mask"):
            np.testing.assert_array_equal(ours[0][key], np.stack([observation[key] for observation in theirs[0]]))
        for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        for mine, other in zip(ours[4], theirs[4], strict=True):
            assert mine == {key: value for key, value in other.items() if key != "env_id"}
        done = np.array(at)[ours[2] | ours[3]]
        if done.size:
            ended += done.size
            begun, their_begun = vector.reset(done), dummy.reset(done)
            np.testing.assert_array_equal(begun[0].tokens, np.stack([o["tokens"] for o in their_begun[0]]))
            assert [info["question_id"] for info in begun[1]] == [info["question_id"] for info in their_begun[1]]
    assert ended > 20


@pytest.mark.parametrize("form", [places, singles])
def test_a_collector_delivers_episodes(form: Any) -> None:
    torch.manual_seed(0)
    envs = form(3)
    ppo = example.make_ppo(envs.action_space[0])
    collector = Collector(ppo, envs, VectorReplayBuffer(900, 3), collect_stats_class=example.Stats)
    collector.reset()
    stats = collector.collect(n_episode=7)
    assert stats.n_collected_episodes == len(stats.em) == len(stats.returns) == 7
    np.testing.assert_array_equal(stats.returns, stats.em)  # the reward is exact match
    assert set(stats.em) <= {0.0, 1.0}
    assert stats.lens.min() >= 1
    assert stats.lens.max() <= example.RULES["max_turns"] * example.RULES["max_turn_tokens"]
    assert set(stats.searches) <= {0, 1}
    assert collector.collect(n_step=30).n_collected_steps == 30


def test_an_answer_that_is_right_is_rewarded_through_the_collector() -> None:
    """The actor is an oracle: it asks for the name in the question, and knows the year."""
    envs = places(2)
    envs.seed(0)
    tokenizer = envs.env.setting.tokenizer

    class Oracle(torch.nn.Module):
        def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
            probabilities = torch.zeros(len(obs.length), tokenizer.vocab_size)
            for row, (mask, name) in enumerate(zip(obs.loss_mask, info.question_id, strict=True)):
                question = envs.env.setting.questions.find(name)
                subject, year = question.metadata["path"][0], question.golds[0]
                script = tokenizer.encode(f" <search> {subject} </search>") + tokenizer.encode(
                    f" <answer> {year} </answer>"
                )
                probabilities[row, script[int(mask.sum())]] = 1.0
            return probabilities, state

    ppo = example.make_ppo(envs.action_space[0])
    ppo.policy.actor = Oracle()  # pyright: ignore[reportAttributeAccessIssue]
    collector = Collector(ppo, envs, VectorReplayBuffer(100, 2), collect_stats_class=example.Stats)
    collector.reset()
    stats = collector.collect(n_episode=6)
    assert stats.returns.tolist() == [1.0] * 6
    assert stats.searches == [1] * 6
    assert set(stats.lens.tolist()) == {7}


def test_budgets_are_ends_unless_bootstrapping() -> None:
    envs = places(1)
    pad = np.zeros(1, np.int64)
    for bootstrap in (True, False):
        envs.bootstrap = bootstrap
        envs.seed(0)
        ends = [envs.step(pad)[2:4] for _ in range(8)]
        assert [bool(truncated[0]) for _, truncated in ends] == [False] * 7 + [True]
        assert [bool(terminated[0]) for terminated, _ in ends] == [False] * 7 + [not bootstrap]


def test_the_actor_points_at_what_was_read_and_not_at_padding() -> None:
    torch.manual_seed(0)
    actor = example.Actor(example.Reader(20))
    tokens = np.zeros((2, example.CONTEXT), np.int32)
    tokens[0, :3], tokens[1, :5] = [4, 7, 4], [1, 2, 3, 5, 6]
    tokens[0, 3:] = 9
    probabilities = actor(example.Batch(tokens=tokens, length=np.array([3, 5])))[0]
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2))
    assert probabilities[0].nonzero().flatten().tolist() == [4, 7]
    assert probabilities[1].nonzero().flatten().tolist() == [1, 2, 3, 5, 6]
    alone = actor(example.Batch(tokens=tokens[:1], length=np.array([3])))[0]
    torch.testing.assert_close(alone, probabilities[:1])


def test_short_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One update of PPO, between two measurements; nothing but the update may move the actor after imitation."""
    monkeypatch.setattr(example, "HELD_OUT", range(1000, 1002))
    snapshots: list[list[torch.Tensor]] = []
    measure = example.measure

    def spying(what: str, collector: Any, episodes: int) -> dict[str, float]:
        snapshots.append([parameter.detach().clone() for parameter in collector.policy.parameters()])
        return measure(what, collector, episodes)

    monkeypatch.setattr(example, "measure", spying)
    figures = example.main(["--steps", "2048", "--episodes", "16", "--demonstrations", "200"])
    start, end, blind = snapshots
    assert any(not torch.equal(before, after) for before, after in zip(start, end, strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in end)
    assert all(torch.equal(before, after) for before, after in zip(end, blind, strict=True))
    assert figures.keys() == {"start", "end", "blind"}
    assert all(0 <= value <= 1 for of_one in figures.values() for value in of_one.values())
    assert figures["start"]["sampled searches"] > 0.5  # the syntax was imitated
    assert figures["blind"]["sampled"] == figures["blind"]["greedy"] == 0.0  # no year can be known
    assert capsys.readouterr().out.startswith("start")
