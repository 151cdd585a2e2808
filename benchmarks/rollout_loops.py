"""The loops that benchmarks/rollout.py compares: ours, and the one that Search-R1 runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from algos.training.engines import Engine, Request
from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy
from benchmarks.rollout_scripts import Script
from search_gym.tokenizers import Tokenizer


@dataclass(frozen=True)
class Played:
    """What a loop did."""

    ids: list[list[int]]
    """All ids of each episode."""
    read: int
    """Ids that went through the model, padding left out."""


def enders(tokenizer: Tokenizer) -> list[int]:
    """Ids that may end a turn. Both loops draw none of them, for turns have the lengths of their script."""
    closing = {token for token in range(tokenizer.vocab_size) if ">" in tokenizer.piece(token)}
    return sorted(closing | tokenizer.eos_ids)


class Endless(CausalLMPolicy):
    """A policy that never ends a turn by itself."""

    def __init__(self, model: PreTrainedModel, banned: Sequence[int]) -> None:
        super().__init__(model)
        self._banned = torch.tensor(banned, device=self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLMPolicy.logits`."""
        return super().logits(hidden).index_fill(-1, self._banned, float("-inf"))


def drive(engine: Engine, scripts: Sequence[Script], temperature: float) -> list[list[int]]:
    """Play the scripts with an engine that ends no turn before its length; all ids of each."""
    ids = [list(script.prompt) for script in scripts]
    turn = [0] * len(scripts)

    def request(number: int) -> Request:
        return Request(number, ids[number], scripts[number].turns[turn[number]].length, temperature)

    engine.submit([request(number) for number in range(len(scripts))])
    while samples := engine.collect():
        again: list[Request] = []
        for sample in samples:
            number: Any = sample.key
            ids[number] += [*sample.ids, *scripts[number].turns[turn[number]].inserted]
            turn[number] += 1
            if turn[number] < len(scripts[number].turns):
                again.append(request(number))
            else:
                engine.forget([number])
        engine.submit(again)
    return ids


def ours(model: PreTrainedModel, tokenizer: Tokenizer, scripts: Sequence[Script], temperature: float) -> Played:
    """An engine that keeps its cache, and whose sequences join and leave. It gives the log-probs as well."""
    engine = HFEngine(Endless(model, enders(tokenizer)), tokenizer)
    return Played(drive(engine, scripts, temperature), engine.tokens_read)


class _AtLengths(StoppingCriteria):
    """Ends each row after so many new ids, as a closing tag would."""

    def __init__(self, ends: Tensor) -> None:
        self._ends = ends

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return self._ends <= input_ids.shape[1]


@torch.no_grad()
def search_r1(model: PreTrainedModel, tokenizer: Tokenizer, scripts: Sequence[Script], temperature: float) -> Played:
    """`generate` for all active episodes, left-padded, until the last has ended its turn; then all is read again.

    Left out are its decoding and encoding between turns and its second forward pass for the log-probs.
    """
    ids, read, banned = [list(script.prompt) for script in scripts], 0, enders(tokenizer)
    for turn in range(max(len(script.turns) for script in scripts)):
        active = [number for number, script in enumerate(scripts) if turn < len(script.turns)]
        lengths = [scripts[number].turns[turn].length for number in active]
        width = max(len(ids[number]) for number in active)
        padded = torch.tensor([[0] * (width - len(ids[n])) + ids[n] for n in active], device=model.device)
        starts = torch.tensor([[width - len(ids[n])] for n in active], device=model.device)
        sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        generate: Any = model.generate  # its type is not known
        generated = generate(
            padded,
            attention_mask=(torch.arange(width, device=model.device) >= starts).long(),
            generation_config=GenerationConfig(
                max_new_tokens=max(lengths),
                pad_token_id=0,
                suppress_tokens=banned,
                **(sampling if temperature else {"do_sample": False}),
            ),
            stopping_criteria=StoppingCriteriaList(
                [_AtLengths(torch.tensor([width + length for length in lengths], device=model.device))]
            ),
        )
        read += sum(len(ids[number]) for number in active) + sum(lengths) - len(active)
        for number, row, length in zip(active, generated[:, width:].tolist(), lengths, strict=True):
            ids[number] += [*row[:length], *scripts[number].turns[turn].inserted]
    return Played(ids, read)
