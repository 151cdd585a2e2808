"""Critic: what a state is worth, from a transformer of its own."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from algos.training.policy import CausalLMPolicy


class Values(NamedTuple):
    """What a critic expects."""

    values: Tensor
    """[B, T]; [b, t] is the value of the state in which ids[b, t] was sampled: of ids[b, :t]. 0 where the mask is 0."""
    final: Tensor
    """[B]; the value of the state after the last id of each row."""


class Critic(nn.Module):
    """A copy of a policy's transformer with one output in the place of its head.

    The output starts at 0 for every state: the first advantages are the rewards themselves.

    Args:
        policy: what is copied, weights included; the copy shares nothing with it.
    """

    def __init__(self, policy: CausalLMPolicy) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.model.base_model)
        self.value = nn.Linear(policy.model.config.hidden_size, 1, device=policy.device, dtype=torch.float32)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids: Tensor, lengths: Tensor, mask: Tensor) -> Values:
        """Values of the states in which the policy sampled.

        Args:
            ids: int64 [B, T], right-padded with anything.
            lengths: int64 [B], how many ids of each row are real.
            mask: bool [B, T], True where the policy sampled the id; False at position 0.
        """
        width = int(lengths.max())
        attention = torch.arange(width, device=ids.device) < lengths[:, None]
        hidden = self.trunk(input_ids=ids[:, :width], attention_mask=attention, use_cache=False).last_hidden_state
        after = self.value(hidden.float()).squeeze(-1).float()  # [b, t]: of ids[b, :t + 1]; autocast makes it half
        before = after.new_zeros(ids.shape)
        before[:, 1:width] = after[:, :-1]
        return Values(torch.where(mask, before, 0), after[torch.arange(len(ids), device=ids.device), lengths - 1])
