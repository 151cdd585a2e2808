"""Rows of every format that questions are kept in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.questions.rows import parse, plain
from search_gym.sources import list_questions
from search_gym.tokenizers import embedded

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
INSTRUCTION = "Answer the given question. For example, <answer> Beijing </answer>. Question: "
WORDS = (
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n<[\0"), min_size=1)
    .map(str.strip)
    .filter(lambda text: text and "Question:" not in text and "Answer:" not in text)
)


def search_r1(question: str, golds: list[str], *, messages: bool, instruction: bool) -> dict[str, Any]:
    """A row as Search-R1 and verl write it."""
    prompt = (INSTRUCTION if instruction else "") + question
    return {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": prompt + "\n"}] if messages else prompt + "\n",
        "reward_model": {"style": "rule", "ground_truth": {"target": golds}},
        "extra_info": {"split": "test", "index": 12},
    }


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3, unique=True), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_one_row_is_one_question_however_it_was_read(
    tmp_path: Path, question: str, golds: list[str], instruction: bool
) -> None:  # D1
    read: list[Question] = []
    for messages in (True, False):
        row = search_r1(question, golds, messages=messages, instruction=instruction)
        path = tmp_path / "q.parquet"
        parquet.write_table(pa.Table.from_pylist([row]), path)
        frame = pd.read_parquet(path)
        assert isinstance(frame.iloc[0]["reward_model"]["ground_truth"]["target"], np.ndarray)
        read += [parse(row), parse(frame.iloc[0].to_dict()), parse(datasets.Dataset.from_parquet(str(path))[0])]
        read += list_questions(path)
    assert read == [Question("nq/test_12", question, tuple(golds), {"data_source": "nq"})] * len(read)
    assert json.loads(json.dumps(read[0].metadata)) == read[0].metadata
    assert Episode(read[0], embedded()).ids == Episode(read[-1], embedded()).ids


@pytest.mark.parametrize(
    ("row", "identifier", "text", "golds"),
    [
        ({"id": "train_0", "data_source": "nq", "question": "A?", "golden_answers": ["b"]}, "nq/train_0", "A?", ("b",)),
        (
            {"data_source": "x", "prompt": "A?", "reward_spec": {"ground_truth": {"target": "b"}},
             "extra_info": {"index": 3}},
            "x/row_3", "A?", ("b",),
        ),
        ({"_id": 5, "question": "A?", "answer": "b", "level": "hard"}, "5", "A?", ("b",)),
        ({"id": "1", "question": "A?", "answers": {"text": ["b", "b"], "answer_start": [3, 9]}}, "1", "A?", ("b",)),
        ({"id": "1", "question": "A?", "answer": {"value": "b", "aliases": ["B.", "b"]}}, "1", "A?", ("b", "B.")),
        ({"id": "1", "question": "A?", "prompt": "no", "reward_model": {"ground_truth": ["b", ""]}}, "1", "A?", ("b",)),
        (
            {"id": "1", "answer": "b", "prompt": [
                {"role": "system", "content": "Question: no?"}, {"role": "user", "content": f"{INSTRUCTION}A\nB?\n"},
                {"role": "assistant", "content": ""}]},
            "1", "A\nB?", ("b",),
        ),
        ({"id": "1", "answer": "b", "prompt": f"<|im_start|>user\n{INSTRUCTION}A?<|im_end|>\n<|im_start|>assistant\n"},
         "1", "A?", ("b",)),
        ({"id": "1", "answer": "b", "prompt": [{"role": "user", "content": [{"type": "text", "text": "A?"}]}]},
         "1", "A?", ("b",)),
        ({"id": "1", "answer": "b", "prompt": "Question: no?\nAnswer: x\n\nQuestion: A?\nAnswer:"}, "1", "A?", ("b",)),
    ],
)  # fmt: skip
def test_formats(row: dict[str, Any], identifier: str, text: str, golds: tuple[str, ...]) -> None:
    question = parse(row)
    assert (question.id, question.text, question.golds) == (identifier, text, golds)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "1", "question": "A?"}, '"golden_answers" must be a list of strings'),
        ({"id": "1", "question": "A?", "answer": [["b"]]}, '"answer" must be a list of strings, or a string'),
        ({"id": "1", "question": "A?", "reward_model": {"ground_truth": {"target": []}}}, "target. holds no answer"),
        ({"id": "1", "question": "A?", "reward_model": {"ground_truth": {"label": "b"}}}, "target. must be a list"),
        ({"id": "1", "answer": "b"}, '"question" must be a string, not missing'),
        ({"id": "1", "answer": "b", "question": 3}, '"question" must be a string, not 3'),
        ({"id": "1", "answer": "b", "prompt": [{"role": "system", "content": "A?"}]}, "no message of the user"),
        ({"id": "1", "answer": "b", "prompt": "<|im_start|>user\nA?"}, "only a chat's control tokens"),
        ({"question": "A?", "answer": "b"}, '"id" must be a string or a whole number, not missing'),
        ({"id": "1", "question": "A?", "answer": "b", "data_source": 3}, '"data_source" must be a string'),
    ],
)
def test_what_is_no_question_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(row)


@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(),
            st.floats(width=32).map(np.float32), st.integers(0, 9).map(np.int64),
            st.lists(st.integers(0, 9)).map(np.array), st.lists(st.text()).map(lambda x: np.array(x, object)),
        ),
        lambda parts: st.one_of(st.lists(parts), st.tuples(parts), st.dictionaries(st.text() | st.integers(), parts)),
    )
)  # fmt: skip
def test_anything_becomes_what_json_can_hold(value: Any) -> None:
    found = plain(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert plain(found) == found


@pytest.mark.skipif(not DATA.exists(), reason="the real question sets (../shared/data) are not here")
def test_a_real_parquet_file() -> None:
    questions = list_questions(DATA / "parquet" / "bamboogle.parquet")
    lines = list_questions(DATA / "wiki18" / "bamboogle.jsonl")
    assert [q.text for q in questions] == [q.text for q in lines]
    assert [[g.lower() for g in q.golds] for q in questions] == [[g.lower() for g in q.golds] for q in lines]
    assert questions[0].id == "chiayewken/bamboogle/test_0"
