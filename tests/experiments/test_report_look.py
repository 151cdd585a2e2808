"""The report of a real comparison, small, in real headless Chromium: how it looks, and where it leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, contrast, contrast_of, luminance, open_chromium

from experiments import ablate

pytestmark = pytest.mark.slow
SMALL = [
    "--steps", "3", "--batch-questions", "2", "--group-size", "4", "--minibatches", "2", "--held-out-size", "6",
    "--penalty-every", "2",
]  # fmt: skip
LABELS = ["grpo", "sapo:gamma=0.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    assert ablate.main([*SMALL, "--algos", ",".join(LABELS), "--seeds", "2", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with open_chromium() as browser:
        yield browser


def visit(chromium: Any, folder: Path, width: int, scheme: str) -> Visit:
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    return Visit(context, folder / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_from_disk_on_any_screen(chromium: Any, folder: Path, width: int, scheme: str) -> None:
    seen = visit(chromium, folder, width, scheme)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    for place in ("h1", ".muted", ".findings li", "caption", "thead th", "td .interval", "a", "summary"):
        assert contrast(seen, place) >= 4.5, place
    ground = luminance(seen.page.evaluate(_FILL, ["section", "backgroundColor"]))
    for look in range(len(LABELS)):
        line = luminance(seen.page.evaluate(_FILL, [f".mean.k{look}", "stroke"]))
        assert contrast_of(line, ground) >= 3, look
    assert (ground > 0.5) == (scheme == "light")
    sizes = seen.page.eval_on_selector_all(".tick", "all => all.map(one => one.getBoundingClientRect().height)")
    assert min(sizes) >= 9  # in CSS pixels: figures of a chart are readable
    assert (seen.complaints, seen.requests) == ([], [])
    seen.page.close()


_FILL = """([selector, name]) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  canvas.fillStyle = getComputedStyle(document.querySelector(selector))[name];
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}"""


def test_what_is_folded_opens_and_charts_are_drawn(chromium: Any, folder: Path) -> None:
    seen = visit(chromium, folder, 1280, "light")
    charts = seen.page.locator("svg.chart")
    assert charts.count() >= 20
    assert charts.first.locator("path.mean").first.bounding_box()["width"] > 200
    for chart in charts.all():  # a value that one step alone has is a dot
        lengths = chart.locator("path.mean").evaluate_all("lines => lines.map(line => line.getTotalLength())")
        assert max(lengths) > 0 or chart.locator("circle.dot").count() > 0
    table = seen.page.locator("figure table").first
    assert not table.is_visible()
    seen.page.locator("figure summary").first.click()
    assert table.is_visible()
    assert "penalty" in seen.page.locator("#drift").locator("..").inner_text()
    tree = seen.page.locator("main").aria_snapshot()
    assert 'img "Reward"' in tree
    assert all('"' in line for line in tree.splitlines() if line.strip().startswith("- table"))
    assert (seen.complaints, seen.requests) == ([], [])
    seen.page.close()


def test_it_leads_to_the_dialogues_of_a_run(chromium: Any, folder: Path) -> None:
    seen = visit(chromium, folder, 1280, "light")
    row = seen.page.get_by_role("row").filter(has_text="lowest ratios").nth(3)
    row.get_by_role("link", name="lowest ratios").click()
    seen.page.wait_for_url("**/view.html#*")
    wanted = {"algorithm": "sapo:gamma=0.5", "seed": "1", "sort": "ratio", "colour": "ratio"}
    assert wanted.items() <= seen.hash().items()
    assert seen.count() == 3 * 8 + 2 * 6  # of three steps, and what it answered at the end
    assert seen.complaints == []
    seen.page.close()
