"""One way of a training step in a process of its own: `python -m benchmarks.training_worker REQUEST`, JSON in and out.

The process imports what its way needs: TRL's run where search_gym is not installed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.training_rows import Row, load

Way = Callable[[Any, list[Row], int], Iterator[Tensor]]
"""(model, rows, rows of a micro-batch) to the losses of micro-batches, whose sum is the loss of the whole minibatch."""

WAYS = {
    "ours": "benchmarks.training_ours:ours",
    "whole logits": "benchmarks.training_ours:whole_logits",
    "TRL": "benchmarks.training_trl:fused_head",
    "TRL, logits": "benchmarks.training_trl:completion_logits",
}
COMPARED = ("embed_tokens", "layers.0.self_attn.q_proj", "norm")
"""Parameters whose gradients are kept, their first 64 rows, to compare ways."""


@dataclass(frozen=True)
class Request:
    """What to measure."""

    way: str
    model: str
    """A folder."""
    rows: str
    """A file that `training_rows.save` wrote."""
    micro_rows: int
    """Rows of a micro-batch."""
    bfloat16: bool = False
    """Parameters in float32 under autocast to bfloat16, as TRL trains unless told otherwise."""
    checkpointing: bool = False
    """Activation checkpointing of the transformer."""
    head_only: bool = False
    """Hidden states are given instead of computed."""
    gradients: str = ""
    """Where to write those of `COMPARED`."""


class Given(nn.Module):
    """In the place of a transformer: hidden states that are there already."""

    def __init__(self, rows: int, width: int, size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.states = nn.Parameter(torch.randn(rows, width, size, generator=generator))

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutputWithPast:
        """The first states that are as many as the ids."""
        rows, width = input_ids.shape
        return BaseModelOutputWithPast(last_hidden_state=self.states[:rows, :width])  # pyright: ignore


def open_model(request: Request, rows: list[Row]) -> Any:
    """The model in training mode, as the request wants it."""
    model = AutoModelForCausalLM.from_pretrained(request.model, dtype=torch.float32)
    if request.head_only:
        width = max(len(row.prompt) for row in rows) + max(len(row.response) for row in rows)
        model.model = Given(request.micro_rows, width, model.config.hidden_size)
    if request.checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()


def memory(name: str) -> float:
    """VmRSS or VmHWM of this process, in MiB."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def measure(request: Request) -> dict[str, float]:
    """Seconds of one step, by the clock and of the processor, and how far memory rose above the model's own, in MiB."""
    rows = load(Path(request.rows))
    model = open_model(request, rows)
    module, name = WAYS[request.way].split(":")
    way: Way = getattr(importlib.import_module(module), name)

    def step(rows: list[Row], micro_rows: int) -> float:
        total = 0.0
        context = torch.autocast("cpu", torch.bfloat16) if request.bfloat16 else nullcontext()
        losses = way(model, rows, micro_rows)
        while True:
            with context:
                loss = next(losses, None)
            if loss is None:
                return total
            loss.backward()
            total += loss.item()

    short = [Row(row.prompt[:8], row.response[:8], [1] * 8, row.advantage) for row in rows[:1]]
    step(short, 1)  # what is loaded or made once, and the gradients themselves
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started, used = time.perf_counter(), time.process_time()
    loss = step(rows, request.micro_rows)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    peak = memory("VmHWM") - before
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    if request.gradients:
        kept = {n: g[:64].clone() for n, g in gradients.items() if n.removeprefix("model.").startswith(COMPARED)}
        torch.save(kept, request.gradients)
    return {"seconds": seconds, "cpu_seconds": used, "peak_mib": peak, "loss": loss, "norm": norm}


if __name__ == "__main__":
    logging.disable_progress_bar()
    print(json.dumps(measure(Request(**json.loads(sys.argv[1])))))
