"""HFEngine: samples in process, with sequences that join and leave the running batch, and a cache kept across turns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algos.training.engines import Request, Sample, Weights
from algos.training.engines.kept import Kept, compacted, passes, sharing
from algos.training.engines.kv_cache import RaggedCache
from algos.training.policy import CausalLMPolicy
from search_gym.tokenizers import Tokenizer


class HFEngine:
    """Samples from a `CausalLMPolicy` in the same process.

    Every id is read once: what was sampled or inserted since the last turn is prefilled, everything before comes from
    the cache, and prompts that are equal and begin together are read once for all that share them. A sequence that ends
    its turn leaves the running batch at once, others join it, so short ones never wait for long ones.

    The same calls with the same seed give the same samples, bit for bit.

    Args:
        policy: what to sample from.
        tokenizer: tells where turns end.
        seed: of the engine's own random numbers.
        shared: whether the policy is the one that is trained, so that its parameters are always the present ones;
            otherwise it is a copy of its own, which `sync` writes to.
        ended_share: `collect` returns when more sequences have ended their turn than this share of those still
            running. Less makes more, smaller prefills; more lets sequences wait that could go on.

    Raises:
        ValueError: if a layer of the model does not attend to all ids before: the cache would be wrong.
    """

    def __init__(
        self,
        policy: CausalLMPolicy,
        tokenizer: Tokenizer,
        seed: int = 0,
        *,
        shared: bool = True,
        ended_share: float = 0.125,
    ) -> None:
        _require_full_attention(policy.model)
        self._policy = policy
        self._tokenizer = tokenizer
        self._shared = shared
        self._ended_share = ended_share
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self.tokens_read = 0
        """How many ids went through the model since the engine was made, padding left out."""
        self._clear()

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin to continue these sequences; see `Engine.submit`. They join the batch with the next `collect`."""
        keys: set[Hashable] = set()
        for request in requests:
            known = self._known.get(request.key)
            if request.key in keys or (known is not None and known.stopped is None):
                raise ValueError(f"sequence {request.key!r} is being sampled already: collect its turn first")
            if known is not None and list(request.ids[: len(known.ids)]) != known.ids:
                raise ValueError(
                    f"the ids of sequence {request.key!r} do not begin with those it had: forget it to begin anew"
                )
            keys.add(request.key)
        for request in requests:
            sequence = self._known.setdefault(request.key, Kept(request.key))
            sequence.begin(request, self._tokenizer)
            self._joining.append(sequence)

    def collect(self) -> list[Sample]:
        """Sample until some sequences have ended their turn; see `Engine.collect`."""
        ended: list[Kept] = []
        with self._sampling():
            self._join()
            while self._running and len(ended) <= self._ended_share * len(self._running):
                ended += self._step()
        return [sequence.sample() for sequence in ended]

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Drop sequences, sampled or waiting; see `Engine.forget`. Their rows are used again."""
        gone = {id(self._known.pop(key)) for key in keys if key in self._known}
        if not self._known:
            self._clear()  # nothing is left to keep memory for
        elif gone:
            self._joining = [s for s in self._joining if id(s) not in gone]
            running, left = compacted(self._running, lambda s: id(s) not in gone)
            parked, _ = compacted([*left, *self._parked], lambda s: id(s) not in gone)
            if self._running:
                stay = self._tensor([sequence.row for sequence in running])
                self._hidden, self._starts = self._hidden[stay], self._starts[stay]
            self._settle(running, parked)

    def sync(self, weights: Weights) -> None:
        """Sample from these weights from now on; see `Engine.sync`.

        Raises:
            ValueError: if the weights are not those of the engine's own policy. It is not fit to sample from then.
        """
        self._clear()
        if not self._shared:
            _load(self._policy.model, weights)

    def state_dict(self) -> dict[str, Any]:
        """The state of the random numbers; sequences are not part of it."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing where `state_dict` was taken."""
        self._generator.set_state(state["generator"])

    def _clear(self) -> None:
        """Forget all sequences, and free the memory of the cache."""
        self._known: dict[Hashable, Kept] = {}
        self._joining: list[Kept] = []
        self._running: list[Kept] = []  # rows of the cache from 0 on, next to each other
        self._parked: list[Kept] = []  # the rows after them: their turn has ended
        layers = self._policy.model.config.get_text_config().num_hidden_layers
        self._cache = RaggedCache(layers, self._policy.device)
        self._hidden = torch.zeros(0)  # of the last id of each running sequence, [running, H]
        self._starts = torch.zeros(0)  # where the next id of each running sequence stands, [running]

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """The policy as the engine needs it: no dropout, no gradient, and attention that takes a mask of any form."""
        policy, config = self._policy, self._policy.model.config.get_text_config()
        training, attention = policy.training, config._attn_implementation
        policy.eval()
        config._attn_implementation = "sdpa"
        try:
            with torch.no_grad():
                yield
        finally:
            config._attn_implementation = attention
            policy.train(training)

    def _join(self) -> None:
        """Read the new ids of those that join, and let them run."""
        if not self._joining:
            return
        joined = {id(sequence) for sequence in self._joining}
        back, parked = compacted(self._parked, lambda sequence: id(sequence) in joined)
        new = [sequence for sequence in self._joining if not sequence.read]
        start, self._joining = len(self._running), []
        readers, copies = sharing([*back, *new])
        parts = passes(readers)
        self._settle([*self._running, *(s for part in parts for s in part), *(copy for copy, _ in copies)], parked)
        hidden = torch.cat([self._read(part) for part in parts])
        if copies:
            for copy, reader in copies:
                copy.read = reader.read
            longest = max(reader.read for _, reader in copies)
            self._cache.move([reader.row for _, reader in copies], [copy.row for copy, _ in copies], longest)
            hidden = torch.cat([hidden, hidden[self._tensor([reader.row - start for _, reader in copies])]])
        self._hidden = torch.cat([self._hidden, hidden]) if start else hidden
        self._starts = self._tensor([sequence.read for sequence in self._running])

    def _read(self, part: list[Kept]) -> Tensor:
        """Read the new ids of sequences in neighbouring rows; the hidden state of the last id of each, [rows, H]."""
        new = [sequence.ids[sequence.read :] for sequence in part]
        width = max(map(len, new))
        padded = self._tensor([ids + [0] * (width - len(ids)) for ids in new])
        starts = self._tensor([sequence.read for sequence in part])
        mask = self._cache.place(part[0].row, starts, width, max(sequence.read for sequence in part))
        hidden = self._policy.hidden(padded, mask, self._cache.positions, self._cache)
        for sequence in part:
            sequence.read = len(sequence.ids)
        self.tokens_read += sum(map(len, new))
        last = self._tensor([len(ids) - 1 for ids in new])
        return hidden[torch.arange(len(part), device=last.device), last]

    def _step(self) -> list[Kept]:
        """Sample one id for each running sequence and read it; those whose turn it ends leave."""
        ids, logprobs = self._draw(self._policy.logits(self._hidden))
        # Both in one piece, for each transfer waits for the device. A double holds every id exactly.
        for sequence, token, logprob in zip(
            self._running, *torch.stack([ids.double(), logprobs.double()]).tolist(), strict=True
        ):
            sequence.push(int(token), logprob)
        live, ended = compacted(self._running, lambda sequence: sequence.stopped is None)
        if ended:
            stay = self._tensor([sequence.row for sequence in live])
            ids, self._starts = ids[stay], self._starts[stay]
            self._settle(live, [*ended, *self._parked])
        if live:
            mask = self._cache.place(0, self._starts, 1, max(sequence.read for sequence in live))
            self._hidden = self._policy.hidden(ids[:, None], mask, self._cache.positions, self._cache)[:, -1]
            self._starts = self._starts + 1
            for sequence in live:
                sequence.read += 1
            self.tokens_read += len(live)
        return ended

    def _settle(self, running: list[Kept], parked: list[Kept]) -> None:
        """Put sequences into the rows of the cache in this order, with what they have read."""
        order = [*running, *parked]
        self._cache.reserve(len(order))
        moved = [(sequence, row) for row, sequence in enumerate(order) if sequence.row != row]
        filled = [(sequence.row, row) for sequence, row in moved if sequence.read]
        longest = max((sequence.read for sequence, _ in moved), default=0)
        self._cache.move([old for old, _ in filled], [new for _, new in filled], longest)
        for sequence, row in moved:
            sequence.row = row
        self._running, self._parked = running, parked

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """An id for each row of logits [running, V], and its log-probability."""
        # Models are often padded to more outputs than there are tokens: what is none is not drawn.
        logits = logits[:, : self._tokenizer.vocab_size]
        temperatures = [sequence.temperature for sequence in self._running]
        if set(temperatures) != {1.0}:
            scale = torch.tensor([value or 1.0 for value in temperatures], device=logits.device)
            logits = logits / scale[:, None]
        logps = torch.log_softmax(logits, dim=-1)
        # Greedy sequences alone draw no random numbers, whatever is sampled before or after them.
        if not any(temperatures):
            ids = logps.argmax(dim=-1)
        elif all(temperatures):
            ids = _drawn(logps, self._generator)
        else:
            greedy = torch.tensor([value == 0 for value in temperatures], device=logits.device)
            ids = torch.where(greedy, logps.argmax(dim=-1), _drawn(logps, self._generator))
        return ids, logps.gather(1, ids[:, None])[:, 0]

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._policy.device)


def _drawn(logps: Tensor, generator: torch.Generator) -> Tensor:
    """An id for each row of log-probabilities [rows, V].

    By one random number a row: `torch.multinomial` draws one for each of the V, on a CPU six times as slow. In double
    precision, for in single the sum is rounded by more than what a rare id has.
    """
    total = logps.double().exp_().cumsum_(dim=-1)
    point = torch.rand(len(logps), 1, dtype=torch.float64, device=logps.device, generator=generator) * total[:, -1:]
    # The first id whose sum is above the point: never one of probability 0.
    return torch.searchsorted(total, point, right=True)[:, 0].clamp_(max=logps.shape[1] - 1)


def _require_full_attention(model: PreTrainedModel) -> None:
    """ValueError: the cache, whose rows have lengths of their own, cannot serve this model."""
    config = model.config.get_text_config()
    windowed = [] if getattr(config, "sliding_window", None) is None else ["sliding_attention"]
    strange = sorted({*(getattr(config, "layer_types", None) or windowed)} - {"full_attention"})
    if strange or not model._supports_sdpa:
        reason = f"has layers of {', '.join(strange)}" if strange else "has no scaled-dot-product attention"
        raise ValueError(
            f"the hf engine cannot sample from {type(model).__name__}: it {reason}, but the cache needs layers that "
            "attend to all ids before; sample with vllm instead"
        )


@torch.no_grad()
def _load(model: PreTrainedModel, weights: Weights) -> None:
    """Copy weights into a model, one by one."""
    own, loaded = model.state_dict(), set()
    for name, tensor in weights():
        if name not in own:
            raise ValueError(f"weight {name!r} is none of {type(model).__name__}")
        there, here = list(tensor.shape), list(own[name].shape)
        if there != here:
            raise ValueError(f"weight {name!r} has the shape {there}, but in the engine's own policy it is {here}")
        own[name].copy_(tensor)
        loaded.add(own[name].data_ptr())  # the same for names that are tied to each other
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in loaded]
    if missing:
        raise ValueError(f"weights are missing: {', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}")
