"""How fast are episodes sampled? The hf engine beside the loop that Search-R1 runs, in one run.

python benchmarks/rollout.py
python benchmarks/rollout.py --vllm-python .venv-vllm/bin/python
python benchmarks/rollout.py --model smollm2 --recorded dialogues.jsonl --questions 2 --group 4
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

import torch
import tyro
from transformers import PreTrainedModel

from algos.training.loading import load_policy
from benchmarks import rollout_loops, rollout_scripts
from benchmarks.rollout_loops import Played
from benchmarks.rollout_scripts import Script
from experiments import models
from experiments.task import Task
from search_gym import sources, tokenizers
from search_gym.tokenizers import Tokenizer

Loop = Callable[[PreTrainedModel, Tokenizer, Sequence[Script], float], Played]
OURS, VLLM = "hf engine", "vllm engine"
LOOPS: dict[str, Loop] = {OURS: rollout_loops.ours, "generate per turn": rollout_loops.search_r1}
_COMPARED = 4  # episodes that both loops must play alike when they are greedy


@dataclass(frozen=True)
class Config:
    """Play the same episodes with both loops."""

    model: str = "embedded"
    """"embedded", "smollm2", or a folder or hub id."""
    recorded: Path | None = None
    """JSONL of dialogues with `prompt` and `response`, whose turns are played. None: those that the model itself plays
    in the embedded world."""
    questions: int = 16
    """How many different prompts."""
    group: int = 8
    """Episodes that begin with each."""
    max_turn_tokens: int = 512
    """Turns of a recording are cut to so many ids."""
    max_observation_tokens: int = 500
    """Passages of a recording likewise."""
    rounds: int = 3
    """In which the loops take turns, after one that does not count."""
    vllm_python: Path | None = None
    """The interpreter of an environment with vLLM: measure that engine too, beside vLLM itself."""


@dataclass
class Figures:
    """What was seen of one loop."""

    read: int = 0
    """Ids that went through the model; 0 where nobody counts them."""
    seconds: list[float] = field(default_factory=list)


def workload(config: Config, model: str, tokenizer: Tokenizer) -> list[Script]:
    """The episodes to play."""
    if config.recorded is not None:
        limits = config.max_turn_tokens, config.max_observation_tokens
        return rollout_scripts.from_recording(config.recorded, tokenizer, config.questions, config.group, *limits)
    asked = sources.list_questions("embedded")[: config.questions]
    return rollout_scripts.from_play(
        load_policy(model),
        tokenizer,
        [question for question in asked for _ in range(config.group)],
        sources.open_retriever("bm25"),
        Task().rules(),
    )


def check(model: PreTrainedModel, tokenizer: Tokenizer, scripts: Sequence[Script]) -> None:
    """ValueError unless the loops play the same episodes where nothing is left to chance."""
    played = [loop(model, tokenizer, scripts, 0.0).ids for loop in LOOPS.values()]
    if any(ids != played[0] for ids in played):
        raise ValueError("the loops do not play the same: one of them mixes up its sequences")


def measure(model: PreTrainedModel, tokenizer: Tokenizer, scripts: Sequence[Script], rounds: int) -> dict[str, Figures]:
    """Let the loops take turns; the first round does not count."""
    figures = {name: Figures() for name in LOOPS}
    for number in range(rounds + 1):
        for name, loop in LOOPS.items():
            torch.manual_seed(number)
            start = time.perf_counter()
            played = loop(model, tokenizer, scripts, 1.0)
            if number:
                figures[name].read = played.read
                figures[name].seconds.append(time.perf_counter() - start)
    return figures


def table(figures: dict[str, Figures], scripts: Sequence[Script], ours: str = OURS) -> str:
    """In Markdown. The ratio is the median over rounds, in each of which both had their turn."""
    sampled, mine = sum(script.sampled for script in scripts), figures[ours].seconds
    lines = [
        f"| loop | sampled tokens/s | episodes/s | ids read | {ours} is faster |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, figure in figures.items():
        seconds = median(figure.seconds)
        ratio = median(theirs / own for theirs, own in zip(figure.seconds, mine, strict=True))
        rates = f"{sampled / seconds:,.0f} | {len(scripts) / seconds:,.2f}"
        read = f"{figure.read:,}" if figure.read else ""
        lines.append(f"| {name} | {rates} | {read} | {'' if name == ours else f'{ratio:.2f}x'} |")
    return "\n".join(lines)


def with_vllm(python: Path, model: str, scripts: Sequence[Script], rounds: int) -> dict[str, Figures]:
    """The vLLM engine and vLLM itself, in an interpreter of its own."""
    model = str(Path(model).resolve()) if Path(model).exists() else model
    plain = [(script.prompt, [(turn.length, turn.inserted) for turn in script.turns]) for script in scripts]
    done = subprocess.run(
        [str(python), "-m", "benchmarks.rollout_vllm"],
        input=json.dumps({"model": model, "scripts": plain, "rounds": rounds}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {name: Figures(seconds=seconds) for name, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def main(config: Config) -> None:
    """Measure, and print a table."""
    folder = models.resolve(config.model)
    tokenizer, model = tokenizers.load(folder), load_policy(folder).model.eval()
    scripts = workload(config, folder, tokenizer)
    check(model, tokenizer, scripts[:: max(1, len(scripts) // _COMPARED)][:_COMPARED])
    count = len(scripts)
    turns = sum(len(script.turns) for script in scripts)
    inserted = sum(len(turn.inserted) for script in scripts for turn in script.turns)
    print(
        f"{config.model}, {count} episodes of {config.questions} questions; an episode has {turns / count:.1f} turns, "
        f"{sum(len(script.prompt) for script in scripts) / count:.0f} ids of prompt, "
        f"{sum(script.sampled for script in scripts) / count:.0f} sampled, {inserted / count:.0f} inserted; "
        f"{torch.get_num_threads()} threads\n"
    )
    figures = measure(model, tokenizer, scripts, config.rounds)
    print(table(figures, scripts), flush=True)
    if config.vllm_python is not None:
        figures = {OURS: figures[OURS], **with_vllm(config.vllm_python, folder, scripts, config.rounds)}
        print(f"\n{table(figures, scripts, VLLM)}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
