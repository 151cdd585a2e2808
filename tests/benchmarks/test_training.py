"""What the benchmarks of training compare is one step, and their figures are put together as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import growth, training_ours, training_rows
from benchmarks.training import OURS, difference, table
from benchmarks.training_rows import Row
from benchmarks.training_worker import COMPARED, Request, find, measure, step
from search_gym import tokenizers

RESPONSE = "the film <information>Doc 1 a city</information> was made <information>\n</information>"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return growth.rows(3, 64)


def test_what_stands_in_information_is_not_the_policys() -> None:
    tokenizer = tokenizers.load("embedded")
    row = training_rows.encode(tokenizer, "who made the film ?", RESPONSE, -1.0)
    assert len(row.mask) == len(row.response)
    sampled = [i for i, mask in zip(row.response, row.mask, strict=True) if mask]
    given = [i for i, mask in zip(row.response, row.mask, strict=True) if not mask]
    assert tokenizer.decode(sampled).split() == ["the", "film", "was", "made"]
    assert tokenizer.decode(given).count("</information>") == 2


def test_rows_come_back_from_their_file_and_too_few_are_refused(rows: list[Row], tmp_path: Path) -> None:
    training_rows.save(rows, tmp_path / "rows.json")
    assert training_rows.load(tmp_path / "rows.json") == rows
    (tmp_path / "one.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(ValueError, match="holds 1 dialogues, not 2"):
        training_rows.read(tmp_path / "one.jsonl", 2, tokenizers.load("embedded"))


def test_the_whole_logits_give_the_same_gradients_whatever_the_micro_batches(rows: list[Row]) -> None:
    found = []
    for way, micro_rows in ((OURS, 1), (OURS, 3), ("whole logits", 2)):
        model = growth.llama(64)
        step(find(way), model, rows, micro_rows, bfloat16=False)
        found.append({name: p.grad for name, p in model.named_parameters()})
    for others in found[1:]:
        torch.testing.assert_close(others, found[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("head_only", [False, True], ids=["step", "head"])
def test_a_worker_measures_and_keeps_gradients(rows: list[Row], tmp_path: Path, head_only: bool) -> None:
    growth.llama(64).save_pretrained(tmp_path / "model")
    training_rows.save(rows, tmp_path / "rows.json")
    kept = tmp_path / "kept.pt"
    request = Request(OURS, str(tmp_path / "model"), str(tmp_path / "rows.json"), 2, head_only=head_only)
    measured = measure(Request(**{**vars(request), "gradients": str(kept)}))
    assert measured["norm"] > 0
    assert measured["cpu_seconds"] > 0
    assert abs(measured["loss"]) < 1  # every ratio is 1: the mean of advantages
    assert len(torch.load(kept)) == (1 if head_only else len(COMPARED))


def test_gradients_are_apart_by_the_greatest_difference(tmp_path: Path) -> None:
    torch.save({"a": torch.tensor([2.0, 4.0]), "b": torch.tensor([1.0])}, tmp_path / "one")
    torch.save({"a": torch.tensor([2.0, 3.0]), "b": torch.tensor([0.9])}, tmp_path / "other")
    assert difference(tmp_path / "one", tmp_path / "other") == pytest.approx(0.25)
    torch.save({"a": torch.tensor([2.0])}, tmp_path / "less")
    with pytest.raises(ValueError, match="cannot be compared"):
        difference(tmp_path / "one", tmp_path / "less")


def test_ratios_are_medians_of_those_within_a_round() -> None:
    def rounds(*seconds: float) -> list[dict[str, float]]:
        return [{"cpu_seconds": s, "held_mib": 10 * s, "peak_mib": 2000.0, "apart": 1e-5} for s in seconds]

    lines = list(table({OURS: rounds(1, 2, 9), "TRL": rounds(2, 8, 10)}))
    assert lines[2] == "| ours | 2.0 | 20 | 2,000 | | | |"
    assert lines[3] == "| TRL | 8.0 | 80 | 2,000 | 0.50 | 0.50 | 1e-05 |"


def test_the_advantages_of_the_rows_are_those_of_the_batch(rows: list[Row]) -> None:
    batch = training_ours.collate(rows)
    advantages = batch.require("advantages", "collate sets them")
    assert [set(a[m].tolist()) for a, m in zip(advantages, batch.mask, strict=True)] == [{1.0}, {-1.0}, {1.0}]


def test_exponents_are_slopes_and_the_plot_is_drawn(tmp_path: Path) -> None:
    sizes = [256, 512, 1024]
    assert growth.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    points = [growth.Point(axis, size, size * 9, size / 100) for axis in ("length", "group", "model") for size in sizes]
    lines = growth.table(points)
    assert lines[2] == "| length | 256, 512, 1,024 | 2.56, 5.12, 10.24 | 1.00 | 1.00 |"
    assert lines[4].startswith("| model | 2,304, 4,608, 9,216 |")
    growth.draw(points, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
