"""search-gym in the benchmark: its three kinds of environment, with their default arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

import search_gym
from benchmarks.worker import PLACES, Form, Player, check
from benchmarks.workloads import Dialogue, Workload
from search_gym.questions import Question
from search_gym.retrieval import Retriever


def _setting(workload: Workload, retriever: Retriever) -> dict[str, Any]:
    questions = [Question(d.id, d.question, tuple(d.golds)) for d in workload.dialogues]
    return {
        "questions": questions,
        "order": "sequential",
        "retriever": retriever,
        "tokenizer": workload.tokenizer,
    }


def _actions(name: str, dialogue: Dialogue) -> list[Any]:
    return dialogue.ids if name == "SearchQATurns-v0" else [token for ids in dialogue.ids for token in ids]


def _single(name: str) -> Form:
    def form(workload: Workload, retriever: Retriever) -> Player:
        env = gymnasium.make(name, **_setting(workload, retriever))
        plans = [(dialogue, _actions(name, dialogue)) for dialogue in workload.dialogues]

        def play() -> dict[str, int]:
            for place, (dialogue, actions) in enumerate(plans):
                env.reset(seed=0 if place == 0 else None)  # a seed goes back to the first question
                reward = terminated = None
                for action in actions:
                    _, reward, terminated, _, _ = env.step(action)
                assert terminated
                assert reward is not None
                check(dialogue.id, dialogue.em, float(reward))
            return {"turns": workload.turns, "tokens": workload.tokens}

        return play

    return form


def _vector(name: str) -> Form:
    def form(workload: Workload, retriever: Retriever) -> Player:
        env = gymnasium.make_vec(
            name, num_envs=PLACES, autoreset_mode=AutoresetMode.SAME_STEP, **_setting(workload, retriever)
        )
        by_id = {dialogue.id: (dialogue, _actions(name, dialogue)) for dialogue in workload.dialogues}
        batch = tuple if name == "SearchQATurns-v0" else np.array
        _, infos = env.reset(seed=0)
        playing: list[Dialogue] = [by_id[asked][0] for asked in infos["question_id"]]
        left: list[Iterator[Any]] = [iter(by_id[dialogue.id][1]) for dialogue in playing]

        def play() -> dict[str, int]:
            ended, total = 0, {"turns": 0, "tokens": 0}
            while ended < len(workload.dialogues):
                _, rewards, terminated, _, infos = env.step(batch([next(plan) for plan in left]))
                for i in np.flatnonzero(terminated).tolist():
                    check(playing[i].id, playing[i].em, rewards[i])
                    ended += 1
                    total["turns"] += len(playing[i].ids)
                    total["tokens"] += sum(map(len, playing[i].ids))
                    playing[i], actions = by_id[infos["question_id"][i]]
                    left[i] = iter(actions)
            return total

        return play

    return form


assert search_gym  # it registers the environments
FORMS: dict[str, Form] = {
    "a token a step": _single("SearchQA-v0"),
    "a turn a step": _single("SearchQATurns-v0"),
    f"a token a step, {PLACES} places": _vector("SearchQA-v0"),
    f"a turn a step, {PLACES} places": _vector("SearchQATurns-v0"),
}
