"""How fast are episodes sampled? The hf engine beside the loop that Search-R1 runs, in one run.

python benchmarks/rollout.py
python benchmarks/rollout.py --model smollm2 --recorded dialogues.jsonl --questions 2 --group 4
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
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
from experiments.config import Task
from search_gym import sources, tokenizers
from search_gym.tokenizers import Tokenizer

Loop = Callable[[PreTrainedModel, Tokenizer, Sequence[Script], float], Played]
OURS = "hf engine"
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
    """The interpreter of an environment with vLLM: measure that engine too."""


@dataclass
class Figures:
    """What was seen of one loop."""

    read: int = 0
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


def table(figures: dict[str, Figures], scripts: Sequence[Script]) -> str:
    """In Markdown. The ratio is the median over rounds, in each of which both had their turn."""
    sampled, ours = sum(script.sampled for script in scripts), figures[OURS].seconds
    lines = [
        "| loop | sampled tokens/s | episodes/s | ids read | ours is faster |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, figure in figures.items():
        seconds = median(figure.seconds)
        ratio = median(theirs / mine for theirs, mine in zip(figure.seconds, ours, strict=True))
        lines.append(
            f"| {name} | {sampled / seconds:,.0f} | {len(scripts) / seconds:,.2f} | {figure.read:,} "
            f"| {'' if name == OURS else f'{ratio:.1f}x'} |"
        )
    return "\n".join(lines)


def with_vllm(python: Path, model: str, scripts: Sequence[Script], group: int) -> str:
    """The vLLM engine beside vLLM itself, in an interpreter of its own, as a table."""
    prompts = [script.prompt for script in scripts[::group]]
    rules = {name: value for name, value in asdict(Task().rules()).items() if isinstance(value, int | float | str)}
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks" / "rollout_vllm.py")],
        input=json.dumps({"model": model, "prompts": prompts, "rules": rules, "groups": group}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    rates = {name: found[name]["tokens"] / found[name]["seconds"] for name in ("engine", "raw")}
    lines = ["| vLLM | sampled tokens/s | of raw |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {rate:,.0f} | {rate / rates['raw']:.2f} |" for name, rate in rates.items()]
    return "\n".join(lines)


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
        f"{torch.get_num_threads()} threads\n\n"
        f"{table(measure(model, tokenizer, scripts, config.rounds), scripts)}",
        flush=True,
    )
    if config.vllm_python is not None:
        print(f"\n{with_vllm(config.vllm_python, folder, scripts, config.group)}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
