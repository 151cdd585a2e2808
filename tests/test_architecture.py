"""Who may import whom, read from the source of every file; and that importing is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("search_gym", "algos", "experiments", "benchmarks", "tests")
FILES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(source: str, file: Path) -> Iterator[str]:
    """Every module that a file may load; `from a import b` counts as a.b, for b may be a module."""
    for node in ast.walk(ast.parse(source, str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = file.parts[: -node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def forbidden(file: Path) -> tuple[str, ...]:
    """The modules that this file may not import."""
    top = file.parts[0]
    rules = ["tests"]
    if top not in ("experiments", "benchmarks", "tests"):
        rules += ["experiments"]
    if top == "search_gym":
        rules += ["torch", "algos"]
    if file.parent == Path("algos"):
        rules += ["gymnasium", "search_gym", "transformers", "algos.training"]
    return tuple(rules)


def violations(source: str, file: Path) -> list[str]:
    return [name for name in imports(source, file) for rule in forbidden(file) if f"{name}.".startswith(f"{rule}.")]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_only_what_it_may(file: Path) -> None:
    assert violations((ROOT / file).read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize("file", [file for file in FILES if file.parent == Path("algos")], ids=str)
def test_objectives_need_torch_alone(file: Path) -> None:
    tops = {name.split(".")[0] for name in imports((ROOT / file).read_text(encoding="utf-8"), file)}
    assert tops - set(sys.stdlib_module_names) <= {"torch", "algos"}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("search_gym/env.py", "import torch.nn"),
        ("search_gym/retrieval/dense.py", "def f():\n    from algos import Batch"),
        ("algos/ppo.py", "from algos import training"),
        ("algos/ppo.py", "from . import training"),
        ("algos/ppo.py", "from .training.policy import CausalLMPolicy"),
        ("algos/ppo.py", "import numpy, search_gym"),
        ("algos/training/trainer.py", "from experiments.config import Config"),
        ("search_gym/env.py", "from ..experiments import config"),
        ("tests/algos/test_ppo.py", "from tests.algos import helpers"),
    ],
)
def test_the_rules_catch(file: str, source: str) -> None:
    assert violations(source, Path(file))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("algos/training/trainer.py", "import algos, torch, search_gym"),
        ("algos/ppo.py", "from algos.batch import Batch\nimport torch"),
        ("experiments/train.py", "from experiments.config import Config"),
        ("search_gym/env.py", "import torchless"),
    ],
)
def test_the_rules_allow(file: str, source: str) -> None:
    assert not violations(source, Path(file))


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def loaded(package: str) -> set[str]:
    return set(fresh(f"import {package}, sys; print(*sys.modules)").split())


def test_import_search_gym_loads_little_beside_gymnasium() -> None:
    assert not loaded("search_gym") & {"torch", "transformers", "algos"}
    more = {name.partition(".")[0] for name in loaded("search_gym") - loaded("gymnasium")}
    assert more - set(sys.stdlib_module_names) == {"search_gym"}


def test_import_algos_loads_no_environment() -> None:
    assert not loaded("algos") & {"gymnasium", "search_gym", "transformers", "algos.training"}
