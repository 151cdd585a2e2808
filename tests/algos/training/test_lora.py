"""Adapters: they begin as nothing, learn alone, and leave as a part of the weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_worker import CONFIG, TOKENIZER, policy, trainer
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from algos.training.engines.hf import HFEngine
from algos.training.loading import save_policy
from algos.training.lora import LoRAConfig, add_lora, base_of, weights, without_adapters
from algos.training.policy import CausalLMPolicy, Scores

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks for it

ATTENTION = ["k_proj", "o_proj", "q_proj", "v_proj"]
MLP = ["down_proj", "gate_proj", "up_proj"]


def qwen2(tied: bool = False) -> CausalLMPolicy:
    """A Qwen2: its query, key and value layers have biases."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=1,
        tie_word_embeddings=tied,
    )  # fmt: skip
    return CausalLMPolicy(Qwen2ForCausalLM(config))


MODELS = {"llama": policy, "qwen2": qwen2}
of_both = pytest.mark.parametrize("model", MODELS)


def stir(adapted: CausalLMPolicy) -> None:
    """Give the adapters an effect, as training does."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0, 0.3)


def scores(of: Any, vocabulary: int) -> Scores:
    torch.manual_seed(0)
    ids = torch.randint(vocabulary, (3, 12))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        return of(ids, torch.full((3,), 12), mask, 0.7)


def copied(of: CausalLMPolicy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in of.model.state_dict().items()}


@of_both
def test_adapters_begin_as_nothing_and_the_base_stays_what_it_was(model: str) -> None:
    made = MODELS[model]()
    before = scores(made, made.vocabulary)
    add_lora(made, LoRAConfig(rank=2))
    assert torch.equal(scores(made, made.vocabulary).logprobs, before.logprobs)
    stir(made)
    after = scores(made, made.vocabulary).logprobs
    assert (after - before.logprobs).abs().max() > 0.1
    base = scores(base_of(made), made.vocabulary)
    assert torch.equal(base.logprobs, before.logprobs)
    assert torch.equal(base.entropy, before.entropy)
    assert torch.equal(scores(made, made.vocabulary).logprobs, after)  # they are on again


def test_adapters_are_on_again_after_an_error() -> None:
    made = qwen2()
    add_lora(made, LoRAConfig(rank=2))
    stir(made)
    before = scores(made, made.vocabulary).logprobs
    with pytest.raises(KeyError), without_adapters(made):
        raise KeyError
    assert torch.equal(scores(made, made.vocabulary).logprobs, before)


def test_an_update_changes_all_adapters_and_nothing_else() -> None:
    made = trainer(CONFIG, lora=LoRAConfig(rank=2))
    before = copied(made.policy)
    for _ in range(2):  # at the first update A has no gradient, for B is 0
        assert made.step()[0]["grad_norm"] > 0
    changed = {name for name, value in made.policy.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if ".lora_" in name}
    trained = {name for name, parameter in made.policy.model.named_parameters() if parameter.requires_grad}
    assert trained == changed


@of_both
@pytest.mark.parametrize(("alpha", "scale"), [(0.0, 2.0), (3.0, 0.75)], ids=["twice-the-rank", "given"])
def test_weights_are_those_merged_by_hand(model: str, alpha: float, scale: float) -> None:
    made = MODELS[model]()
    plain = copied(made)
    add_lora(made, LoRAConfig(rank=4, alpha=alpha))
    stir(made)
    parts, merged = made.model.state_dict(), dict(weights(made))
    assert list(merged) == list(plain)
    for name, value in plain.items():
        layer = name.removesuffix(".weight")
        if f"{layer}.lora_A.default.weight" in parts:
            b, a = (parts[f"{layer}.lora_{which}.default.weight"] for which in "BA")
            assert torch.allclose(merged[name], value + scale * b @ a, atol=1e-6), name
            assert not torch.allclose(merged[name], value, atol=1e-3), name
        else:
            assert torch.equal(merged[name], value), name


@of_both
def test_a_saved_policy_is_a_plain_model_with_the_adapters_in_it(model: str, tmp_path: Path) -> None:
    made = MODELS[model]()
    add_lora(made, LoRAConfig(rank=2))
    stir(made)
    save_policy(made, tmp_path)
    assert not list(tmp_path.glob("*adapter*"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    found, expected = scores(CausalLMPolicy(loaded), made.vocabulary), scores(made, made.vocabulary)
    assert torch.allclose(found.logprobs, expected.logprobs, atol=1e-4)
    ids = torch.randint(made.vocabulary, (2, 8))
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, made.model(ids).logits, atol=1e-4)


def test_an_engine_with_a_copy_samples_from_the_merged_weights() -> None:
    made, copy = policy(), policy(1)
    add_lora(made, LoRAConfig(rank=2))
    stir(made)
    HFEngine(copy, TOKENIZER, shared=False).sync(lambda: weights(made))
    assert torch.allclose(
        scores(copy, copy.vocabulary).logprobs, scores(made, made.vocabulary).logprobs, atol=1e-4
    )  # fmt: skip


@of_both
@pytest.mark.parametrize(
    ("targets", "expected"),
    [((), ATTENTION + MLP), (("q_proj", "v_proj"), ["q_proj", "v_proj"]), (("up_proj",), ["up_proj"])],
    ids=["all", "attention", "mlp"],
)
def test_the_layers_that_get_adapters(model: str, targets: tuple[str, ...], expected: list[str]) -> None:
    made = MODELS[model]()
    add_lora(made, LoRAConfig(rank=2, targets=targets))
    adapted = [name.split(".") for name, _ in made.model.named_parameters() if name.endswith("lora_A.default.weight")]
    layers = made.model.config.num_hidden_layers
    assert sorted(parts[-4] for parts in adapted) == sorted(expected * layers)
    assert {parts[2] for parts in adapted} == set(map(str, range(layers)))  # model.layers.N
    assert all(parts[3] == ("mlp" if parts[-4] in MLP else "self_attn") for parts in adapted)


def test_a_head_of_its_own_may_have_adapters() -> None:
    made = qwen2()
    before = copied(made)
    add_lora(made, LoRAConfig(rank=2, targets=("lm_head",)))
    stir(made)
    changed = [name for name, value in weights(made) if not torch.equal(value, before[name])]
    assert changed == ["lm_head.weight"]


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_a_head_that_is_also_the_embedding_gets_none(target: str) -> None:
    # Merged, the two would differ, and whoever loads the model would tie them again.
    with pytest.raises(ValueError, match=f"{target} .*tied"):
        add_lora(qwen2(tied=True), LoRAConfig(rank=2, targets=("q_proj", target)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": -1}, "the rank of LoRA must be at least 0, not -1"),
        ({"alpha": -1.0}, "the alpha of LoRA must be a finite number of at least 0, not -1.0"),
        ({"alpha": float("nan")}, "the alpha of LoRA must be a finite number of at least 0, not nan"),
        ({"dropout": 1.0}, r"the dropout of LoRA must be in \[0, 1\), not 1.0"),
    ],
    ids=["rank", "alpha", "alpha-nan", "dropout"],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoRAConfig(**settings)


def test_a_layer_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"Target modules .*query.* not found"):
        add_lora(qwen2(), LoRAConfig(rank=2, targets=("query",)))


def test_a_policy_without_adapters_is_not_its_own_reference() -> None:
    with pytest.raises(ValueError, match="no adapters that could be switched off: load a second one"):
        base_of(qwen2())


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"needs the package peft: pip install 'search-gym\[lora\]'"):
        add_lora(qwen2(), LoRAConfig(rank=2))
