"""Scores of the parts of the held-out questions: benchmarks, and numbers of hops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from comparisons_made import Page, make_comparison
from hypothesis import given
from hypothesis import strategies as st

from algos.training.evaluation import Evaluation
from experiments import ablate, report
from experiments.groups import by_group, group_of
from experiments.running import split_questions
from experiments.task import Task
from search_gym import sources
from search_gym.questions import Question
from search_gym.trajectory import Trajectory, read_jsonl

SMALL = ["--steps", "1", "--batch-questions", "2", "--group-size", "2", "--minibatches", "1", "--seeds", "1"]


def question(number: int, **metadata: Any) -> Question:
    return Question(f"{number}", "Who?", ("Ada",), metadata)


@pytest.mark.parametrize(
    ("metadata", "group"),
    [
        ({"data_source": "nq"}, "nq"),
        ({"data_source": "musique", "hops": 2}, "musique"),
        ({"hops": 1}, "1 hop"),
        ({"hops": 3}, "3 hops"),
        ({"hops": "two"}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_the_group_of_a_question(metadata: Mapping[str, Any], group: str) -> None:
    assert group_of(question(0, **metadata)) == group


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Real answers to six questions of the embedded world."""
    out = tmp_path_factory.mktemp("answers")
    assert ablate.main([*SMALL, "--algos", "grpo", "--held-out-size", "6", "--out", str(out)]) == 0
    return list(read_jsonl(out / "start" / "greedy.jsonl"))


@pytest.mark.slow
@given(st.lists(st.sampled_from(["nq", "popqa", "musique"]), min_size=6, max_size=6))
def test_groups_make_up_the_whole(answers: list[Trajectory], names: list[str]) -> None:
    groups = by_group([question(i, data_source=name) for i, name in enumerate(names)], answers)
    assert list(groups) == list(dict.fromkeys(names))
    whole = asdict(Evaluation.of(answers))
    assert sum(part.questions for part in groups.values()) == whole.pop("questions")
    for measure, mean in whole.items():
        total = sum(asdict(part)[measure] * part.questions for part in groups.values())
        assert total / len(answers) == pytest.approx(mean)


@pytest.mark.slow
def test_where_one_question_is_of_no_group_there_are_none(answers: list[Trajectory]) -> None:
    questions = [question(i, **({"data_source": "nq"} if i else {})) for i in range(6)]
    assert by_group(questions, answers) == {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two benchmarks in FlashRAG's form, of questions that the embedded world answers, and its passages."""
    folder = tmp_path_factory.mktemp("data")
    asked = sources.list_questions("embedded:test")
    for name, split, part in (("nq", "test", asked[:5]), ("musique", "dev", asked[5:12])):
        rows = [{"id": f"{i}", "question": q.text, "golden_answers": q.golds} for i, q in enumerate(part)]
        (folder / name).mkdir()
        (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = [
        {"id": f"{i}", "contents": f"{p.title}\n{p.text}"} for i, p in enumerate(sources.embedded_world().corpus)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    return folder


def test_benchmarks_are_held_out_at_most_so_many_of_each(data: Path) -> None:
    task = Task(corpus="embedded", benchmarks="nq,musique", data=str(data), held_out_size=6)
    train, held_out = split_questions(task)
    assert [group_of(q) for q in held_out] == ["nq"] * 5 + ["musique"] * 6
    assert held_out == split_questions(task)[1]
    assert [q.id for q in held_out[:5]] == [f"nq/{i}" for i in range(5)]
    assert train == list(sources.list_questions("embedded"))


@pytest.mark.slow
def test_a_comparison_scores_each_benchmark(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--algos", "grpo,sapo", "--benchmarks", "nq,musique", "--data", str(data)]
    corpus = ["--corpus", str(data / "corpus.jsonl"), "--questions", "embedded"]
    assert ablate.main([*SMALL, *options, *corpus, "--out", str(tmp_path)]) == 0
    assert "Scores on 12 held-out questions (nq,musique; 1 step)" in " ".join(capsys.readouterr().out.split())
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    for run in runs:
        for score in (run["start"]["greedy"], run["end"]["sampled"]):
            groups = score["groups"]
            assert {name: part["questions"] for name, part in groups.items()} == {"nq": 5, "musique": 7}
            assert 5 * groups["nq"]["em"] + 7 * groups["musique"]["em"] == pytest.approx(12 * score["em"])
    tables = Page((tmp_path / "report.html").read_text(encoding="utf-8")).tables
    [rows] = [rows for caption, rows in tables.items() if caption.startswith("Exact match, greedy, by group")]
    assert rows[0] == ["Group", "Questions", "Start", "grpo", "sapo"]
    assert [row[:2] for row in rows[1:]] == [["nq", "5"], ["musique", "7"], ["all", "12"]]
    assert rows[3][2] == f"{runs[0]['start']['greedy']['em']:.3f}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--benchmarks", "nq"], "--benchmarks and --data go together"),
        (["--data", "hf:"], "--benchmarks and --data go together"),
        (["--benchmarks", "np", "--data", "hf:"], "there is no benchmark 'np'; there are: nq, triviaqa"),
        (["--benchmarks", "nq", "--data", "hf:", "--held-out", "x.jsonl"], "--held-out and --benchmarks exclude each"),
        (["--benchmarks", "nq", "--data", "hf:"], "cannot be answered from the embedded world"),
        (["--benchmarks", "nq", "--data", "nowhere", "--corpus", "embedded"], "no questions of NQ: there is no"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_amiss_is_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate.main([*options, "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ablate: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "x").exists()


def with_groups(results: dict[str, Any], names: tuple[str, ...]) -> None:
    """Give each evaluation of a made comparison groups of 16, 32, … questions, all with the score of the whole."""
    for run in results["runs"]:
        for score in (*run["start"].values(), *run["end"].values()):
            parts = {name: score | {"questions": 16 * k} for k, name in enumerate(names, 1)}
            score["groups"] = {name: {k: v for k, v in part.items() if k != "groups"} for name, part in parts.items()}


@pytest.mark.parametrize("names", [(), ("nq",), ("nq", "<b>pop</b>qa", "1 hop")], ids=len)
def test_the_report_has_a_table_of_two_groups_or_more(tmp_path: Path, names: tuple[str, ...]) -> None:
    results = make_comparison(tmp_path)
    if names:
        with_groups(results, names)
        (tmp_path / "results.json").write_text(json.dumps(results))
    page = Page(report.write(report.Comparison.read(tmp_path), tmp_path).read_text(encoding="utf-8"))
    tables = {caption: rows for caption, rows in page.tables.items() if "by group" in caption}
    assert len(tables) == (2 if len(names) > 1 else 0)  # greedy, and sampled
    for rows in tables.values():
        assert [row[0] for row in rows] == ["Group", *names, "all"]
        assert rows[1][2:] == rows[-1][2:]
    assert ("b", {}) not in page.tags


def test_runs_that_know_other_groups_have_no_table(tmp_path: Path) -> None:
    results = make_comparison(tmp_path)
    with_groups(results, ("nq", "popqa"))
    del results["runs"][-1]["end"]["greedy"]["groups"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    page = Page(report.write(report.Comparison.read(tmp_path), tmp_path).read_text(encoding="utf-8"))
    assert [caption.split(",")[1] for caption in page.tables if "by group" in caption] == [" sampled"]
