"""Two ways of a GRPO step with TRL 1.16: its own, and that of its earlier releases, by its own functions.

Prompts are padded on the left and completions on the right, to the longest of a micro-batch, as TRL pads them; passages
are masked as its tool results are. A micro-batch is one of its accumulation steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor
from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]
from trl.trainer.utils import (  # pyright: ignore[reportMissingImports]
    add_fused_lm_head,
    entropy_from_logits,
    pad,
    selective_log_softmax,
)

from benchmarks.training_rows import Row


def trainer(steps: int) -> SimpleNamespace:
    """What `_compute_loss` reads of a trainer whose options are the defaults, but for `loss_type="grpo"`."""
    PartialState(cpu=True)  # TRL's log asks it
    accelerator = SimpleNamespace(
        autocast=nullcontext,
        gather=lambda given: given,
        is_main_process=True,
        reduce=lambda given, reduction: given,
    )
    return SimpleNamespace(
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None),
        aux_loss_enabled=False,
        beta=0.0,
        current_gradient_accumulation_steps=steps,
        epsilon_low=0.2,
        epsilon_high=0.2,
        importance_sampling_level="token",
        loss_type="grpo",
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )


def inputs(rows: list[Row]) -> dict[str, Tensor]:
    """What TRL hands to `_compute_loss`."""

    def padded(values: list[list[int]], side: str) -> Tensor:
        return pad([torch.tensor(value) for value in values], padding_value=0, padding_side=side)

    return {
        "prompt_ids": padded([row.prompt for row in rows], "left"),
        "prompt_mask": padded([[1] * len(row.prompt) for row in rows], "left"),
        "completion_ids": padded([row.response for row in rows], "right"),
        "completion_mask": padded([[1] * len(row.response) for row in rows], "right"),
        "tool_mask": padded([row.mask for row in rows], "right"),
        "advantages": torch.tensor([row.advantage for row in rows]),
    }


def losses(model: Any, rows: list[Row], micro_rows: int, score: Callable[..., Any]) -> Iterator[Tensor]:
    """`GRPOTrainer._compute_loss` of each micro-batch."""
    starts = range(0, len(rows), micro_rows)
    self = trainer(len(starts))
    self._get_per_token_logps_and_entropies = partial(score, self)
    for start in starts:
        yield GRPOTrainer._compute_loss(self, model, inputs(rows[start : start + micro_rows]))


def fused_head(model: Any, rows: list[Row], micro_rows: int) -> Iterator[Tensor]:
    """TRL 1.16's: its fused head, which tiles tokens and vocabulary and computes logits twice."""
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    yield from losses(model, rows, micro_rows, GRPOTrainer._get_per_token_logps_and_entropies)


def completion_logits(model: Any, rows: list[Row], micro_rows: int) -> Iterator[Tensor]:
    """That of its earlier releases: logits of the completion, `selective_log_softmax` and `entropy_from_logits`."""

    def score(_: Any, model: Any, ids: Tensor, mask: Tensor, keep: int, **__: Any) -> tuple[Tensor, Tensor, None]:
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=keep + 1, use_cache=False).logits[:, :-1]
        logprobs = selective_log_softmax(logits, ids[:, -keep:])
        with torch.no_grad():
            entropy = entropy_from_logits(logits)
        return logprobs, entropy, None

    yield from losses(model, rows, micro_rows, score)
