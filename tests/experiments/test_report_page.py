"""report.html: what it says is what results.json holds, nothing in it runs or is fetched, and Chromium opens it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, open_chromium

from experiments import report
from experiments.config import run_folder
from experiments.report.__main__ import main

LABELS = ["grpo", "sapo:gamma=0.2", "<script>alert(1)</script>"]
SCRIPT = "<script>alert"


def scores(em: float) -> dict[str, Any]:
    return {name: {"em": em, "f1": em, "questions": 40, "searches": 1.5} for name in report.DECODINGS}


def comparison(folder: Path, seeds: int = 3, steps: int = 8) -> Path:
    """A finished comparison in which the first run of the second algorithm collapsed."""
    runs = []
    for row, label in enumerate(LABELS):
        for seed in range(seeds):
            of_run = folder / "runs" / run_folder(label, seed)
            of_run.mkdir(parents=True)
            lines = [
                {"step": step, "reward": 0.1 * step / (row + 1), "ratio": 1 - 0.01 * seed, "entropy": 0.5,
                 "clip_fraction": 0.1, "drifted": 0.25, "lambda_action": -0.1, "policy_tokens": 30.0}
                for step in range(1, steps + 1)
            ]  # fmt: skip
            (of_run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            runs.append(
                {"algorithm": label, "seed": seed, "start": scores(0.25), "end": scores(0.5 + 0.1 * row + 0.01 * seed),
                 "steps": steps, "options": {}, "collapsed": 6 if (row, seed) == (1, 0) else None, "seconds": 60.0}
            )  # fmt: skip
    (folder / "results.json").write_text(json.dumps({"summary": report.summarize(runs), "runs": runs}))
    (folder / "config.json").write_text(json.dumps({"algos": ",".join(LABELS), "trainer": {"learning_rate": 0.123}}))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.0", "versions": {"torch": SCRIPT}}))
    return folder


def test_it_says_what_the_results_hold(tmp_path: Path) -> None:
    text = report.write(comparison(tmp_path)).read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "results.json").read_text())["summary"]
    for entry in summary["algorithms"]:
        assert f"{entry['greedy']['em']['end']['mean']:.3f}" in text
    pair = summary["paired"][0]["greedy"]["em"]
    assert f"{pair['mean']:+.3f}" in text
    assert "seed 0 at step 6" in text
    assert "0.123" in text


def test_nothing_in_it_runs_or_is_fetched(tmp_path: Path) -> None:
    text = report.write(comparison(tmp_path)).read_text(encoding="utf-8")
    assert SCRIPT not in text
    assert "<script" not in text
    links = re.findall(r"(?:href|src)=[\"']([^\"']+)", text)
    assert links
    assert not [link for link in links if "//" in link]


def test_a_folder_without_results_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"report: error: {tmp_path}: no results.json here: name the folder of a comparison that ablate.py finished\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chromium_opens_it_from_disk(tmp_path: Path, width: int, scheme: Any) -> None:
    out = report.write(comparison(tmp_path))
    with open_chromium() as browser:
        visit = Visit(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme), out)
        assert visit.page.locator("svg").count() >= 4
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.complaints == []
    assert visit.requests == [out.resolve().as_uri()]
