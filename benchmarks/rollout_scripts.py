"""What benchmarks/rollout.py plays: episodes whose turns have given lengths, so that every loop does the same work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from search_gym import jsonl
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer

_RETRIEVED = re.compile(r"(\s*<information>.*?</information>\s*)", re.DOTALL)


@dataclass(frozen=True)
class ScriptedTurn:
    """One turn: so many ids are sampled, whatever they are, and then ids are inserted."""

    length: int
    """Sampled ids, >= 1."""
    inserted: list[int]
    """What is inserted after them: passages, or a notice; empty after the last turn."""


@dataclass(frozen=True)
class Script:
    """One episode."""

    prompt: list[int]
    turns: list[ScriptedTurn]

    @property
    def sampled(self) -> int:
        """Ids that the policy samples in all its turns."""
        return sum(turn.length for turn in self.turns)


def from_play(
    policy: CausalLMPolicy, tokenizer: Tokenizer, questions: Sequence[Question], retriever: Retriever, rules: Rules
) -> list[Script]:
    """The shape of the episodes that a policy plays, one a question."""
    engine = HFEngine(policy, tokenizer)
    played = play(questions, engine=engine, tokenizer=tokenizer, retriever=retriever, rules=rules)
    return [
        Script(
            list(t.ids[: t.prompt_length]),
            [ScriptedTurn(turn.policy[1] - turn.policy[0], list(t.ids[slice(*turn.inserted)])) for turn in t.turns],
        )
        for t in played
    ]


def from_recording(
    recording: Path, tokenizer: Tokenizer, count: int, group: int, max_turn: int, max_observation: int
) -> list[Script]:
    """The shape of recorded dialogues.

    Args:
        recording: JSONL with `prompt` and `response`, passages in <information>.
        tokenizer: of the model that plays them.
        count: how many dialogues are taken.
        group: how many episodes begin with each prompt. They take their turns from different dialogues, for the
            recording has one of each.
        max_turn: a turn is cut to so many ids,
        max_observation: and passages to so many.
    """
    prompts: list[list[int]] = []
    responses: list[list[ScriptedTurn]] = []
    for _, row in jsonl.read(recording, dict):
        turns: list[ScriptedTurn] = []
        pieces = [tokenizer.encode(piece) for piece in _RETRIEVED.split(row["response"])]
        for said, retrieved in zip(pieces[::2], [*pieces[1::2], []], strict=True):
            if said:  # nothing is said after a search that ends the response
                turns.append(ScriptedTurn(len(said[:max_turn]), retrieved[:max_observation]))
        if turns:
            turns[-1] = ScriptedTurn(turns[-1].length, [])
            prompts.append(tokenizer.encode_prompt(row["prompt"], "", ""))
            responses.append(turns)
        if len(prompts) == count:
            break
    return [
        Script(prompt, responses[(number + member) % len(responses)])
        for number, prompt in enumerate(prompts)
        for member in range(group)
    ]
