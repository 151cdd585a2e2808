"""Folders of results: each belongs to the settings that it was begun with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from experiments.provenance import write_json


def claim(out: Path, settings: Mapping[str, Any], *, free: Collection[str], holds: str) -> None:
    """Make a folder and write the settings into its config.json, or see that they are those that it was begun with.

    Args:
        out: the folder.
        settings: of JSON's types, and what `str` makes words of.
        free: settings that may differ, by their full name: "task.search_cache" for one in a group.
        holds: what the folder holds, for the message.

    Raises:
        ValueError: naming each setting that differs.
    """
    path = out / "config.json"
    now = as_saved(settings)
    if path.exists():
        old, new = flat(json.loads(path.read_text(encoding="utf-8"))), flat(now)
        names = sorted((old | new).keys() - set(free))
        changed = [f"{name}: {old.get(name)} -> {new.get(name)}" for name in names if old.get(name) != new.get(name)]
        if changed:
            raise ValueError(
                f"{out} holds {holds} with other settings ({'; '.join(changed)}): name another folder with --out, or "
                "delete that one"
            )
    write_json(path, now)


def as_saved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as config.json gives them back: tuples as lists, paths as words."""
    return json.loads(json.dumps(settings, default=str))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by their full name: {"task": {"top_k": 3}} as {"task.top_k": 3}."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
