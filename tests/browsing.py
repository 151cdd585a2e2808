"""A real browser for the tests of pages."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A sandbox needs rights that root in a container has not; nothing here opens a page of others. And no calls home.
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Milliseconds until a page that does not come counts as one that never will: other tests may want the same cores.
PATIENCE = 150_000


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright. The test is skipped where one of them is missing."""
    try:
        api = importlib.import_module("playwright.sync_api")
    except ImportError:
        pytest.skip("playwright is not installed: pip install 'search-gym[dev]'")
    with api.sync_playwright() as playwright:
        bundled = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, NAMES)), bundled if Path(bundled).exists() else None)
        if found is None:
            pytest.skip("there is no Chromium: apt-get install chromium, or playwright install chromium")
        browser = playwright.chromium.launch(executable_path=found, args=SWITCHES)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page that is open, with what it did beside being looked at."""

    def __init__(self, context: Any, path: Path, fragment: str = "") -> None:
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, refused content."""
        self.requests: list[str] = []
        """What was asked for beside the page itself."""
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        address = path.resolve().as_uri()
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.page.goto(f"{address}{fragment}")
        self.requests = [url for url in self.requests if url.partition("#")[0] != address and url != "data:,"]

    def rows(self) -> list[str]:
        """The questions of the rows that are in the document."""
        return self.page.locator(".row .question").all_text_contents()

    def count(self) -> int:
        """How many dialogues are listed, as the page says it."""
        return int(self.page.locator("#count").inner_text().split()[0].replace(",", ""))

    def hash(self) -> dict[str, str]:
        """The state that the address keeps."""
        return self.page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")

    def body_text(self, kind: str, pane: int = 0) -> str:
        """The text of the blocks of a kind, as the document has it."""
        pane_of = self.page.locator(".pane").nth(pane)
        return "".join(pane_of.locator(f".block.{kind} .body").all_text_contents())


_COLOURS = """(selector) => {
  const behind = [];
  const element = document.querySelector(selector);
  for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const drawn = [];
  for (const colour of behind) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  drawn.push([...canvas.getImageData(0, 0, 1, 1).data]);
  canvas.fillStyle = getComputedStyle(element).color;
  canvas.fillRect(0, 0, 1, 1);
  drawn.push([...canvas.getImageData(0, 0, 1, 1).data]);
  return drawn;
}"""


def luminance(rgb: list[int]) -> float:
    """Relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in rgb[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def lightness(seen: Visit, selector: str) -> float:
    """How light what is behind an element is, from 0 to 1."""
    return luminance(seen.page.evaluate(_COLOURS, selector)[0])


def contrast(seen: Visit, selector: str) -> float:
    """The contrast of an element's text with what is behind it, by WCAG 2: 4.5 and more is readable."""
    behind, text = (luminance(rgb) for rgb in seen.page.evaluate(_COLOURS, selector))
    return contrast_of(behind, text)


def contrast_of(one: float, other: float) -> float:
    """The contrast of two luminances, by WCAG 2."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
