"""`search-gym view`: dialogues in a browser."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from search_gym.viewer import page, reading

DESCRIPTION = """RUN_OR_FILE is a run folder of train.py, ablate.py or evaluate.py; a file of trajectories; or recorded
dialogues, JSONL with prompt and response. The page needs no network and can be sent to others."""


LIMIT = 5000
"""How many dialogues a page shows where nothing else is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `search-gym view`."""
    parser.epilog = DESCRIPTION
    parser.add_argument("source", metavar="RUN_OR_FILE", type=Path, help="a run folder, or a JSONL file")
    parser.add_argument(
        "--out", metavar="FILE.html", type=Path, help="the page (default: RUN/view.html, or FILE.html beside FILE)"
    )
    parser.add_argument("--no-open", action="store_true", help="make the page, and do not open it")
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="embedded, a folder or a hub id: what the ids are tokens of (default: that of the run)",
    )
    parser.add_argument(
        "--limit", type=int, default=LIMIT, help="show at most so many, evenly over all; 0: all (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Make the page, and open it."""
    if args.limit < 0:
        raise ValueError(f"--limit must be at least 0, not {args.limit}")
    out = args.out or _beside(args.source)
    found = make(args.source, out, tokenizer=args.tokenizer, limit=args.limit)
    for note in found.notes:
        print(f"search-gym: note: {note}", file=sys.stderr)
    print(f"{len(found.dialogues)} dialogues: {out}")
    if not args.no_open and not webbrowser.open(out.resolve().as_uri()):
        print("search-gym: note: no browser was found: open the page yourself", file=sys.stderr)
    return 0


def make(source: Path, out: Path, *, tokenizer: str | None = None, limit: int = LIMIT) -> reading.Reading:
    """Write the page of a run folder or a file to `out`, and return what it shows.

    Raises:
        ValueError: as `reading.read`.
    """
    found = reading.read(source, tokenizer=tokenizer, limit=limit)
    page.write(out, page.render(found.dialogues, title=source.resolve().name, notes=found.notes, total=found.total))
    return found


def _beside(source: Path) -> Path:
    if source.is_dir():
        return source / "view.html"
    return source.with_name(source.name.removesuffix(".gz").removesuffix(".jsonl") + ".html")
