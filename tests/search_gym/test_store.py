"""Passages on disk: what goes in comes out, and what is not whole is refused."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval import Passage, store

# Every code point, lone surrogates and NUL among them.
STRINGS = st.text(st.characters(exclude_categories=()), max_size=20)
PASSAGES = st.lists(st.builds(Passage, STRINGS.filter(bool), STRINGS, STRINGS), min_size=1, max_size=8)


@given(PASSAGES, st.integers(-10, 10), st.slices(8))
def test_a_store_is_the_sequence_that_was_written(passages: list[Passage], index: int, part: slice) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = store.write(passages, Path(folder), "here")
        assert list(found) == passages
        assert found[part] == passages[part]
        assert pickle.loads(pickle.dumps(found))[0] == passages[0]
        assert found.digest == store.passages_digest(passages) == store.PassageStore(Path(folder)).digest
        if -len(passages) <= index < len(passages):
            assert found[index] == passages[index]
        else:
            with pytest.raises(IndexError):
                found[index]


@given(PASSAGES, PASSAGES)
def test_digests_are_equal_where_passages_are(one: list[Passage], other: list[Passage]) -> None:
    assert (store.passages_digest(one) == store.passages_digest(other)) == (one == other)


def test_strings_do_not_run_into_each_other() -> None:
    assert store.passages_digest([Passage("a", "bc", "d")]) != store.passages_digest([Passage("ab", "c", "d")])


def test_passages_that_fail_on_the_way_leave_no_store(tmp_path: Path) -> None:
    def broken():
        yield Passage("a", "", "x")
        raise ValueError("c.jsonl:2: not JSON")

    store.write([Passage("old", "", "x")], tmp_path, "here")
    with pytest.raises(ValueError, match="not JSON"):
        store.write(broken(), tmp_path, "here")
    with pytest.raises(ValueError, match="no passages here, or not all of it"):
        store.PassageStore(tmp_path)
    with pytest.raises(ValueError, match="the corpus is empty"):
        store.write([], tmp_path, "here")


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("passages.bin", b"short", "its manifest tells of 2 passages, its files hold 2 in 5 of"),
        ("manifest.json", b'{"format": 99}', "its format is 99, and this version reads 1"),
        ("manifest.json", b"[]", "not the manifest"),
        ("manifest.json", b"\xff", "not the manifest"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path: Path, file: str, content: bytes, reason: str) -> None:
    store.write([Passage("a", "A", "one"), Passage("b", "B", "two")], tmp_path, "here")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        store.PassageStore(tmp_path)
