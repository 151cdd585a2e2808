"""skyrl-gym in the benchmark: its search environment, which takes and gives text.

It has no vector form: many are stepped one after another, or each in a thread, and a turn costs the same.
"""

from __future__ import annotations

from typing import Any

import skyrl_gym  # pyright: ignore[reportMissingImports]
import skyrl_gym.tools.search as tool  # pyright: ignore[reportMissingImports]
from skyrl_gym.envs.search.env import SearchEnvConfig  # pyright: ignore[reportMissingImports]

from benchmarks.worker import Documents, Form, Player, check
from benchmarks.workloads import TOP_K, Workload
from search_gym import prompts, tokenizers
from search_gym.retrieval import Retriever

_TURNS = 10


def _form(*, ids: bool) -> Form:
    def form(workload: Workload, retriever: Retriever) -> Player:
        documents = Documents(workload, retriever)
        backend = tokenizers.load(workload.tokenizer).backend
        config = SearchEnvConfig(topk=TOP_K)
        instruction = prompts.get("search-r1").prompt  # there it comes with the data, here with the environment

        def call(query: str, **_: Any) -> tuple[dict[str, Any], None]:
            return {"result": [documents.search(query)]}, None

        def read(messages: list[dict[str, str]]) -> None:
            """The new text as ids, which a policy needs and the environment does not give."""
            for message in messages if ids else ():
                backend.encode(message["content"], add_special_tokens=False).ids  # noqa: B018

        def play() -> dict[str, int]:
            tool.call_search_api = call  # what would go out over HTTP
            for dialogue in workload.dialogues:
                # One for each episode, as SkyRL makes them.
                extras = {"reward_spec": {"ground_truth": {"target": dialogue.golds}}, "max_turns": _TURNS}
                env = skyrl_gym.make("search", env_config=config, extras=extras)
                asked = instruction.replace("{question}", dialogue.question)
                prompt, _ = env.init([{"role": "user", "content": asked}])
                read(prompt)
                result: dict[str, Any] = {}
                for text, sampled in zip(dialogue.turns, dialogue.ids, strict=True):
                    result = env.step(backend.decode(sampled, skip_special_tokens=False) if ids else text)
                    read(result["observations"])
                assert result["done"]
                check(dialogue.id, dialogue.em, result["reward"])
            return {"turns": workload.turns, "tokens": workload.tokens}

        return play

    return form


FORMS: dict[str, Form] = {"text": _form(ids=False), "ids in and out": _form(ids=True)}
