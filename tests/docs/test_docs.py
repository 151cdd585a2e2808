"""The examples of the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE = ROOT / "docs" / "use-it-from-your-project.md"
EXAMPLES = [
    pytest.param(match.group(1), PAGE.read_text()[: match.start()].count("\n") + 2, id=f"example{i}")
    for i, match in enumerate(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("code", "line"), EXAMPLES)
def test_an_example_runs(code: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
