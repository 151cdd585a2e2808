"""benchmarks/rollout.py: both loops do the same work, and what they are given to do is what was recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from algos.training.loading import load_policy
from benchmarks import rollout, rollout_loops
from benchmarks.rollout import Config, Figures, Loop
from benchmarks.rollout_loops import Played, enders
from benchmarks.rollout_scripts import Script, ScriptedTurn, from_recording
from experiments.models import EMBEDDED
from search_gym import tokenizers
from search_gym.tokenizers import Tokenizer

TOKENIZER = tokenizers.embedded()
PROMPTS = [TOKENIZER.encode(f"Question: Who wrote the book Songs of {word}?") for word in ("Snow", "Silver")]
FOUND = TOKENIZER.encode("<information> Doc 1 (Title: Snow) Igor </information>")
SCRIPTS = [
    Script(PROMPTS[0], [ScriptedTurn(5, FOUND), ScriptedTurn(1, FOUND[:2]), ScriptedTurn(3, [])]),
    Script(PROMPTS[0], [ScriptedTurn(2, [])]),
    Script(PROMPTS[1], [ScriptedTurn(1, FOUND * 3), ScriptedTurn(7, [])]),
]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_policy(EMBEDDED).model.eval()


@pytest.mark.parametrize("loop", rollout.LOOPS.values(), ids=lambda loop: loop.__name__)
def test_a_loop_does_what_the_script_says(model, loop: Loop) -> None:
    played, banned = loop(model, TOKENIZER, SCRIPTS, 1.0), set(enders(TOKENIZER))
    for script, ids in zip(SCRIPTS, played.ids, strict=True):
        assert ids[: len(script.prompt)] == script.prompt
        at = len(script.prompt)
        for turn in script.turns:
            sampled, at = ids[at : at + turn.length], at + turn.length
            assert banned.isdisjoint(sampled)
            assert ids[at : at + len(turn.inserted)] == turn.inserted
            at += len(turn.inserted)
        assert at == len(ids)


def test_what_the_loops_read(model) -> None:
    whole = [len(ids) - 1 for ids in rollout_loops.ours(model, TOKENIZER, SCRIPTS, 0.0).ids]  # the last id is not read
    assert rollout_loops.ours(model, TOKENIZER, SCRIPTS, 0.0).read == sum(whole) - len(PROMPTS[0])
    # Everything before a turn is read again, but for the last id of each turn: that comes with the next.
    before = [len(PROMPTS[0]) * 3 + 5 + len(FOUND) + 5 + len(FOUND) + 1 + 2, len(PROMPTS[0])]
    before += [len(PROMPTS[1]) * 2 + 1 + 3 * len(FOUND)]
    sampled = sum(turn.length - 1 for script in SCRIPTS for turn in script.turns)
    assert rollout_loops.search_r1(model, TOKENIZER, SCRIPTS, 0.0).read == sum(before) + sampled


def test_loops_that_play_differently_are_not_compared(model, monkeypatch) -> None:
    rollout.check(model, TOKENIZER, SCRIPTS)

    def forgetful(
        model: PreTrainedModel, tokenizer: Tokenizer, scripts: Sequence[Script], temperature: float
    ) -> Played:
        return rollout_loops.ours(model, tokenizer, [replace(s, prompt=s.prompt[1:]) for s in scripts], temperature)

    monkeypatch.setitem(rollout.LOOPS, "forgetful", forgetful)
    with pytest.raises(ValueError, match="do not play the same"):
        rollout.check(model, TOKENIZER, SCRIPTS)


def test_the_embedded_policy_plays_its_own_episodes() -> None:
    scripts = rollout.workload(Config(questions=2, group=3), str(EMBEDDED), TOKENIZER)
    assert len(scripts) == 6
    assert scripts[0].prompt == scripts[2].prompt != scripts[3].prompt
    assert any(len(script.turns) > 1 and script.turns[0].inserted for script in scripts)
    assert all(not script.turns[-1].inserted for script in scripts)


def test_a_recording_is_cut_at_its_passages(tmp_path: Path) -> None:
    said = ["<search> a </search>", "<search> b </search>", "<answer> c </answer>"]
    passages = ["\n\n<information>x\ny</information>\n\n", "<information>z</information>"]
    rows = [
        {"prompt": "Question: one?", "response": said[0] + passages[0] + said[1] + passages[1] + said[2]},
        {"prompt": "Question: two?", "response": said[0] + passages[1]},
    ]
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lengths = [len(TOKENIZER.encode(text)) for text in said]
    scripts = from_recording(path, TOKENIZER, count=2, group=2, max_turn=100, max_observation=100)
    prompts = [TOKENIZER.encode(row["prompt"]) for row in rows]
    assert [script.prompt for script in scripts] == [prompts[0], prompts[0], prompts[1], prompts[1]]
    longer, shorter = scripts[0].turns, scripts[1].turns
    assert [turn.length for turn in longer] == lengths
    assert [turn.inserted for turn in longer] == [*map(TOKENIZER.encode, passages), []]
    assert shorter == [ScriptedTurn(lengths[0], [])]
    assert scripts[2].turns == shorter
    assert scripts[3].turns == longer
    (cut,) = from_recording(path, TOKENIZER, count=1, group=1, max_turn=2, max_observation=3)
    assert [(turn.length, len(turn.inserted)) for turn in cut.turns] == [(2, 3), (2, 3), (2, 0)]


def test_the_ratio_is_that_within_rounds() -> None:
    figures = {rollout.OURS: Figures(10, [1.0, 2.0, 4.0]), "other": Figures(20, [3.0, 4.0, 40.0])}
    lines = rollout.table(figures, SCRIPTS).splitlines()
    assert lines[2:] == ["| hf engine | 10 | 1.50 | 10 |  |", "| other | 5 | 0.75 | 20 | 3.00x |"]
