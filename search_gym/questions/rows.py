"""From a row of any of the formats that people keep questions in to a `Question`.

A row is a mapping, as JSON, parquet, pandas or datasets give it. What is found first counts:

| | |
| --- | --- |
| question | `question`; `extra_info.question`; `prompt`, a string or chat messages |
| answers | `golden_answers`; `reward_model.ground_truth` (`.target`); the same of `reward_spec`; `answers`; `answer` |
| id | `id`; `_id`; `extra_info.split` and `extra_info.index` |

That covers FlashRAG; the parquet files of Search-R1, verl and SkyRL; and the original files of NQ, TriviaQA, SQuAD and
HotpotQA. A prompt often holds an instruction as well: then the question is what follows the last "Question:" of the
user's last message. Where a row names its `data_source`, the id begins with it, for such files join several sets whose
ids repeat: "nq/test_12".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from search_gym import jsonl
from search_gym.questions import Question

Row = Mapping[str, Any]

_MARKER = re.compile(r"\bQuestion:\s*")
_ANSWER = re.compile(r"\n\s*Answer:\s*$")
# What chat templates put after a message: a prompt that is stored as a string may hold it.
_CONTROL = re.compile(r"<\|[^|>]*\|>|</s>|\[/INST\]|<end_of_turn>")


def parse(row: Row, fallback_id: str | None = None) -> Question:
    """The question of a row.

    Args:
        row: as above. Other keys are left out, but `metadata`, which the question keeps in a form that JSON can hold.
        fallback_id: the id where the row has none; None: it must have one.

    Raises:
        ValueError: if the row holds no question, no answer or no id, or one of them is of no known form.
    """
    row = plain(row)
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {metadata!r:.80}')
    source = row.get("data_source")
    if source is not None and not isinstance(source, str):
        raise ValueError(f'"data_source" must be a string, not {source!r:.80}')
    identifier = _identifier(row, fallback_id)
    named = {"data_source": source} if source else {}
    return Question(f"{source}/{identifier}" if source else identifier, _text(row), answers(row), {**metadata, **named})


def answers(row: Row) -> tuple[str, ...]:
    """The accepted answers of a row: a string is a single one, empty ones are left out.

    Raises:
        ValueError: if they are anything else than strings, or if none is left.
    """
    key, value = _answers(plain(row))
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise ValueError(f'"{key}" must be a list of strings, or a string, not {value!r:.80}')
    kept = tuple(dict.fromkeys(answer for answer in found if answer.strip()))
    if not kept:
        raise ValueError(f'"{key}" holds no answer: give one, or leave the row out')
    return kept


def collect(
    rows: Iterable[tuple[str, Row]],
    *,
    numbered: str | None = None,
    skipped: Callable[[str], None] | None = None,
    distinct: bool = True,
) -> Iterator[Question]:
    """The questions of many rows.

    Args:
        rows: each with where it is, such as "file:row 3".
        numbered: the beginning of the ids of rows that have none; they go on with the number of the row.
        skipped: is told of each row that is no question, which is left out then; None: it is an error.
        distinct: whether a row with the id of another is no question. It takes a memory of all ids.

    Raises:
        ValueError: "where: reason".
    """
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        try:
            question = parse(row, None if numbered is None else f"{numbered}{number}")
            first = seen.setdefault(question.id, where) if distinct else where
            if first != where:
                raise ValueError(f"the id {question.id!r} is that of {first}, too: give each row an id of its own")
        except ValueError as error:
            if skipped is None:
                raise ValueError(f"{where}: {error}") from error
            skipped(f"{where}: {error}")
        else:
            yield question


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays become lists, numbers of numpy numbers, what is not finite None."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _identifier(row: Row, fallback: str | None) -> str:
    for key in ("id", "_id"):
        if row.get(key) is not None:
            return jsonl.identifier(row, key)
    extra = _object(row, "extra_info")
    if isinstance(extra.get("index"), int):
        return f"{extra.get('split') or 'row'}_{extra['index']}"
    return jsonl.identifier(row) if fallback is None else fallback


def _text(row: Row) -> str:
    for value in (row.get("question"), _object(row, "extra_info").get("question")):
        if value is not None:
            if not isinstance(value, str):
                raise ValueError(f'"question" must be a string, not {value!r:.80}')
            return value
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = _of_user(prompt)
    if not isinstance(prompt, str):
        raise ValueError(f'"question" must be a string, not missing (there are: {[*row]})')
    asked = _ANSWER.sub("", _CONTROL.split(_MARKER.split(prompt)[-1])[0]).strip()
    if not asked:
        raise ValueError(
            f'"prompt" holds no question after "Question:", or only a chat\'s control tokens: {prompt!r:.80}'
        )
    return asked


def _of_user(messages: Sequence[Any]) -> str:
    """What the user said last."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):  # the parts of a multimodal message
                content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
            if isinstance(content, str):
                return content
    raise ValueError(f'"prompt" holds no message of the user: {messages!r:.80}')


def _answers(row: Row) -> tuple[str, Any]:
    """The key that holds the answers, and what it holds."""
    if "golden_answers" in row:
        return "golden_answers", row["golden_answers"]
    for key in ("reward_model", "reward_spec"):
        truth = _object(row, key).get("ground_truth")
        if isinstance(truth, dict):
            return f"{key}.ground_truth.target", truth.get("target")
        if truth is not None:
            return f"{key}.ground_truth", truth
    for key in ("answers", "answer"):
        value = row.get(key)
        if isinstance(value, dict):  # SQuAD: {text, answer_start}; TriviaQA: {value, aliases, …}
            found = [value[part] for part in ("text", "value", "aliases") if part in value]
            return key, [one for part in found for one in (part if isinstance(part, list) else [part])]
        if value is not None:
            return key, value
    return "golden_answers", None


def _object(row: Row, key: str) -> dict[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}
