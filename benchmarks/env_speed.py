"""How fast the environments are, beside skyrl-gym and gem-llm on the same recorded turns.

    python benchmarks/env_speed.py                               # ours alone
    python benchmarks/env_speed.py --peers-python PEERS/bin/python
    python benchmarks/env_speed.py --data ../shared/data …       # recorded dialogues of a trained model

Contenders take turns, pass after pass over the same dialogues, and the median of their passes counts. Read the ratios:
machines differ. benchmarks/README.md has the last figures, and says what is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import tokenizers
from workload import Workload, embedded, recorded

import search_gym  # noqa: F401  (registers the environments)
from search_gym.questions import Question
from search_gym.tokenizers import Tokenizer

PLACES = 64
# Side by side, some are still under way when others are done: the more rounds, the less that weighs.
ROUNDS = 4
ROOT = Path(__file__).resolve().parents[1]


class Ours:
    """Our environments over a workload."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.vector_turns = 0
        """Turns that the last call of `vector` played."""
        backend = tokenizers.Tokenizer.from_file(work.tokenizer)
        questions = [Question(str(i), d.question, tuple(d.golds)) for i, d in enumerate(work.dialogues)]
        self._setting: dict[str, Any] = {
            "questions": questions,
            "retriever": work.retriever,
            "tokenizer": Tokenizer(backend, eos_ids=[0]),
            "order": "sequential",
            "max_searches": 8,
            "max_turn_tokens": 2048,
            "max_observation_tokens": 2048,
            "max_context_tokens": 8192,
        }

    def tokens(self) -> list[float]:
        """SearchQA-v0, an id a step."""
        return self._one("SearchQA-v0", [[i for ids in d.ids for i in ids] for d in self._work.dialogues])

    def turns(self) -> list[float]:
        """SearchQATurns-v0, a turn a step."""
        return self._one("SearchQATurns-v0", [d.ids for d in self._work.dialogues])

    def vector(self) -> list[float]:
        """SearchQATurns-v0, 64 side by side, until every dialogue was played `ROUNDS` times."""
        env = gymnasium.make_vec("SearchQATurns-v0", num_envs=PLACES, autoreset_mode="same_step", **self._setting)
        dialogues, rewards, ended, self.vector_turns = self._work.dialogues, {}, 0, 0
        _, infos = env.reset()
        playing, at = infos["question_id"].astype(int), [0] * PLACES
        while ended < ROUNDS * len(dialogues) or len(rewards) < len(dialogues):
            actions = tuple(dialogues[i].ids[turn] for i, turn in zip(playing, at, strict=True))
            _, earned, terminated, truncated, infos = env.step(actions)
            over = terminated | truncated
            ended, self.vector_turns = ended + int(over.sum()), self.vector_turns + PLACES
            for place in range(PLACES):
                at[place] += 1
                if over[place]:
                    rewards[int(playing[place])] = float(earned[place])
                    at[place] = 0
            playing = infos["question_id"].astype(int)
        return [rewards[i] for i in range(len(dialogues))]

    def per_pass(self, result: tuple[float, list[float]]) -> tuple[float, list[float]]:
        """What the vector environment took for as many turns as the dialogues have."""
        turns = sum(len(dialogue.turns) for dialogue in self._work.dialogues)
        return result[0] * turns / self.vector_turns, result[1]

    def _one(self, name: str, plans: list[list[Any]]) -> list[float]:
        env, rewards = gymnasium.make(name, disable_env_checker=True, **self._setting), []
        for plan in plans:
            env.reset()
            for action in plan:
                _, reward, *_ = env.step(action)
            rewards.append(float(reward))
        return rewards


class Peers:
    """The peers, in an interpreter of their own."""

    def __init__(self, python: Path, work: Workload, folder: Path) -> None:
        path = work.save(folder / "workload.json")
        self._worker = subprocess.Popen(
            [python, ROOT / "benchmarks" / "peers.py", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def play(self, name: str, mode: str) -> tuple[float, list[float]]:
        """Seconds that a pass took, and the rewards."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        print(name, mode, file=self._worker.stdin, flush=True)
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peers' interpreter stopped with status {self._worker.wait()}: see above")
        row = json.loads(answer)
        return row["seconds"], row["rewards"]

    def close(self) -> None:
        """End the worker."""
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


def timed(play: Callable[[], list[float]]) -> tuple[float, list[float]]:
    """Seconds that a pass took, and the rewards."""
    started = time.perf_counter()
    rewards = play()
    return time.perf_counter() - started, rewards


def measure(work: Workload, python: Path | None, repeats: int, folder: Path) -> None:
    """Let all contenders play, and print a table."""
    ours, peers = Ours(work), None if python is None else Peers(python, work, folder)
    contenders: dict[str, Callable[[], tuple[float, list[float]]]] = {
        "SearchQA-v0": lambda: timed(ours.tokens),
        "SearchQATurns-v0": lambda: timed(ours.turns),
        f"SearchQATurns-v0 × {PLACES}": lambda: ours.per_pass(timed(ours.vector)),
    }
    if peers is not None:
        for mode in ("text", "ids"):
            for name in ("skyrl-gym", "gem-llm"):
                contenders[f"{name}, {mode}"] = lambda name=name, mode=mode: peers.play(name, mode)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    expected = None
    for repeat in range(repeats + 1):
        for name, play in contenders.items():
            took, rewards = play()
            expected = expected or rewards
            if rewards != expected:
                raise RuntimeError(f"{name} does not score these dialogues as the others do: the work is not the same")
            if repeat:  # the first pass warms up
                seconds[name].append(took)
    if peers is not None:
        peers.close()
    report(work, {name: median(took) for name, took in seconds.items()})


def report(work: Workload, seconds: dict[str, float]) -> None:
    """A line for each contender, with its speed in that of the faster peer, taking text and taking ids."""
    turns = sum(len(d.turns) for d in work.dialogues)
    tokens = sum(len(ids) for d in work.dialogues for ids in d.ids)
    print(f"\n{work.name}: {len(work.dialogues)} dialogues, {turns} turns, {tokens} tokens of the policy")
    print(f"{'':24}{'turns/s':>10}{'tokens/s':>12}{'× text':>9}{'× ids':>9}")
    fastest = {m: min((s for n, s in seconds.items() if n.endswith(f", {m}")), default=None) for m in ("text", "ids")}
    for name, took in seconds.items():
        ratios = "".join(f"{'–' if best is None else f'{best / took:.2f}':>9}" for best in fastest.values())
        print(f"{name:24}{turns / took:>10.0f}{tokens / took:>12.0f}{ratios}")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", type=Path, help="an interpreter that has skyrl-gym and gem-llm")
    parser.add_argument("--data", type=Path, help="a folder with trajectories/bamboogle.jsonl and wiki18/corpus.jsonl")
    parser.add_argument("--size", type=int, default=256, help="dialogues in the embedded world (default: 256)")
    parser.add_argument("--repeats", type=int, default=5, help="passes that count (default: 5)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        works = embedded(args.size, folder) + ([] if args.data is None else recorded(args.data, folder))
        for work in works:
            measure(work, args.peers_python, args.repeats, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
