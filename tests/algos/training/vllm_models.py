"""Models and measures of the tests of the vLLM engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from algos.training.engines import Engine, Request, Sample
from algos.training.policy import CausalLMPolicy
from search_gym import tokenizers
from search_gym.actions import TurnReader
from search_gym.tokenizers import Tokenizer

EMBEDDED = Path(__file__).parents[3] / "experiments" / "assets" / "embedded-policy"
TOKENIZER = tokenizers.embedded()
QUESTION = TOKENIZER.encode("Question: Who directed the film Silver Harbor?")
SMALL_CACHE = 1 << 28

needs_vllm = [
    pytest.mark.slow,
    # vLLM and what it compiles with warn of each other.
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM has an environment of its own: make vllm-test"),
]


def trained(policy: CausalLMPolicy, samples: Iterable[Sample], prompt: Sequence[int], steps: int = 2) -> None:
    """Make some samples less likely."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(steps):
        for sample in list(samples)[:4]:
            ids = torch.tensor([[*prompt, *sample.ids]])
            mask = torch.arange(ids.shape[1])[None] >= len(prompt)
            policy(ids, torch.tensor([ids.shape[1]]), mask).logprobs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def logprobs(policy: CausalLMPolicy, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> torch.Tensor:
    """Of ids after a prompt, by one forward pass over all tokens that the tokenizer knows."""
    read = torch.tensor([[*prompt, *ids]])
    logits = policy.logits(policy.hidden(read, torch.ones_like(read)))[0] / (temperature or 1.0)
    return torch.log_softmax(logits[len(prompt) - 1 : -1], -1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)


def furthest(policy: CausalLMPolicy, samples: Iterable[Sample], prompt: Sequence[int], temperature: float) -> float:
    """The greatest difference between log-probs of samples and those of the policy."""
    return max(
        float((logprobs(policy, prompt, s.ids, temperature) - torch.tensor(s.logprobs)).abs().max()) for s in samples
    )


def everything(engine: Engine, requests: Sequence[Request]) -> list[Sample]:
    """A sample for each request, in order."""
    engine.submit(requests)
    samples: dict[object, Sample] = {}
    while some := engine.collect():
        samples |= {sample.key: sample for sample in some}
    engine.forget([request.key for request in requests])
    return [samples[request.key] for request in requests]


def right_ends(samples: Iterable[Sample], max_tokens: int, tokenizer: Tokenizer = TOKENIZER) -> bool:
    """Whether each sample is a turn up to its end, and says why it ended."""
    return all(sample.stopped == _end(sample.ids, max_tokens, tokenizer) for sample in samples)


def _end(ids: Sequence[int], max_tokens: int, tokenizer: Tokenizer) -> str | None:
    reader = TurnReader(tokenizer)
    for position, token in enumerate(ids, 1):
        tag = reader.push(token)
        if tag or token in tokenizer.eos_ids or position == max_tokens:
            why = "tag" if tag else "eos" if token in tokenizer.eos_ids else "length"
            return why if position == len(ids) else None
    return None


def of_ranks(engine: str, meeting: Path) -> list[tuple[float, float]]:
    """How far log-probs are from the policy in each of two processes, before a sync and after it.

    Args:
        engine: as `EngineConfig.name`.
        meeting: a file that is not there yet.
    """
    command = [sys.executable, str(Path(__file__).with_name("vllm_ranks_worker.py"))]
    workers = [
        subprocess.Popen(
            [*command, str(rank), "2", str(meeting), engine], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    found = list[tuple[float, float]]()
    for worker in workers:
        out, err = worker.communicate(timeout=280)
        assert worker.returncode == 0, err[-3000:]
        before, after = map(float, out.splitlines()[-1].split())
        found.append((before, after))
    return found
