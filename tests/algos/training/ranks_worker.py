"""What one process of `test_distributed.py` does: cases by name, each from the same start, alone or among several."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import algos
from algos.batch import Batch, Loss
from algos.grpo import GRPO
from algos.training.config import TrainerConfig
from algos.training.distributed import Ranks, open_ranks, whole
from algos.training.engines import Request, Sample, Weights
from algos.training.engines.hf import HFEngine
from algos.training.learner import Learner
from algos.training.loading import save_policy
from algos.training.lora import LoRAConfig, add_lora, base_of, weights
from algos.training.policy import CausalLMPolicy
from algos.training.trainer import Trainer
from search_gym import Rules, World, sources, tokenizers
from search_gym.rewards import Outcome

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
RATE = 1e-3
Result = dict[str, Any]


def policy(seed: int = 0) -> CausalLMPolicy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return CausalLMPolicy(LlamaForCausalLM(config), max_logits=3 * TOKENIZER.vocab_size)  # the head runs in chunks


def batch(masked: Sequence[int] = (), rows: int = 6) -> Batch:
    """Rows of 7 to 7 + 3 * rows tokens; those in `masked` were sampled nowhere."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.arange(rows) * 3 + 7
    columns = torch.arange(int(lengths.max()))
    mask = (columns >= 4) & (columns < lengths[:, None]) & (torch.rand(rows, len(columns), generator=generator) < 0.6)
    mask[list(masked)] = False
    old = -1 - torch.rand(mask.shape, generator=generator)
    return Batch(
        mask=mask,
        old_logprobs=old,
        rollout_logprobs=old,
        rewards=(torch.arange(rows) % 3 == 0).float(),
        groups=torch.arange(rows) // 3,
        ids=torch.randint(0, TOKENIZER.vocab_size, mask.shape, generator=generator),
        lengths=lengths,
        actions=columns.expand(mask.shape) % 3 > 0,
    )


class NotANumber:
    """GRPO whose loss of the longest row is NaN."""

    def advantages(self, batch: Batch) -> Batch:
        return algos.make("grpo").advantages(batch)

    def loss(self, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> Loss:
        out = algos.make("grpo").loss(batch, logprobs, entropy)
        assert batch.lengths is not None
        broken = bool((batch.lengths == batch.minibatch.lengths.max()).any())  # pyright: ignore
        return Loss(out.loss * float("nan"), out.metrics) if broken else out


@dataclass(frozen=True)
class Update:
    """A batch is scored and learnt from."""

    algorithm: Any = field(default_factory=lambda: algos.make("grpo"))
    masked: tuple[int, ...] = ()
    micro_batch_tokens: int = 60
    minibatches: int = 1
    epochs: int = 1
    precision: Any = "fp32"
    lora: bool = False
    reference: bool = False
    checkpointing: bool = False
    penalty_every: int = 0
    seed_of_rank: Callable[[int], int] = lambda _: 0

    def run(self, ranks: Ranks) -> Result:
        made = policy(self.seed_of_rank(ranks.rank))
        if self.lora:
            add_lora(made, LoRAConfig(rank=2))
        if self.checkpointing:
            made.recompute_activations()
            made.train()
        reference = None if not self.reference else base_of(made) if self.lora else policy(7)
        config = TrainerConfig(
            minibatches=self.minibatches,
            epochs=self.epochs,
            micro_batch_tokens=self.micro_batch_tokens,
            learning_rate=RATE,
            precision=self.precision,
            penalty_every=self.penalty_every,
        )
        learner = Learner(made, self.algorithm, config, reference=reference, ranks=ranks)
        start = {name: value.clone() for name, value in weights(made)}
        scored = learner.score(batch(self.masked))
        metrics = learner.update(self.algorithm.advantages(scored), 0)
        trained = [p for group in learner.optimizer.param_groups for p in group["params"]]
        return {
            "scored": dict(scored.tensors()),
            "metrics": metrics,
            "gradients": {str(n): whole(p.grad) for n, p in enumerate(trained) if p.grad is not None},
            "weights": {str(n): whole(p) for n, p in enumerate(trained)} | dict(weights(made)),
            "start": start,
            "sizes": (sum(_local(p).numel() for p in made.parameters()), sum(p.numel() for p in made.parameters())),
        }


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return getattr(parameter, "to_local", lambda: parameter)()


class Lively(GRPO):
    """Has a gradient whatever the rewards are: it makes every sampled token more likely."""

    def advantages(self, batch: Batch) -> Batch:
        return batch.with_advantages(torch.ones_like(batch.rewards))


class Greedy(HFEngine):
    """Takes the most likely ids, so that it does not matter who plays what."""

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit([replace(request, temperature=0.0) for request in requests])


class Scripted:
    """Says the same turns in every episode: some searches, then an answer."""

    def __init__(self, searches: int) -> None:
        self.searches = searches
        self.turns: dict[Hashable, int] = {}
        self.waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting += requests

    def collect(self) -> list[Sample]:
        samples = []
        for request in self.waiting:
            turn = self.turns[request.key] = self.turns.get(request.key, 0) + 1
            ids = TOKENIZER.encode("<search> a </search>" if turn <= self.searches else "<answer> a </answer>")
            samples.append(Sample(request.key, ids, [-1.0] * len(ids), "tag"))
        self.waiting = []
        return samples

    def forget(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self.turns.pop(key, None)

    def sync(self, weights: Weights) -> None:
        for _ in weights():  # a collective where the policy is sharded
            pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def coin(outcome: Outcome) -> float:
    """A reward that the responses to one question often differ in."""
    return float(sum(map(ord, "".join(outcome.turns))) % 2)


def nothing(outcome: Outcome) -> float:
    return 0.0


@dataclass(frozen=True)
class Steps:
    """Trainers step twice."""

    engine: str = "greedy"
    sampled_batches: int = 1
    async_rollouts: Any = 0
    reward_of_rank: Callable[[int], Any] = lambda _: coin
    algorithm: Any = field(default_factory=Lively)

    def run(self, ranks: Ranks) -> Result:
        made = policy()
        copied = ranks.sharded or bool(self.async_rollouts)
        sampler = copy.deepcopy(made) if copied else made
        engine: Any = {
            "greedy": lambda: Greedy(sampler, TOKENIZER, shared=not copied),
            "sampling": lambda: HFEngine(sampler, TOKENIZER, seed=ranks.rank, shared=not copied),
            "uneven": lambda: Scripted(3 * ranks.rank),
        }[self.engine]()
        trainer = Trainer(
            made,
            self.algorithm,
            engine,
            TOKENIZER,
            sources.open_retriever("bm25", WORLD.corpus),
            _rules(self.reward_of_rank(ranks.rank)),
            WORLD.questions("train"),
            self._config(),
            ranks=ranks,
        )
        steps = [trainer.step() for _ in range(2)]
        return {
            "metrics": [{k: v for k, v in row.items() if k not in ("seconds", "speed")} for row, _ in steps],
            "ids": [[t.ids for t in trajectories] for _, trajectories in steps],
            "questions": [[t.question_id for t in trajectories] for _, trajectories in steps],
            "turns": [[len(t.turns) for t in trajectories] for _, trajectories in steps],
            "weights": dict(weights(made)),
            "start": dict(weights(policy())),
            "sampler": dict(weights(sampler)),
        }

    def _config(self) -> TrainerConfig:
        return TrainerConfig(
            steps=2,
            batch_questions=3,
            group_size=2,
            minibatches=2,
            micro_batch_tokens=150,
            learning_rate=RATE,
            max_sampled_batches=self.sampled_batches,
            async_rollouts=self.async_rollouts,
        )


def _rules(reward: Any) -> Rules:
    return Rules(
        prompt="brief", max_searches=3, max_turn_tokens=6, max_observation_tokens=20, max_context_tokens=200,
        reward=reward,
    )  # fmt: skip


CASES: dict[str, Update | Steps] = {
    "grpo": Update(),
    "grpo-updates": Update(minibatches=2, epochs=2, micro_batch_tokens=30),
    "one": Update(micro_batch_tokens=10_000),
    "sapo": Update(algos.make("sapo"), micro_batch_tokens=1),
    "penalty": Update(algos.make("grpo_kl", gamma=3.0), micro_batch_tokens=30, epochs=2, penalty_every=1),
    "ppo": Update(algos.make("ppo"), minibatches=2),
    "kl": Update(algos.make("grpo", kl_coef=0.1), reference=True, minibatches=2),
    "lora": Update(algos.make("grpo", kl_coef=0.1), lora=True, reference=True, epochs=2),
    "checkpointing": Update(checkpointing=True, minibatches=2),
    "masked": Update(masked=(0, 2, 4), micro_batch_tokens=1),
    "masked-ppo": Update(algos.make("ppo"), masked=(0, 2, 4), micro_batch_tokens=1),
    "all-masked": Update(masked=tuple(range(6))),
    "nan": Update(NotANumber(), micro_batch_tokens=1),
    "bf16": Update(algos.make("ppo"), precision="bf16"),
    "begin": Update(seed_of_rank=lambda rank: rank),
    "steps": Steps(),
    "steps-async": Steps(async_rollouts=1),
    "uneven": Steps("uneven"),
    "uneven-dapo": Steps("sampling", 3, 0, lambda rank: nothing if rank else coin, algos.make("grpo")),
    "nothing-kept": Steps("sampling", 2, 0, lambda _: nothing, algos.make("grpo")),
}


def adapted() -> CausalLMPolicy:
    """A policy whose adapters do something."""
    made = policy()
    add_lora(made, LoRAConfig(rank=2))
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return made


def run_rank(rank: int, count: int, port: int, shard: bool, folder: str) -> None:
    """Run all cases as one process of `count`, and leave what they gave in the folder. Nothing waits over a minute."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    os.environ |= address | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    ranks = open_ranks(shard, "cpu", timedelta(seconds=60))
    torch.save({name: case.run(ranks) for name, case in CASES.items()}, Path(folder) / f"{rank}.pt")
    saved = adapted()
    ranks.wrap(saved)
    save_policy(saved, Path(folder) / "policy", leads=ranks.leads)
    torch.distributed.destroy_process_group()
