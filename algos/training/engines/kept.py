"""The sequences that an engine in this process keeps: their turns, and which of them are read together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from algos.training.engines import Request, Sample
from search_gym.actions import TurnReader
from search_gym.tokenizers import Tokenizer

_PASS_TOKENS = 8192  # read at once, padding included: what a pass holds besides the cache is bounded by it


class Kept:
    """A sequence that the engine keeps, and its turn while that is sampled."""

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.row = -1  # of the cache
        self.ids: list[int] = []
        self.read = 0  # so many of the ids are in the cache

    def begin(self, request: Request, tokenizer: Tokenizer) -> None:
        """Take what a request brings; the turn starts here."""
        self.ids += request.ids[len(self.ids) :]
        self.temperature = request.temperature
        self.start, self.limit = len(self.ids), len(self.ids) + request.max_tokens
        self.logprobs: list[float] = []
        self.stopped: Literal["tag", "eos", "length"] | None = None
        self._eos, self._reader = tokenizer.eos_ids, TurnReader(tokenizer)

    def push(self, token: int, logprob: float) -> bool:
        """Take one sampled id; False when it ends the turn."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self._reader.push(token):
            self.stopped = "tag"
        elif token in self._eos:
            self.stopped = "eos"
        elif len(self.ids) >= self.limit:
            self.stopped = "length"
        return self.stopped is None

    def sample(self) -> Sample:
        assert self.stopped is not None
        return Sample(self.key, self.ids[self.start :], self.logprobs, self.stopped)


def sharing(sequences: Sequence[Kept]) -> tuple[list[Kept], list[tuple[Kept, Kept]]]:
    """Sequences that must read; and those that begin with all the ids that one of them begins with, beside that one."""
    readers: list[Kept] = []
    copies: list[tuple[Kept, Kept]] = []
    first: dict[tuple[int, ...], Kept] = {}
    for sequence in sequences:
        reader = sequence if sequence.read else first.setdefault(tuple(sequence.ids), sequence)
        if reader is sequence:
            readers.append(sequence)
        else:
            copies.append((sequence, reader))
    return readers, copies


def passes(readers: Sequence[Kept]) -> list[list[Kept]]:
    """Cut sequences into passes that are neither too large nor mostly padding.

    Sequences that fit into one pass stay in their order, in which rows of the cache need not be moved; others are put
    into that of how much they read.
    """
    new = [len(sequence.ids) - sequence.read for sequence in readers]
    parts: list[list[int]] = []
    real = 0
    for number in sorted(range(len(new)), key=new.__getitem__):
        padded = (len(parts[-1]) + 1) * new[number] if parts else 0
        if parts and padded <= min(_PASS_TOKENS, 2 * (real + new[number])):
            parts[-1].append(number)
            real += new[number]
        else:
            parts.append([number])
            real = new[number]
    return [[readers[number] for number in (part if len(parts) > 1 else sorted(part))] for part in parts]


def compacted(sequences: list[Kept], stays: Callable[[Kept], bool]) -> tuple[list[Kept], list[Kept]]:
    """Those that stay, then the others, with as few changes of place as that takes."""
    staying = [stays(sequence) for sequence in sequences]
    count, order = sum(staying), list(sequences)
    holes = [place for place in range(count) if not staying[place]]
    movers = [place for place in range(count, len(order)) if staying[place]]
    for hole, mover in zip(holes, movers, strict=True):
        order[hole], order[mover] = order[mover], order[hole]
    return order[:count], order[count:]
