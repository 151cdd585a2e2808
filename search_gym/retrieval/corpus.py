"""Corpora as people in this field keep them: rows of {id, contents} or {id, title, text}, in files and data sets."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from search_gym import hub, jsonl, parquet
from search_gym.jsonl import Row
from search_gym.retrieval import Passage

Source = str | PathLike[str]
Located = Iterator[tuple[str, Passage]]


def load(source: Source) -> list[Passage]:
    """All passages of a corpus, in memory; see `read`."""
    return list(read(source))


def read(source: Source) -> Iterator[Passage]:
    r"""Read a corpus passage by passage.

    A row is {id, contents} with contents = '"Title"\ntext', as FlashRAG has it, or {id, title, text}; a corpus may mix
    them. Quotes around a title of contents are taken away, and doubled quotes within them are single ones, for FlashRAG
    writes titles as CSV does. Contents in a single line are a text without a title.

    Args:
        source: a file in JSONL, compressed if it ends in ".gz", or in parquet if it ends in ".parquet"; a folder of
            data files, or what `save_to_disk` wrote; "hf:NAME", "hf:NAME:SPLIT" or
            "hf:NAME:CONFIG:SPLIT", a Hugging Face dataset.

    Yields:
        The passages, in order. It takes 8 bytes a passage, to see that no two have the same id.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: "file:line: reason", if a row is no passage or an empty one; after the last passage, if two share an
            id; or if there is none.
        ImportError: if a format needs an extra.
    """
    hashes = array("q")
    for _, passage in _rows(source):
        hashes.append(hash(passage.id))
        yield passage
    if not hashes:
        raise ValueError(f"{source}: the file is empty: it needs one passage a line")
    _check_distinct(np.frombuffer(hashes, np.int64), lambda: _rows(source))


def stamp(source: Source) -> str:
    """What changes when a corpus does, told without reading it: of a file its path, size and time of change.

    Raises:
        FileNotFoundError: if there is no such file; ValueError: if there is no such data set.
    """
    if not _is_dataset(source):
        path = Path(source).resolve()
        status = path.stat()
        return f"{path}:{status.st_size}:{status.st_mtime_ns}"
    dataset, chosen = _dataset(source)
    return f"{source}:{chosen}:{dataset._fingerprint}"  # datasets gives each state of a data set a name, its own


def size(source: Source) -> int | None:
    """About how many passages a corpus has, told without parsing it; None where that would take as long."""
    if _is_dataset(source):
        return len(_dataset(source)[0])
    path = Path(source)
    if path.suffix == ".gz":
        return None
    if path.suffix == ".parquet":
        return parquet.size(path)
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) + 1


def title_and_text(contents: str) -> tuple[str, str]:
    """The two parts of a FlashRAG passage's contents."""
    first, line_break, rest = contents.partition("\n")
    return (_unquoted(first.strip()), rest) if line_break else ("", contents)


def contents(title: str, text: str) -> str:
    r"""What `title_and_text` reads: '"Title"\ntext', or the text alone without a title.

    FlashRAG and Search-R1 encode contents as they are, for every model, so their indexes hold the vectors that an
    encoder here gives to the same passages.
    """
    if not title:
        return text
    doubled = title.replace('"', '""')
    return f'"{doubled}"\n{text}'


def _check_distinct(hashes: np.ndarray, again: Callable[[], Located]) -> None:
    """Raise the error of the first id that came before; `again` reads the rows once more to say where."""
    ordered = np.sort(hashes)
    twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not twice:
        return
    seen: dict[str, str] = {}
    for where, passage in again():
        if hash(passage.id) not in twice:
            continue
        first = seen.setdefault(passage.id, where)
        if first != where:
            raise ValueError(
                f"{where}: the id {passage.id!r} is that of {_briefly(first)}, too: give each passage an id of its own"
            )


def _briefly(where: str) -> str:
    """ "row 3" of "file:row 3", "line 3" of "file:3"."""
    last = where.rpartition(":")[2]
    return f"line {last}" if last.isdigit() else last


def _rows(source: Source) -> Located:
    """Every passage, and where it is."""
    path = Path(source)
    if _is_dataset(source):
        dataset, chosen = _dataset(source)
        yield from _parsed(hub.read(dataset, f"{source}:{chosen}"))
    elif path.suffix == ".parquet":
        yield from _parsed(parquet.read(path))
    else:
        for number, passage in jsonl.read(path, _passage):
            yield f"{path}:{number}", passage


def _is_dataset(source: Source) -> bool:
    return hub.parts(source) is not None or Path(source).is_dir()


def _dataset(source: Source) -> tuple[Any, str]:
    """A data set, memory-mapped, and the name of its split."""
    name, config, split = hub.parts(source) or (str(source), "", "")
    return hub.open_dataset(name, config=config or None, split=split or None, streaming=False)


def _parsed(rows: Iterator[tuple[str, Row]]) -> Located:
    for where, row in rows:
        try:
            yield where, _passage(row)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


def _passage(row: Row) -> Passage:
    identifier = jsonl.identifier(row)
    if "contents" in row:
        title, text = title_and_text(jsonl.text(row, "contents"))
    elif "text" in row:
        title, text = jsonl.text(row, "title") if row.get("title") else "", jsonl.text(row, "text")
    else:
        raise ValueError(f'a passage needs "contents", or "title" and "text"; there are: {[*row]}')
    if not (title.strip() or text.strip()):
        raise ValueError("the passage is empty: leave the line out")
    return Passage(identifier, title, text)


def _unquoted(title: str) -> str:
    if len(title) >= 2 and title[0] == title[-1] == '"':
        return title[1:-1].replace('""', '"')
    return title
