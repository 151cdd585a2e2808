"""Reading JSONL: one JSON object a line, and errors that say where."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = dict[str, Any]


class Identified(Protocol):
    """A record that has an id."""

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Identified)


def read(path: str | PathLike[str], parse: Callable[[Row], T]) -> Iterator[tuple[int, T]]:
    r"""Read a file line by line.

    A line ends at "\n" and nowhere else: U+2028, U+0085 and the like are text. "\r\n", a byte order mark and blank
    lines are fine.

    Args:
        path: a UTF-8 file, compressed if it ends in ".gz".
        parse: makes a record of one row; its ValueError says what is wrong with the row.

    Yields:
        The number of each line that is not blank, from 1, and its record.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: "file:line: reason", if a line is not UTF-8, not a JSON object, or refused by `parse`; or if a
            compressed file is damaged or ends early.
    """
    for number, line in enumerate(_lines(Path(path)), start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not content.strip():
            continue
        try:
            record = parse(_row(content))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        yield number, record


def load(path: str | PathLike[str], parse: Callable[[Row], R]) -> list[R]:
    """Read all records of a file, each with an id of its own.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: as `read` does, if two records share an id, or if there is none.
    """
    records: list[R] = []
    lines: dict[str, int] = {}
    for number, record in read(path, parse):
        first = lines.setdefault(record.id, number)
        if first != number:
            raise ValueError(
                f"{path}:{number}: the id {record.id!r} is that of line {first}, too: give each line an id of its own"
            )
        records.append(record)
    if not records:
        raise ValueError(f"{path}: the file is empty: it needs one JSON object a line")
    return records


def identifier(row: Mapping[str, Any], key: str = "id") -> str:
    """The id of a row, a string or a whole number in the file, as a string."""
    value = row.get(key)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ValueError(f'"{key}" must be a string or a whole number, not {_shown(row, key)}')
    return str(value)


def text(row: Row, key: str) -> str:
    """The string under a key."""
    value = row.get(key)
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, not {_shown(row, key)}')
    return value


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as bytes: text files would be split at other line ends, too."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield from file
        return
    try:
        with gzip.open(path, "rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error}): copy it again") from error


def _shown(row: Mapping[str, Any], key: str) -> str:
    return f"{str(row[key])[:40]!r} ({type(row[key]).__name__})" if key in row else f"missing (there are: {[*row]})"


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at place {error.start + 1}"
        raise ValueError(f"not UTF-8 ({byte}): convert the file to UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno}): write one JSON object a line") from error
    except RecursionError as error:
        raise ValueError("not usable: the JSON is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object but a {type(row).__name__}: write one object a line")
    return row
