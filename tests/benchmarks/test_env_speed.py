"""The benchmark runs as its documentation says. What it measures is no test: machines differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/env_speed.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_our_environments_are_measured_on_the_same_dialogues() -> None:
    result = run("--size", "4", "--repeats", "1")
    assert result.returncode == 0, result.stderr
    tables = result.stdout.strip().split("\n\n")
    assert [table.splitlines()[0].partition(":")[0] for table in tables] == ["embedded, BM25", "embedded, look-up"]
    for table in tables:
        names = [line[:24].strip() for line in table.splitlines()[2:]]
        assert names == ["SearchQA-v0", "SearchQATurns-v0", "SearchQATurns-v0 × 64"]
        assert all(float(line[24:34]) > 0 for line in table.splitlines()[2:])


def test_an_interpreter_without_the_peers_is_an_error() -> None:
    result = run("--size", "4", "--repeats", "1", "--peers-python", sys.executable)
    assert result.returncode != 0
    assert "No module named" in result.stderr
