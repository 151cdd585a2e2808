"""Models from disk or hub, and policies back to disk."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from algos.training.distributed import usable_device
from algos.training.lora import weights
from algos.training.policy import CausalLMPolicy
from search_gym.progress import no_progress_bars


def load_policy(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> CausalLMPolicy:
    """A policy from a Hugging Face folder or hub id. Reads tensors; runs no code that comes with a model.

    Args:
        path: where it is.
        dtype: of the parameters.
        device: where they go.
        attention: "sdpa", "flash_attention_2", …; transformers' choice if None.
        trust_remote_code: run the code that the model brings, should it bring some.

    Raises:
        ValueError: if there is no model at that place, or none that can be used; if there is no such device.
    """
    name, device = str(path), usable_device(device)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                name, config=config, dtype=dtype, attn_implementation=attention, trust_remote_code=trust_remote_code
            )
    except (OSError, ValueError, ImportError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0]
        if "trust_remote_code" in str(error):
            reason = "it brings Python code of its own, which runs only with --trust-remote-code"
        if isinstance(error, pickle.UnpicklingError):
            reason = "its pickled weights hold more than tensors; take a model in the safetensors format"
        raise ValueError(f"no model at {name!r} that can be used: {reason}") from error
    return CausalLMPolicy(model).to(device)


def context_of(policy: CausalLMPolicy) -> int | None:
    """How many tokens the policy can read; None where its configuration does not say."""
    return getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)


def save_policy(policy: CausalLMPolicy, folder: Path, *, leads: bool = True) -> None:
    """Write a plain Hugging Face folder, adapters merged in, which `AutoModelForCausalLM` and vLLM load.

    Args:
        policy: over several processes that each hold a part, all must call this.
        folder: is made if it is not there. The tokenizer's files are not written.
        leads: whether this process writes.
    """
    state = {name: value.cpu() if leads else None for name, value in weights(policy)}
    if leads:
        with no_progress_bars():
            policy.model.save_pretrained(folder, state_dict=state)
