"""What `search-gym algos` prints is what the files say."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import algos
from algos import listing, registry
from algos.presets import PRESETS
from search_gym.cli import main


@pytest.mark.parametrize("name", algos.available())
def test_every_algorithm_says_what_it_is_and_every_option_what_it_means(name: str) -> None:
    assert listing.summary(name)
    assert "arXiv" in listing.paper(name)
    options = listing.options(name)
    assert {option.name for option in options} == set(vars(algos.make(name)))
    assert all(option.text for option in options), [option.name for option in options if not option.text]


RANGE = re.compile(r" In ([\[(])([\d.]+), (inf|[\d.]+)([\])])\.$")


@pytest.mark.parametrize("name", algos.available())
def test_the_ranges_of_numbers_are_said_and_kept(name: str) -> None:
    """At each end: what is inside is taken, what is outside refused."""
    for option in listing.options(name):
        if not isinstance(option.default, float):
            continue
        found = RANGE.search(option.text)
        assert found, f"{option.name} does not say its range: {option.text}"
        opening, low, high, closing = found.groups()
        at_ends = {float(low): opening == "[", float(high): closing == "]"}
        outside = {math.nextafter(float(low), -math.inf): False, math.nextafter(float(high), math.inf): high == "inf"}
        for value, taken in (outside | at_ends).items():
            given: dict[str, Any] = {option.name: value}
            if taken:
                algos.make(name, **given)
            else:
                with pytest.raises(ValueError, match=option.name):
                    algos.make(name, **given)


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{printed}" for name in algos.available())
    assert '"Improving Search Agent with One Line of Code", arXiv 2603.10069' in printed
    assert " gamma=0.1, tau=1.0, variant=paper\n" in printed
    assert "\n  aggregation=seq-mean-token-mean, norm_tokens=1024.0, kl_coef=0.0, " in printed


def test_one_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", "sapo"]) == 0
    printed = capsys.readouterr().out
    assert "gamma 1[r < tau and A > 0] log r" in printed
    assert "  gamma = 0.1\n      Weight of the conditional KL to the old policy; 0 is GRPO. In [0, inf).\n" in printed
    assert "Preset 'released': aggregation = 'token-mean', " in printed


def test_an_option_of_a_parent_that_a_child_describes_anew() -> None:
    assert {option.name: option.text for option in listing.options("dapo")}["aggregation"].endswith(
        '"token-mean" (the paper), "seq-mean-token-mean" or "seq-mean-token-sum-norm".'
    )


def test_unknown_names_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", "gpro"]) == 2
    assert capsys.readouterr().err.startswith("search-gym: error: unknown algorithm 'gpro'; there are: ")


def test_algorithms_of_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Mine(algos.GRPO):
        """Mine: a test."""

        scale: float = 2.0

    monkeypatch.setattr(registry, "_factories", {"mine": Mine, "a_function": lambda scale, *, top=3: Mine()})
    assert main(["algos", "mine"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Mine: a test.\n")
    assert "  scale = 2.0\n" in printed
    assert main(["algos"]) == 0
    assert [(option.name, option.value) for option in listing.options("a_function")] == [("scale", ""), ("top", "3")]


def test_tables_of_pages_are_brought_up_to_date(tmp_path: Path) -> None:
    page, other = tmp_path / "sapo.md", tmp_path / "notes.md"
    for path in (page, other):
        path.write_text("# SAPO\n\n<!-- options -->\nold\n<!-- /options -->\n\nThe end.\n")
    assert main(["algos", "--update-docs", str(tmp_path)]) == 0
    text = page.read_text()
    assert "| `gamma` | `0.1` | Weight of the conditional KL to the old policy; 0 is GRPO. In [0, inf). |" in text
    assert text.startswith("# SAPO\n\n<!-- options -->\n| Option | Default | Meaning |\n")
    assert text.endswith("<!-- /options -->\n\nThe end.\n")
    assert listing.filled_in(text, "sapo") == text
    assert "old" in other.read_text()


def test_presets_are_of_algorithms_and_options_that_there_are() -> None:
    for name, presets in PRESETS.items():
        known = {option.name for option in listing.options(name)}
        assert all(set(values) <= known for values in presets.values()), name
