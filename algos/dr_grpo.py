"""Dr. GRPO: GRPO done right, without its two biases.

Paper: "Understanding R1-Zero-Like Training: A Critical Perspective", arXiv 2503.20783, Sec. 3.
Maximise, over the responses i of a question and the policy's tokens t of each,

    mean_i 1 / norm_tokens sum_t  min(r A, clip(r, 1 - clip_low, 1 + clip_high) A),    A = R_i - mean R.

Differs from GRPO in: the advantage, which is not divided by the std, so that questions on which all responses but one
are alike weigh no more than others; and the average, which divides by a constant instead of a response's own length, so
that long wrong responses are not punished less for a token than short ones.

Defaults: clip 0.2 as in GRPO; norm_tokens 1024: set it to the most tokens that a response may have (verl divides by the
padded width of the batch unless it is told, which is no constant; TRL by max_completion_length).

Left to the loop: several updates per rollout, gradient clipping. Left to the reward: what a good answer is.
"""

from __future__ import annotations

from dataclasses import dataclass

from algos.grpo import GRPO


@dataclass(frozen=True)
class DrGRPO(GRPO):
    """GRPO with other defaults."""

    aggregation: str = "seq-mean-token-sum-norm"
    """How token losses become one: "seq-mean-token-sum-norm" (the paper), "token-mean" or "seq-mean-token-mean"."""
    scale_by_std: bool = False
    """Whether the advantage is divided by the std of the group's rewards."""
