"""The parts of a set of held-out questions, which are scored by themselves: benchmarks, or numbers of hops."""

from __future__ import annotations

from collections.abc import Sequence

from algos.training.evaluation import Evaluation
from search_gym.questions import Question
from search_gym.trajectory import Trajectory


def group_of(question: Question) -> str:
    """The part that a question belongs to: its "data_source", else its number of "hops"; empty if it says neither.

    Parquet files of Search-R1 and verl and mixtures say the first (`search_gym.questions`), the embedded world the
    second.
    """
    source, hops = question.metadata.get("data_source"), question.metadata.get("hops")
    if source:
        return str(source)
    return f"{hops} hop{'s' if hops > 1 else ''}" if isinstance(hops, int) else ""


def by_group(questions: Sequence[Question], answers: Sequence[Trajectory]) -> dict[str, Evaluation]:
    """How well the questions of each group were answered, in order of first appearance.

    Args:
        questions: what was asked.
        answers: one to each, in their order.

    Returns:
        {} where the questions say of no group that they belong to it, or only some do.
    """
    groups: dict[str, list[Trajectory]] = {}
    for question, answer in zip(questions, answers, strict=True):
        groups.setdefault(group_of(question), []).append(answer)
    return {} if "" in groups else {name: Evaluation.of(found) for name, found in groups.items()}
