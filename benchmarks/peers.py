"""The peers' side of env_speed.py: plays the dialogues with skyrl-gym and gem-llm, in an interpreter that has them.

Not to be run by hand: env_speed.py starts it, and says on its standard input what to play. Both peers ask a server over
HTTP; here the retriever is put in the place of that request, so that nobody pays for a network.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import tokenizers
from datasets import Dataset
from gem.envs.qa_env import QaEnv
from gem.tools.search_tool import SearchTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig
from skyrl_gym.tools import search as skyrl_search
from workload import Workload

from search_gym.retrieval import Retriever

TOP_K = 3


def contents(retriever: Retriever, query: str) -> list[dict[str, Any]]:
    """What the peers' servers answer: documents with their title on the first line."""
    hits = retriever.search([query], TOP_K)[0]
    return [{"document": {"contents": f"{hit.title}\n{hit.text}"}} for hit in hits]


class Texts:
    """What lies between a policy that samples ids and an environment of strings: nothing, or the tokenizer."""

    def __init__(self, tokenizer: tokenizers.Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def action(self, turn: str, ids: list[int]) -> str:
        """The text of a turn."""
        return turn if self._tokenizer is None else self._tokenizer.decode(ids, skip_special_tokens=False)

    def observe(self, text: str) -> None:
        """Encode what the policy is to read."""
        if self._tokenizer is not None and text:
            self._tokenizer.encode(text, add_special_tokens=False)


def skyrl(work: Workload, texts: Texts) -> list[float]:
    """An environment for each episode, as its generator makes them."""
    skyrl_search.call_search_api = lambda retrieval_service_url, query, **_: (
        {"result": [contents(work.retriever, query)]},
        None,
    )
    rewards = []
    for dialogue in work.dialogues:
        extras = {"reward_spec": {"ground_truth": {"target": dialogue.golds}}, "max_turns": len(dialogue.turns) + 1}
        env = SearchEnv(SearchEnvConfig(topk=TOP_K), extras)
        prompt, _ = env.init([{"role": "user", "content": dialogue.prompt}])
        texts.observe(prompt[0]["content"])
        for turn, ids in zip(dialogue.turns, dialogue.ids, strict=True):
            step = env.step(texts.action(turn, ids))
            for message in step["observations"]:
                texts.observe(message["content"])
        rewards.append(float(step["reward"]))
    return rewards


def gem(work: Workload, texts: Texts) -> list[float]:
    """One environment over the questions in their order."""
    SearchTool._search = lambda self, query: self._passages2string(contents(work.retriever, query))
    rows = [{"question": dialogue.question, "answer": dialogue.golds} for dialogue in work.dialogues]
    inner = QaEnv(dataset=Dataset.from_list(rows))
    # Its constructor shuffles them, and its wrapper adds the instruction, which is as long as the others'.
    inner.dataset = [{**row, "question": f"Question: {row['question']}\n"} for row in rows]
    env = ToolEnvWrapper(inner, [SearchTool(search_url="in process", topk=TOP_K)])
    rewards = []
    for dialogue in work.dialogues:
        observation, _ = env.reset()
        texts.observe(observation)
        for turn, ids in zip(dialogue.turns, dialogue.ids, strict=True):
            observation, reward, *_ = env.step(texts.action(turn, ids))
            texts.observe(observation)
        rewards.append(float(reward))
    return rewards


PEERS: dict[str, Callable[[Workload, Texts], list[float]]] = {"skyrl-gym": skyrl, "gem-llm": gem}


def main() -> None:
    """Answer each line (a peer, "text" or "ids") with the seconds that it took, and the rewards."""
    logging.disable(logging.CRITICAL)
    out, work = sys.stdout, Workload.load(sys.argv[1])
    backend = tokenizers.Tokenizer.from_file(work.tokenizer)
    for line in sys.stdin:
        name, mode = line.split()
        texts = Texts(backend if mode == "ids" else None)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            started = time.perf_counter()
            rewards = PEERS[name](work, texts)
            seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "rewards": rewards}), file=out, flush=True)


if __name__ == "__main__":
    main()
