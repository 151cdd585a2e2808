"""Engines by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from algos.training.engines import Engine
from algos.training.policy import CausalLMPolicy
from search_gym.tokenizers import Tokenizer


@dataclass(frozen=True)
class EngineConfig:
    """What samples, and how. What belongs to another engine than the one named is not read.

    Raises:
        ValueError: if the name is unknown or a number out of its range.
    """

    name: str = "hf"
    """hf: in this process, from the policy itself. vllm: in this process with vLLM, which holds a copy of the policy.
    http://host:port: a vLLM server that was started with VLLM_SERVER_DEV_MODE=1, --enable-scale-out
    and --logprobs-mode processed_logprobs (docs/train.md)."""
    dtype: str = "auto"
    """vllm: of the weights, auto, float32, bfloat16 or float16; auto is what the model's folder says. Server: in which
    weights are handed over; auto leaves them as they are in training."""
    max_model_len: int | None = None
    """vllm: how many ids a sequence may have; as many as the model was made for, unless given."""
    gpu_memory_utilization: float = 0.4
    """vllm: the share of a GPU's memory that vLLM takes, in (0, 1]; training needs the rest."""
    kv_cache_memory_bytes: int | None = None
    """vllm: size of the key-value cache, instead of what is left of the share."""
    max_num_seqs: int | None = None
    """vllm: how many sequences run at once; vLLM's own choice unless given."""
    enforce_eager: bool = False
    """vllm: leave the model uncompiled: starts sooner, samples more slowly."""
    trust_remote_code: bool = False
    """vllm: run code that comes with the model."""
    connections: int = 256
    """Server: how many requests are out at once, >= 1."""
    timeout: float = 600.0
    """Server: seconds that one request may take, > 0."""
    retry_for: float = 60.0
    """Server: seconds for which a request that finds no server is sent again, >= 0."""
    weights_folder: Path | None = None
    """Server: where weights are handed over, a folder that both see under this path; one in the temporary folder of
    this machine unless given."""

    def __post_init__(self) -> None:
        if self.name not in ("hf", "vllm") and not self.name.startswith(("http://", "https://")):
            raise ValueError(f"unknown engine {self.name!r}; there are: hf, vllm; or give a server's http://host:port")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}")
        for name in ("max_model_len", "kv_cache_memory_bytes", "max_num_seqs", "connections"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not (self.timeout > 0 and self.retry_for >= 0):
            raise ValueError(
                f"timeout must be above 0 and retry_for at least 0, not {self.timeout} and {self.retry_for}"
            )


def open_engine(
    config: EngineConfig,
    *,
    model: str,
    policy: CausalLMPolicy | None,
    tokenizer: Tokenizer,
    seed: int,
    shared: bool = True,
    leader: bool = True,
) -> Engine:
    """The engine that a configuration names.

    Args:
        config: which, and how.
        model: folder or hub id; what vllm loads. A server has loaded it already.
        policy: what hf samples from; not needed by the others.
        tokenizer: that of the model.
        seed: of the sampling; give each process another one.
        shared: whether `policy` is the one that is trained. If not, hf follows it by `sync`; the others always do.
        leader: whether this process hands the weights to a server that several share.

    Raises:
        ValueError: if hf has no policy, there is no such model, or the server was not started as it must be.
        ImportError: if what the engine needs is not installed.
        EngineError: if the server cannot be reached.
    """
    if config.name == "hf":
        from algos.training.engines.hf import HFEngine

        if policy is None:
            raise ValueError("the hf engine samples from a policy: give one")
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
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            max_num_seqs=config.max_num_seqs,
            enforce_eager=config.enforce_eager,
            trust_remote_code=config.trust_remote_code,
        )
    from algos.training.engines.vllm_server import VLLMServerEngine

    return VLLMServerEngine(
        config.name,
        tokenizer,
        seed=seed,
        dtype=config.dtype,
        connections=config.connections,
        timeout=config.timeout,
        retry_for=config.retry_for,
        weights_folder=config.weights_folder,
        leader=leader,
    )
