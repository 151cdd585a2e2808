"""How a training step (log-probs, loss, backward pass) grows with the length, the group and the model.

python benchmarks/growth.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))

import matplotlib.pyplot as plt
import numpy as np
import torch
import tyro
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.training_ours import ours
from benchmarks.training_rows import Row

VOCABULARY = 8_192
LAYERS = 4


@dataclass(frozen=True)
class Config:
    """Measure steps of random Llamas on random ids, of which a sixth are the policy's, as in real trajectories."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    """Tokens of a row, for 2 rows."""
    groups: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Rows of a step, of 512 tokens."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Hidden sizes of 4 layers, for 2 rows of 512 tokens. Lengths and groups are measured at 128."""
    rounds: int = 3
    """Measurements of each; the table holds medians."""
    figure: Path = ROOT / "benchmarks" / "growth.png"
    """Where the plot goes."""


@dataclass(frozen=True)
class Point:
    """One measurement."""

    axis: str
    """What grows."""
    size: int
    parameters: int
    seconds: float
    """Of the processor, for a step on one thread."""


def llama(width: int) -> LlamaForCausalLM:
    """A random model with heads of 32 and a tied head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=LAYERS,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, max_position_embeddings=8_192,
        bos_token_id=None, eos_token_id=1, pad_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def rows(count: int, length: int) -> list[Row]:
    """Random ids: an eighth of each row is prompt, then passages and policy in turn."""
    generator = torch.Generator().manual_seed(0)
    prompt = length // 8
    mask = [int(position % 60 < 11) for position in range(length - prompt - 1)] + [1]
    ids = torch.randint(VOCABULARY, (count, length), generator=generator).tolist()
    return [Row(row[:prompt], row[prompt:], mask, (-1.0) ** i) for i, row in enumerate(ids)]


def measure(width: int, count: int, length: int, rounds: int) -> tuple[int, float]:
    """Parameters of the model, and the median of the processor's seconds for a step; the first step does not count."""
    model = llama(width)
    seconds = []
    for _ in range(rounds + 1):
        started = time.process_time()
        for loss in ours(model, rows(count, length), micro_rows=2):
            loss.backward()
        seconds.append(time.process_time() - started)
    return model.num_parameters(), median(seconds[1:])


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of the straight line through the points, both axes logarithmic: 1 is linear growth."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def sizes(points: Sequence[Point]) -> list[int]:
    """What time is drawn and fitted over: for models their parameters, not their widths."""
    return [point.parameters if point.axis == "model" else point.size for point in points]


def table(points: Sequence[Point]) -> list[str]:
    """The points, and the exponents over all of an axis and over its upper half, for the README."""
    lines = ["| what grows | sizes | seconds | exponent | of the largest three |", "| --- | --- | --- | ---: | ---: |"]
    for axis in dict.fromkeys(point.axis for point in points):
        some = [point for point in points if point.axis == axis]
        x, y = sizes(some), [point.seconds for point in some]
        shown, times = ", ".join(f"{size:,}" for size in x), ", ".join(f"{value:.2f}" for value in y)
        lines.append(f"| {axis} | {shown} | {times} | {exponent(x, y):.2f} | {exponent(x[-3:], y[-3:]):.2f} |")
    return lines


def draw(points: Sequence[Point], path: Path) -> None:
    """Seconds over each size, with a line of slope 1 through the first point (and of slope 2 for the length)."""
    titles = {"length": "tokens of a row", "group": "rows", "model": "parameters"}
    figure, axes = plt.subplots(1, len(titles), figsize=(11, 3.6), layout="constrained")
    for plot, (axis, title) in zip(axes, titles.items(), strict=True):
        some = [point for point in points if point.axis == axis]
        x, y = np.array(sizes(some), dtype=float), [point.seconds for point in some]
        plot.loglog(x, y, marker="o", label="measured")
        for slope in (1, 2) if axis == "length" else (1,):
            style = "--" if slope == 1 else ":"
            plot.loglog(x, y[0] * (x / x[0]) ** slope, style, color="gray", label=f"slope {slope}")
        plot.set(title=f"seconds over {title}", xlabel=title)
        plot.set_xticks(x, [f"{size / 1e6:.1f} M" if size >= 1e6 / 2 else f"{size:,.0f}" for size in x])
        plot.minorticks_off()
        plot.grid(alpha=0.3)
        plot.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Measure, print the table, draw the plot."""
    torch.set_num_threads(1)
    points: list[Point] = []
    plans = [("length", 128, 2, length) for length in config.lengths]
    plans += [("group", 128, count, 512) for count in config.groups]
    plans += [("model", width, 2, 512) for width in config.widths]
    for axis, width, count, length in plans:
        size = {"length": length, "group": count, "model": width}[axis]
        points.append(Point(axis, size, *measure(width, count, length, config.rounds)))
        print(points[-1], file=sys.stderr, flush=True)
    print("\n".join(table(points)))
    draw(points, config.figure)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
