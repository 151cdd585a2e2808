"""`search-gym algos`: the algorithms, their papers and their options, read from the files that define them."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from algos.objective import Objective
from algos.presets import PRESETS
from algos.registry import available, factory

_WIDTH = 100
_TABLE = re.compile(r"(<!-- options -->\n).*?(<!-- /options -->)", re.DOTALL)


class Option(NamedTuple):
    """One option of an algorithm."""

    name: str
    default: object
    """`inspect.Parameter.empty` if it has none."""
    text: str
    """What it means; "" where nothing is written below the field."""

    @property
    def value(self) -> str:
        """The default as a reader would write it."""
        return "" if self.default is inspect.Parameter.empty else repr(self.default)

    @property
    def brief(self) -> str:
        """The option with its default, as on a command line."""
        value = self.default if isinstance(self.default, str) else self.value
        return f"{self.name}={value}" if self.value else self.name


def options(name: str) -> list[Option]:
    """The options of an algorithm: the parameters of its factory, with what its classes say of them."""
    maker = factory(name)
    texts: dict[str, str] = {}
    for base in reversed(inspect.getmro(maker) if inspect.isclass(maker) else ()):
        texts |= _field_texts(base)
    parameters = inspect.signature(maker).parameters.values()
    return [Option(each.name, each.default, texts.get(each.name, "")) for each in parameters]


def summary(name: str) -> str:
    """The first line that the algorithm's module or class has to say."""
    return _description(name).strip().partition("\n")[0]


def paper(name: str) -> str:
    """Its paper, as its description has it after "Paper:"; "" if it names none."""
    found = re.search(r"Papers?: (.*?arXiv\s+\d{4}\.\d{4,5})", _description(name), re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def options_table(name: str) -> str:
    """The options as a Markdown table."""
    rows = [f"| `{each.name}` | `{each.value}` | {each.text.replace('|', chr(92) + '|')} |" for each in options(name)]
    return "\n".join(["| Option | Default | Meaning |", "| --- | --- | --- |", *rows]) + "\n"


def filled_in(page: str, name: str) -> str:
    """A page of the documentation with the table of options between its two marks brought up to date."""
    return _TABLE.sub(lambda marks: marks.group(1) + options_table(name) + marks.group(2), page)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `search-gym algos`."""
    parser.add_argument("name", nargs="?", help="show one algorithm in full; default: list all")
    parser.add_argument(
        "--update-docs",
        type=Path,
        metavar="FOLDER",
        help="bring the tables of options in NAME.md of a folder up to date",
    )


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    if args.update_docs is not None:
        for path in sorted(args.update_docs.glob("*.md")):
            if path.stem in available():
                path.write_text(filled_in(path.read_text(encoding="utf-8"), path.stem), encoding="utf-8")
    elif args.name is None:
        sys.stdout.write("".join(_list()))
    else:
        sys.stdout.write("".join(_full(args.name)))
    return 0


def _list() -> Iterator[str]:
    column = max(map(len, available())) + 2

    def block(text: str, indent: int = column) -> str:
        margin = " " * indent
        # An option and its default stay on one line.
        return (
            textwrap.fill(text, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False) + "\n"
        )

    shared = [Option(each.name, each.default, "").brief for each in fields(Objective)]
    for name in available():
        yield f"{name:<{column}}{summary(name)}\n"
        if source := paper(name):
            yield block(source)
        if own := [option.brief for option in options(name) if option.brief not in shared]:
            yield block(", ".join(own))
    yield "\nOptions of all, unless they are named above with another default:\n" + block(", ".join(shared), 2)
    yield "\n`search-gym algos NAME` shows one in full: equation, options, presets.\n"


def _full(name: str) -> Iterator[str]:
    yield f"{_description(name).strip()}\n\nOptions\n"
    for each in options(name):
        yield f"  {each.name} = {each.value}\n" if each.value else f"  {each.name}\n"
        if each.text:
            yield textwrap.fill(each.text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6) + "\n"
    for preset, values in PRESETS.get(name, {}).items():
        yield f"\nPreset {preset!r}: {', '.join(f'{option} = {value!r}' for option, value in values.items())}\n"


def _description(name: str) -> str:
    """The docstring of the module that defines an algorithm of this zoo; of others, their own."""
    maker = factory(name)
    module = inspect.getmodule(maker)
    own = module is not None and module.__name__.startswith("algos.") and inspect.isclass(maker)
    return inspect.getdoc(module if own else maker) or "(it says nothing of itself)"


def _field_texts(base: type) -> dict[str, str]:
    """{field: the text below it} of the fields that a class itself defines."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
    except (OSError, TypeError):  # a class without a source file
        return {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    texts: dict[str, str] = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value) if isinstance(below.value, ast.Constant) else ""
            texts[field.target.id] = " ".join(str(text).split())
    return texts
