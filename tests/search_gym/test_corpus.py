"""Corpus files: what is read, and what a bad line says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from search_gym.retrieval import Passage, corpus

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def load(folder: Path, *rows: dict[str, Any] | str) -> list[Passage]:
    path = folder / "c.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes("\n".join(lines).encode())
    return corpus.load(path)


@pytest.mark.parametrize(
    ("row", "title", "text"),
    [
        ({"contents": '"Oslo"\nA city.'}, "Oslo", "A city."),
        ({"contents": "Oslo\nA city.\nA port."}, "Oslo", "A city.\nA port."),
        ({"contents": '"Oslo"\r\nA city.'}, "Oslo", "A city."),
        ({"contents": "A city."}, "", "A city."),
        ({"contents": '"Oslo"\n'}, "Oslo", ""),
        ({"contents": '"""Weird Al"" Yankovic"\nA man.'}, '"Weird Al" Yankovic', "A man."),
        ({"contents": '"\nA quote.'}, '"', "A quote."),
        ({"title": "Oslo", "text": 'A "city".'}, "Oslo", 'A "city".'),
        ({"title": None, "text": "A city."}, "", "A city."),
        ({"text": "A city."}, "", "A city."),
    ],
)
def test_title_and_text(tmp_path: Path, row: dict[str, Any], title: str, text: str) -> None:
    assert load(tmp_path, {"id": 3, **row}) == [Passage("3", title, text)]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:  # D3
    passages = load(tmp_path, {"id": "a", "contents": '"T"\none\u2028two\x85three'}, {"id": "b", "contents": "x"})
    assert [(p.id, p.text) for p in passages] == [("a", "one\u2028two\x85three"), ("b", "x")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "a"}, 'a passage needs "contents", or "title" and "text"'),
        ({"contents": "A city."}, '"id" must be a string or a whole number, not missing'),
        ({"id": "a", "contents": ["A city."]}, '"contents" must be a string'),
        ({"id": "a", "text": "A city.", "title": 3}, '"title" must be a string'),
        ({"id": "a", "contents": '""\n '}, "the passage is empty"),
        ({"id": "first", "contents": "A city."}, "the id 'first' is that of line 1, too"),
        ("not JSON", "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict[str, Any] | str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"c\.jsonl:2: {reason}"):
        load(tmp_path, {"id": "first", "contents": "x"}, row)


def test_an_empty_file_is_refused_and_a_missing_one_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"c\.jsonl: the file is empty"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        corpus.load(tmp_path / "nowhere.jsonl")


ROWS: list[dict[str, Any]] = [
    {"id": "a", "contents": '"Oslo"\nA city.', "title": None, "text": None},
    {"id": "b", "contents": '"Bergen"\nA port.', "title": None, "text": None},
]
READ = [Passage("a", "Oslo", "A city."), Passage("b", "Bergen", "A port.")]


def written(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """The rows in a file or folder of the kind."""
    path = folder / f"c.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "jsonl":
        path.write_text(lines)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "folder":
        path.mkdir()
        parquet.write_table(pyarrow.Table.from_pylist(rows), path / "train.parquet")
    else:
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


KINDS = ["jsonl", "jsonl.gz", "parquet", "folder", "saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_passages(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, ROWS)
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other", kind, ROWS[:1])
    assert corpus.load(path) == READ
    assert corpus.size(path) in (len(ROWS), len(ROWS) + 1, None)  # with a line after the last line end, or unknown
    assert corpus.stamp(path) == corpus.stamp(path) != corpus.stamp(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROWS[0], "text": "again"}, r"the id 'a' is that of (line 1|row 0), too"),
        ({**ROWS[0], "id": "c", "contents": " "}, "the passage is empty"),
        ({**ROWS[0], "id": ""}, '"id" must be a string or a whole number'),
    ],
    ids=["duplicate", "empty", "no-id"],
)
def test_every_format_names_the_bad_row(tmp_path: Path, kind: str, row: dict[str, Any], reason: str) -> None:
    path = written(tmp_path, kind, [*ROWS, row])
    where = r"c\.jsonl(\.gz)?:3" if kind.startswith("jsonl") else r"c\.\w+:((train|row):)?row 2"
    with pytest.raises(ValueError, match=f"{where}: {reason}"):
        corpus.load(path)


@pytest.mark.parametrize("cut", [5, -5])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, "jsonl.gz", ROWS * 50)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"c\.jsonl\.gz: not a whole gzip file"):
        corpus.load(path)
    path.write_bytes(b"plain text\n")
    with pytest.raises(ValueError, match=r"c\.jsonl\.gz: not a whole gzip file"):
        corpus.load(path)


@pytest.mark.skipif(not DATA.exists(), reason="the real corpora (../shared/data) are not here")
@pytest.mark.parametrize(("name", "size"), [("hotpotqa", 994), ("musique", 1890), ("wiki18", 8619)])
def test_real_corpora_have_a_title_and_a_text_in_every_passage(name: str, size: int) -> None:
    passages = corpus.load(DATA / name / "corpus.jsonl")
    assert len(passages) == size
    assert all(p.title and p.text and not p.title.startswith('""') and "\n" not in p.title for p in passages)
