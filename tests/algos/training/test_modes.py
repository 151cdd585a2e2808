"""A policy drops out and recomputes its activations in updates, and nowhere else."""

from __future__ import annotations

import ranks_worker as worker
import torch

import algos
from algos.training.config import TrainerConfig
from algos.training.learner import Learner
from algos.training.policy import CausalLMPolicy


def _passes(policy: CausalLMPolicy) -> list[bool]:
    """Whether the first layer was training, at each of its forward passes from now on."""
    seen: list[bool] = []
    attention = policy.model.get_submodule("model.layers.0.self_attn")
    attention.register_forward_hook(lambda module, *_: seen.append(module.training))
    return seen


def test_activations_are_recomputed_in_updates_alone() -> None:
    plain, frugal = worker.policy(), worker.policy()
    frugal.recompute_activations()
    weights = []
    for policy, expected in ((plain, 1), (frugal, 2)):
        policy.model.eval()  # as a model is loaded
        config = TrainerConfig(minibatches=1, epochs=2, micro_batch_tokens=10_000, learning_rate=1e-3)
        algorithm = algos.make("grpo")
        learner, seen = Learner(policy, algorithm, config), _passes(policy)
        batch = learner.score(worker.batch())
        assert seen == [False]
        seen.clear()
        learner.update(algorithm.advantages(batch), 0)
        assert seen == [True] * 2 * expected
        assert not policy.model.training
        weights.append([parameter.detach() for parameter in policy.model.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
