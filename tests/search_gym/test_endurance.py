"""Ten thousand episodes of random tokens: none fails, and nothing piles up."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from playing import SMALL, TOKENIZER

EPISODES, WARM_UP = 10_000, 1_000
LIMIT = 5 * 2**20  # bytes
# Tags and the end of sequence come up often enough that searches, answers and refusals all happen.
LIKELY = [i for tag in ("<search>", "</search>", "<answer>", "</answer>") for i in TOKENIZER.encode(tag)]
LIKELY += [TOKENIZER.eos_id]


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def draw(rng: np.random.Generator, size: int) -> list[int]:
    ids = rng.integers(TOKENIZER.vocab_size, size=size)
    likely = rng.choice(LIKELY, size=size)
    return np.where(rng.random(size) < 0.15, likely, ids).tolist()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", ["SearchQA-v0", "SearchQATurns-v0"])
def test_random_tokens_end_without_an_exception_and_memory_is_flat(name: str) -> None:
    env = gymnasium.make(name, **{**SMALL, "max_turn_tokens": 12, "max_turns": 4}).unwrapped
    rng, ends, before = np.random.default_rng(0), [0, 0], 0
    searches = invalid = 0
    env.reset(seed=0)
    for episode in range(EPISODES):
        env.reset()
        truncated, info, done = False, {}, False
        while not done:
            ids = draw(rng, 16)
            for action in ids if name == "SearchQA-v0" else [ids[: rng.integers(17)]]:
                _, _, terminated, truncated, info = env.step(action)
                done = terminated or truncated
                if done:
                    break
        ends[truncated] += 1
        searches, invalid = searches + info["searches"], invalid + info["invalid_actions"]
        if episode == WARM_UP:
            before = resident()
    assert resident() - before < LIMIT
    assert min(*ends, searches, invalid) > EPISODES / 100
