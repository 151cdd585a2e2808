"""Where results come from: the versions, machine and commit that they depend on, and files that are whole."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("search-gym", "torch", "transformers", "tokenizers", "numpy", "gymnasium", "bm25s", "vllm")


def write_json(path: Path, content: Any) -> None:
    """Write a file that is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)


def environment() -> dict[str, Any]:
    """What the results depend on besides the settings: versions, the machine, the commit."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
        state = {"commit": commit, "uncommitted_changes": bool(changes.strip())}
    except (OSError, subprocess.CalledProcessError):
        state = {"commit": None, "uncommitted_changes": None}
    return state | {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "versions": {package: found for package in _PACKAGES if (found := _version(package))},
    }


def _version(package: str) -> str | None:
    """None where it is not installed: vllm as a rule, and search-gym where it runs from its folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
