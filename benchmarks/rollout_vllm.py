"""The part of benchmarks/rollout.py that runs in vLLM's environment: our vLLM engine beside vLLM itself."""

# vLLM lives in an environment of its own, where pyright does not look.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import torch
from transformers import AutoConfig

from algos.training.engines.vllm import VLLMEngine
from benchmarks.rollout_loops import drive
from benchmarks.rollout_scripts import Script, ScriptedTurn
from search_gym import tokenizers
from search_gym.tokenizers import Tokenizer

ENGINE, TURNS, WHOLE = "vllm engine", "vLLM, turn by turn", "vLLM, all turns at once"


class Endless(Tokenizer):
    """A tokenizer like another one, but that none of its ids ends a turn: turns have the lengths of their script. It is
    read as any other is."""

    def __init__(self, plain: Tokenizer) -> None:
        self.__dict__ |= plain.__dict__  # made anew, it would be refused: it cannot spell the tags
        self._pieces = {}
        self.eos_ids = frozenset()

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`; without the character that ends a tag."""
        return super().decode(ids).replace(">", "")


class Raw:
    """vLLM itself: `LLM.generate`, log-probs included, without seeds or ids that end a turn. In this process, as the
    engine is."""

    def __init__(self, **settings: Any) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self.llm = LLM(
            **settings, skip_tokenizer_init=True, logprobs_mode="processed_logprobs", enable_prefix_caching=True,
            generation_config="vllm", seed=0,
        )  # fmt: skip

    def turn_by_turn(self, scripts: Sequence[Script]) -> list[list[int]]:
        """The first turns of all, then the second ones, …: none goes on before the last has ended its turn."""
        ids = [list(script.prompt) for script in scripts]
        for turn in range(max(len(script.turns) for script in scripts)):
            active = [number for number, script in enumerate(scripts) if turn < len(script.turns)]
            lengths = [scripts[number].turns[turn].length for number in active]
            sampled = self._generate([ids[number] for number in active], lengths)
            for number, new in zip(active, sampled, strict=True):
                ids[number] += [*new, *scripts[number].turns[turn].inserted]
        return ids

    def at_once(self, played: Sequence[list[int]], scripts: Sequence[Script]) -> int:
        """All turns of all, as if each knew what comes before it. More run side by side than episodes can, but those of
        an episode read the same ids next to each other, not from what the turn before has left.

        Args:
            played: all ids of each script.
            scripts: those that were played.

        Returns:
            How many ids were sampled.
        """
        prompts, lengths = list[list[int]](), list[int]()
        for ids, script in zip(played, scripts, strict=True):
            at = len(script.prompt)
            for turn in script.turns:
                prompts.append(ids[:at])
                lengths.append(turn.length)
                at += turn.length + len(turn.inserted)
        return sum(map(len, self._generate(prompts, lengths)))

    def _generate(self, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = [
            SamplingParams(
                max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            for length in lengths
        ]  # fmt: skip
        done = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in done]


def sizes(script: Script) -> int:
    """All ids of an episode."""
    return len(script.prompt) + sum(turn.length + len(turn.inserted) for turn in script.turns)


def once(engine: VLLMEngine, raw: Raw, scripts: Sequence[Script]) -> dict[str, float]:
    """Seconds that each of the ways takes, with nothing cached at the beginning.

    Raises:
        ValueError: if one of them did not do what the scripts say.
    """
    played: dict[str, Any] = {}
    ways: dict[str, Callable[[], object]] = {
        ENGINE: lambda: drive(engine, scripts, 1.0),
        TURNS: lambda: raw.turn_by_turn(scripts),
        WHOLE: lambda: raw.at_once(played[ENGINE], scripts),
    }
    seconds: dict[str, float] = {}
    for name, way in ways.items():
        engine._engine.reset_prefix_cache()
        raw.llm.reset_prefix_cache()
        start = time.perf_counter()
        played[name] = way()
        seconds[name] = time.perf_counter() - start
    wanted = [sizes(script) for script in scripts]
    if not list(map(len, played[ENGINE])) == wanted == list(map(len, played[TURNS])):
        raise ValueError("turns do not have the lengths of their script")
    if played[WHOLE] != sum(script.sampled for script in scripts):
        raise ValueError(f"{WHOLE}: turns do not have the lengths of their script")
    return seconds


def cache_bytes(model: str, scripts: Sequence[Script]) -> int:
    """What keys and values of all episodes take side by side in float32, and a half more, for they come in blocks."""
    config = AutoConfig.from_pretrained(model).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 12 * config.num_hidden_layers * heads * width * sum(map(sizes, scripts))


def measure(model: str, scripts: Sequence[Script], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; a first round does not count."""
    settings: dict[str, Any] = {
        "model": model, "dtype": "float32", "max_model_len": max(map(sizes, scripts)),
        "kv_cache_memory_bytes": cache_bytes(model, scripts), "enforce_eager": not torch.cuda.is_available(),
    }  # fmt: skip
    engine, raw = VLLMEngine(tokenizer=Endless(tokenizers.load(model)), **settings), Raw(**settings)
    seen = [once(engine, raw, scripts) for _ in range(rounds + 1)][1:]
    return {name: [seconds[name] for seconds in seen] for name in (ENGINE, TURNS, WHOLE)}


def main(request: dict[str, Any], answers: TextIO) -> None:
    """Measure what is asked for."""
    scripts = [Script(prompt, [ScriptedTurn(*turn) for turn in turns]) for prompt, turns in request["scripts"]]
    print(json.dumps(measure(request["model"], scripts, request["rounds"])), file=answers, flush=True)


if __name__ == "__main__":
    # vLLM prints as it likes: the answer has standard output for itself.
    with contextlib.redirect_stdout(sys.stderr):
        main(json.load(sys.stdin), sys.__stdout__ or sys.stdout)
