"""A policy's scores: at the sampling temperature, at policy tokens alone, whatever stands around them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from algos.training.loading import load_policy
from algos.training.policy import CausalLMPolicy

VOCABULARY = 40


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    return tiny()


def tiny(seed: int = 0) -> CausalLMPolicy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # an untrained model is nearly uniform, and would hide mistakes
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return CausalLMPolicy(model)


def brute_force(policy: CausalLMPolicy, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of ids[1:], one sequence alone, through the model's own full logits."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits[:-1] / temperature, -1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)


@given(
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=12), min_size=1, max_size=4),
    st.floats(0.2, 2.0),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_scores_equal_brute_force_however_rows_are_padded(rows, temperature, padding, random) -> None:
    # M4
    policy = tiny()
    width = max(map(len, rows)) + padding
    ids = torch.tensor([row + [random.randrange(VOCABULARY)] * (width - len(row)) for row in rows])
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, target in zip(rows, mask, strict=True):
        target[1 : len(row)] = torch.tensor([random.random() < 0.6 for _ in row[1:]])
    scores = policy(ids, torch.tensor([len(row) for row in rows]), mask, temperature)
    expected = torch.zeros(len(rows), width, dtype=torch.float64)
    for row, target in zip(rows, expected, strict=True):
        target[1 : len(row)] = brute_force(policy, row, temperature)
    assert torch.allclose(scores.logprobs.double(), expected * mask, atol=1e-4)
    assert bool((scores.entropy[~mask] == 0).all())
    assert bool((scores.entropy[mask] >= 0).all())
    assert bool((scores.entropy <= math.log(VOCABULARY) + 1e-5).all())


def test_a_log_prob_at_half_temperature() -> None:
    # M2: logits [2, 1, 0] at temperature 0.5
    policy = tiny()
    policy.logits = lambda hidden: torch.tensor([[2.0, 1.0, 0.0]])  # pyright: ignore
    scores = policy(torch.tensor([[1, 0]]), torch.tensor([2]), torch.tensor([[False, True]]), 0.5)
    assert scores.logprobs[0, 1].item() == pytest.approx(-0.1429, abs=1e-4)


def test_what_is_not_sampled_gets_no_gradient(policy: CausalLMPolicy) -> None:
    # M1: prompt 5, policy 4, retrieved 6, policy 3
    mask = torch.tensor([[0] * 5 + [1] * 4 + [0] * 6 + [1] * 3], dtype=torch.bool)
    assert mask.sum() == 7
    ids = torch.arange(18)[None] % VOCABULARY
    hidden = []
    original = policy.logits
    policy.logits = lambda states: original(hidden.append(states) or states)  # pyright: ignore
    policy(ids, torch.tensor([18]), mask)
    del policy.logits
    assert hidden[0].shape[0] == 7  # the head ran at these places alone


def test_nothing_predicts_the_first_token(policy: CausalLMPolicy) -> None:
    with pytest.raises(ValueError, match="position 0"):
        policy(torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[True, True]]))


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no model at '/nowhere'"):
        load_policy("/nowhere")


def test_capped_logits_are_refused() -> None:
    model = tiny().model
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="caps or scales"):
        CausalLMPolicy(model)
