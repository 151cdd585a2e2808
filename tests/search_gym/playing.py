"""What tests of the environments share: dialogues that make every event happen."""

from __future__ import annotations

import random
from typing import Any

from search_gym import World, tokenizers
from search_gym.questions import Question

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
SMALL: dict[str, Any] = {
    "prompt": "brief",
    "max_context_tokens": 300,
    "max_observation_tokens": 100,
    "max_turn_tokens": 40,
    "search_cost": 0.125,
    "invalid_cost": 0.25,
}


def turn(question: Question, rng: random.Random) -> str:
    """The text of some turn that a policy could write, good or bad."""
    hop = rng.choice(WORLD.hops(question))
    return rng.choice(
        [
            f"<think> I need {hop.description} </think> <search> {hop.subject.name} </search>",
            f"<search> {hop.subject.name} </search>",
            "<search> Selby </search>",
            "<search> zzzz </search>",
            "<search> </search>",
            "</answer>",
            "I give up. <|end|>",
            "Ravenna " * 50,
            f"<answer> {question.golds[0]} </answer>",
            f"<answer> the {hop.answer} or {question.golds[0]} </answer>",
        ]
    )


def turn_ids(question: Question, rng: random.Random, room: int) -> list[int]:
    """The ids of some turn, ending where it does: at its tag, at the end-of-sequence id or at its limit."""
    text = turn(question, rng)
    ids = TOKENIZER.encode(text.removesuffix("<|end|>"))
    return [*ids, TOKENIZER.eos_id][:room] if text.endswith("<|end|>") else ids[:room]
