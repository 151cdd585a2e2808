"""What retrievers find: the share of questions with an accepted answer among the first k passages.

python benchmarks/recall.py wiki18=corpus.jsonl:nq.jsonl:popqa.jsonl hotpotqa=corpus.jsonl:questions.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tyro

from search_gym.questions import Question
from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.rewards import normalize
from search_gym.sources import list_questions, open_retriever

DEPTHS = (1, 3, 5, 10)


@dataclass(frozen=True)
class Config:
    """Measure retrievers on data sets."""

    data: tyro.conf.Positional[tuple[str, ...]]
    """Data sets: NAME=CORPUS:QUESTIONS[:QUESTIONS…], files as search-gym reads them."""
    encoder: str = "minilm"
    """Of the dense retriever."""
    reranker: str = ""
    """A cross-encoder, a folder or hub id, for the rows of rerank; without one they are left out."""
    batch: int = 64
    """Queries of a search."""


def holds(hit: Hit, golds: Sequence[str]) -> bool:
    """Whether the words of a passage hold an accepted answer, both normalised: as DPR counts, arXiv 2004.04906."""
    words = f" {normalize(f'{hit.title} {hit.text}')} "
    return any(f" {gold} " in words for gold in map(normalize, golds) if gold)


def recall(retriever: Retriever, questions: Sequence[Question], batch: int) -> list[float]:
    """For each of `DEPTHS`, the share of questions of which a passage so far holds an accepted answer.

    Raises:
        RuntimeError: if a search fails.
    """
    ranks: list[int] = []
    for start in range(0, len(questions), batch):
        asked = questions[start : start + batch]
        for question, hits in zip(asked, retriever.search([q.text for q in asked], max(DEPTHS)), strict=True):
            if isinstance(hits, SearchFailed):
                raise RuntimeError(f"the search for question {question.id!r} failed: {hits.reason}")
            right = (rank for rank, hit in enumerate(hits, 1) if holds(hit, question.golds))
            ranks.append(next(right, max(DEPTHS) + 1))
    return [sum(rank <= depth for rank in ranks) / len(ranks) for depth in DEPTHS]


def retrievers(config: Config, corpus: str) -> Iterator[tuple[str, Retriever]]:
    """All kinds over a corpus; what is built for them is kept in the user's cache."""
    dense = {"encoder": config.encoder}
    yield "bm25", open_retriever("bm25", corpus)
    yield "dense", open_retriever({"name": "dense", **dense}, corpus)
    yield "hybrid", open_retriever({"name": "hybrid", "dense": dense}, corpus)
    if config.reranker:
        first = {"name": "hybrid", "dense": dense}
        yield "rerank", open_retriever({"name": "rerank", "first": first, "model": config.reranker}, corpus)


def main(config: Config) -> None:
    """Print the table."""
    print("| data | questions | retriever | " + " | ".join(f"recall@{depth}" for depth in DEPTHS) + " |")
    print("| --- | ---: | --- | " + " | ".join("---:" for _ in DEPTHS) + " |")
    for described in config.data:
        name, _, files = described.partition("=")
        corpus, *sources = files.split(":")
        if not sources:
            sys.exit(f"{described}: write NAME=CORPUS:QUESTIONS")
        questions = [question for source in sources for question in list_questions(source)]
        for label, retriever in retrievers(config, corpus):
            found = recall(retriever, questions, config.batch)
            print(f"| {name} | {len(questions)} | {label} | " + " | ".join(f"{share:.3f}" for share in found) + " |")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
