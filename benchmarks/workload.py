"""The dialogues that env_speed.py plays: what was asked, what a policy wrote, and what its searches bring."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from search_gym import World, jsonl, prompts
from search_gym.retrieval import Hit, Retriever, corpus
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.score import own_text

TURN = re.compile(r".*?</(?:search|answer)>", re.DOTALL)
QUERY = re.compile(r"<search>(.*?)</search>", re.DOTALL)
END = "<|end|>"


@dataclass(frozen=True)
class Dialogue:
    """One recorded episode: the turns of the policy, each up to its tag, as text and as ids."""

    question: str
    prompt: str
    """The question with the instruction of Search-R1, as every contender puts it."""
    golds: list[str]
    turns: list[str]
    ids: list[list[int]]


class Lookup:
    """A retriever that costs next to nothing: the hits of every query are known."""

    def __init__(self, known: dict[str, list[Hit]]) -> None:
        self._known = known

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self._known[query.strip()][:k] for query in queries]


@dataclass(frozen=True)
class Workload:
    """What every contender plays."""

    name: str
    dialogues: list[Dialogue]
    tokenizer: str
    """The path of a tokenizer.json."""
    corpus: str | None
    """The path of a JSONL corpus to search by BM25, or the embedded world where that is "embedded"; None: `hits`."""
    hits: dict[str, list[Any]]

    @cached_property
    def retriever(self) -> Retriever:
        """BM25, or the look-up."""
        if self.corpus is None:
            return Lookup({query: [Hit(*hit) for hit in hits] for query, hits in self.hits.items()})
        return BM25Retriever(World(0).corpus if self.corpus == "embedded" else corpus.load(self.corpus))

    def save(self, path: Path) -> Path:
        """Write it for the peers' interpreter."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str) -> Workload:
        """Read it there."""
        row = json.loads(Path(path).read_text())
        return cls(**{**row, "dialogues": [Dialogue(**dialogue) for dialogue in row["dialogues"]]})


def recorded(data: Path, folder: Path) -> list[Workload]:
    """The dialogues of a trained model, over the passages that it had: with BM25, and with a look-up."""
    rows = [row for _, row in jsonl.read(data / "trajectories" / "bamboogle.jsonl", dict)]
    spoken = [[m.group() for piece in own_text(r["response"]) if (m := TURN.match(piece))] for r in rows]
    passages = data / "wiki18" / "corpus.jsonl"
    return _workloads("recorded", rows, spoken, str(passages), [p.text for p in corpus.load(passages)], folder)


def embedded(size: int, folder: Path) -> list[Workload]:
    """Dialogues in the embedded world: each searches hop by hop, and answers."""
    world, rng = World(0), random.Random(0)
    questions = [*world.questions("train"), *world.questions("dev"), *world.questions("test")][:size]
    rows = [{"question": q.text, "golden_answers": list(q.golds)} for q in questions]
    spoken = []
    for question in questions:
        hops = world.hops(question)
        turns = [f"<think> I need {hop.description} </think> <search> {hop.subject.name} </search>" for hop in hops]
        right = rng.random() < 0.5
        spoken.append([*turns, f"<answer> {question.golds[0] if right else hops[0].subject.name} </answer>"])
    return _workloads("embedded", rows, spoken, "embedded", [p.text for p in world.corpus], folder)


def _workloads(
    name: str, rows: list[Any], spoken: list[list[str]], source: str, texts: list[str], folder: Path
) -> list[Workload]:
    backend, path = _tokenizer([*texts, *(turn for turns in spoken for turn in turns)]), folder / f"{name}.tokenizer"
    backend.save(str(path))
    dialogues = [
        Dialogue(
            row["question"],
            put(row["question"]),
            row["golden_answers"],
            turns,
            [backend.encode(turn).ids for turn in turns],
        )
        for row, turns in zip(rows, spoken, strict=True)
    ]
    searching = Workload(f"{name}, BM25", dialogues, str(path), source, {})
    queries = {query.strip() for turns in spoken for turn in turns for query in QUERY.findall(turn)}
    hits = {query: searching.retriever.search([query], 3)[0] for query in sorted(queries)}
    known = {query: [[hit.id, hit.title, hit.text, hit.score] for hit in found] for query, found in hits.items()}
    return [searching, Workload(f"{name}, look-up", dialogues, str(path), None, known)]


def put(question: str) -> str:
    """A question with its instruction."""
    return prompts.TEMPLATES["search-r1"].prompt.replace("{question}", question)


def _tokenizer(texts: list[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE of 8,000 tokens, the kind that language models have."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(texts, trainer)
    return backend
