"""gem-llm in the benchmark: its question environment with its search tool, which take and give text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import datasets  # pyright: ignore[reportMissingImports]
import gem  # pyright: ignore[reportMissingImports]
import numpy as np
from gem.envs.qa_env import QaEnv, apply_prompt  # pyright: ignore[reportMissingImports]
from gem.tools.search_tool import SearchTool  # pyright: ignore[reportMissingImports]
from gem.tools.tool_env_wrapper import ToolEnvWrapper  # pyright: ignore[reportMissingImports]

from benchmarks.worker import PLACES, Documents, Form, Player, check
from benchmarks.workloads import TOP_K, Dialogue, Workload
from search_gym import tokenizers
from search_gym.retrieval import Retriever

_ENV = "benchmark:Questions"
# It shuffles its data set after the last question, which takes as long as hundreds of turns: a data set of a real size
# seldom comes to its end.
_COPIES = 40


class InProcess(SearchTool):
    """The tool without HTTP: the passages come from a function, the text around them from gem."""

    def __init__(self, documents: Documents) -> None:
        super().__init__(topk=TOP_K)
        self._documents = documents

    def _search(self, query: str) -> str:
        return self._passages2string(self._documents.search(query))


class Dialogues:
    """The dialogues by what gem asks, and the borders between its text and a policy's ids."""

    def __init__(self, workload: Workload, *, ids: bool) -> None:
        self.workload, self._ids = workload, ids
        self._backend = tokenizers.load(workload.tokenizer).backend
        self._asked = {apply_prompt({"question": d.question})["question"]: d for d in workload.dialogues}

    def playing(self, env: Any) -> tuple[Dialogue, Iterator[str | list[int]]]:
        """The dialogue about the question that the environment asks, and its turns."""
        dialogue = self._asked[env.unwrapped.first_obs]
        return dialogue, iter(dialogue.ids if self._ids else dialogue.turns)

    def write(self, turn: Any) -> str:
        """The text of a turn."""
        return self._backend.decode(turn, skip_special_tokens=False) if self._ids else turn

    def read(self, observation: str) -> None:
        """The new text as ids, which a policy needs and the environment does not give."""
        if self._ids:
            self._backend.encode(observation, add_special_tokens=False).ids  # noqa: B018


def _questions(workload: Workload, copies: int) -> Any:
    rows = [{"question": d.question, "answer": d.golds} for d in workload.dialogues]
    return datasets.Dataset.from_list(rows * copies)


def _single(*, ids: bool) -> Form:
    def form(workload: Workload, retriever: Retriever) -> Player:
        dialogues = Dialogues(workload, ids=ids)
        env = ToolEnvWrapper(
            gem.make(_ENV, dataset=_questions(workload, _COPIES)), [InProcess(Documents(workload, retriever))]
        )

        def play() -> dict[str, int]:
            total = {"turns": 0, "tokens": 0}
            for _ in workload.dialogues:
                observation, _ = env.reset()
                dialogues.read(observation)
                dialogue, turns = dialogues.playing(env)
                reward = terminated = None
                for turn in turns:
                    observation, reward, terminated, _, _ = env.step(dialogues.write(turn))
                    dialogues.read(observation)
                assert terminated
                assert reward is not None
                check(dialogue.id, dialogue.em, reward)
                total["turns"] += len(dialogue.ids)
                total["tokens"] += sum(map(len, dialogue.ids))
            return total

        return play

    return form


def _vector(*, ids: bool, threads: bool) -> Form:
    def form(workload: Workload, retriever: Retriever) -> Player:
        dialogues = Dialogues(workload, ids=ids)
        tools = [InProcess(Documents(workload, retriever))]
        env = gem.make_vec(
            [_ENV] * PLACES,
            wrappers=[partial(ToolEnvWrapper, tools=tools)],
            async_mode=threads,
            dataset=_questions(workload, 1),
        )
        env.reset()
        playing, left = map(list, zip(*(dialogues.playing(single) for single in env.envs), strict=True))

        def play() -> dict[str, int]:
            ended, total = 0, {"turns": 0, "tokens": 0}
            while ended < len(workload.dialogues):
                observations, rewards, terminated, _, _ = env.step([dialogues.write(next(plan)) for plan in left])
                for observation in observations:
                    dialogues.read(observation)
                for i in np.flatnonzero(terminated).tolist():
                    check(playing[i].id, playing[i].em, rewards[i])
                    ended += 1
                    total["turns"] += len(playing[i].ids)
                    total["tokens"] += sum(map(len, playing[i].ids))
                    playing[i], left[i] = dialogues.playing(env.envs[i])
            return total

        return play

    return form


datasets.disable_progress_bars()
gem.register(_ENV, QaEnv)
FORMS: dict[str, Form] = {
    "text": _single(ids=False),
    f"text, {PLACES} places": _vector(ids=False, threads=False),
    f"text, {PLACES} places in threads": _vector(ids=False, threads=True),
    "ids in and out": _single(ids=True),
    f"ids in and out, {PLACES} places": _vector(ids=True, threads=False),
}
