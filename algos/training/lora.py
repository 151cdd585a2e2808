"""LoRA: low-rank adapters that are trained instead of the weights ("LoRA: Low-Rank Adaptation of Large Language
Models", arXiv 2106.09685), through peft."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algos.training.distributed import whole
from algos.training.policy import CausalLMPolicy, Scores

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True)
class LoRAConfig:
    """Which adapters a policy gets."""

    rank: int = 0
    """Rank of the adapters; 0: none, all weights are trained."""
    alpha: float = 0.0
    """The adapters are scaled by alpha / rank; 0: alpha is twice the rank."""
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped in training. Above 0, the ratio of an unchanged policy is not 1."""
    targets: tuple[str, ...] = field(default=())
    """Names of the linear layers that get adapters; none given: all but the head."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"the rank of LoRA must be at least 0, not {self.rank}")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"the alpha of LoRA must be a finite number of at least 0, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"the dropout of LoRA must be in [0, 1), not {self.dropout}")


def add_lora(policy: CausalLMPolicy, config: LoRAConfig) -> PeftModel:
    """Give a policy adapters, which begin as zero, and freeze everything else.

    Returns:
        peft's view of the model, whose `save_pretrained` writes the adapters alone.

    Raises:
        ImportError: if peft is not installed.
        ValueError: if no layer is called as `config.targets` say, or one is a head that is also the embedding.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("LoRA needs the package peft: pip install 'search-gym[lora]'") from error
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or 2 * config.rank,  # pyright: ignore[reportArgumentType]  # any number will do
        lora_dropout=config.dropout,
        target_modules=list(config.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # of peft 0.21
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)  # an error below
        adapted = get_peft_model(policy.model, settings)
    assert not isinstance(adapted, torch.nn.ModuleDict)
    _require_free_head(policy)
    return adapted  # pyright: ignore[reportReturnType]


def _require_free_head(policy: CausalLMPolicy) -> None:
    """Raise ValueError if a head that is also the embedding has an adapter: whoever loads the merged model would tie
    the two again, and the adapter's part would be lost."""
    head, embedding = policy.model.get_output_embeddings(), policy.model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    adapted = [name for name, layer in _lora_layers(policy).items() if layer is head or layer is embedding]
    if adapted:
        raise ValueError(
            f"{', '.join(adapted)} cannot have an adapter: head and embedding of this model are one tensor (tied). "
            "Leave it out of the targets"
        )


def _lora_layers(policy: CausalLMPolicy) -> dict[str, Any]:
    """peft's layers by name: those whose adapters add to a weight."""
    return {name: layer for name, layer in policy.model.named_modules() if hasattr(layer, "get_delta_weight")}


@contextmanager
def without_adapters(policy: CausalLMPolicy) -> Iterator[None]:
    """The policy as it was before it had adapters."""
    layers = _lora_layers(policy).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def base_of(policy: CausalLMPolicy) -> Any:
    """The policy with its adapters off, as a reference: (ids, lengths, mask, temperature) -> scores. Holds no weights.

    Raises:
        ValueError: if the policy has no adapters: it would be its own reference.
    """
    if not _lora_layers(policy):
        raise ValueError("the policy has no adapters that could be switched off: load a second one as the reference")

    @torch.no_grad()
    def score(ids: Tensor, lengths: Tensor, mask: Tensor, temperature: float = 1.0) -> Scores:
        with without_adapters(policy):
            return policy(ids, lengths, mask, temperature)

    return score


@torch.no_grad()
def weights(policy: CausalLMPolicy) -> Iterator[tuple[str, Tensor]]:
    """The parameters by their Hugging Face names, whole, with adapters merged in: what an engine or a file takes.

    Over several processes that each hold a part, all must go through it, for the parts are put together on the way.
    """
    layers = _lora_layers(policy)
    for name, value in policy.model.state_dict().items():
        if ".lora_" in name:
            continue
        owner, adapted, leaf = name.rpartition(".base_layer.")
        if adapted and leaf == "weight":
            value = value + layers[owner].get_delta_weight("default")
        yield name.replace(".base_layer.", "."), whole(value)
