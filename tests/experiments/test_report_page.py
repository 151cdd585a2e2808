"""The page against the results that it is about: its numbers, sentences, links, and what it does with nasty text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from comparisons_made import Page, make_comparison, write_metrics

from experiments import report
from experiments.config import AblateConfig
from experiments.report import __main__ as command
from experiments.report import words
from search_gym.trajectory import Trajectory, write_jsonl

NASTY = "<script>document.title = 1</script><img src=x onerror=alert(1)>\"'&amp;{{ 7 * 7 }}{% raw %}</title></style>"
TAGS = {
    "html", "head", "meta", "link", "title", "style", "body", "header", "nav", "main", "section", "p", "h1", "h2", "h3",
    "a", "ul", "li", "span", "strong", "code", "abbr", "wbr", "details", "summary", "div", "figure", "figcaption",
    "table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "desc", "line", "path", "circle", "rect", "text",
}  # fmt: skip


def page_of(folder: Path) -> Page:
    return Page(report.write(report.Comparison.read(folder), folder).read_text(encoding="utf-8"))


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"[+-]?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("−", "-"))]


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_the_numbers_are_those_of_the_results(tmp_path: Path, seeds: int) -> None:
    labels = ("grpo", "sapo", "sapo:gamma=0.5")
    summary = make_comparison(tmp_path, labels, seeds, rng=seeds)["summary"]
    tables = page_of(tmp_path).tables
    pairs = [None, *summary["paired"]]
    for measure, name in (("em", "Exact match"), ("f1", "Token f1")):
        for decoding in report.DECODINGS:
            [table] = [
                rows for caption, rows in tables.items() if caption.startswith(f"{name}, {decoding}, of 64 held")
            ]
            for entry, pair, row in zip(summary["algorithms"], pairs, table[1:], strict=True):
                cells = dict(zip(table[0], row, strict=True))
                score = entry[decoding][measure]
                assert cells["Algorithm"] == entry["algorithm"]
                assert (int(cells["Runs"]), int(cells["Steps"])) == (seeds, 6)
                assert numbers(cells["Start"]) == pytest.approx([score["start"]], abs=6e-4)
                assert numbers(cells["End"]) == pytest.approx(bounds(score["end"], "mean"), abs=6e-4)
                assert numbers(cells["IQM"]) == pytest.approx(bounds(score["iqm"], "mean"), abs=6e-4)
                if pair is None:
                    assert cells["Minus grpo, by seed"] == cells["P(better)"] == "baseline"
                else:
                    found = pair[decoding][measure]
                    assert numbers(cells["Minus grpo, by seed"]) == pytest.approx(bounds(found, "mean"), abs=6e-4)
                    assert numbers(cells["P(better)"]) == pytest.approx(
                        bounds(found["better"], "probability"), abs=6e-3
                    )
            assert table[1][table[0].index("Collapsed")] == f"1 of {seeds} seed 0 at step 4"
            assert [row[table[0].index("Collapsed")] for row in table[2:]] == ["none"] * 2


def bounds(interval: dict[str, Any], middle: str) -> list[float]:
    return [interval[name] for name in (middle, "low", "high") if interval[name] is not None]


def test_the_runs_and_the_means_of_the_diagnostics(tmp_path: Path) -> None:
    results = make_comparison(tmp_path)
    page = page_of(tmp_path)
    rows = page.tables["Every run"]
    assert [(row[0], row[1]) for row in rows[1:]] == [(label, str(k)) for label in ("grpo", "sapo") for k in range(3)]
    for run, row in zip(results["runs"], rows[1:], strict=True):
        cells = dict(zip(rows[0], row, strict=True))
        assert numbers(cells["EM, sampled"] + " " + cells["EM, greedy"]) == pytest.approx(
            [run["end"]["sampled"]["em"], run["end"]["greedy"]["em"]], abs=6e-4
        )
        assert cells["Minutes"] == "1.5"
        assert cells["Collapsed"] == ("no" if run["collapsed"] is None else "step 4")
    [row] = [
        row for row in page.tables["Means over all steps and seeds that have a value"] if "drifted" in row[0].lower()
    ]
    for label, text in zip(("grpo", "sapo"), row[1:], strict=True):
        logs = [tmp_path / "runs" / f"{label}-seed{seed}" / "metrics.jsonl" for seed in range(3)]
        drifted = [json.loads(line)["drifted"] for log in logs for line in log.read_text().splitlines()]
        assert numbers(text) == pytest.approx([100 * np.mean(drifted)], rel=6e-3)


def test_the_values_beside_a_chart_are_those_of_the_metrics(tmp_path: Path) -> None:
    make_comparison(tmp_path, steps=40)
    table = page_of(tmp_path).tables["Entropy, nats per policy token: mean [lowest, highest seed]"]
    assert len(table) == 13
    assert (table[1][0], table[-1][0]) == ("1", "40")
    for row in table[1:]:
        for label, text in zip(("grpo", "sapo"), row[1:], strict=True):
            logs = [tmp_path / "runs" / f"{label}-seed{seed}" / "metrics.jsonl" for seed in range(3)]
            found = [json.loads(log.read_text().splitlines()[int(row[0]) - 1])["entropy"] for log in logs]
            assert numbers(text) == pytest.approx([np.mean(found), min(found), max(found)], rel=6e-3)


def test_what_algorithms_minimise_is_not_compared(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    assert "loss" not in page_of(tmp_path).text.lower()


def test_what_is_nasty_does_nothing(tmp_path: Path) -> None:
    label = f"their:Mine:tag={NASTY}"
    make_comparison(tmp_path, ["grpo", label], settings={"task": {"questions": NASTY, "held_out": NASTY}})
    (tmp_path / "environment.json").write_text(json.dumps({NASTY: NASTY}))
    page = page_of(tmp_path)
    assert {tag for tag, _ in page.tags} <= TAGS
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    titled = sum(tag == "rect" or found.get("class") == "chart" for tag, found in page.tags)
    assert sum(tag in ("title", "style") for tag, _ in page.tags) == titled + 2
    # Verbatim, in the heading, legend, sentences and tables; a parser gives back what was escaped.
    assert page.text.count(label) > 10
    assert page.tables["environment.json"] == [[NASTY, NASTY]]


def test_nothing_leads_out_of_the_folder(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["grpo", "sapo:gamma=0.5"])
    write_jsonl(tmp_path / "runs" / "grpo-seed0" / "trajectories.jsonl", [dialogue()])
    page = page_of(tmp_path)
    links, own = page.attributes("href"), set(page.attributes("id"))
    assert not page.attributes("src")
    assert len(page.attributes("id")) == len(own)
    for name in ("aria-labelledby", "aria-describedby"):
        assert set(page.attributes(name)) <= own
    for link in links:
        path, _, fragment = link.partition("#")
        if link != "data:,":
            assert (tmp_path / path).is_file() if path else fragment in own, link
    filters = [parse_qs(link.partition("#")[2]) for link in links if link.startswith("view.html#")]
    assert [(found["algorithm"], found["seed"]) for found in filters[::2]][-1] == (["sapo:gamma=0.5"], ["2"])
    [collapse] = [found for found in filters if "step-from" in found]
    assert (collapse["step-from"], collapse["step-to"], collapse["seed"]) == (["2"], ["6"], ["0"])


def dialogue() -> Trajectory:
    ids, mask, logprobs = (1, 2), (0, 1), (0.0, -0.1)
    return Trajectory("test/0", "Who?", ("A",), ids, mask, logprobs, prompt_length=1)


def test_without_dialogues_there_are_no_links_to_them(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    page = page_of(tmp_path)
    assert not [link for link in page.attributes("href") if link.startswith("view.html")]
    assert "There is no view.html here" in " ".join(page.text.split())
    assert "no trajectories here" in page.text


def test_every_table_and_chart_has_a_name(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    page = page_of(tmp_path)
    assert "" not in page.tables
    assert all(found.get("scope") in ("row", "col", "colgroup") for tag, found in page.tags if tag == "th")
    for tag, found in page.tags:
        if tag == "svg":
            assert found.get("aria-hidden") == "true" or (found["role"] == "img" and found["aria-describedby"])
    assert "nats per policy token, at step 1 and at step 6: grpo 0." in page.text


def test_a_reward_that_is_the_exact_match_is_drawn_once(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    for log in tmp_path.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("".join(json.dumps(row | {"em": row["reward"]}) + "\n" for row in rows))
    names = [caption.partition(",")[0] for caption in page_of(tmp_path).tables]
    assert "Token F1" in names
    assert "Exact match, mean per rollout: mean [lowest, highest seed]" not in page_of(tmp_path).tables


def test_settings_that_differ_stand_first(tmp_path: Path) -> None:
    trainer = {"steps": 6, "learning_rate": AblateConfig().trainer.learning_rate}
    make_comparison(tmp_path, settings={"trainer": trainer})
    tables = page_of(tmp_path).tables
    assert tables["Settings that differ from those of ablate.py without options"][1:] == [["trainer.steps", "6", "16"]]
    assert ["trainer.learning_rate", "0.0001"] in tables["config.json"]
    assert ["versions.torch", "2.13"] in tables["environment.json"]


def test_the_command_makes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(tmp_path)]) == 2
    assert f"{tmp_path}: no results.json here" in capsys.readouterr().err
    make_comparison(tmp_path)
    assert command.main([str(tmp_path)]) == 0
    written = tmp_path / "report.html"
    assert capsys.readouterr().out.strip() == str(written)
    before = written.read_text()
    assert command.main([str(tmp_path)]) == 0
    assert written.read_text() == before
    write_metrics(tmp_path / "runs" / "grpo-seed0" / "metrics.jsonl", 0, np.random.default_rng())
    (tmp_path / "runs" / "sapo-seed2" / "metrics.jsonl").write_text("?\n")
    assert command.main([str(tmp_path)]) == 2
    assert "sapo-seed2/metrics.jsonl, line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1"), (0.12345, "0.123"), (-2.5, "−2.5"), (123.456, "123"), (2.34e-8, "2.34e−8"),
        (1e6, "1e6"), (1000.0, "1000"), (0.0999951, "0.1"), (float("nan"), "–"), (None, "–"),
    ],
)  # fmt: skip
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_seeds_for_people() -> None:
    assert words.seeds([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert words.seeds([]) == "–"
