"""The command line: output, exit codes, errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from search_gym.cli import COMMANDS, main

ROWS = (
    '{"id": "a", "response": "<answer>Paris</answer>", "golden_answers": ["Paris"]}\n'
    '{"response": "<answer>Paris, France</answer>", "golden_answers": ["Paris"]}\n'
    '{"id": "c", "response": "none \\ud800", "golden_answers": ["Paris"]}\n'
)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROWS)
    return path


def test_score_prints_the_means(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(rows)]) == 0
    assert capsys.readouterr() == ("rows 3\nEM   0.3333\nF1   0.5556\n", "")


def test_score_writes_a_row_each(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["score", str(rows), "--out", str(out)]) == 0
    first, second, third = (json.loads(line) for line in out.read_text().splitlines())
    assert first == {"id": "a", "prediction": "Paris", "em": 1.0, "f1": 1.0}
    assert second == {"prediction": "Paris, France", "em": 0.0, "f1": pytest.approx(2 / 3)}
    assert third == {"id": "c", "prediction": None, "em": 0.0, "f1": 0.0}


def test_score_gives_a_reward_as_well(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["score", str(rows), "--reward", "cover + 0.5*format", "--out", str(out)]) == 0
    assert capsys.readouterr() == ("rows 3\nEM   0.3333\nF1   0.5556\ncover + 0.5*format 1.0000\n", "")
    assert [json.loads(line)["reward"] for line in out.read_text().splitlines()] == [1.5, 1.5, 0.0]


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (ROWS + "{", [], "rows.jsonl:4: not JSON"),
        ("", [], "rows.jsonl: the file is empty"),
        (None, [], "rows.jsonl: No such file or directory"),
        (ROWS, ["--out", "{folder}/rows.jsonl"], "is the file that is read: choose another name"),
        (ROWS, ["--reward", "em+bleu"], "cannot read reward 'em+bleu' at character 4: there is no reward 'bleu'"),
        (ROWS, ["--out", "{folder}/no/out.jsonl"], "out.jsonl: No such file or directory"),
    ],
)
def test_a_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, options: list[str], reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["score", str(path), *(option.format(folder=tmp_path) for option in options)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("search-gym: error: ")
    assert reason in error
    assert error.count("\n") == 1
    assert (path.read_text() if path.exists() else None) == content


@pytest.mark.parametrize("words", [[], ["dance"], ["score"], ["score", "a", "b"]])
def test_faulty_words_are_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: search-gym" in capsys.readouterr().err


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from search_gym.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"assert not sys.modules.keys() & {{'search_gym.' + name for name in {[*COMMANDS]}}}, 'imported'\n"
        "assert not sys.modules.keys() & {'torch', 'tokenizers', 'bm25s'}, 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"search-gym {command}" in capsys.readouterr().out


def test_a_command_whose_packages_are_missing_names_the_extra() -> None:
    """In an interpreter that cannot import torch: the environment's own commands do without it."""
    code = "import sys; sys.modules['torch'] = None; from search_gym.cli import main; main(['algos'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "search-gym: error: algos needs torch: pip install 'search-gym[train]'\n"
