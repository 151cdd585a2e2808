"""`search-gym view`: the page that it writes and opens, and errors of one line."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playing import TOKENIZER
from recorded import NASTY, play, write_run

from search_gym.cli import main
from search_gym.viewer import page
from search_gym.viewer.dialogues import Origin, of_trajectory

TRAJECTORY = play(0).to_json()


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(TRAJECTORY) | fields)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "d.jsonl: No such file or directory"),
        ("", "d.jsonl: the file is empty"),
        (TRAJECTORY + "\n" + TRAJECTORY[:99], "d.jsonl:2: not JSON"),
        ('{"a": 1}', "d.jsonl:1: neither a trajectory (ids, turns) nor a recorded dialogue (prompt, response)"),
        ('{"response": 3}', 'd.jsonl:1: "response" must be a string'),
        ('{"response": "a", "prompt": 3}', 'd.jsonl:1: "prompt" must be a string'),
        ('{"response": "a", "em": "b"}', 'd.jsonl:1: "em" must be a number'),
        (changed(turns=[{"kind": "search"}]), "d.jsonl:1: not a trajectory"),
        (changed(extra={"tokens": {"ratio": [1]}}), 'd.jsonl:1: "extra.tokens.ratio" has 1 values for'),
        (changed(extra={"tokens": {"entropy": "x"}}), 'd.jsonl:1: "extra.tokens.entropy" must be a number'),
        (changed(extra={"tokens": [1]}), 'd.jsonl:1: extra "tokens" must be an object of lists'),
        (changed(prompt_length=3), "d.jsonl:1: turn 1: ids"),
    ],
    ids=["none", "empty", "half", "other", "response", "prompt", "em", "turns", "few", "word", "list", "overlap"],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    path = tmp_path / "d.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["view", str(path), "--no-open"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("search-gym: error: ")
    assert reason in error
    assert error.count("\n") == 1
    assert [*tmp_path.glob("*.html")] == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "no trajectories here: name a run folder"),
        (["--limit", "-1"], "--limit must be at least 0, not -1"),
    ],
    ids=["folder", "limit"],
)
def test_a_folder_without_trajectories_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    (tmp_path / "trajectories.jsonl").touch()
    assert main(["view", str(tmp_path), *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path, [play(0)])
    before = (run / "trajectories.jsonl").read_bytes()
    assert main(["view", str(run), "--no-open", "--out", str(run / "trajectories.jsonl")]) == 2
    assert "is no page of the viewer" in capsys.readouterr().err
    assert (run / "trajectories.jsonl").read_bytes() == before
    for _ in range(2):  # its own page it does overwrite
        assert main(["view", str(run), "--no-open"]) == 0
    assert (run / "view.html").exists()


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"response": "<answer>a</answer>"}\n'))
    assert main(["view", str(path), "--no-open"]) == 0
    assert (tmp_path / "d.html").exists()


def test_passages_are_nothing_but_data_in_the_page(tmp_path: Path) -> None:
    title = "<i>&\"</title>'"
    made = page.render([of_trajectory(play(seed, NASTY), TOKENIZER, Origin()) for seed in range(30)], title=title)
    assert made.isascii()
    assert "<i>" not in made
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', made, re.DOTALL)
    assert not set(data) & set("<>&\u2028\u2029")
    kept = [dialogue["text"] for dialogue in json.loads(data)["dialogues"]]
    assert kept == [play(seed, NASTY).text for seed in range(30)]
    assert sum(nasty in text for text in kept for nasty in NASTY) > len(NASTY)
    assert made.count("<script") == made.count("</script>") == 2


@pytest.mark.slow
def test_the_page_is_opened_in_a_browser(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a run", [play(0)])
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{tmp_path}/opened"\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "search_gym.cli", "view", str(run)]
    subprocess.run(command, env=os.environ | {"BROWSER": f"{browser} %s"}, check=True, capture_output=True)
    assert (tmp_path / "opened").read_text() == (run / "view.html").as_uri()
