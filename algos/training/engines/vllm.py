"""VLLMEngine: samples with vLLM in the same process."""

# vLLM lives in an environment of its own, where pyright does not look.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import random
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from algos.training.engines import Request, Sample, Weights
from algos.training.engines.turns import Seeds, Turn, begun, closing_ids, with_head
from search_gym.tokenizers import Tokenizer

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine


class VLLMEngine:
    """Samples with a vLLM engine of this process, on its present CUDA device or on whatever else vLLM finds.

    Ids in, ids out: vLLM loads no tokenizer. It stops at end-of-sequence ids and at those that can complete a closing
    tag, and a turn that is not over there goes on. Prefixes that sequences share, and that they had in earlier turns,
    are computed once (vLLM's prefix cache). Log-probs are those of the distribution that was sampled from. Each request
    has a seed of its own.

    Args:
        model: folder or hub id.
        tokenizer: that of the model; tells where turns end.
        seed: of the seeds of all requests.
        dtype: of the weights, as vLLM names it: "auto", "float32", "bfloat16", "float16".
        max_model_len: how many ids a sequence may have; None: as many as the model was made for.
        gpu_memory_utilization: the share of the device's memory that vLLM takes, in (0, 1]; the policy that is trained
            needs the rest.
        kv_cache_memory_bytes: size of the key-value cache instead of a share of the memory.
        max_num_seqs: how many sequences run at once; None: vLLM's own choice.
        share: `collect` returns when at least this share of the running sequences has ended, in (0, 1]: searches go out
            in batches then. It never waits for more than that.
        enforce_eager: do not compile the model: starts sooner, samples more slowly.
        trust_remote_code: let vLLM run code that comes with the model.

    Raises:
        ImportError: without vLLM; ValueError: if there is no such model, or an argument is out of its range.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        dtype: str = "auto",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.4,
        kv_cache_memory_bytes: int | None = None,
        max_num_seqs: int | None = None,
        share: float = 1 / 16,
        enforce_eager: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, not {share}")
        self._tokenizer, self._share, self._seeds = tokenizer, share, Seeds(seed)
        self._stops = sorted({*closing_ids(tokenizer), *tokenizer.eos_ids})
        self._engine = _started(
            model=model,
            skip_tokenizer_init=True,
            dtype=dtype,
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            max_num_seqs=max_num_seqs,
            enforce_eager=enforce_eager,
            trust_remote_code=trust_remote_code,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            generation_config="vllm",  # a model's own top-p would change what is sampled from
            seed=0,
            disable_log_stats=True,
        )
        self.max_model_len: int = self._engine.model_config.max_model_len
        """How many ids a sequence may have."""
        self._turns: dict[str, Turn] = {}
        self._names: dict[Hashable, str] = {}
        self._asked = 0
        self._bias: dict[int, float] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin to continue these sequences; see `Engine.submit`.

        Raises:
            ValueError: if a request has no room, no ids, a temperature that vLLM does not take, a key that is being
                sampled, or could grow longer than the engine's sequences may be. None is begun then.
        """
        for turn in begun(requests, self._names, self._tokenizer, self.max_model_len):
            self._ask(turn)

    def collect(self) -> list[Sample]:
        """Sample until some sequences have ended their turn; see `Engine.collect`."""
        ended: list[Sample] = []
        wanted = max(1, round(self._share * len(self._turns)))
        while self._turns and len(ended) < wanted:
            if not self._engine.has_unfinished_requests():
                raise RuntimeError(f"vLLM has lost {len(self._turns)} requests: see what it wrote above")
            for output in self._engine.step():
                if output.finished and (turn := self._turns.pop(output.request_id, None)) is not None:
                    del self._names[turn.key]
                    self._take(turn, output)
                    if turn.stopped is None:
                        self._ask(turn)
                    else:
                        ended.append(turn.sample())
        return ended

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Stop these sequences; see `Engine.forget`. What the prefix cache has of them goes when room is needed."""
        names = [name for key in keys if (name := self._names.pop(key, None)) is not None]
        for name in names:
            del self._turns[name]
        if names:
            self._engine.abort_request(names)

    def sync(self, weights: Weights) -> None:
        """Sample from these weights from now on; see `Engine.sync`.

        Raises:
            ValueError: if a name is none of the model's, or some of the model's are missing. What came is in use then:
                sync again before sampling.
        """
        self.forget(list(self._names))
        with torch.no_grad():
            self._engine.collective_rpc(_reload, args=(with_head(weights()),))
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache: it would go on with keys of the old weights")

    def state_dict(self) -> dict[str, Any]:
        """Where in the sequence of seeds the engine is. The same seeds give the same samples up to rounding, which in
        vLLM depends on what is sampled side by side."""
        return self._seeds.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the seeds of a `state_dict`."""
        self._seeds.load_state_dict(state)

    def close(self) -> None:
        """Free the model and the cache. The engine cannot be used afterwards."""
        self.forget(list(self._names))
        self._engine.engine_core.shutdown()

    def _ask(self, turn: Turn) -> None:
        """Have vLLM go on with a turn."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self._asked += 1
        name = str(self._asked)
        params = SamplingParams(
            temperature=turn.temperature,
            max_tokens=turn.room,
            seed=self._seeds.next(),
            logprobs=0,
            stop_token_ids=self._stops,
            ignore_eos=True,  # which ids end a turn is the tokenizer's to say
            detokenize=False,
            logit_bias=dict(self._bias) or None,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )
        self._engine.add_request(name, tokens_input(turn.sequence), params)
        self._turns[name], self._names[turn.key] = turn, name

    def _take(self, turn: Turn, output: RequestOutput) -> None:
        """Give a turn what was sampled for it."""
        (completion,) = output.outputs
        if completion.finish_reason not in ("stop", "length") or completion.logprobs is None:
            raise RuntimeError(f"vLLM gave up on {turn.key!r} ({completion.finish_reason}): see what it wrote above")
        ids = list(completion.token_ids)
        chosen = [step[token].logprob for token, step in zip(ids, completion.logprobs, strict=True)]
        stranger = turn.take(ids, chosen)
        if stranger is not None:
            # Such outputs are rare in a trained model, and barring hundreds of them in each request costs more than
            # drawing again: only those that were drawn are barred. e^-100 of a probability is none.
            self._bias[stranger] = -100.0


def _reload(worker: Any, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """What vLLM's own `reload_weights` does in a worker, but for weights that are missing: it warns of them, and goes
    on with the old ones."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    model = worker.get_model()
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(model)
        try:
            loaded: set[str] = model.load_weights(named)
        finally:  # puts the old weights back where none came
            finalize_layerwise_reload(model, worker.model_config)
    missing = sorted({name for name, _ in model.named_parameters()} - loaded)
    if missing:
        raise ValueError(
            f"{len(missing)} of the engine's weights were not among those to sync, such as {missing[0]}: give all "
            "parameters of the policy, by their Hugging Face names"
        )


def _started(**settings: Any) -> LLMEngine:
    """A vLLM engine whose model lives in this process."""
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor
    except ImportError as error:
        raise ImportError(
            f"the vllm engine cannot be imported ({error}): pip install 'search-gym[train,vllm]', in an environment of "
            "its own, for vLLM pins its torch and transformers"
        ) from error

    given = {name: value for name, value in settings.items() if value is not None}
    if current_platform.is_cpu():
        given["enable_chunked_prefill"] = False  # takes random numbers back after part of a prompt: only on GPUs
    # In a process of its own the model could not take over weights from this one.
    with _random_states_kept(), _environment("VLLM_ENABLE_V1_MULTIPROCESSING", "0"), _hidden("llvmlite.binding.ffi"):
        # As `LLM` has it: else vLLM runs an eighth of the sequences side by side that it does on a large GPU.
        config = EngineArgs(**given).create_engine_config(UsageContext.LLM_CLASS)
        if config.device_config.device_type == "cuda":  # else all processes of a machine would take the first one
            config.device_config.device = torch.device("cuda", torch.cuda.current_device())
        executor = Executor.get_class(config)
        return LLMEngine(config, executor, log_stats=False, multiprocess_mode=False)


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """vLLM seeds all global generators while it starts; the process has its own use for them."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """vLLM on a CPU looks into every object of every module, and fails at one of numba's, which BM25 may have loaded.
    Nothing imports it by this name later on."""
    kept = sys.modules.pop(module, None)
    try:
        yield
    finally:
        if kept is not None:
            sys.modules[module] = kept


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
