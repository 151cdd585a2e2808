"""The page: a template, style sheet and scripts of this package around dialogues as data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_gym.viewer.dialogues import Dialogue

GENERATOR = "search-gym view"
"""What the head of every page names as its maker."""
_ASSETS = Path(__file__).parent / "assets"
# In this order, as one module: what a file uses at once, when it is read, stands before it.
SCRIPTS = (
    "data.js",
    "state.js",
    "filter.js",
    "scale.js",
    "controls.js",
    "list.js",
    "dialogue.js",
    "tokens.js",
    "panel.js",
    "keys.js",
    "main.js",
)


def render(dialogues: Sequence[Dialogue], *, title: str, notes: Sequence[str] = (), total: int | None = None) -> str:
    """The page, of ASCII alone.

    Args:
        dialogues: at least one.
        title: what the page is called.
        notes: what is said above the list.
        total: how many dialogues there are, where some were left out.

    Raises:
        ImportError: without jinja2.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError("the viewer needs jinja2: pip install 'search-gym[view]'") from error

    style = _read("page.css")
    script = "\n".join(map(_read, SCRIPTS))
    environment = Environment(loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined)
    data = {"total": len(dialogues) if total is None else total, "dialogues": [_row(d) for d in dialogues]}
    page = environment.get_template("page.html.jinja").render(
        generator=GENERATOR,
        title=title,
        notes=notes,
        style=Markup(style),
        style_hash=source_hash(style),
        script=Markup(script),
        script_hash=source_hash(script),
        data=Markup(inert_json(data)),
    )
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def inert_json(value: Mapping[str, Any]) -> str:
    """JSON that is nothing but data between script tags: no tag, comment or line end of HTML or JavaScript is in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(path: Path, page: str) -> None:
    """Write a page, over an older one if there is one.

    Raises:
        ValueError: if the file is there and no page of the viewer.
    """
    if path.exists() and GENERATOR.encode() not in path.read_bytes()[:1000]:
        raise ValueError(f"{path} is there and is no page of the viewer: name another file with --out")
    path.write_text(page, encoding="ascii", newline="\n")


def _row(dialogue: Dialogue) -> dict[str, Any]:
    """What the scripts read; spans as arrays, for there are many."""
    return asdict(dialogue) | {"spans": [[span.kind, span.begin, span.end, span.note] for span in dialogue.spans]}


def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="ascii")


def source_hash(text: str) -> str:
    """By which the page's content security policy knows its own style and script: any other is refused."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
