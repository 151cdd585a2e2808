"""Lists, mixtures, datasets and streams of questions."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import SMALL

from search_gym.questions import Question, QuestionList
from search_gym.questions.mixture import Mixture
from search_gym.sources import QuestionSpec, list_questions, open_questions


def some(count: int, prefix: str = "") -> list[Question]:
    return [Question(f"{prefix}{i}", f"What is {prefix}{i}?", (str(i),)) for i in range(count)]


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {i}?", "golden_answers": [str(i)]} for i in range(count)]


def ids(source: Any, seed: int | None, count: int | None = None) -> list[str]:
    rng = None if seed is None else np.random.default_rng(seed)
    return [question.id for question in islice(open_questions(source).one_pass(rng), count)]


@given(st.integers(1, 50), st.integers(0, 10))
def test_a_pass_asks_every_question_once(count: int, seed: int) -> None:
    questions = some(count)
    assert ids(questions, None) == [question.id for question in questions]
    shuffled = ids(questions, seed)
    assert Counter(shuffled) == Counter(question.id for question in questions)
    np.random.seed(seed + 1)  # noqa: NPY002  (the global state is what must not matter)
    assert ids(questions, seed) == shuffled
    assert all(open_questions(questions).find(question.id) is question for question in questions)


@given(st.integers(1, 30), st.data())
def test_a_sample_is_a_part_in_the_same_order(count: int, data: st.DataObject) -> None:
    size, seed = data.draw(st.integers(1, count)), data.draw(st.integers(0, 5))
    taken = ids({"source": some(count), "sample": size, "seed": seed}, None)
    assert len(set(taken)) == size
    assert taken == sorted(taken, key=int)
    assert taken == ids(QuestionSpec(some(count), sample=size, seed=seed), None)


def test_samples_of_two_seeds_differ() -> None:
    assert ids({"source": some(50), "sample": 9}, None) != ids({"source": some(50), "sample": 9, "seed": 1}, None)


def test_a_mixture_draws_by_weight_and_names_its_sets() -> None:
    source = {"a": {"source": some(300), "weight": 3}, "b": some(100)}
    drawn = ids(source, 0)
    assert len(drawn) == 400
    share = Counter(name.split("/")[0] for name in drawn)["a"] / 400
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 400) ** 0.5
    assert drawn == ids(source, 0) != ids(source, 1)
    assert Counter(Counter(name for name in drawn if name[0] == "a").values()).keys() <= {1, 2}
    assert ids(source, None) == [f"a/{i}" for i in range(300)] + [f"b/{i}" for i in range(100)]
    assert open_questions(source).find("b/7") == Question("b/7", "What is 7?", ("7",), {"data_source": "b"})
    own = [Question("0", "What is 0?", ("0",), {"data_source": "its own"})]
    assert open_questions({"a": own}).find("a/0").metadata == {"data_source": "its own"}
    assert [question.id for question in list_questions(source)] == ids(source, None)
    with pytest.raises(ValueError, match="no question has the id 'c/7': ids begin with a, b"):
        open_questions(source).find("c/7")
    with pytest.raises(ValueError, match="no question has the id '300'"):
        open_questions(source).find("a/300")


def test_an_environment_asks_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text("".join(json.dumps({"id": f"test_{i}", **row}) + "\n" for i, row in enumerate(rows(20))))
    source = {"nq": {"source": str(path), "weight": 0.5}, "embedded": "embedded:dev"}
    assert json.loads(json.dumps(source)) == source
    env = gymnasium.make("SearchQA-v0", questions=source, **SMALL)
    assert env.reset(options={"question": "nq/test_12"})[1]["question_id"] == "nq/test_12"
    asked = [env.reset(seed=3)[1]["question_id"]] + [env.reset()[1]["question_id"] for _ in range(20)]
    assert {name.split("/")[0] for name in asked} == {"nq", "embedded"}
    assert asked == [env.reset(seed=3)[1]["question_id"]] + [env.reset()[1]["question_id"] for _ in range(20)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A dataset with two splits, as `save_to_disk` writes it."""
    saved = datasets.DatasetDict()
    saved["train"], saved["dev"] = datasets.Dataset.from_list(rows(30)), datasets.Dataset.from_list(rows(5))
    saved.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset as people put files into a folder."""
    (tmp_path / "files").mkdir()
    for split, count in (("train", 30), ("test", 5)):
        datasets.Dataset.from_list(rows(count)).to_parquet(tmp_path / "files" / f"{split}.parquet")
    return tmp_path / "files"


def test_a_dataset_by_path(saved: Path, folder: Path) -> None:
    assert ids(saved, None) == ids(f"hf:{saved}", None) == ids(folder, None) == [f"train_{i}" for i in range(30)]
    assert ids(f"hf:{saved}:dev", None) == ids({"source": str(saved), "split": "dev"}, None)
    assert ids({"source": folder, "split": "test"}, None) == [f"test_{i}" for i in range(5)]
    with pytest.raises(ValueError, match="has no split 'x'; there are: train, dev"):
        open_questions(f"hf:{saved}:x")
    with pytest.raises(ValueError, match="names one split, and split='train' another"):
        open_questions({"source": f"hf:{saved}:dev", "split": "train"})


def test_a_streamed_dataset(folder: Path) -> None:
    source = {"source": str(folder), "streaming": True}
    assert ids(source, None) == [f"train_{i}" for i in range(30)]
    assert sorted(ids(source, 1)) == sorted(ids(source, None))
    assert ids(source, 1) == ids(source, 1) != ids(source, 2)
    with pytest.raises(ValueError, match="is streamed: no question can be chosen"):
        open_questions(source).find("train_1")
    with pytest.raises(ValueError, match="no known end"):
        list_questions(source)
    with pytest.raises(ValueError, match="sample can only be taken of a list"):
        open_questions({**source, "sample": 3})
    mixed = {"a": source, "b": some(3)}
    assert len(ids(mixed, 0, 200)) == 200  # without end
    env = gymnasium.make("SearchQA-v0", questions=source, **SMALL)
    asked = [env.reset(seed=0)[1]["question_id"]] + [env.reset()[1]["question_id"] for _ in range(59)]
    assert Counter(asked) == dict.fromkeys((f"train_{i}" for i in range(30)), 2)


def test_a_stream_is_shuffled_within_its_buffer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search_gym.questions.stream.BUFFER", 4)
    source = {"source": str(folder), "streaming": True}
    shuffled = [int(name.removeprefix("train_")) for name in ids(source, 1)]
    assert sorted(shuffled) == list(range(30)) != shuffled
    assert all(number <= place + 4 for place, number in enumerate(shuffled))


def test_bad_rows_are_errors_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    good = [{"id": str(i), **row} for i, row in enumerate(rows(3))]
    bad = [{"id": "x", "question": "Where?", "golden_answers": []}, {"id": "1", "question": "B?", "answer": "b"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*good, *bad]))
    with pytest.raises(ValueError, match=r"q\.jsonl:4: .*holds no answer"):
        open_questions(path)
    with pytest.warns(UserWarning, match=r"2 of 5 rows were left out, the first for this reason: .*q\.jsonl:4: "):
        assert ids({"source": str(path), "skip_bad": True}, None) == ["0", "1", "2"]
    path.write_text("".join(json.dumps(row) + "\n" for row in bad[:1]))
    with pytest.raises(ValueError, match=r"no row of it is a question, the first for this reason: .*:1: "):
        open_questions({"source": path, "skip_bad": True})
    path.write_text("".join(json.dumps(row) + "\n" for row in good))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ids({"source": path, "skip_bad": True}, None) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "at least one question"),
        (some(2) + some(1), "two questions have the id '0'"),
        (3, "questions are a name, a path, .* not 3"),
        (["a.jsonl"], "questions are a name, a path"),
        ({}, "at least one question set"),
        ({"a/b": some(1)}, "cannot be named 'a/b'"),
        ({"a": {"source": some(1), "weight": 0}}, "the weight of 'a' must be a positive number, not 0"),
        ({"a": {"source": some(1), "weight": float("nan")}}, "positive number, not nan"),
        ({"source": some(1), "wieght": 2}, "unknown key wieght in a description of questions; there are: source"),
        ({"source": some(1), "sample": 2}, "cannot take a sample of 2 from 1 questions"),
        ({"source": some(1), "split": "dev"}, "has no split"),
        ("embedded:validation", "unknown split 'validation'"),
        ("hf:", "a dataset has a name"),
    ],
)
def test_bad_descriptions_are_refused(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_questions(source)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_questions(tmp_path / "nowhere.parquet")
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(ValueError, match=r"broken\.parquet: not a parquet file"):
        open_questions(tmp_path / "broken.parquet")
    with pytest.raises(ValueError, match="two questions have the id"):
        QuestionList([some(1)[0]] * 2)
    with pytest.raises(ValueError, match="weight"):
        Mixture({"a": (open_questions(some(1)), float("inf"))})
