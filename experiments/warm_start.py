"""Makes the embedded policy: a tiny Llama that has learned the format and how to read, by imitation.

    python experiments/warm_start.py
    python experiments/warm_start.py --size large

It imitates noisy demonstrations in worlds that are made anew at every step, so there is nothing to know by heart: only
how to ask, and how to copy an answer out of a passage. What pays is left to reinforcement. Make it again after a change
to the world's words or the tokenizer. Sizes: small (`--model embedded-small`) and medium (`--model embedded`) are
committed; large (`--model embedded-large`) goes into the cache of whoever makes it.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see ablate.py

import torch
import tyro
from rich.progress import Progress
from transformers import LlamaConfig, LlamaForCausalLM

from algos.training.collate import collate, cut_by_length
from algos.training.engines.hf import HFEngine
from algos.training.evaluation import evaluate_decodings
from algos.training.policy import CausalLMPolicy
from experiments import models
from experiments.config import option
from experiments.demonstrations import Demonstrator, Noise
from experiments.provenance import environment, write_json
from experiments.task import Task
from search_gym import World, sources, tokenizers
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory

# Worlds to imitate in have seeds from here on; the one that is trained and evaluated in afterwards has seed 0.
FIRST_WORLD = 1_000


@dataclass(frozen=True)
class Size:
    """An embedded policy: its shape, and what it takes to make it."""

    width: int
    """Of the residual stream."""
    intermediate: int
    """Width of the feed-forward blocks."""
    heads: int
    """Of the attention, in each layer."""
    steps: int
    """As in `WarmStart`."""
    learning_rate: float
    """As in `WarmStart`."""


LAYERS = 4
SIZES: dict[str, Size] = {
    "small": Size(width=64, intermediate=256, heads=4, steps=1800, learning_rate=2e-3),  # 0.31 M parameters
    "medium": Size(width=128, intermediate=384, heads=4, steps=1800, learning_rate=1.5e-3),  # 0.95 M
    "large": Size(width=256, intermediate=576, heads=8, steps=540, learning_rate=1e-3),  # 3.0 M
}


@dataclass(frozen=True)
class WarmStart:
    """How an embedded policy is made."""

    size: Literal["small", "medium", "large"] = "medium"
    """Of the policy: 0.3, 0.95 or 3 million parameters. Chooses the defaults of folder, steps and learning rate."""
    out: Path = models.EMBEDDED
    """The folder that it is saved to."""
    steps: int = 1800
    """Batches of demonstrations. Copying from passages begins after some 300."""
    batch_size: int = 32
    """Demonstrations in a batch, all from one world."""
    learning_rate: float = 1.5e-3
    """Of AdamW, at its highest."""
    warmup: int = 100
    """Steps in which the learning rate rises; after them it falls along a cosine to a tenth."""
    world_size: int = 4
    """Size of each world, as `search_gym.World` counts it."""
    noise: Noise = field(default_factory=Noise)
    """How often demonstrations go wrong."""
    micro_batch_tokens: int = 2048
    """How many tokens go through the model at once."""
    held_out_size: int = 512
    """How many questions to measure the result on."""
    seed: int = 0
    """Of everything that is random."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        cosine = 1 + math.cos(math.pi * min(step / self.steps, 1.0))
        return self.learning_rate * min(step / self.warmup, 1.0) * (0.1 + 0.9 * 0.5 * cosine)


def parse(argv: Sequence[str] | None = None) -> WarmStart:
    """Settings from the command line, over those of the size that it names. Raises ValueError if there is none such."""
    name = option(argv, "--size", "medium")
    if name not in SIZES:
        raise ValueError(f"no size is called {name!r}; there are: {', '.join(SIZES)}")
    size = SIZES[name]
    default = replace(
        WarmStart(), size=name, out=models.embedded_folder(name), steps=size.steps, learning_rate=size.learning_rate
    )
    return tyro.cli(WarmStart, args=argv, default=default, description=WarmStart.__doc__)


def embedded_model(tokenizer: Tokenizer, size: str = "medium") -> LlamaForCausalLM:
    """The untrained model of one of `SIZES`."""
    shape = SIZES[size]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=shape.width,
            intermediate_size=shape.intermediate,
            num_hidden_layers=LAYERS,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_id,
            pad_token_id=None,
        )
    )


def imitate(config: WarmStart, policy: CausalLMPolicy, tokenizer: Tokenizer) -> None:
    """Train the policy on demonstrations, by maximum likelihood of the demonstrator's tokens alone."""
    rng = random.Random(config.seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    with Progress() as progress:
        bar = progress.add_task("imitate", total=config.steps)
        for step in range(1, config.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = config.rate(step)
            loss = _imitate_once(config, policy, optimizer, _demonstrations(config, step, tokenizer, rng))
            progress.update(bar, advance=1, description=f"imitate, loss {loss:.3f}")
            if step % 100 == 0:
                progress.console.print(f"step {step}: loss {loss:.4f}")


def _demonstrations(config: WarmStart, step: int, tokenizer: Tokenizer, rng: random.Random) -> list[Trajectory]:
    world = World(FIRST_WORLD + step, {"train": config.world_size})
    retriever = sources.open_retriever("bm25", world.corpus)
    demonstrator = Demonstrator(world, retriever, tokenizer, Task().rules(), config.noise, rng)
    return demonstrator.demonstrate(rng.sample(world.questions("train", years=True), config.batch_size))


def _imitate_once(
    config: WarmStart, policy: CausalLMPolicy, optimizer: torch.optim.Optimizer, demonstrations: list[Trajectory]
) -> float:
    batch = collate(demonstrations, range(len(demonstrations)))
    tokens, loss = batch.mask.sum(), 0.0
    optimizer.zero_grad()
    lengths = [len(demonstration.ids) for demonstration in demonstrations]
    for rows in cut_by_length(lengths, config.micro_batch_tokens):
        part = batch.part(rows)
        scores = policy(*part.inputs(), part.mask)
        share = -scores.logprobs.sum() / tokens
        share.backward()
        loss += share.item()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return loss


def measure(policy: CausalLMPolicy, tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """How well it answers the held-out questions of the default comparison, sampled and greedy."""
    found = evaluate_decodings(
        sources.list_questions("embedded:test")[:size],
        temperature=1.0,
        engine=HFEngine(policy, tokenizer),
        tokenizer=tokenizer,
        retriever=sources.open_retriever("bm25"),
        rules=Task().rules(),
    )
    return {decoding: asdict(result) for decoding, (result, _) in found.items()}


def save(config: WarmStart, policy: CausalLMPolicy, tokenizer: Tokenizer) -> None:
    """Write a Hugging Face folder, and recipe.json: how it was made and what it can do."""
    policy.model.save_pretrained(config.out)
    tokenizer.backend.save(str(config.out / "tokenizer.json"))
    end = next(token for token, i in tokenizer.control_tokens.items() if i == tokenizer.eos_id)
    write_json(config.out / "tokenizer_config.json", {"eos_token": end, "pad_token": end})
    settings = {name: value for name, value in asdict(config).items() if name != "out"}
    held_out = measure(policy, tokenizer, config.held_out_size)
    for decoding, scores in held_out.items():
        print(f"{decoding}: EM {scores['em']:.3f}, F1 {scores['f1']:.3f}, {scores['searches']:.2f} searches a question")
    recipe = {
        "command": f"python experiments/warm_start.py --size {config.size}",
        "settings": settings,
        "held_out": held_out,
    }
    write_json(config.out / "recipe.json", recipe | {"environment": environment()})


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when the policy is made, 2 for a size that there is none of."""
    try:
        config = parse(argv)
    except ValueError as error:
        print(f"warm_start: error: {error}", file=sys.stderr)
        return 2
    tokenizer = tokenizers.embedded()
    torch.manual_seed(config.seed)
    policy = CausalLMPolicy(embedded_model(tokenizer, config.size))
    imitate(config, policy, tokenizer)
    save(config, policy, tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
