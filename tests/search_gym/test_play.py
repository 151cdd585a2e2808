"""`search-gym play`, typed into a real process."""

from __future__ import annotations

import subprocess
import sys

from search_gym import sources

QUESTION = next(q for q in sources.list_questions("embedded:test") if q.id == "test/2hop/0")
FIRST = QUESTION.metadata["path"][0]
PLAY = [sys.executable, "-m", "search_gym.cli", "play", "--question", "test/2hop/0"]


def play(typed: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PLAY, *options], input=typed, capture_output=True, text=True, check=False, timeout=60)


def test_a_person_searches_and_answers() -> None:
    done = play(f"{FIRST}\n\n= nobody\n")
    assert done.returncode == 0
    assert QUESTION.text in done.stdout
    assert f"1. {FIRST}\n" in done.stdout
    assert "[3 searches left]" in done.stdout
    assert "Not the accepted answer." in done.stdout
    assert "Reward: 0 " in done.stdout


def test_a_right_answer_is_rewarded() -> None:
    done = play(f"= {QUESTION.golds[0]}\n")
    assert "Right." in done.stdout
    assert "Reward: 1    exact match 1, F1 1.00" in done.stdout


def test_mistakes_and_budgets_are_told() -> None:
    done = play("a <search> b\none\ntwo\n= x\n", "--max-searches", "1")
    assert "That was not carried out: </search> closes nothing that can be read." in done.stdout
    assert "[0 searches left]" in done.stdout
    assert "No turn is left." in done.stdout


def test_leaving_early() -> None:
    for typed in ("q\n", ""):
        done = play(typed)
        assert done.returncode == 1
        assert done.stdout.endswith("You left before answering.\n")
