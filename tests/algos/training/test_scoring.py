"""Scores in chunks equal those of all logits at once, in value and gradient, and never hold all logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from algos.training.scoring import score_tokens

VOCABULARY, WIDTH = 23, 6


class Largest(TorchDispatchMode):
    """Records how many elements the largest tensor had that any operation gave, recomputed ones included."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def parts(tokens: int, seed: int, dtype: torch.dtype, bias: bool = True) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A head, hidden states, ids, and what the gradient of each log-prob is to be."""
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype))
    hidden = torch.randn(tokens, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    ids = torch.randint(VOCABULARY, (tokens,), generator=generator)
    return head, hidden, ids, torch.randn(tokens, generator=generator, dtype=dtype)


def gradients(logprobs: Tensor, weights: Tensor, head: nn.Linear, hidden: Tensor) -> list[Tensor]:
    wanted = [hidden, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
    return list(torch.autograd.grad((logprobs * weights).sum(), wanted))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"])
@given(
    tokens=st.integers(0, 9),
    max_logits=st.integers(1, 10 * VOCABULARY),
    temperature=st.one_of(st.just(1.0), st.floats(0.3, 3.0)),
    frozen=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunks_change_neither_scores_nor_gradients(
    dtype, tolerance, tokens, max_logits, temperature, frozen, bias, seed
) -> None:
    head, hidden, ids, weights = parts(tokens, seed, dtype, bias)
    head.requires_grad_(not frozen)
    logprobs, entropy = score_tokens(
        head, hidden, ids, vocabulary=VOCABULARY, temperature=temperature, max_logits=max_logits
    )
    everything = (head(hidden) / temperature).log_softmax(-1)
    expected = everything[torch.arange(tokens), ids]
    torch.testing.assert_close(logprobs, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(entropy, -(everything.exp() * everything).sum(-1), rtol=tolerance, atol=tolerance)
    assert not entropy.requires_grad
    found = gradients(logprobs, weights, head, hidden)
    for one, other in zip(found, gradients(expected, weights, head, hidden), strict=True):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("grad", [True, False], ids=["training", "scoring"])
def test_all_logits_never_exist(grad: bool) -> None:
    tokens, max_logits = 64, 20 * VOCABULARY
    head, hidden, ids, weights = parts(tokens, 0, torch.float32)
    with Largest() as seen, torch.set_grad_enabled(grad):
        logprobs, _ = score_tokens(head, hidden, ids, vocabulary=VOCABULARY, max_logits=max_logits)
        if grad:
            gradients(logprobs, weights, head, hidden)
    assert max(tokens * WIDTH, VOCABULARY * WIDTH) < max_logits  # hidden states and head do not hide the logits
    assert seen.elements <= max_logits < tokens * VOCABULARY
    with Largest() as seen:
        score_tokens(head, hidden, ids, vocabulary=VOCABULARY)
    assert seen.elements == tokens * VOCABULARY  # so the mode sees what it should


def test_the_second_computation_ends_before_the_entropy() -> None:
    # The head is called twice a chunk; `nan_to_num`, which the entropy alone needs, once.
    head, hidden, ids, weights = parts(6, 0, torch.float32)
    calls = {"linear": 0, "nan_to_num_": 0}

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls["nan_to_num_"] += "nan_to_num_" in str(func)
            return func(*args, **(kwargs or {}))

    head.register_forward_hook(lambda *_: calls.update(linear=calls["linear"] + 1))
    with Count():
        logprobs, _ = score_tokens(head, hidden, ids, vocabulary=VOCABULARY, max_logits=2 * VOCABULARY)
        gradients(logprobs, weights, head, hidden)
    assert calls == {"linear": 6, "nan_to_num_": 3}


def test_one_chunk_is_not_computed_twice() -> None:
    head, hidden, ids, weights = parts(6, 0, torch.float32)
    calls = []
    head.register_forward_hook(lambda *_: calls.append(1))
    logprobs, _ = score_tokens(head, hidden, ids, vocabulary=VOCABULARY, max_logits=6 * VOCABULARY)
    gradients(logprobs, weights, head, hidden)
    assert len(calls) == 1


def test_without_a_token_the_head_has_a_gradient_of_zero() -> None:
    # A rank without one must have what the others have, for gradients are summed over ranks.
    head, hidden, ids, weights = parts(0, 0, torch.float32)
    logprobs, entropy = score_tokens(head, hidden, ids, vocabulary=VOCABULARY)
    assert logprobs.shape == entropy.shape == (0,)
    assert all(bool((gradient == 0).all()) for gradient in gradients(logprobs, weights, head, hidden))


def test_an_id_that_cannot_be_sampled_takes_nothing_from_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    logprobs, entropy = score_tokens(lambda _: logits, torch.zeros(1, 1), torch.tensor([1]), vocabulary=3)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))


def test_a_log_prob_at_half_temperature() -> None:
    # M2: logits [2, 1, 0] at temperature 0.5
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    logprobs, _ = score_tokens(lambda _: logits, torch.zeros(1, 1), torch.tensor([0]), vocabulary=3, temperature=0.5)
    assert logprobs.item() == pytest.approx(-0.1429, abs=1e-4)
