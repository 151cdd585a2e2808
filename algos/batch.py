"""What an algorithm is given, and what it gives back: two frozen records of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

Rows = slice | Sequence[int] | Tensor
"""Which rows of a batch: a slice, a list of row numbers, or a tensor of row numbers or booleans."""


_PER_ROW = ("rewards", "groups", "lengths", "final_values", "truncated")
_KINDS = {
    "mask": "bool",
    "actions": "bool",
    "truncated": "bool",
    "groups": "int64",
    "ids": "int64",
    "lengths": "int64",
}  # others: float


@dataclass(frozen=True, eq=False)
class Batch:
    """B responses of up to T tokens, right-padded. Column t is about token t: `logprobs[b, t]` scores `ids[b, t]` given
    `ids[b, :t]`.

    Only tokens that the policy sampled take part in a loss. What the environment inserted (prompt, passages, notices)
    and padding have mask False, and may hold anything in every other field, NaN and -inf included.
    """

    mask: Tensor
    """[B, T] bool: the policy sampled this token."""
    old_logprobs: Tensor
    """[B, T] float: log-probs under the policy before its first update on this batch, at the sampling temperature."""
    rewards: Tensor
    """[B] float: the reward of each response; NaN where it is missing."""
    groups: Tensor
    """[B] int64: responses to the same question share a number."""
    advantages: Tensor | None = None
    """[B, T] float: made by `algorithm.advantages(batch)`."""
    ref_logprobs: Tensor | None = None
    """[B, T] float: log-probs under the reference policy; needed by the algorithms that stay close to it."""
    rollout_logprobs: Tensor | None = None
    """[B, T] float: log-probs that the sampler gave; its kernels and precision set them apart from `old_logprobs`."""
    values: Tensor | None = None
    """[B, T] float: what a critic expects of the state before each token, before its first update on this batch."""
    final_values: Tensor | None = None
    """[B] float: what it expects of the state after the last token of a row."""
    returns: Tensor | None = None
    """[B, T] float: what the values should have been; made by the `advantages` of algorithms with a critic."""
    actions: Tensor | None = None
    """[B, T] bool: the token is of an action, tags included, not of the reasoning around it. For diagnostics."""
    truncated: Tensor | None = None
    """[B] bool: a budget cut the response off; False where it came to its end."""
    ids: Tensor | None = None
    """[B, T] int64: token ids, prompt included."""
    lengths: Tensor | None = None
    """[B] int64: number of tokens of each row that are not padding."""
    whole: Batch | None = None
    """The minibatch that this one was cut from by `part`, for its normalisers; None where this is a whole one."""

    def __post_init__(self) -> None:
        if self.mask.ndim != 2:
            raise ValueError(f"Batch.mask has shape {list(self.mask.shape)}; expected [B, T]")
        rows, width = self.mask.shape
        for name, value in self.tensors().items():
            expected = [rows] if name in _PER_ROW else [rows, width]
            if list(value.shape) != expected:
                wanted = f"expected {expected}, {'[B]' if len(expected) == 1 else '[B, T]'} of mask"
                raise ValueError(f"Batch.{name} has shape {list(value.shape)}; {wanted}")
            kind = _KINDS.get(name, "float")
            found = "float" if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
            if found != kind:
                raise ValueError(f"Batch.{name} is of type {value.dtype}; expected {kind}")

    def __len__(self) -> int:
        return len(self.mask)

    def tensors(self) -> Mapping[str, Tensor]:
        """The fields that are there, by name, without `whole`."""
        held = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "whole"}
        return {name: value for name, value in held.items() if value is not None}

    def require(self, name: str, reason: str) -> Tensor:
        """The field `name`, or an error that gives the reason why it is needed."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"Batch.{name} is missing: {reason}")
        return value

    def inputs(self) -> tuple[Tensor, Tensor]:
        """The ids and lengths that a policy reads."""
        reason = "the policy reads it: make the batch with algos.training.collate"
        return self.require("ids", reason), self.require("lengths", reason)

    @property
    def rewarded(self) -> Tensor:
        """[B, 1] bool: the response has a reward."""
        return ~self.rewards.isnan()[:, None]

    @property
    def minibatch(self) -> Batch:
        """The whole minibatch: this one, or that which it was cut from."""
        return self if self.whole is None else self.whole

    def select(self, rows: Rows) -> Batch:
        """A whole minibatch of these rows: its normalisers are its own."""
        return replace(self, whole=None, **{name: value[rows] for name, value in self.tensors().items()})

    def part(self, rows: Rows) -> Batch:
        """These rows, with the normalisers of the whole minibatch.

        The losses of all parts, however the rows are cut, sum to the loss of the whole, and so do gradients and
        metrics: accumulating over micro-batches changes memory and nothing else.
        """
        return replace(self.select(rows), whole=self.minibatch)

    def only(self, condition: Callable[[Batch], Tensor]) -> Batch:
        """The same rows with fewer policy tokens, those where `condition(batch)` [B, T] holds; so too in the whole."""
        whole = None if self.whole is None else self.whole.only(condition)
        return replace(self, mask=self.mask & condition(self), whole=whole)

    def keep(self, rows: Tensor) -> Batch:
        """All rows, but policy tokens only in those where `rows` [B] bool is True: the others take part in nothing."""
        if self.whole is not None:
            raise ValueError("leave responses out before the batch is cut into parts")
        return replace(self, mask=self.mask & rows[:, None])

    def with_advantages(self, advantages: Tensor) -> Batch:
        """The same batch with these advantages, [B] or [B, T]; 0 where the policy did not sample."""
        if self.whole is not None:
            raise ValueError("advantages compare all responses of a question: compute them before cutting into parts")
        per_token = advantages[:, None] if advantages.ndim == 1 else advantages
        return replace(self, advantages=torch.where(self.mask, per_token, 0))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device. Move a minibatch before cutting it: a part takes the whole along."""
        moved = {name: value.to(device) for name, value in self.tensors().items()}
        return replace(self, whole=None if self.whole is None else self.whole.to(device), **moved)


@dataclass(frozen=True, eq=False)
class Loss:
    """What one call of an algorithm's `loss` returns."""

    loss: Tensor
    """Scalar, to be minimised; that of a part is its share of the whole minibatch's."""
    metrics: dict[str, Tensor]
    """Detached scalars by name; shares as well, so the metrics of all parts sum to those of the whole."""
    penalty: Tensor | None = None
    """Scalar: the part of `loss` that penalises drift from the old policy, with its gradient; None where there is none.
    For diagnostics."""
