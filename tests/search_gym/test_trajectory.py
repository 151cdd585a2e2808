"""Trajectories survive JSONL, whatever their texts hold."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym.trajectory import Trajectory, Turn, read_jsonl, write_jsonl

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.just("a\u2028b\u0085c\r\nd")
SPAN = st.tuples(st.integers(0, 9), st.integers(0, 9))
TURNS = st.builds(
    Turn,
    kind=st.sampled_from(["search", "answer", "invalid", "unfinished"]),
    text=TEXT, argument=TEXT, policy=SPAN, inserted=SPAN, hits=st.lists(TEXT).map(tuple), cut=st.booleans(),
)  # fmt: skip
TRAJECTORIES = st.builds(
    Trajectory,
    question_id=TEXT, question=TEXT, golds=st.lists(TEXT).map(tuple), ids=st.lists(st.integers(0, 99)).map(tuple),
    mask=st.lists(st.integers(0, 1)).map(tuple), logprobs=st.lists(st.floats(-99, 0)).map(tuple),
    prompt_length=st.integers(0, 9), turns=st.lists(TURNS, max_size=3).map(tuple), answer=st.none() | TEXT,
    reward=st.floats(0, 1), text=TEXT, extra=st.dictionaries(TEXT, st.integers() | TEXT),
)  # fmt: skip


@given(st.lists(TRAJECTORIES, max_size=3), st.lists(TRAJECTORIES, max_size=2))
def test_what_is_written_is_read(first: list[Trajectory], second: list[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        write_jsonl(path, first)
        write_jsonl(path, second, append=True)
        assert list(read_jsonl(path)) == first + second


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"question_id": "a"}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl:1: "):
        list(read_jsonl(path))
