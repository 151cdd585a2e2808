"""Engines by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from algos.training.engines import Engine
from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy
from search_gym.tokenizers import Tokenizer


@dataclass(frozen=True)
class EngineConfig:
    """What samples."""

    name: str = "hf"
    """hf: transformers, in this process. vllm: vLLM, in this process. http://host:port: a vLLM server."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """vllm: the number format of the weights; auto: that of the model's file."""
    max_model_len: int | None = None
    """vllm: tokens that a sequence may have; as many as the model was made for, unless given."""
    gpu_memory_utilization: float = 0.4
    """vllm: the share of the GPU's memory that it takes; the policy that is trained has the rest."""
    enforce_eager: bool = False
    """vllm: do not compile the model: starts sooner, samples more slowly."""
    weights_folder: str = ""
    """Server: a folder that this program and the server both see, through which weights go to it."""

    def __post_init__(self) -> None:
        if self.name not in ("hf", "vllm") and not self.name.startswith(("http://", "https://")):
            raise ValueError(f"unknown engine {self.name!r}; there are: hf, vllm; or give a server's http:// address")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}")


def open_engine(
    config: EngineConfig,
    *,
    model: str,
    policy: CausalLMPolicy | None,
    tokenizer: Tokenizer,
    seed: int = 0,
    shared: bool = True,
    leader: bool = True,
) -> Engine:
    """An engine.

    Args:
        config: which one.
        model: folder or hub id; vLLM begins with its weights.
        policy: what the hf engine samples from.
        tokenizer: tells where turns end.
        seed: of the engine's random numbers.
        shared: hf: the policy is the one that is trained; if not, it is a copy, which `sync` fills.
        leader: server: this process is the one of several that sends weights to it.

    Raises:
        ValueError: if the hf engine gets no policy.
        ImportError: if the engine's package is not installed.
    """
    if config.name == "hf":
        if policy is None:
            raise ValueError("the hf engine samples from a policy in this process: give it one")
        return HFEngine(policy, tokenizer, seed, shared=shared)
    if config.name == "vllm":
        from algos.training.engines.vllm import VLLMEngine

        return VLLMEngine(
            model,
            tokenizer,
            seed=seed,
            dtype=config.dtype,
            max_model_len=config.max_model_len,
            gpu_memory_utilization=config.gpu_memory_utilization,
            enforce_eager=config.enforce_eager,
        )
    from algos.training.engines.vllm_server import VLLMServerEngine

    return VLLMServerEngine(config.name, tokenizer, seed=seed, weights_folder=config.weights_folder, leader=leader)
