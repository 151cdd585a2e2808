"""Summaries against laws and hand-worked values, tables as rendered, the figure against the data it draws."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from rich.console import Console

from experiments import report
from experiments.report.curves import Steps, read_metrics

SCORES = st.floats(0, 1)
SAMPLES = st.lists(SCORES, min_size=2, max_size=6)


def result(algorithm: str, seed: int, end: float, start: float = 0.4) -> dict[str, Any]:
    """A run whose four scores differ from each other in a known way."""

    def scores(em: float) -> dict[str, dict[str, float]]:
        def one(shift: float) -> dict[str, float]:
            return {"em": em + shift, "f1": em + shift + 0.05, "questions": 512, "searches": 1.9}

        return {"sampled": one(0.0), "greedy": one(0.1)}

    return {"algorithm": algorithm, "seed": seed, "start": scores(start), "end": scores(end), "collapsed": None}


def results(**ends: Sequence[float]) -> list[dict[str, Any]]:
    return [result(label, seed, end) for label, values in ends.items() for seed, end in enumerate(values)]


# ---- summary ----


def test_summary_of_two_algorithms() -> None:
    summary = report.summarize(results(grpo=[0.6, 0.7, 0.8], sapo=[0.7, 0.9, 0.8]))
    assert (summary["questions"], summary["confidence"]) == (512, 0.95)
    assert [entry["algorithm"] for entry in summary["algorithms"]] == ["grpo", "sapo"]
    grpo = summary["algorithms"][0]
    assert grpo["seeds"] == [0, 1, 2]
    for decoding, measure, start in [("sampled", "em", 0.4), ("sampled", "f1", 0.45), ("greedy", "f1", 0.55)]:
        score = grpo[decoding][measure]
        assert score["start"] == pytest.approx(start)
        assert score["end"]["mean"] == pytest.approx(start + 0.3)
        assert score["gain"]["mean"] == pytest.approx(0.3)
        assert score["gain"]["half_width"] == pytest.approx(0.248414, abs=1e-6)
    [pair] = summary["paired"]
    assert (pair["baseline"], pair["algorithm"], pair["seeds"]) == ("grpo", "sapo", [0, 1, 2])
    # Differences 0.1, 0.2, 0.0: mean 0.1, s = 0.1.
    assert pair["greedy"]["em"]["mean"] == pytest.approx(0.1)
    assert pair["greedy"]["em"]["half_width"] == pytest.approx(0.248414, abs=1e-6)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_summary_of_what_outliers_do_not_move() -> None:
    rows = results(grpo=[0.1, 0.6, 0.7, 0.8, 0.8], sapo=[0.7, 0.9, 0.8])
    rows[0]["collapsed"], rows[2]["collapsed"] = 12, 15
    summary = report.summarize(rows)
    assert [entry["collapsed"] for entry in summary["algorithms"]] == [[0, 2], []]
    assert summary["algorithms"][0]["sampled"]["em"]["iqm"]["mean"] == pytest.approx(0.7)
    [pair] = summary["paired"]
    assert pair["sampled"]["em"]["better"]["runs"] == [3, 5]
    # 0.7 beats 2 and draws with 1, 0.9 beats 5, 0.8 beats 3 and draws with 2.
    assert pair["sampled"]["em"]["better"]["probability"] == pytest.approx(12 / 15 - 0.5 / 15)
    text = render(rows)
    assert "(reward under half its best, to the end): grpo 2 of 5." in " ".join(text.split())
    assert "0.77" in text
    assert "to the end): none." in " ".join(render(results(grpo=[0.5])).split())


@given(SAMPLES, st.floats(-1, 1))
def test_shifting_all_ends_shifts_mean_and_interval_equally(ends: list[float], shift: float) -> None:
    def entry(values: list[float]) -> dict[str, Any]:
        return report.summarize(results(grpo=values))["algorithms"][0]["sampled"]["em"]

    before, after = entry(ends), entry([end + shift for end in ends])
    assert after["start"] == before["start"]
    for key in ("end", "gain"):
        for bound in ("mean", "low", "high"):
            assert after[key][bound] == pytest.approx(before[key][bound] + shift, abs=1e-9)


@given(SAMPLES)
def test_an_algorithm_does_not_differ_from_itself(ends: list[float]) -> None:
    [pair] = report.summarize(results(grpo=ends, again=ends))["paired"]
    for decoding in report.DECODINGS:
        for measure in report.MEASURES:
            assert (pair[decoding][measure]["mean"], pair[decoding][measure]["half_width"]) == (0, 0)


@given(st.data(), SAMPLES, SAMPLES)
def test_order_of_results_sets_only_the_order_of_algorithms(
    data: st.DataObject, a: list[float], b: list[float]
) -> None:
    rows = results(grpo=a, sapo=b)
    mixed = [rows[0], *data.draw(st.permutations(rows[1:]))]  # the baseline, by definition, comes first
    assert report.summarize(mixed) == report.summarize(rows)


def test_pairs_are_the_seeds_of_both() -> None:
    rows = results(grpo=[0.5, 0.6, 0.7]) + [result("sapo", seed, 0.9) for seed in (2, 1, 7)]
    rows += [result("gspo", 8, 0.9), result("dapo", 0, 0.9)]
    sapo, gspo, dapo = report.summarize(rows)["paired"]
    assert sapo["seeds"] == [1, 2]
    assert sapo["sampled"]["em"]["mean"] == pytest.approx(0.25)
    assert sapo["sampled"]["em"]["n"] == 2
    assert (gspo["seeds"], gspo["sampled"]["em"]["mean"]) == ([], None)
    assert dapo["sampled"]["em"]["mean"] == pytest.approx(0.4)
    assert dapo["sampled"]["em"]["half_width"] is None


def test_results_that_do_not_compare_are_refused() -> None:
    with pytest.raises(ValueError, match="no results"):
        report.summarize([])
    with pytest.raises(ValueError, match="two results of grpo, seed 0"):
        report.summarize([result("grpo", 0, 0.5), result("grpo", 0, 0.6)])
    other = result("sapo", 0, 0.5)
    other["end"]["greedy"]["questions"] = 64
    with pytest.raises(ValueError, match=r"\[64, 512\]"):
        report.summarize([result("grpo", 0, 0.5), other])


# ---- tables ----


def render(rows: list[dict[str, Any]], width: int = 80) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(report.table(report.summarize(rows), "embedded:test; 24 steps"))
    return text.getvalue()


def test_table_at_80_columns_breaks_no_number() -> None:
    text = render(
        results(grpo=[0.6, 0.7, 0.8], sapo=[0.5, 0.9, 0.2], **{"sapo[gamma=0.2,tau=1.0,variant=paper]": [0.5] * 3})
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "Scores on 512 held-out questions (embedded:test; 24 steps)" in text
    assert "95 % Student t interval" in text
    mean, change = r"\d\.\d{3} ± \d\.\d{3}", r"[+-]\d\.\d{3} ± \d\.\d{3}"
    assert len(re.findall(rf"(?m)\d\.\d{{3}} +{mean} +{change}\s*$", text)) == 12
    assert len(re.findall(rf"(?m){change} +\[[+-]\d\.\d{{3}}, [+-]\d\.\d{{3}}\]\s*$", text)) == 8
    assert re.search(r"grpo +3 +sampled +EM +0\.400 +0\.700 ± 0\.248 +\+0\.300 ± 0\.248", text)
    assert re.search(r"sapo +3 +sampled +EM +-0\.167 ± 1\.004 +\[-1\.171, \+0\.837\]", text)
    assert "[gam" in text  # a label is no markup


def test_table_of_single_seeds_shows_dashes() -> None:
    text = render(results(grpo=[0.7], sapo=[0.6]))
    assert re.search(r"grpo +1 +sampled +EM +0\.400 +0\.700 ± +– +\+0\.300 ± +–", text)
    assert re.search(r"sapo +1 +sampled +EM +-0\.100 ± +– +–", text)
    assert "± 0.000" not in text


def test_table_of_one_algorithm_has_no_differences() -> None:
    assert "Difference" not in render(results(grpo=[0.7, 0.8]))


def test_table_without_common_seeds_says_nothing_of_the_difference() -> None:
    assert re.search(r"sapo +0 +sampled +EM +– +–", render([result("grpo", 0, 0.7), result("sapo", 1, 0.7)]))


# ---- figure ----


def write(path: Path, **columns: Sequence[float | None]) -> Steps:
    rows = [
        {"step": step, **dict(zip(columns, values, strict=True))}
        for step, values in enumerate(zip(*columns.values(), strict=True), 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_metrics(path)


def metrics(path: Path, seed: int, steps: int = 6) -> tuple[Steps, dict[str, list[float]]]:
    rng = np.random.default_rng(seed)
    columns = {key: rng.uniform(0.2, 0.9, steps).tolist() for key, _, _ in report.PANELS}
    return write(path, **columns), columns


def drawn_line(figure: Figure, panel: int, row: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[panel].lines[row].get_ydata(), dtype=float)


def test_figure_has_four_named_panels_and_one_legend(tmp_path: Path) -> None:
    runs = {label: [metrics(tmp_path / f"{label}{k}", k)[0] for k in range(3)] for label in ("grpo", "sapo")}
    figure = report.draw(runs)
    titles = ["Mean importance ratio", "Clip fraction", "Entropy", "Reward"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "training step", "training step"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["grpo (3 seeds)", "sapo (3 seeds)"]
    looks = {(str(line.get_color()), line.get_linestyle()) for line in figure.axes[3].lines}
    assert len({colour for colour, _ in looks}) == len({style for _, style in looks}) == 2
    assert drawn_line(figure, 0, -1).tolist() == [1, 1]


def test_line_is_the_mean_and_band_goes_from_lowest_to_highest(tmp_path: Path) -> None:
    seeds, columns = zip(*(metrics(tmp_path / str(seed), seed) for seed in range(3)), strict=True)
    figure = report.draw({"grpo": seeds})
    for panel, (key, _, _) in enumerate(report.PANELS):
        values = np.array([column[key] for column in columns])
        assert drawn_line(figure, panel) == pytest.approx(values.mean(axis=0))
        assert np.asarray(figure.axes[panel].lines[0].get_xdata()).tolist() == [1, 2, 3, 4, 5, 6]
        [band] = [item for item in figure.axes[panel].collections if isinstance(item, PolyCollection)]
        corners = np.asarray(band.get_paths()[0].vertices)
        for step, low, high in zip(range(1, 7), values.min(axis=0), values.max(axis=0), strict=True):
            ys = corners[corners[:, 0] == step, 1]
            assert (ys.min(), ys.max()) == pytest.approx((low, high))


def test_single_seed_has_no_band(tmp_path: Path) -> None:
    figure = report.draw({"grpo": [metrics(tmp_path / "a", 0)[0]]})
    assert not [item for axes in figure.axes for item in axes.collections if isinstance(item, PolyCollection)]
    assert "seeds" not in figure.get_supxlabel()


def test_nulls_are_gaps_and_lone_points_are_seen(tmp_path: Path) -> None:
    a = write(tmp_path / "a", entropy=[1.0, None, 0.8, 0.7, 0.6], reward=[0.1] * 5)
    b = write(tmp_path / "b", entropy=[1.2, 1.1, 1.0, math.inf, 0.8], reward=[0.3] * 5)
    figure = report.draw({"grpo": [a, b]})
    assert drawn_line(figure, 2) == pytest.approx([1.1, math.nan, 0.9, math.nan, 0.7], nan_ok=True)
    [points] = [item for item in figure.axes[2].collections if isinstance(item, PathCollection)]
    assert np.asarray(points.get_offsets()) == pytest.approx(np.array([[1, 1.1], [3, 0.9], [5, 0.7]]))
    assert drawn_line(figure, 3) == pytest.approx([0.2] * 5)
    assert [text.get_text() for text in figure.axes[0].texts] == ["nothing logged"]
    assert not figure.axes[3].texts


def test_seeds_of_different_length_are_drawn_where_all_are(tmp_path: Path) -> None:
    seeds, columns = zip(*(metrics(tmp_path / str(steps), steps, steps) for steps in (6, 4)), strict=True)
    mean = np.mean([column["reward"][:4] for column in columns], axis=0)
    assert drawn_line(report.draw({"grpo": seeds}), 3) == pytest.approx(mean)


@pytest.mark.parametrize(("steps", "seeds"), [(0, 2), (1, 1), (30, 3)])
def test_figure_is_written(tmp_path: Path, steps: int, seeds: int) -> None:
    runs = {label: [metrics(tmp_path / f"{label}{k}", k, steps)[0] for k in range(seeds)] for label in "abcdefghi"}
    report.figure(runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '"step"', '{"reward": 1}', '{"step": "2"}', '{"step": 1}', '{"step": 2, "reward": "high"}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "reward": 0.5}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 2")):
        read_metrics(path)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no metrics to draw for any run"):
        report.draw({})
    with pytest.raises(ValueError, match=r"no metrics to draw for \['sapo'\]"):
        report.draw({"grpo": [metrics(tmp_path / "a", 0)[0]], "sapo": []})
