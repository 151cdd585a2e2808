"""Question sets in the format of FlashRAG: one {id, question, golden_answers, metadata?} a line."""

from __future__ import annotations

from os import PathLike

from search_gym import jsonl
from search_gym.questions import Question


def load(path: str | PathLike[str]) -> list[Question]:
    """Read a question set. Keys other than the four are left out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: "file:line: reason", if a line is no question, has no answer or the id of another; or if the file
            is empty.
    """
    return jsonl.load(path, _question)


def golden_answers(row: jsonl.Row) -> tuple[str, ...]:
    """The accepted answers of a row: a string is a single one, empty ones are left out.

    Raises:
        ValueError: if they are anything else than strings, or if none is left.
    """
    value = row.get("golden_answers")
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f'"golden_answers" must be a list of strings, or a string, not {value!r:.80}')
    kept = tuple(answer for answer in answers if answer.strip())
    if not kept:
        raise ValueError('"golden_answers" holds no answer: give one, or leave the line out')
    return kept


def _question(row: jsonl.Row) -> Question:
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {metadata!r:.80}')
    return Question(jsonl.identifier(row), jsonl.text(row, "question"), golden_answers(row), metadata)
