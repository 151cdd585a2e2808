"""Corpora in the format of FlashRAG: one {id, contents} a line, the title in the first line of the contents."""

from __future__ import annotations

from os import PathLike

from search_gym import jsonl
from search_gym.retrieval import Passage


def load(path: str | PathLike[str]) -> list[Passage]:
    r"""Read a corpus of {id, contents} with contents = '"Title"\ntext', or of {id, title, text}; lines may mix them.

    Quotes around a title are taken away, and doubled quotes within them are single ones, for FlashRAG writes titles as
    CSV does. Contents in a single line are a text without a title.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: "file:line: reason", if a line is no passage, is empty or has the id of another; or if the file is
            empty.
    """
    return jsonl.load(path, _passage)


def _passage(row: jsonl.Row) -> Passage:
    identifier = jsonl.identifier(row)
    if "contents" in row:
        contents = jsonl.text(row, "contents")
        first, line_break, rest = contents.partition("\n")
        title, text = (_unquoted(first.strip()), rest) if line_break else ("", contents)
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
