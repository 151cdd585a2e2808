"""Comparisons over several models, for real but small, with a large policy that has learned next to nothing."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sweeping import Sweep, results, swept

from algos.training.loading import load_policy
from experiments import ablate, models, scale, warm_start
from experiments.config import PRESETS, AblateConfig, parse
from experiments.presets import COMPARISONS
from experiments.report import summarize
from search_gym.viewer import reading

BOTH = "embedded,embedded-large"
TINY = [
    "--steps", "1", "--batch-questions", "2", "--group-size", "2", "--minibatches", "2", "--held-out-size", "4",
    "--batch-episodes", "4",
]  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The large policy, made in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCH_GYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        assert warm_start.main(["--size=large", "--steps=1", "--batch-size=2", "--held-out-size=4"]) == 0
        yield models.embedded_folder("large")


@pytest.fixture(scope="module")
def both(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of the two."""
    out = tmp_path_factory.mktemp("scale") / "out"
    assert ablate.main([*TINY, "--model", BOTH, "--seeds", "2", "--out", str(out)]) == 0
    return out


def scaled(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "scale.json").read_text())["models"]


@pytest.mark.slow
def test_each_model_has_an_ordinary_comparison(both: Path, large: Path, tmp_path: Path) -> None:
    assert ablate.main([*TINY, "--model", "embedded-large", "--seeds", "2", "--out", str(tmp_path / "alone")]) == 0
    assert results(both / "embedded-large") == results(tmp_path / "alone")
    for folder in ("embedded", "embedded-large"):
        assert (both / folder / "report.html").exists()
        assert json.loads((both / folder / "config.json").read_text())["model"] == folder
        read = reading.read(both / folder)
        assert read.notes == []  # the viewer has a tokenizer
        assert all(dialogue.tokens for dialogue in read.dialogues)


@pytest.mark.slow
def test_the_models_stand_side_by_side(both: Path, large: Path) -> None:
    found = scaled(both)
    assert [(row["model"], row["folder"]) for row in found] == [(name, name) for name in BOTH.split(",")]
    for row in found:
        policy = load_policy(models.resolve(row["model"]))
        assert row["parameters"] == sum(p.numel() for p in policy.parameters())
        assert row["summary"] == json.loads((both / row["folder"] / "results.json").read_text())["summary"]
    assert (both / "scale.png").stat().st_size > 10_000


@pytest.mark.slow
def test_what_is_done_is_kept(both: Path, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = scaled(both)
    kept = both / "embedded" / "runs" / "sapo-seed1" / "result.json"
    written = kept.stat().st_mtime_ns
    (both / "embedded-large" / "runs" / "sapo-seed1" / "result.json").unlink()
    (both / "scale.json").unlink()
    assert ablate.main([*TINY, "--model", BOTH, "--seeds", "2", "--out", str(both)]) == 0
    assert scaled(both) == before
    assert kept.stat().st_mtime_ns == written
    printed = capsys.readouterr().out
    assert "4 of 4 runs were finished before" in printed
    assert "3 of 4 runs were finished before" in printed


@pytest.mark.slow
def test_killed_in_the_second_model_and_continued(large: Path, tmp_path: Path) -> None:
    """Against one that nobody disturbed."""
    few = ["--model", BOTH, "--steps", "3", "--save-every", "1", "--seeds", "1", "--algos", "sapo", "--live"]
    assert swept(tmp_path / "whole", *few)[0] == 0
    killed = Sweep(tmp_path / "killed", *few)
    killed.wait_for((tmp_path / "killed" / "embedded-large" / "runs" / "sapo-seed0" / "checkpoints").exists)
    assert killed.process.poll() is None
    killed.kill_group()
    assert not (tmp_path / "killed" / "scale.json").exists()
    code, output = swept(tmp_path / "killed", *few)
    assert code == 0, output
    assert "1 of 1 runs were finished before" in output
    assert scaled(tmp_path / "killed") == scaled(tmp_path / "whole")
    for name in BOTH.split(","):
        assert results(tmp_path / "killed" / name) == results(tmp_path / "whole" / name)


OWN = '''
from algos import GRPO


class Failing(GRPO):
    """Fails in its first step."""

    def advantages(self, batch):
        raise ArithmeticError("it fails")
'''


@pytest.mark.slow
def test_a_run_that_fails_keeps_no_other_model_from_its_end(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = [*TINY, "--model", BOTH, "--seeds", "1", "--out", "out", "--algos", "grpo,failing_own:Failing"]
    assert ablate.main(options) == 1
    assert capsys.readouterr().err.count("failing_own:Failing seed 0: ArithmeticError: it fails") == 2
    assert [scale.labels_of([row]) for row in scaled(tmp_path / "out")] == [["grpo"], ["grpo"]]


def test_the_preset_compares_three_sizes() -> None:
    config = parse(["--preset", "scale"])
    assert config.out == Path("runs/ablate-scale")
    assert [(one.model, one.out) for one in config.by_model()] == [
        (name, config.out / name) for name in models.EMBEDDED_SIZES
    ]
    assert {(one.task, one.trainer, one.algos) for one in config.by_model()} == {
        (PRESETS["embedded"].task, PRESETS["embedded"].trainer, COMPARISONS["scale"].algos)
    }
    alone = parse(["--preset", "scale", "--model", "embedded"])
    assert (alone.by_model(), alone.out) == ([alone], Path("runs/ablate-scale-embedded"))
    assert parse(["--model", BOTH]).out == Path("runs/ablate-embedded+embedded-large")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "embedded,embeded-large"], "no model is called 'embeded-large': did you mean embedded-large?"),
        (["--model", "embedded,,smollm2"], "--model 'embedded,,smollm2': a name is missing"),
        (["--model", "embedded, embedded"], "--model: embedded and embedded would share a folder, embedded"),
        (
            ["--model", "embedded,smollm2"],
            "--model names models that need different settings (embedded: embedded, smollm2: smollm2): compare them "
            "one by one",
        ),
        (
            ["--preset", "scales"],
            "no preset is called 'scales'; there are: quick, paper-table2, tau, stress, zoo, scale",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ablate.main([*options, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"ablate: error: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_policy_that_must_be_made_first_is_said_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEARCH_GYM_CACHE", str(tmp_path / "cache"))
    assert ablate.main([*TINY, "--model", BOTH, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ablate: error: --model embedded-large is not in {tmp_path / 'cache' / 'embedded-large'}:")
    assert "python experiments/warm_start.py --size large" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def made(algorithm: str, seed: int, em: float, collapsed: int | None = None) -> dict[str, Any]:
    start, end = (
        {decoding: {"questions": 64, "em": score, "f1": score} for decoding in ("sampled", "greedy")}
        for score in (0.25, em)
    )
    return {
        "algorithm": algorithm, "seed": seed, "steps": 2, "start": start, "end": end, "collapsed": collapsed,
    }  # fmt: skip


FOUND = [
    {
        "model": name,
        "parameters": parameters,
        "folder": name,
        "summary": summarize([made("grpo", 0, 0.5), made("grpo", 1, 0.75, 3), *more]),
    }
    for name, parameters, more in (("tiny", 308_928, [made("sapo", 0, 0.875)]), ("big", 3_085_938_688, []))
]


def test_the_table_has_a_row_for_each_algorithm_and_model() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(scale.table(FOUND))
    rows = [line.split() for line in console.export_text().splitlines()]
    half = f"{12.706 * 0.125:.3f}"  # t(0.975, 1) s / sqrt(2)
    assert ["grpo", "tiny", "0.31", "M", "0.250", "0.625", "±", half, "1", "of", "2"] in rows
    assert ["big", "3.09", "B", "0.250", "0.625", "±", half, "1", "of", "2"] in rows
    assert ["sapo", "tiny", "0.31", "M", "0.250", "0.875", "±", "–", "0", "of", "1"] in rows


def test_the_picture_has_a_line_for_each_algorithm() -> None:
    drawn = scale.draw(FOUND)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["start", "grpo", "sapo"]
    greedy = drawn.axes[0]
    assert greedy.get_title(loc="left") == "Greedy exact match"
    start, *ends = [line for line in greedy.lines if line.get_linestyle() != "None"]  # without caps of intervals
    assert np.asarray(start.get_xdata()).tolist() == [308_928, 3_085_938_688]
    assert np.asarray(start.get_ydata()).tolist() == [0.25, 0.25]
    assert [np.asarray(line.get_ydata()).tolist() for line in ends] == [[0.625, 0.625], [0.875]]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (308_928, "0.31 M"),
        (945_536, "0.95 M"),
        (3_005_184, "3.01 M"),
        (134_515_008, "135 M"),
        (7_615_616_512, "7.62 B"),
    ],
)
def test_numbers_of_parameters(parameters: int, said: str) -> None:
    assert scale.words(parameters) == said


def test_several_models_in_settings() -> None:
    config = AblateConfig(model="runs/a/policy , org/other", out=Path("out"))
    assert [(one.model, one.out) for one in config.by_model()] == [
        ("runs/a/policy", Path("out/policy")),
        ("org/other", Path("out/other")),
    ]
    with pytest.raises(ValueError, match="runs/a/policy and runs/b/policy would share a folder, policy"):
        AblateConfig(model="runs/a/policy,runs/b/policy")
