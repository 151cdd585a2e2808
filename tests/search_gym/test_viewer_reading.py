"""What the viewer reads: pieces that make up the text, spans, values, the folders around a file, errors of one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, family
from hypothesis import given
from hypothesis import strategies as st
from playing import TOKENIZER
from recorded import NASTY, measured, play, write_run

from search_gym import score
from search_gym.trajectory import write_jsonl
from search_gym.viewer import reading
from search_gym.viewer.dialogues import Dialogue, Origin, cut, of_recorded, of_trajectory

RECORDED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "trajectories" / "bamboogle.jsonl"
TAGS = [
    "<search>q</search>",
    "<information>",
    "</information>",
    "<documents>x</documents>",
    "a\n",
    "<answer>b</answer>",
]


def texts(dialogue: Dialogue) -> list[str]:
    """The pieces, cut as the page does: in UTF-16 units."""
    raw, found = dialogue.text.encode("utf-16-le", "surrogatepass"), []
    for length in dialogue.lengths:
        found.append(raw[: 2 * length].decode("utf-16-le", "surrogatepass"))
        raw = raw[2 * length :]
    assert raw == b""
    return found


@pytest.mark.parametrize("seed", range(20))
def test_tokens_make_up_the_text_and_spans_follow_the_mask(seed: int) -> None:
    trajectory = play(seed, NASTY)
    dialogue = of_trajectory(trajectory, TOKENIZER, Origin())
    assert dialogue.tokens
    assert texts(dialogue) == cut(trajectory.ids, TOKENIZER)
    assert "".join(texts(dialogue)) == trajectory.text
    own = [span.kind == "policy" for span in dialogue.spans for _ in range(span.begin, span.end)]
    assert own == [mask == 1 for mask in trajectory.mask]
    logprobs = dialogue.values["logprob"]
    assert logprobs == pytest.approx(
        [p for p, m in zip(trajectory.logprobs, trajectory.mask, strict=True) if m], rel=1e-5
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_character_of_several_tokens_belongs_to_the_last(name: str) -> None:
    tokenizer = family(name)
    ids = tokenizer.encode("a 😀 b 東")
    pieces = cut(ids, tokenizer)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_at_the_end_is_shown() -> None:
    ids = TOKENIZER.encode("a 😀")[:-1]
    assert cut(ids, TOKENIZER)[-1].endswith("\ufffd")


@pytest.mark.parametrize("seed", range(20))
def test_without_a_tokenizer_the_spans_are_the_same(seed: int) -> None:
    trajectory = play(seed)
    with_tokens, without = (of_trajectory(trajectory, known, Origin()) for known in (TOKENIZER, None))
    assert not without.tokens
    assert without.values == {}
    whole = texts(with_tokens)
    expected = [(span.kind, span.note, "".join(whole[span.begin : span.end])) for span in with_tokens.spans]
    found = [(span.kind, span.note, text) for span, text in zip(without.spans, texts(without), strict=True)]
    assert found == [part for part in expected if part[2]]


def test_turns_that_are_not_in_the_text_leave_it_whole() -> None:
    trajectory = replace(play(0), text="something else")
    dialogue = of_trajectory(trajectory, TOKENIZER, Origin())
    assert [(span.kind, text) for span, text in zip(dialogue.spans, texts(dialogue), strict=True)] == [
        ("unknown", "something else")
    ]


def test_values_of_tokens_are_those_of_the_policy() -> None:
    trajectory = play(1)
    places = [place for place, mask in enumerate(trajectory.mask) if mask]
    ratio: list[Any] = [1 + place / 64 for place in range(len(trajectory.ids))]
    ratio[places[1]], ratio[places[2]] = None, float("inf")
    made = of_trajectory(measured(trajectory, ratio=ratio, advantage=-0.5), TOKENIZER, Origin())
    expected = [None if place in places[1:3] else 1 + place / 64 for place in places]
    found = made.values["ratio"]
    assert isinstance(found, list)
    assert found[1:3] == [None, None]
    assert [value or 0 for value in found] == pytest.approx([value or 0 for value in expected], rel=1e-5)
    assert made.values["advantage"] == -0.5
    assert "entropy" not in made.values


def test_log_probs_that_nobody_handed_in_are_not_shown() -> None:
    trajectory = play(1)
    silent = replace(trajectory, logprobs=(0.0,) * len(trajectory.ids))
    assert "logprob" not in of_trajectory(silent, TOKENIZER, Origin()).values


@given(st.lists(st.sampled_from(TAGS)).map("".join))
def test_the_pieces_of_a_recorded_response_make_it_up(response: str) -> None:
    found = list(score.pieces(response))
    assert "".join(text for _, text in found) == response
    dialogue = of_recorded({"prompt": "p", "response": response}, Origin())
    assert "".join(texts(dialogue)) == "p" + response
    assert dialogue.answer == score.predict(response)


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not there")
def test_recorded_dialogues_keep_their_scores() -> None:
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    found = reading.read(RECORDED).dialogues
    assert [(d.answer, d.em) for d in found] == [(row["prediction"], row["em"]) for row in rows]
    assert [d.searches for d in found] == [row["response"].count("<information>") for row in rows]


def test_scores_that_a_row_lacks_are_worked_out() -> None:
    row = {"response": "<answer>Oslo</answer>", "golden_answers": ["oslo"]}
    dialogue = of_recorded(row, Origin())
    assert (dialogue.answer, dialogue.em, dialogue.f1, dialogue.reward) == ("Oslo", 1.0, 1.0, None)
    bare = of_recorded({"response": "nothing"}, Origin())
    assert (bare.answer, bare.em, bare.end) == (None, None, "no answer")


def bare(seed: int) -> Any:
    return replace(play(seed), extra={})


def test_a_training_run_says_what_its_files_are(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [replace(play(1), extra={"step": 3, "seed": 7}), bare(2)])
    (run / "evaluations").mkdir()
    write_jsonl(run / "evaluations" / "step-000012.jsonl", [bare(3)])
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    origins = [dialogue.origin for dialogue in reading.read(run).dialogues]
    assert origins == [
        Origin("evaluations/step-000012.jsonl", 1, "grpo", 7, 12),
        Origin("trajectories.jsonl", 1, "grpo", 7, 3),
        Origin("trajectories.jsonl", 2, "grpo", 7, None),
    ]
    alone = reading.read(run / "evaluations" / "step-000012.jsonl")
    assert alone.dialogues[0].tokens  # the run around the file is found
    assert alone.dialogues[0].origin == Origin("step-000012.jsonl", 1, "grpo", 7, 12)


def test_a_comparison_says_what_its_files_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": "embedded", "algos": "sapo:gamma=0.5", "seeds": 2}')
    said = (
        ("result.json", '{"algorithm": "sapo:gamma=0.5", "seed": 0, "steps": 9}'),
        ("progress.json", '{"algorithm": "sapo:gamma=0.5", "seed": 1, "tries": 2}'),  # goes on, or was stopped
        ("progress.json", '{"tries": 2}'),
    )
    for seed, (name, content) in enumerate(said):
        end = tmp_path / "runs" / f"sapo_gamma=0.5-seed{seed}" / "end"
        end.mkdir(parents=True)
        write_jsonl(end / "greedy.jsonl", [bare(seed)])
        (end.parent / name).write_text(content)
    (tmp_path / "start").mkdir()
    write_jsonl(tmp_path / "start" / "greedy.jsonl", [bare(3)])
    found = reading.read(tmp_path)
    assert all(dialogue.tokens for dialogue in found.dialogues)
    assert [(d.origin.algorithm, d.origin.seed, d.origin.step) for d in found.dialogues] == [
        ("sapo:gamma=0.5", 0, 9),
        ("sapo:gamma=0.5", 1, None),
        ("sapo_gamma=0.5", 2, None),  # by its folder
        ("", None, 0),
    ]


def test_an_evaluation_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": "embedded"}')
    (tmp_path / "nq").mkdir()
    write_jsonl(tmp_path / "nq" / "answers.jsonl", [bare(0)])
    (dialogue,) = reading.read(tmp_path).dialogues
    assert dialogue.tokens
    assert dialogue.origin.file == "nq/answers.jsonl"


@pytest.mark.parametrize("limit", [0, 1, 3, 7, 20])
def test_a_limit_keeps_dialogues_evenly(tmp_path: Path, limit: int) -> None:
    run = write_run(tmp_path, [play(seed) for seed in range(13)])
    found = reading.read(run, limit=limit)
    lines = [dialogue.origin.line for dialogue in found.dialogues]
    assert found.total == 13
    assert lines == list(range(1, 14, lines[1] - lines[0] if len(lines) > 1 else 13))
    assert len(lines) == 13 if limit in (0, 20) else limit / 2 <= len(lines) <= limit
    assert any("of 13 dialogues" in note for note in found.notes) == (len(lines) < 13)


@pytest.mark.parametrize(
    ("config", "tokenizer", "note"),
    [
        (None, None, "no tokenizer (there is no run around the file)"),
        ('{"model": "no/folder/of/mine"}', None, "no tokenizer (no tokenizer at 'no/folder/of/mine'"),
        (None, "embedded", None),
    ],
    ids=["no run", "no model", "named"],
)
def test_a_tokenizer_that_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, tokenizer: str | None, note: str | None
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    file = tmp_path / "a" / "b" / "c" / "d" / "trajectories.jsonl"
    write_jsonl(file, [play(0), play(1)])
    if config:
        file.with_name("config.json").write_text(config)
    found = reading.read(file, tokenizer=tokenizer)
    assert all(dialogue.tokens is (note is None) for dialogue in found.dialogues)
    assert len(found.notes) == (note is not None)
    assert (note or "") in "".join(found.notes)


def test_a_tokenizer_that_does_not_fit_is_said(tmp_path: Path) -> None:
    other = family("byte-level")
    folder = tmp_path / "other"
    folder.mkdir()
    other.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    run = write_run(tmp_path / "run", [play(0)])
    found = reading.read(run, tokenizer=str(folder))
    assert not found.dialogues[0].tokens
    assert "does not give back the text of line 1" in found.notes[0]
