"""answers.jsonl: the trajectories of an evaluation in the order of the questions, written so that it can go on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from search_gym.questions import Question
from search_gym.trajectory import Trajectory


def count(path: Path, questions: Sequence[Question], samples: int, chunk: int) -> int:
    """How many of the questions are answered already: a whole number of chunks, or all.

    What stands after them, such as the half line of a process that was killed, is cut off: a chunk that is answered
    anew as a whole gives the answers that it would have given in the first place.

    Args:
        path: the file, or where it will be.
        questions: those to answer, in order.
        samples: answers to each question, which stand together.
        chunk: questions in a chunk.

    Raises:
        ValueError: if a line answers another question than its place says, or is no trajectory: "file:line: reason".
    """
    if not path.exists():
        return 0
    answered = kept = size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            _check(
                line,
                f"{path}:{number}",
                questions[(number - 1) // samples] if number <= len(questions) * samples else None,
            )
            size += len(line)
            if number % (samples * chunk) == 0 or number == samples * len(questions):
                answered, kept = number // samples, size
    if kept < path.stat().st_size:
        os.truncate(path, kept)
    return answered


def append(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write whole lines, and see that they are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write("".join(trajectory.to_json() + "\n" for trajectory in trajectories).encode())
        file.flush()
        os.fsync(file.fileno())


def _check(line: bytes, where: str, question: Question | None) -> None:
    try:
        answer = Trajectory.from_json(line.decode())
    except ValueError as error:
        raise ValueError(f"{where}: {error}: delete this line and all after it, and they are answered anew") from error
    expected = None if question is None else (question.id, question.text, question.golds)
    if expected != (answer.question_id, answer.question, answer.golds):
        raise ValueError(
            f"{where} answers {answer.question_id!r}, {answer.question!r:.80}, which is not the question at that place "
            "now: the questions have changed. Name another folder with --out"
        )
