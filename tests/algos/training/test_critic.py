"""A critic values the states in which the policy sampled, whatever stands around them."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from algos.training.critic import Critic
from algos.training.policy import CausalLMPolicy

IDS = torch.tensor([[5, 6, 7, 8, 9, 0, 0], [1, 2, 3, 4, 5, 6, 7]])
LENGTHS = torch.tensor([5, 7])
MASK = torch.tensor([[0, 0, 1, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0, 1]], dtype=torch.bool)


@pytest.fixture
def policy() -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=32, bos_token_id=None, eos_token_id=1, tie_word_embeddings=True,
            )
        )
    )  # fmt: skip


@pytest.fixture
def critic(policy: CausalLMPolicy) -> Critic:
    made = Critic(policy)
    torch.nn.init.normal_(made.value.weight)
    torch.nn.init.constant_(made.value.bias, 0.3)
    return made


def test_values_are_those_of_the_state_before_each_token(critic: Critic) -> None:
    values, final = critic(IDS, LENGTHS, MASK)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = critic.trunk(input_ids=IDS[row : row + 1, :length]).last_hidden_state
        states = critic.value(alone).squeeze(-1)[0]  # [t]: after ids[:t + 1]
        for column in range(IDS.shape[1]):
            expected = states[column - 1].item() if MASK[row, column] else 0.0
            assert values[row, column].item() == pytest.approx(expected, abs=1e-5)
        assert final[row].item() == pytest.approx(states[-1].item(), abs=1e-5)


def test_padding_has_no_influence(critic: Critic) -> None:
    other = IDS.clone()
    other[0, 5:] = 11
    wider = torch.nn.functional.pad(other, (0, 3), value=9)
    expected, found = critic(IDS, LENGTHS, MASK), critic(wider, LENGTHS, torch.nn.functional.pad(MASK, (0, 3)))
    torch.testing.assert_close(found.values[:, :7], expected.values)
    assert not found.values[:, 7:].any()
    torch.testing.assert_close(found.final, expected.final)


def test_a_new_critic_expects_nothing_and_learns(policy: CausalLMPolicy) -> None:
    critic = Critic(policy)
    assert not critic(IDS, LENGTHS, MASK).values.any()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    target = torch.where(MASK, torch.arange(14.0).reshape(2, 7), 0)

    def error() -> torch.Tensor:
        return (critic(IDS, LENGTHS, MASK).values - target).square().sum()

    for _ in range(200):
        optimizer.zero_grad()
        error().backward()
        optimizer.step()
    assert error().item() < 1.0


def test_it_shares_nothing_with_the_policy(policy: CausalLMPolicy) -> None:
    critic = Critic(policy)
    before = [parameter.clone() for parameter in policy.parameters()]
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(now, then) for now, then in zip(policy.parameters(), before, strict=True))
