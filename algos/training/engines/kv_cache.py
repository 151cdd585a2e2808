"""A key-value cache in which each row has its own length."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH = 128  # positions by which the buffers grow: a copy now and then, little memory unused


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, capacity, head size]; row b is filled up to its own length.

    Padding queries write past the end of their row. What they leave there is never attended to (the mask ends at each
    row's length), and the next real ids of the row overwrite it.
    """

    def __init__(self, owner: RaggedCache) -> None:
        super().__init__()
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, size = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, 0, size)
        self.values = value_states.new_zeros(rows, heads, 0, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        positions, end = self._owner.positions, self._owner.end
        if end > self.keys.shape[2]:
            capacity = -(-end // _GROWTH) * _GROWTH
            self.keys, self.values = _grown(self.keys, capacity), _grown(self.values, capacity)
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        # Indexing rows and positions together puts the heads last but one: [rows, queries, heads, head size].
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.end, 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self._owner.end

    def get_max_length(self) -> int:
        return -1

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take over buffers."""
        self.keys, self.values, self.is_initialized = keys, values, True


class RaggedCache(Cache):
    """The cache of a batch of sequences of different lengths, each kept from turn to turn.

    Before each forward pass, `place` says at which positions the new ids of each row stand.
    """

    def __init__(self, layers: int, rows: int, device: torch.device) -> None:
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        """Filled positions of each row, [rows]."""
        self.positions = torch.zeros(rows, 0, dtype=torch.long, device=device)
        """Positions of the ids of the current pass, [rows, queries]."""
        self.end = 0
        """One past the last position of the current pass."""
        self._ragged = [RaggedLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self._ragged])

    def place(self, queries: int) -> torch.Tensor:
        """Prepare a pass of `queries` ids a row, right-padded.

        Returns:
            The attention mask of the pass, bool [rows, 1, queries, end]: each id sees its own row up to itself.
        """
        self.positions = self.lengths[:, None] + torch.arange(queries, device=self.lengths.device)
        self.end = int(self.positions.max()) + 1
        return torch.arange(self.end, device=self.lengths.device) <= self.positions[:, None, :, None]

    def advance(self, counts: torch.Tensor) -> None:
        """Count the real ids of the pass, [rows]."""
        self.lengths = self.lengths + counts

    def take(self, rows: torch.Tensor) -> RaggedCache:
        """A cache of some rows, in the order given; a row may be taken several times."""
        taken = RaggedCache(len(self._ragged), 0, self.lengths.device)
        taken.lengths, taken.end = self.lengths[rows], self.end
        for target, layer in zip(taken._ragged, self._ragged, strict=True):
            if layer.keys is not None and layer.values is not None:
                target.fill(layer.keys[rows], layer.values[rows])
        return taken

    @staticmethod
    def join(caches: list[RaggedCache]) -> RaggedCache:
        """One cache with the rows of several that have been written to, one after the other."""
        joined = RaggedCache(len(caches[0]._ragged), 0, caches[0].lengths.device)
        joined.lengths = torch.cat([cache.lengths for cache in caches])
        joined.end = max(cache.end for cache in caches)
        for target, *layers in zip(joined._ragged, *(cache._ragged for cache in caches), strict=True):
            target.fill(_joined([layer.keys for layer in layers]), _joined([layer.values for layer in layers]))
        return joined


def _joined(states: list[torch.Tensor | None]) -> torch.Tensor:
    """Rows of several buffers in one, as long as the longest of them."""
    filled = [buffer for buffer in states if buffer is not None]
    capacity = max(buffer.shape[2] for buffer in filled)
    return torch.cat([_grown(buffer, capacity) for buffer in filled])


def _grown(states: torch.Tensor, capacity: int) -> torch.Tensor:
    """The same states with room for more positions."""
    if states.shape[2] == capacity:
        return states
    rows, heads, length, size = states.shape
    grown = states.new_zeros(rows, heads, capacity, size)
    grown[:, :, :length] = states
    return grown
