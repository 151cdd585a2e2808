"""The examples of the documentation run as they stand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import algos
from algos import Batch, registry
from algos.listing import filled_in
from experiments import train

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")  # a block that begins so is a file, which the other blocks of its page import
RUNNABLE = [
    "retrieval.md",
    "retrieval-dense.md",
    "use-it-from-your-project.md",
    "write-your-own-algorithm.md",
]


def examples() -> Iterator:
    for page in (ROOT / "docs" / name for name in RUNNABLE):
        text = page.read_text(encoding="utf-8")
        for number, match in enumerate(BLOCK.finditer(text)):
            line = text[: match.start()].count("\n") + 2
            yield pytest.param(page, match.group(1), line, id=f"{page.stem}-{number}")


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    return tmp_path


@pytest.mark.parametrize(("page", "code", "line"), list(examples()))
def test_an_example_runs(page: Path, code: str, line: int, in_a_folder_of_its_own: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if named := FILE.match(block):
            (in_a_folder_of_its_own / named.group(1)).write_text(block)
            sys.modules.pop(named.group(1).removesuffix(".py"), None)
    exec(compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True), {"__name__": "example"})


def test_the_algorithm_of_the_page_keeps_the_laws(in_a_folder_of_its_own: Path) -> None:
    """The page says that it can be held to them, so it must pass: masks, parts, and the direction of a step."""
    block = next(BLOCK.finditer((ROOT / "docs" / "write-your-own-algorithm.md").read_text(encoding="utf-8"))).group(1)
    (in_a_folder_of_its_own / "my_algorithms.py").write_text(block)
    sys.modules.pop("my_algorithms", None)
    algorithm = algos.make("my_algorithms:TOPR", taper=0.5)
    mask = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0]], dtype=torch.bool)
    old = torch.full((2, 4), -1.0, dtype=torch.float64).where(mask, torch.nan)
    rewards, groups = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    batch = algorithm.advantages(Batch(mask=mask, old_logprobs=old, rewards=rewards, groups=groups))
    logprobs = (old + 0.5).requires_grad_()
    (gradient,) = torch.autograd.grad(algorithm.loss(batch, logprobs).loss, logprobs)
    size = 0.5 / 0.5**0.5 / 2  # |A| over two responses
    expected = [[0, -size / 2, 0, -size / 2], [0.5 * size / 3] * 3 + [0]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)
    parts = sum(algorithm.loss(batch.part([row]), logprobs[[row]]).loss for row in range(2))
    torch.testing.assert_close(parts, algorithm.loss(batch, logprobs).loss)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


ALGORITHM_PAGES = sorted((ROOT / "docs" / "algorithms").glob("[a-z]*.md"))


@pytest.mark.parametrize("page", ALGORITHM_PAGES, ids=lambda page: page.stem)
def test_the_options_of_a_page_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "| Option | Default | Meaning |" in text
    assert filled_in(text, page.stem) == text, "run `search-gym algos --update-docs docs/algorithms`"


def test_every_algorithm_has_a_page() -> None:
    index = (ROOT / "docs" / "algorithms" / "README.md").read_text(encoding="utf-8")
    for name in registry._factories:
        assert f"`{name}`" in index, name


TINY = ["--steps", "1", "--batch-questions", "2", "--group-size", "2", "--minibatches", "2", "--held-out-size", "1",
        "--device", "cpu"]  # fmt: skip


@pytest.mark.slow
def test_the_page_on_training_explains_every_metric_and_no_other(tmp_path: Path) -> None:
    runs = {
        "critic": ["--algo", "ppo:kl_coef=0.1"],
        "penalty": ["--algo", "sapo:dual_clip=3", "--penalty-every", "1", "--search-cache", str(tmp_path / "s.sqlite")],
    }
    logged: set[str] = set()
    for name, options in runs.items():
        assert train.main([*TINY, "--out", str(tmp_path / name), *options]) == 0
        for key, value in json.loads((tmp_path / name / "metrics.jsonl").read_text()).items():
            logged |= {f"{key}.{part}" for part in value} if isinstance(value, dict) else {key}
    text = (ROOT / "docs" / "train.md").read_text(encoding="utf-8").partition("## Metrics")[2]
    explained = re.findall(r"^\| `([a-z0-9_.]+)` \|", text, re.MULTILINE)
    assert sorted(explained) == sorted(logged)
