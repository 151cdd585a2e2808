"""VLLMServerEngine: samples on a vLLM server, which may stand on another machine."""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
import time
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from algos.training.engines import EngineError, Request, Sample, Weights
from algos.training.engines.turns import Seeds, Turn, begun, closing_ids, with_head
from search_gym.retrieval.http import Cause, Connection, Trouble, insist
from search_gym.tokenizers import Tokenizer

_START = (
    "start it as VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs, where "
    "nobody else can reach it"
)
_SHARD_BYTES = 4 << 30  # of weights in main memory at a time, while they are written


class _Asked:
    """One turn, while the server samples it."""

    def __init__(self, turn: Turn, seeds: Seeds) -> None:
        self.turn, self.seeds = turn, seeds
        self.name = uuid.uuid4().hex
        self.forgotten = False
        self.failure: Exception | None = None


class VLLMServerEngine:
    """Samples on a vLLM server, over its endpoint with token ids in and out, many requests side by side.

    `sync` writes the weights into a folder, has the server load them, and deletes the folder. Between several processes
    that share a server, only the leader does so; all wait until it is done.

    Whoever can reach the server can have it load other weights: that is vLLM's developer mode, and sync needs it.

    Args:
        url: http://host:port of a server that was started with VLLM_SERVER_DEV_MODE=1, `--enable-scale-out` and
            `--logprobs-mode processed_logprobs`, on a CPU also `--no-enable-chunked-prefill`. It needs no tokenizer.
        tokenizer: that of the model; tells where turns end.
        seed: of the seeds of all requests.
        dtype: in which weights are handed over: "float32", "bfloat16", "float16", or "auto": as they are.
        connections: how many requests are out at once, >= 1.
        timeout: seconds that one request may take, > 0.
        retry_for: seconds for which a request that finds no server is sent again, >= 0.
        weights_folder: where weights are handed over: both must see it under this path. None: in the temporary folder
            of this machine, which only the same user can read.
        leader: whether this process hands over the weights; of several it is that of rank 0.

    Raises:
        ValueError: if that is no URL, or the server was not started as above; ImportError: without httpx and tenacity;
        EngineError: if the server cannot be reached.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        dtype: str = "auto",
        connections: int = 256,
        timeout: float = 600.0,
        retry_for: float = 60.0,
        weights_folder: str | Path | None = None,
        leader: bool = True,
    ) -> None:
        self._connection = Connection(url, connections)
        self._timeout, self._retry_for = timeout, retry_for
        self._tokenizer, self._seeds, self._leader = tokenizer, Seeds(seed), leader
        self._dtype = None if dtype == "auto" else getattr(torch, dtype)
        self._folder = None if weights_folder is None else Path(weights_folder)
        self._stops = sorted({*closing_ids(tokenizer), *tokenizer.eos_ids})
        self._bias: dict[int, float] = {}
        self._asked: dict[Hashable, _Asked] = {}
        self._ended: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self.max_model_len = self._settings()["max_model_len"]
        """How many ids a sequence may have."""
        self._threads = ThreadPoolExecutor(connections, "vllm-server")

    def submit(self, requests: Sequence[Request]) -> None:
        """Begin to continue these sequences; see `Engine.submit`.

        Raises:
            ValueError: if a key is being sampled, vLLM does not take a temperature, or a sequence could grow longer
                than the server's may be. None is begun then.
        """
        for turn in begun(requests, self._asked, self._tokenizer, self.max_model_len):
            # One seed a turn is drawn here, and those of its pieces from it: threads come in any order.
            asked = self._asked[turn.key] = _Asked(turn, Seeds(self._seeds.next()))
            self._threads.submit(self._sample, asked)

    def collect(self) -> list[Sample]:
        """Wait until some sequences have ended their turn; see `Engine.collect`.

        Raises:
            EngineError: if the server refuses a request, or does not answer in time.
        """
        samples: list[Sample] = []
        while self._asked and not (samples and self._ended.empty()):
            asked = self._ended.get()  # every request ends, for its time is bounded
            if asked.forgotten:
                continue
            del self._asked[asked.turn.key]
            if asked.failure is not None:
                raise EngineError(f"no sample of {asked.turn.key!r}: {asked.failure}") from asked.failure
            samples.append(asked.turn.sample())
        return samples

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Stop these sequences; see `Engine.forget`. What the prefix cache has of them goes when room is needed."""
        dropped = [asked for key in keys if (asked := self._asked.pop(key, None)) is not None]
        for asked in dropped:
            asked.forgotten = True
        if dropped:
            # This only spares the server work: nobody waits for them any more.
            with suppress(Trouble):
                self._exchange("/abort_requests", {"request_ids": [f"generate-tokens-{a.name}" for a in dropped]})

    def sync(self, weights: Weights) -> None:
        """Sample from these weights from now on; see `Engine.sync`. Stops what other clients of the server sample.

        Where torch.distributed runs, all processes must call it.

        Raises:
            EngineError: if the weights did not arrive, in whichever process.
        """
        self.forget(list(self._asked))
        failure = self._hand_over(weights) if self._leader else _went_through(weights)
        told = [failure]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(told, src=0)
        if failure or told[0]:
            raise EngineError(f"the weights did not reach the server: {failure or told[0]}")

    def state_dict(self) -> dict[str, Any]:
        """Where in the sequence of seeds the engine is. The same seeds give the same samples up to rounding, which in
        vLLM depends on what is sampled side by side."""
        return self._seeds.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the seeds of a `state_dict`."""
        self._seeds.load_state_dict(state)

    def close(self) -> None:
        """Stop what is sampled, and close the connections. The engine cannot be used afterwards."""
        self.forget(list(self._asked))
        self._threads.shutdown(cancel_futures=True)
        self._connection.close()

    def _settings(self) -> dict[str, Any]:
        """What the server says of its model, once it is seen to be fit."""
        try:
            config = self._exchange("/server_info?config_format=json")["vllm_config"]
        except Trouble as trouble:
            if trouble.cause is Cause.FINAL:
                raise ValueError(f"{self._connection.url} is no vLLM server in developer mode: {_START}") from trouble
            raise EngineError(f"the vLLM server cannot be asked for its settings: {trouble}") from trouble
        try:
            self._exchange("/inference/v1/generate", {})
        except Trouble as trouble:  # refused, for it asks for nothing
            if trouble.cause is Cause.FINAL:
                raise ValueError(f"{self._connection.url} does not take token ids: {_START}") from trouble
        settings = config["model_config"]
        if settings["logprobs_mode"] != "processed_logprobs":
            raise ValueError(
                f"{self._connection.url} gives log-probs that leave the temperature out "
                f"({settings['logprobs_mode']}): {_START}"
            )
        if config["device_config"]["device"] == "cpu" and config["scheduler_config"]["enable_chunked_prefill"]:
            raise ValueError(
                f"{self._connection.url} samples on a CPU, where vLLM fails at requests with a seed unless prompts are "
                "read whole: start it with --no-enable-chunked-prefill"
            )
        return settings

    def _sample(self, asked: _Asked) -> None:
        """Have the server sample a turn to its end, in a thread."""
        try:
            while asked.turn.stopped is None and not asked.forgotten:
                self._sample_piece(asked)
        except Exception as failure:
            asked.failure = failure  # is raised where it is waited for
        self._ended.put(asked)

    def _sample_piece(self, asked: _Asked) -> None:
        turn = asked.turn
        params = {
            "temperature": turn.temperature,
            "max_tokens": turn.room,
            "seed": asked.seeds.next(),
            "logprobs": 0,
            "stop_token_ids": self._stops,
            "ignore_eos": True,  # which ids end a turn is the tokenizer's to say
            "detokenize": False,
            "logit_bias": {str(token): bias for token, bias in self._bias.copy().items()} or None,
        }
        body = {"request_id": asked.name, "token_ids": turn.sequence, "sampling_params": params}
        (choice,) = self._exchange("/inference/v1/generate", body)["choices"]
        if asked.forgotten:
            return
        if choice["finish_reason"] not in ("stop", "length"):
            raise EngineError(f"the server stopped sampling ({choice['finish_reason']}): see what it logged")
        stranger = turn.take(choice["token_ids"], [step["logprob"] for step in choice["logprobs"]["content"]])
        if stranger is not None:
            self._bias[stranger] = -100.0  # see VLLMEngine

    def _exchange(self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None) -> Any:
        """What the server answers, parsed. Trouble: it does not, or refuses."""
        content = None if body is None else json.dumps(body).encode()
        answered = insist(
            partial(
                self._connection.exchange,
                method or ("GET" if body is None else "POST"),
                self._connection.url.join(path),
                content,
                self._timeout,
            ),
            lambda trouble, _: trouble.cause is Cause.LATER,
            time.monotonic() + self._retry_for,
        )
        return json.loads(answered) if answered else None

    def _hand_over(self, weights: Weights) -> str:
        """Have the server load the weights. Why that failed; "" if it did not."""
        with tempfile.TemporaryDirectory(prefix="search-gym-weights-") as own:
            folder = (self._folder or Path(own)) / f"weights-{uuid.uuid4().hex}"
            try:
                _write(weights, folder, self._dtype)
                self._exchange("/pause?mode=abort", method="POST")
                try:
                    load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
                    self._exchange("/collective_rpc", load)
                    emptied = self._exchange("/reset_prefix_cache", method="POST")["success"]
                finally:
                    self._exchange("/resume", method="POST")
                return "" if emptied else "it did not empty its prefix cache, and would go on with old keys"
            except Trouble as trouble:
                return f"{trouble}; it must see {folder.parent} under this path: see --engine.weights-folder"
            except OSError as error:
                return f"they cannot be written: {error}; give another --engine.weights-folder"
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _went_through(weights: Weights) -> str:
    """Put the weights together with the other processes, which need this one's part, and drop them."""
    for _ in weights():
        pass
    return ""


def _write(weights: Weights, folder: Path, dtype: torch.dtype | None) -> None:
    """Write weights into a new folder, as safetensors of a limited size."""
    folder.mkdir(parents=True)
    shard: dict[str, torch.Tensor] = {}
    written = size = 0
    for name, tensor in with_head(weights()):
        # Copied, for a file takes no two names of one tensor.
        shard[name] = tensor.to("cpu", dtype, copy=True).contiguous()
        size += shard[name].nbytes
        if size >= _SHARD_BYTES:
            save_file(shard, folder / f"model-{written:05}.safetensors")
            shard, size, written = {}, 0, written + 1
    if shard:
        save_file(shard, folder / f"model-{written:05}.safetensors")
