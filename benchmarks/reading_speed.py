"""Reading ids takes time linear in their number: nanoseconds an id, for turns of 1,000 to 100,000 ids.

python benchmarks/reading_speed.py
"""

from __future__ import annotations

import time

from search_gym import tokenizers
from search_gym.actions import TurnReader

SIZES = (1_000, 10_000, 100_000)
TEXT = "<think> I need the director of the film Silver Harbor, an é and a 😀 </think> <search> "


def nanoseconds(size: int, repeats: int = 3) -> float:
    """The fastest of some passes over a turn of so many ids, by id."""
    tokenizer = tokenizers.embedded()
    ids = tokenizer.encode(TEXT)
    ids = (ids * (size // len(ids) + 1))[:size]
    passes = []
    for _ in range(repeats):
        reader, started = TurnReader(tokenizer), time.perf_counter()
        for i in ids:
            reader.push(i)
        passes.append(time.perf_counter() - started)
    return min(passes) / size * 1e9


def main() -> None:
    """Print a line for each size."""
    first = nanoseconds(SIZES[0])
    for size in SIZES:
        took = nanoseconds(size)
        print(f"{size:>8} ids  {took:>7.0f} ns an id  × {took / first:.2f}")


if __name__ == "__main__":
    main()
