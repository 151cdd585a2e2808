"""A policy's scores: at the sampling temperature, at policy tokens alone, whatever stands around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import peft
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from algos.training.loading import load_policy
from algos.training.policy import CausalLMPolicy

VOCABULARY = 40


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    return tiny()


def tiny(seed: int = 0, **settings: Any) -> CausalLMPolicy:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=1, pad_token_id=None,
        **settings,
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


def workload(policy: CausalLMPolicy) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three rows of unlike lengths, the last without a policy token."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (3, 14), generator=generator)
    lengths = torch.tensor([14, 9, 6])
    mask = torch.rand(3, 14, generator=generator) < 0.5
    mask[2], mask[:, 0], mask[:, 12:] = False, False, False
    return ids, lengths, mask & (torch.arange(14) < lengths[:, None])


def whole_gradients(policy: CausalLMPolicy, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of the sum of log-probs through the model's own logits."""
    policy.zero_grad()
    logprobs = policy.model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    logprobs[mask[:, 1:]].sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def own_gradients(policy: nn.Module, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    policy(*inputs).logprobs.sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("max_logits", [1, 3 * VOCABULARY, 2**24])
def test_gradients_are_those_of_the_whole_logits(max_logits: int, tied: bool, checkpointed: bool) -> None:
    policy = CausalLMPolicy(tiny(tie_word_embeddings=tied).model.double(), max_logits)
    ids, lengths, mask = workload(policy)
    expected = whole_gradients(policy, ids, mask)
    if checkpointed:
        policy.recompute_activations()
        policy.train()
    torch.testing.assert_close(own_gradients(policy, ids, lengths, mask), expected, rtol=1e-10, atol=1e-10)


# peft 0.21 asks transformers 5.24 by a name that it has given up.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_called_wherever_they_are() -> None:
    policy = tiny()
    settings = peft.LoraConfig(target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    adapted = CausalLMPolicy(peft.get_peft_model(policy.model, settings), 3 * VOCABULARY)  # pyright: ignore
    ids, lengths, mask = workload(policy)
    expected = whole_gradients(adapted, ids, mask)
    found = own_gradients(adapted, ids, lengths, mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert any("lm_head.lora_B" in name for name in found)
    assert all("lora" in name for name in found)
    with adapted.model.disable_adapter(), torch.no_grad():  # pyright: ignore
        base = adapted(ids, lengths, mask).logprobs
    torch.testing.assert_close(base, tiny()(ids, lengths, mask).logprobs)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.usefixtures("group")
def test_gradients_are_the_same_where_parameters_are_sharded(tied: bool) -> None:
    policy = CausalLMPolicy(tiny(tie_word_embeddings=tied).model, 3 * VOCABULARY)
    inputs = workload(policy)
    expected = own_gradients(policy, *inputs)
    mesh = init_device_mesh("cpu", (1,))
    for layer in policy.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    sharded = cast(dict[str, DTensor], own_gradients(policy, *inputs))
    found = {name: gradient.full_tensor() for name, gradient in sharded.items()}
    torch.testing.assert_close(found, expected)


def test_in_half_precision_log_probs_are_float32_and_near(policy: CausalLMPolicy) -> None:
    inputs = workload(policy)
    expected = policy(*inputs).logprobs
    with torch.autocast("cpu", torch.bfloat16):
        scores = policy(*inputs)
    assert scores.logprobs.dtype == scores.entropy.dtype == torch.float32
    # Without the float32 softmax, log-probs near 20 would be rounded to eighths.
    assert (scores.logprobs - expected).abs().max() < 0.05 * expected.abs().max()
    assert len(scores.logprobs[inputs[2]].unique()) == int(inputs[2].sum())
    gradients = own_gradients(policy, *inputs)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def test_nothing_is_read_from_the_last_sampled_token_on(policy: CausalLMPolicy) -> None:
    ids, lengths, mask = workload(policy)
    last = int(mask.any(0).nonzero().max())
    read = []
    handle = policy.model.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    found = policy(ids, lengths, mask)
    handle.remove()
    assert read == [last]
    assert last < lengths.max() - 1
    beyond = ids.clone()
    beyond[:, last + 1 :] = 0
    assert torch.equal(found.logprobs, policy(beyond, lengths, mask).logprobs)


def test_a_batch_in_which_nothing_was_sampled(policy: CausalLMPolicy) -> None:
    # M6: every parameter has a gradient, of 0, as it must where ranks add theirs up
    ids, lengths, mask = workload(policy)
    gradients = own_gradients(policy, ids, lengths, torch.zeros_like(mask))
    assert gradients.keys() == dict(policy.named_parameters()).keys()
    assert all(bool((gradient == 0).all()) for gradient in gradients.values())


def test_padding_is_not_sampled(policy: CausalLMPolicy) -> None:
    with pytest.raises(ValueError, match="past the length of a row"):
        policy(torch.tensor([[1, 2, 3]]), torch.tensor([2]), torch.tensor([[False, True, True]]))


def test_nothing_predicts_the_first_token(policy: CausalLMPolicy) -> None:
    with pytest.raises(ValueError, match="position 0"):
        policy(torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[True, True]]))


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no model at '/nowhere'"):
        load_policy("/nowhere")


@pytest.mark.parametrize("name", ["final_logit_softcapping", "logit_scale", "lm_head_multiplier"])
def test_logits_that_are_bent_after_the_head_are_refused(name: str) -> None:
    model = tiny().model
    setattr(model.config, name, None)
    CausalLMPolicy(model)
    setattr(model.config, name, 30.0)
    with pytest.raises(ValueError, match=f"caps or scales its logits after the head \\({name}"):
        CausalLMPolicy(model)


def test_a_bound_of_no_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="max_logits must be at least 1, not 0"):
        CausalLMPolicy(tiny().model, 0)
