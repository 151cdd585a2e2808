"""The benchmark runs, and its figures are put together as they should be."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from benchmarks import ours, worker, workloads
from benchmarks.env_speed import OURS, Contestant, Rate, main, table
from benchmarks.workloads import Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    return workloads.embedded(4)


def test_every_turn_holds_an_action_and_the_scores_are_of_both_kinds() -> None:
    dialogues = workloads.embedded(40).dialogues
    assert {d.em for d in dialogues} == {0.0, 1.0}
    for dialogue in dialogues:
        *searches, answer = dialogue.turns
        assert searches
        assert all(turn.endswith("</search>") for turn in searches)
        assert answer.endswith("</answer>")


def test_a_workload_comes_back_from_its_file(workload: Workload, tmp_path: Path) -> None:
    workload.save(tmp_path / "w.json")
    assert Workload.load(tmp_path / "w.json") == workload


@pytest.mark.parametrize("form", ours.FORMS)
def test_every_form_plays_all_that_it_says(workload: Workload, form: str) -> None:
    play = ours.FORMS[form](workload, worker.Found(workload))
    first, second = play(), play()
    if "places" in form:  # they go on to the next dialogues, so a play ends when as many are over
        assert first["turns"] > 0
        assert second["tokens"] > 0
    else:
        assert first == second == {"turns": workload.turns, "tokens": workload.tokens}


def test_an_environment_that_scores_otherwise_is_found_out(workload: Workload) -> None:
    wrong = Workload(**{**vars(workload), "dialogues": [*workload.dialogues]})
    first = wrong.dialogues[0]
    wrong.dialogues[0] = workloads.Dialogue(**{**vars(first), "em": 1 - first.em})
    with pytest.raises(ValueError, match="worth"):
        ours.FORMS["a turn a step"](wrong, worker.Found(wrong))()


def test_a_worker_answers_request_by_request(workload: Workload) -> None:
    answers = io.StringIO()
    form = "a turn a step"
    requests = [{"form": form, "retrieval": retrieval, "seconds": 0} for retrieval in worker.RETRIEVALS]
    worker.serve(OURS, workload, io.StringIO("\n".join(map(json.dumps, requests))), answers)
    forms, *measured = map(json.loads, answers.getvalue().splitlines())
    assert forms == list(ours.FORMS)
    assert [(m["turns"], m["tokens"]) for m in measured] == [(workload.turns, workload.tokens)] * 2
    assert all(m["seconds"] > 0 for m in measured)


def test_ratios_are_to_the_faster_peer_of_each_kind() -> None:
    def rates(*turns: float) -> list[Rate]:
        return [Rate(value, 10 * value) for value in turns]

    lines = table(
        {
            Contestant(OURS, "a turn a step"): rates(10, 40, 30),
            Contestant("slow", "text"): rates(1, 1, 1),
            Contestant("fast", "text"): rates(20, 20, 20),
            Contestant("slow", "ids in and out"): rates(5, 10, 10),
        }
    )
    assert lines[0] == "| library | form | turns/s | tokens/s | × fast, text | × slow, ids in and out |"
    assert lines[2] == "| search-gym | a turn a step | 30 | 300 | 1.50 | 3.00 |"
    assert lines[4] == "| fast | text | 20 | 200 | 1.00 | 2.00 |"


def test_the_command_prints_a_table_and_says_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--size", "4", "--repeats", "1", "--seconds", "0", "--recorded", str(tmp_path / "none.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| search-gym | a turn a step |") == len(worker.RETRIEVALS)
    assert "give --peers-python" in printed
    assert "the recorded dialogues are left out, for there is no" in printed
