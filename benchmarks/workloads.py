"""What the benchmark plays: dialogues with fixed turns, from the embedded world or from a recording."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers as hf
from tokenizers import decoders, models, pre_tokenizers, trainers

from search_gym import jsonl, rewards, tokenizers
from search_gym.questions import Question
from search_gym.retrieval import Hit, Passage, corpus
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.score import own_text
from search_gym.sources import embedded_world

TOP_K = 3
"""Passages a search: the default of search-gym and of both peers."""
_VOCABULARY = 32_000
_END = "<|end|>"
_TURN = re.compile(r".*?<(search|answer)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Dialogue:
    """A question and all that a policy wrote about it, up to its answer."""

    id: str
    question: str
    golds: list[str]
    turns: list[str]
    """The text of each turn, up to its closing tag: searches, and an answer at the end."""
    ids: list[list[int]]
    """The same turns as a policy samples them."""
    em: float
    """Exact match of the answer: what every environment has to find."""


@dataclass(frozen=True)
class Workload:
    """Dialogues, and the corpus that their searches go to."""

    name: str
    tokenizer: str
    """What `search_gym.tokenizers.load` takes."""
    passages: list[Passage]
    dialogues: list[Dialogue]
    found: dict[str, list[Hit]]
    """What BM25 finds for each query of the dialogues: a search that takes no time."""

    @property
    def turns(self) -> int:
        """The number of turns of all dialogues."""
        return sum(len(dialogue.ids) for dialogue in self.dialogues)

    @property
    def tokens(self) -> int:
        """The number of sampled tokens of all dialogues."""
        return sum(len(ids) for dialogue in self.dialogues for ids in dialogue.ids)

    def save(self, path: Path) -> None:
        """Write it to a file, for `load` in another process."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Workload:
        """Read what `save` wrote."""
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        row["passages"] = [Passage(**passage) for passage in row["passages"]]
        row["dialogues"] = [Dialogue(**dialogue) for dialogue in row["dialogues"]]
        row["found"] = {query: [Hit(**hit) for hit in hits] for query, hits in row["found"].items()}
        return cls(**row)


def embedded(size: int, seed: int = 0) -> Workload:
    """Dialogues of the embedded world: a search for each hop, and an answer, every fourth of them a wrong one."""
    world, rng = embedded_world(), random.Random(seed)
    written = []
    for question in rng.sample(world.questions("train"), size):
        hops = world.hops(question)
        turns = [f"<think> I need {hop.description} </think> <search> {hop.subject.name} </search>" for hop in hops]
        answer = hops[0].subject.name if rng.random() < 0.25 else question.golds[0]
        written.append((question, [*turns, f"<think> I know it </think> <answer> {answer} </answer>"]))
    return _workload("embedded world", "embedded", world.corpus, written)


def recorded(recording: Path, corpus_file: Path, size: int, folder: Path) -> Workload:
    """The dialogues of a recorded model that end with an answer, in ids of a byte-level BPE made from the corpus.

    Args:
        recording: JSONL with `question`, `golden_answers` and `response`.
        corpus_file: FlashRAG JSONL.
        size: take the first so many.
        folder: the tokenizer is written there.
    """
    passages = corpus.load(corpus_file)
    _train(folder, (f"{passage.title}\n{passage.text}" for passage in passages))
    written = []
    for i, row in enumerate(row for _, row in jsonl.read(recording, dict)):
        # Up to its tag, for what a recording holds after it was written by the environment.
        turns = [turn.group() for piece in own_text(row["response"]) if (turn := _TURN.match(piece))]
        if turns and turns[-1].endswith("</answer>"):
            written.append((Question(str(i), row["question"], tuple(row["golden_answers"])), turns))
    return _workload(recording.stem, str(folder), passages, written[:size])


def _workload(
    name: str, tokenizer: str, passages: Sequence[Passage], written: Sequence[tuple[Question, list[str]]]
) -> Workload:
    encode = tokenizers.load(tokenizer).encode
    bodies = {turn: _body(turn) for _, turns in written for turn in turns}
    queries = sorted({bodies[turn] for _, turns in written for turn in turns if turn.endswith("</search>")})
    dialogues = [
        Dialogue(
            id=question.id,
            question=question.text,
            golds=list(question.golds),
            turns=turns,
            ids=[encode(turn) for turn in turns],
            em=rewards.exact_match(bodies[turns[-1]], question.golds),
        )
        for question, turns in written
    ]
    found = BM25Retriever(passages).search(queries, TOP_K)
    return Workload(name, tokenizer, list(passages), dialogues, dict(zip(queries, found, strict=True)))


def _body(turn: str) -> str:
    match = _TURN.fullmatch(turn)
    if match is None:
        raise ValueError(f"this turn holds no action: {turn!r}")
    return match.group(2).strip()


def _train(folder: Path, texts: Iterable[str]) -> None:
    backend = hf.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": _END}), encoding="utf-8")
