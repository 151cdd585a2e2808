"""Question files: what is read, and what a bad line says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search_gym.sources import list_questions as load
from search_gym.trajectory import Trajectory, read_jsonl, write_jsonl

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
GOOD = '{"id": "q", "question": "Where?", "golden_answers": ["Oslo"]}'


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "q.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@given(
    rows=st.lists(
        st.tuples(st.text(min_size=1), st.text(min_size=1).filter(str.strip), st.text(min_size=1).filter(str.strip)),
        min_size=1,
        unique_by=lambda row: row[0],
    ),
    escaped=st.booleans(),
    ending=st.sampled_from(["\n", "\r\n", "\n\n \n"]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_what_is_written_is_read(
    tmp_path: Path, rows: list[tuple[str, str, str]], escaped: bool, ending: str, mark: bytes
) -> None:
    lines = (
        json.dumps({"id": i, "question": q, "golden_answers": [a]}, ensure_ascii=escaped) + ending for i, q, a in rows
    )
    questions = load(write(tmp_path, mark + "".join(lines).encode()))
    assert [(q.id, q.text, *q.golds) for q in questions] == rows


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:  # D3
    questions = load(write(tmp_path, GOOD.replace("Where", f"Where{separator}to") + "\n" + GOOD.replace('"q"', '"r"')))
    assert [(q.id, q.text) for q in questions] == [("q", f"Where{separator}to?"), ("r", "Where?")]


def test_trajectories_are_read_in_the_same_way(tmp_path: Path) -> None:  # D3: logs
    path = tmp_path / "t.jsonl"
    one, two = (Trajectory(name, "a\u2028b\x85", ("x",), (1,), (0,), (0.0,), 1) for name in "ab")
    write_jsonl(path, [one, two])
    path.write_text(path.read_text().replace("\\u2028", "\u2028"), encoding="utf-8", newline="\n")
    assert list(read_jsonl(path)) == [one, two]
    write(tmp_path, GOOD)
    with pytest.raises(ValueError, match=r"q\.jsonl:1: not a trajectory"):
        list(read_jsonl(tmp_path / "q.jsonl"))


@pytest.mark.parametrize(
    ("given_", "golds"),
    [("Paris", ("Paris",)), (["", "x"], ("x",)), (["x", " ", "y"], ("x", "y")), (["", "Paris"], ("Paris",))],
)
def test_golden_answers(tmp_path: Path, given_: object, golds: tuple[str, ...]) -> None:  # D2
    row = {"id": 7, "question": "Where?", "golden_answers": given_, "metadata": {"hops": 2}, "prompt": "left out"}
    (question,) = load(write(tmp_path, json.dumps(row)))
    assert (question.id, question.golds, question.metadata) == ("7", golds, {"hops": 2})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "a", "question": "Where?", "golden_answers": []}', "holds no answer: give one"),
        ('{"id": "a", "question": "Where?", "golden_answers": ["", " "]}', "holds no answer: give one"),
        ('{"id": "a", "question": "Where?"}', '"golden_answers" must be a list of strings'),
        ('{"id": "a", "question": "Where?", "golden_answers": [1]}', '"golden_answers" must be a list of strings'),
        ('{"id": "a", "golden_answers": ["x"]}', '"question" must be a string, not missing'),
        ('{"id": "a", "question": " ", "golden_answers": ["x"]}', "has no text"),
        ('{"id": null, "question": "Where?", "golden_answers": ["x"]}', '"id" must be a string or a whole number'),
        ('{"id": true, "question": "Where?", "golden_answers": ["x"]}', '"id" must be a string or a whole number'),
        ('{"id": "a", "question": "W", "golden_answers": ["x"], "metadata": 3}', '"metadata" must be an object'),
        ('{"id": "a", "question": "Wher', "not JSON .*write one JSON object a line"),
        ("[1, 2]", "not a JSON object but a list: write one object a line"),
        ("[" * 100_000, "not JSON|nested too deeply"),
        (b'{"id": "caf\xe9"}', r"not UTF-8 \(byte 0xe9 at place 12\): convert"),
        (GOOD, r"the id 'q' is that of .*q\.jsonl:1, too"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes, reason: str) -> None:
    path = write(tmp_path, GOOD.encode() + b"\n\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(ValueError, match=rf"q\.jsonl:3: .*({reason})"):
        load(path)


def test_ids_that_differ_only_in_type_are_the_same(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r":2: the id '1' is that of .*q\.jsonl:1, too"):
        load(write(tmp_path, GOOD.replace('"q"', "1") + "\n" + GOOD.replace('"q"', '"1"')))


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"q\.jsonl: it is empty"):
        load(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        load(tmp_path / "nowhere.jsonl")


@pytest.mark.skipif(not DATA.exists(), reason="the real question sets (../shared/data) are not here")
def test_real_question_sets_are_read() -> None:
    sizes = {"hotpotqa/questions": 100, "musique/questions": 100, "wiki18/nq": 500, "wiki18/bamboogle": 125}
    assert {name: len(load(DATA / f"{name}.jsonl")) for name in sizes} == sizes
