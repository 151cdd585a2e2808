"""`search-gym view`: dialogues in a browser."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path

from search_gym.viewer import page, reading

DESCRIPTION = """RUN_OR_FILE is a run folder of train.py, ablate.py or evaluate.py; a file of trajectories; or recorded
dialogues, JSONL with prompt and response. The page needs no network and can be sent to others."""


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
        "--limit", type=int, default=5000, help="show at most so many, evenly over all; 0: all (default: 5000)"
    )


def run(args: argparse.Namespace) -> int:
    """Make the page, and open it."""
    if args.limit < 0:
        raise ValueError(f"--limit must be at least 0, not {args.limit}")
    found = reading.read(args.source, tokenizer=args.tokenizer, limit=args.limit)
    out = args.out or _beside(args.source)
    title = args.source.resolve().name
    page.write(out, page.render(found.dialogues, title=title, notes=found.notes, total=found.total))
    for note in found.notes:
        print(f"search-gym: note: {note}", file=sys.stderr)
    print(f"{len(found.dialogues)} dialogues: {out}")
    if not args.no_open and not webbrowser.open(out.resolve().as_uri()):
        print("search-gym: note: no browser was found: open the page yourself", file=sys.stderr)
    return 0


def _beside(source: Path) -> Path:
    if source.is_dir():
        return source / "view.html"
    return source.with_name(source.name.removesuffix(".gz").removesuffix(".jsonl") + ".html")
