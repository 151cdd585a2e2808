"""Turns that are sampled elsewhere: where to stop there, and what of it belongs to the turn."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from torch import Tensor

from algos.training.engines import Request, Sample
from search_gym.actions import CLOSES, TurnReader
from search_gym.tokenizers import Tokenizer

# What vLLM takes: it would raise a lower temperature to this one without a word, and refuses a higher one.
_TEMPERATURES = (0.01, 2.0)
# Outputs past the tokens are barred once they were drawn; a model that draws so many in one turn was not made for the
# tokenizer.
_PATIENCE = 100
_HEAD = "lm_head.weight"


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that can complete a closing tag, ascending.

    Where a tag is one id, these are little more than the tags, and an engine that stops at them stops at the ends of
    turns. Where it is spelled by several, ">" is among them: then the engine stops at times within a turn, and the
    turn is continued. Either way no engine has to read text.
    """
    return [token for token in range(tokenizer.vocab_size) if _may_close(tokenizer.piece(token))]


def _may_close(piece: str) -> bool:
    ends = [piece[: at + 1] for at, character in enumerate(piece) if character == ">"]
    return any(end.endswith(tag) or tag.endswith(end) for end in ends for tag in CLOSES)


def with_head(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights, detached, and the head among them where it is tied to the embedding and therefore left out.

    On a CPU, vLLM keeps the head in a layout of its own, and would go on with the old one.
    """
    embedding: Tensor | None = None
    headless = True
    for name, tensor in named:
        tensor = tensor.detach()
        if name.endswith("embed_tokens.weight"):
            embedding = tensor
        headless = headless and name != _HEAD
        yield name, tensor
    if headless and embedding is not None:
        yield _HEAD, embedding


class Seeds:
    """A seed for each request, so that what is drawn depends on no global state and not on what else is sampled."""

    def __init__(self, seed: int) -> None:
        self._seed, self._drawn = seed, 0

    def next(self) -> int:
        """The next seed, of 63 bits."""
        self._drawn += 1
        digest = blake2b(f"{self._seed}:{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def state_dict(self) -> dict[str, int]:
        """Where in the sequence of seeds this is."""
        return {"seed": self._seed, "drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._seed, self._drawn = int(state["seed"]), int(state["drawn"])


class Turn:
    """The turn of one request. `search_gym.actions.TurnReader` alone says where it ends."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.key = request.key
        self.temperature = request.temperature
        self.ids: list[int] = []
        """Sampled so far."""
        self.logprobs: list[float] = []
        self.stopped: Literal["tag", "eos", "length"] | None = None
        self._before = list(request.ids)
        self._limit = request.max_tokens
        self._tokenizer = tokenizer
        self._reader = TurnReader(tokenizer)
        self._strangers = 0

    @property
    def sequence(self) -> list[int]:
        """All ids so far, what was sampled included."""
        return self._before + self.ids

    @property
    def room(self) -> int:
        """How many ids may follow."""
        return self._limit - len(self.ids)

    def take(self, ids: Sequence[int], logprobs: Sequence[float]) -> int | None:
        """Take sampled ids up to the end of the turn; what stands after it is dropped.

        Returns:
            The first id that is no token, where there is one: models are often padded to more outputs than there are
            tokens. It is not taken, nor what follows it.

        Raises:
            RuntimeError: if there is nothing to take, or the model hardly draws tokens at all.
        """
        if not ids:
            raise RuntimeError(f"nothing was sampled for {self.key!r}")
        for token, logprob in zip(ids, logprobs, strict=True):
            if not 0 <= token < self._tokenizer.vocab_size:
                return self._refuse(token)
            self.ids.append(token)
            self.logprobs.append(logprob)
            if self._reader.push(token):
                self.stopped = "tag"
            elif token in self._tokenizer.eos_ids:
                self.stopped = "eos"
            elif self.room <= 0:
                self.stopped = "length"
            if self.stopped is not None:
                return None
        return None

    def sample(self) -> Sample:
        """What the turn is, once it has ended."""
        assert self.stopped is not None
        return Sample(self.key, self.ids, self.logprobs, self.stopped)

    def _refuse(self, token: int) -> int:
        self._strangers += 1
        if self._strangers > _PATIENCE:
            raise RuntimeError(
                f"the model draws ids such as {token}, past the {self._tokenizer.vocab_size} tokens of "
                f"{self._tokenizer.name}, again and again: give the tokenizer that belongs to the model"
            )
        return token


def begun(
    requests: Sequence[Request], running: Collection[Hashable], tokenizer: Tokenizer, longest: int
) -> Iterator[Turn]:
    """A turn for each request.

    Args:
        requests: what is asked for.
        running: keys of sequences that are being sampled.
        tokenizer: that of the model.
        longest: how many ids a sequence may have, sampled ones included.

    Raises:
        ValueError: if one of the requests cannot be fulfilled; none is begun then.
    """
    taken = set(running)
    for request in requests:
        where = f"the request of {request.key!r}"
        if request.key in taken:
            raise ValueError(f"{where}: a sequence of that key is being sampled")
        taken.add(request.key)
        if request.temperature != 0 and not _TEMPERATURES[0] <= request.temperature <= _TEMPERATURES[1]:
            raise ValueError(
                f"{where}: vLLM samples at a temperature of 0 or from {_TEMPERATURES[0]} to {_TEMPERATURES[1]}, not "
                f"{request.temperature}"
            )
        if not 0 <= min(request.ids) <= max(request.ids) < tokenizer.vocab_size:  # would end a server, not the request
            raise ValueError(f"{where} has ids that are none of the {tokenizer.vocab_size} tokens of {tokenizer.name}")
        if len(request.ids) + request.max_tokens > longest:
            raise ValueError(
                f"{where} has {len(request.ids)} ids and may get {request.max_tokens} more, but the engine's sequences "
                f"end at {longest}: lower max_context_tokens of the rules, or raise max_model_len"
            )
    return iter([Turn(request, tokenizer) for request in requests])
