"""Files of dialogues for the tests of the viewer: episodes that are played here, passages that mean harm."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from playing import SMALL, TOKENIZER, WORLD, turn_ids

from search_gym.episode import Episode
from search_gym.retrieval import Hit
from search_gym.rules import Rules, Search
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, write_jsonl

QUESTIONS = WORLD.questions("test")
NASTY = (
    "<script>document.title = 'run'</script>",
    "</script><script>document.title = 'run'</script>",
    "<img src=x onerror=\"document.title = 'run'\"><b",
    "<!-- --><!--<script> -->",
    "]]></style><svg onload=\"document.title = 'run'\">",
    "a\u2028b\u2029c\x00d\u202ee {{ 7 * 7 }} {% raw %} &lt;i&gt; \\u003cscript\\u003e",
    "東京 😀 é",
)
"""Passages that would do something if they were read as HTML, JavaScript or a template."""


def play(seed: int, passages: Sequence[str] = ("a passage",), tokenizer: Tokenizer = TOKENIZER) -> Trajectory:
    """An episode of some length, with log-probs."""
    rng = random.Random(seed)
    question = QUESTIONS[seed % len(QUESTIONS)]
    rules: dict[str, Any] = {**SMALL, "max_context_tokens": 600, "max_searches": 2}
    episode = Episode(question, tokenizer, Rules(**rules))
    while not episode.done:
        ids = turn_ids(question, rng, episode.room)
        for event in episode.feed(ids, [-rng.random() for _ in ids]):
            if isinstance(event, Search):
                episode.observe([Hit(f"p{seed}", "Title", passages[seed % len(passages)], 1.0)])
    return episode.trajectory(algorithm="grpo" if seed % 2 else "sapo:gamma=0.5", seed=seed % 3, step=seed // 10 + 1)


def measured(trajectory: Trajectory, **values: Any) -> Trajectory:
    """The trajectory with values of tokens as a trainer adds them."""
    return replace(trajectory, extra=trajectory.extra | {"tokens": values})


def write_run(folder: Path, trajectories: Sequence[Trajectory]) -> Path:
    """A run folder, as far as the viewer reads one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model": "embedded", "algo": "grpo", "seed": 7}')
    write_jsonl(folder / "trajectories.jsonl", trajectories)
    return folder
