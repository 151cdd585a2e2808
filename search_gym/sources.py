"""From the names that a user types to question sets and retrievers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from os import PathLike

from search_gym.questions import Question, flashrag
from search_gym.questions.world import SPLITS, World
from search_gym.retrieval import Passage, Retriever, corpus
from search_gym.retrieval.bm25 import BM25Retriever

RETRIEVERS = {"bm25": BM25Retriever}


@cache
def embedded_world() -> World:
    """The world that "embedded" names: always the same one."""
    return World(seed=0)


def open_questions(source: str | PathLike[str] | Sequence[Question]) -> list[Question]:
    """Questions by name ("embedded", "embedded:test"), from a FlashRAG JSONL file, or as they are.

    Raises:
        ValueError: if there is none, or two share an id; FileNotFoundError: if there is no such file.
    """
    if isinstance(source, str) and source.partition(":")[0] == "embedded":
        split = source.partition(":")[2] or SPLITS[0]
        return embedded_world().questions(split)
    if isinstance(source, str | PathLike):
        return flashrag.load(source)
    questions = list(source)
    if not questions:
        raise ValueError("an environment needs at least one question, and the list is empty")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f"two questions have the id {question.id!r}")
        seen.add(question.id)
    return questions


def open_retriever(
    retriever: str | Retriever, source: str | PathLike[str] | Sequence[Passage] = "embedded"
) -> Retriever:
    """A retriever by name over a corpus ("embedded", a FlashRAG JSONL file, passages), or the object given.

    Raises:
        ValueError: if no retriever has that name; the message lists those there are.
    """
    if not isinstance(retriever, str):
        return retriever
    if retriever not in RETRIEVERS:
        raise ValueError(f"unknown retriever {retriever!r}; there are: {', '.join(RETRIEVERS)}; or give an object")
    if isinstance(source, str) and source == "embedded":
        passages = embedded_world().corpus
    elif isinstance(source, str | PathLike):
        passages = corpus.load(source)
    else:
        passages = list(source)
    return RETRIEVERS[retriever](passages)
