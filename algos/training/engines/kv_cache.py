"""A key-value cache in which each row has its own length, and any run of rows takes part in a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH = 64  # positions by which the buffers grow at least: a copy now and then, little memory unused


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, length, head size].

    Padding queries write past the end of their row. What they leave there is never attended to (the mask ends at each
    query's own position), and the next real ids of the row overwrite it.
    """

    def __init__(self, owner: RaggedCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # Zeros, for what is masked is still multiplied by its weight of 0, and memory as it comes may hold a NaN.
        rows, length = self._owner.shape
        self.keys = key_states.new_zeros(rows, key_states.shape[1], length, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], length, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        owner = self._owner
        keys, values = self.keys[owner.rows], self.values[owner.rows]  # views: what is attended to is not copied
        # Indexing rows and positions together puts the heads last but one: [rows, queries, heads, head size].
        keys[owner.row_index, :, owner.positions] = key_states.transpose(1, 2)
        values[owner.row_index, :, owner.positions] = value_states.transpose(1, 2)
        return keys[:, :, : owner.end], values[:, :, : owner.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.end, 0

    def get_seq_length(self) -> int:
        return self._owner.end

    def get_max_length(self) -> int:
        return -1

    def grow(self) -> None:
        """Make room for as many rows and positions as the owner says."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = _grown(self.keys, self._owner.shape), _grown(self.values, self._owner.shape)

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first positions of some rows to others, all at once."""
        for states in (self.keys, self.values):
            if states is not None:
                states[targets, :, :length] = states[sources, :, :length]


class RaggedCache(Cache):
    """The cache of sequences of different lengths. Who uses it knows which row is whose, and how long it is.

    Before each forward pass, `place` says which rows take part, and at which positions their new ids stand.
    """

    def __init__(self, layers: int, device: torch.device) -> None:
        self.shape = (0, 0)
        """Rows and positions that there is room for."""
        self.rows = slice(0, 0)
        """Those of the current pass, which are next to each other."""
        self.row_index = torch.zeros(0, 1, dtype=torch.long, device=device)
        """Number of each row within the pass, [rows, 1]."""
        self.positions = torch.zeros(0, 0, dtype=torch.long, device=device)
        """Of the ids of the current pass, [rows, queries]."""
        self.end = 0
        """One past the last position of the current pass."""
        self._device = device
        self._ragged = [RaggedLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self._ragged])

    def reserve(self, rows: int, length: int = 0) -> None:
        """Make room for so many rows of so many positions; what is there stays."""
        if rows > self.shape[0] or length > self.shape[1]:
            if length > self.shape[1]:
                length = -(-(length + length // 16) // _GROWTH) * _GROWTH
            self.shape = max(rows, self.shape[0]), max(length, self.shape[1])
            for layer in self._ragged:
                layer.grow()

    def place(self, first: int, starts: torch.Tensor, queries: int, longest: int) -> torch.Tensor:
        """Prepare a pass of `queries` ids a row, right-padded.

        Args:
            first: the first row that takes part; as many follow as there are starts.
            starts: position of the first new id of each row, int64 [rows].
            queries: ids a row, >= 1.
            longest: the greatest of the starts, as a number: to ask a device for it would make it wait.

        Returns:
            The attention mask of the pass, bool [rows, 1, queries, end]: each id sees its own row up to itself.
        """
        self.end = longest + queries
        self.reserve(first + len(starts), self.end)
        self.rows = slice(first, first + len(starts))
        self.row_index = torch.arange(len(starts), device=self._device)[:, None]
        self.positions = starts[:, None] + torch.arange(queries, device=self._device)
        return torch.arange(self.end, device=self._device) <= self.positions[:, None, :, None]

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of some rows to others, all at once: rows may change places."""
        if sources and length:
            index = torch.tensor([sources, targets], device=self._device)
            for layer in self._ragged:
                layer.move(index[0], index[1], length)


def _grown(states: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The same states with room for more rows and positions."""
    rows, heads, length, size = states.shape
    grown = states.new_zeros(shape[0], heads, shape[1], size)
    grown[:rows, :, :length] = states
    return grown
