"""HFEngine: samples in process, with a key-value cache that is kept from turn to turn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from algos.training.engines import Request, Sample
from algos.training.engines.kv_cache import RaggedCache
from algos.training.policy import CausalLMPolicy
from search_gym.actions import TurnReader
from search_gym.tokenizers import Tokenizer


class _Turn:
    """The turn of one sequence while it is sampled."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.stopped: Literal["tag", "eos", "length"] | None = None
        self._left = request.max_tokens
        self._eos = tokenizer.eos_ids
        self._reader = TurnReader(tokenizer)

    def push(self, token: int, logprob: float) -> bool:
        """Take one sampled id; False when it ends the turn."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self._reader.push(token):
            self.stopped = "tag"
        elif token in self._eos:
            self.stopped = "eos"
        elif len(self.ids) >= self._left:
            self.stopped = "length"
        return self.stopped is None

    def sample(self) -> Sample:
        assert self.stopped is not None
        return Sample(self.ids, self.logprobs, self.stopped)


class HFEngine:
    """Samples from a `CausalLMPolicy` in the same process.

    Every id is read once: what was sampled or inserted since the last call is prefilled, everything before comes from
    the cache, and prompts that are equal are read once for all that share them.

    Args:
        policy: what to sample from; always its present parameters.
        tokenizer: tells where turns end.
        seed: of the engine's own random numbers.
    """

    def __init__(self, policy: CausalLMPolicy, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self._layers = policy.model.config.get_text_config().num_hidden_layers
        self.tokens_read = 0
        """How many ids went through the model since the engine was made, padding left out."""
        self.reset()

    def reset(self) -> None:
        """Forget all sequences: the policy has changed."""
        self._keys: list[Hashable] = []
        self._cached: list[int] = []
        self._cache = RaggedCache(self._layers, 0, self._policy.device)

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], temperature: float = 1.0) -> list[Sample]:
        """Continue every sequence up to the end of its turn; see `Engine.sample`."""
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {temperature}")
        if any(request.max_tokens < 1 for request in requests):
            raise ValueError("a request asks for less than one token: leave sequences without room out")
        if not requests:
            return []
        training = self._policy.training
        self._policy.eval()
        self._admit(requests)
        hidden = self._prefill(requests)
        turns = [_Turn(request, self._tokenizer) for request in requests]
        self._decode(hidden, turns, temperature)
        self._policy.train(training)
        # The last id of a turn was sampled but not read: the next call's prefill begins with it.
        lengths = [len(r.ids) + len(t.ids) - 1 for r, t in zip(requests, turns, strict=True)]
        assert lengths == self._cache.lengths.tolist()
        self._cached = lengths
        return [turn.sample() for turn in turns]

    def _admit(self, requests: Sequence[Request]) -> None:
        """Give each request its row of the cache: known sequences keep theirs, others are dropped or begin empty."""
        keys = [request.key for request in requests]
        if len(set(keys)) < len(keys):
            raise ValueError("two requests have the same key")
        place = {key: row for row, key in enumerate(self._keys)}
        rows = [place[key] for key in keys if key in place]
        if rows and len(rows) < len(keys):
            raise ValueError("a call continues sequences or begins them, not both")
        if rows:
            if rows != list(range(len(self._keys))):
                self._cache = self._cache.take(self._index(rows))
            self._cached = [self._cached[row] for row in rows]
        else:
            self._cached = [0] * len(keys)
        self._keys = keys

    def _prefill(self, requests: Sequence[Request]) -> Tensor:
        """Read the new ids of each sequence; the hidden state of its last one, [rows, H]."""
        if any(self._cached):
            return self._read([list(r.ids[done:]) for r, done in zip(requests, self._cached, strict=True)])
        distinct = list(dict.fromkeys(tuple(request.ids) for request in requests))
        index = {ids: row for row, ids in enumerate(distinct)}
        self._cache = RaggedCache(self._layers, len(distinct), self._policy.device)
        hidden = self._read([list(ids) for ids in distinct])
        rows = [index[tuple(request.ids)] for request in requests]
        self._cache = self._cache.take(self._index(rows))
        return hidden[rows]

    def _read(self, new: list[list[int]]) -> Tensor:
        """Run ids through the model, a row each; the hidden state of the last id of each row, [rows, H].

        A row without ids is left as it is, and its hidden state means nothing.
        """
        counts = torch.tensor([len(ids) for ids in new], device=self._policy.device)
        width = int(counts.max())
        padded = torch.tensor([ids + [0] * (width - len(ids)) for ids in new], device=self._policy.device)
        mask = self._cache.place(width)
        hidden = self._policy.hidden(padded, mask, self._cache.positions, self._cache)
        self._cache.advance(counts)
        self.tokens_read += int(counts.sum())
        return hidden[torch.arange(len(new), device=hidden.device), counts - 1]

    def _decode(self, hidden: Tensor, turns: list[_Turn], temperature: float) -> None:
        """Sample every turn to its end, one id a row and pass."""
        rows = list(turns)  # the turn that each row of the cache belongs to
        parked: list[tuple[list[_Turn], RaggedCache]] = []
        while live := [row for row, turn in enumerate(rows) if turn.stopped is None]:
            # Rows that have ended ride along, for taking rows out copies the cache; but not for longer than they are
            # the lesser part.
            if len(live) <= len(rows) // 2:
                ended = [row for row, turn in enumerate(rows) if turn.stopped is not None]
                parked.append(([rows[row] for row in ended], self._cache.take(self._index(ended))))
                self._cache, hidden = self._cache.take(self._index(live)), hidden[live]
                rows = [rows[row] for row in live]
                live = list(range(len(rows)))
            ids, logprobs = self._draw(self._policy.logits(hidden[live]), temperature)
            new: list[list[int]] = [[] for _ in rows]
            for row, token, logprob in zip(live, ids.tolist(), logprobs.tolist(), strict=True):
                if rows[row].push(token, logprob):
                    new[row] = [token]
            if any(new):
                hidden = self._read(new)
        if parked:
            parked.append((rows, self._cache))
            place = {id(turn): row for row, turn in enumerate(turn for part, _ in parked for turn in part)}
            joined = RaggedCache.join([cache for _, cache in parked])
            self._cache = joined.take(self._index([place[id(turn)] for turn in turns]))

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._policy.device)

    def _draw(self, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """An id for each row of logits [rows, V], and its log-probability."""
        # Models are often padded to more outputs than there are tokens: what is none is not drawn.
        logits = logits[:, : self._tokenizer.vocab_size]
        if temperature == 0:
            logps = torch.log_softmax(logits, dim=-1)
            ids = logps.argmax(dim=-1)
        else:
            logps = torch.log_softmax(logits / temperature, dim=-1)
            ids = torch.multinomial(logps.exp(), 1, generator=self._generator).squeeze(1)
        return ids, logps.gather(1, ids[:, None]).squeeze(1)
