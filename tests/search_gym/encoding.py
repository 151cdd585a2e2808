"""Encoders, models and corpora that several test files share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from search_gym.retrieval import Hit, Passage, Retriever, SearchFailed
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.encoders import SentenceEncoder

CITIES = [
    Passage("o", "Oslo", "Oslo is the capital of Norway."),
    Passage("p", "Paris", "Paris is the capital of France, on the Seine."),
    Passage("b", "Beyoncé", "A singer of Houston."),
]
QUERIES = [
    "capital of Norway",
    "",
    " \n\u3000",
    "the of is",
    "zzz",
    '"Paris" & 50% «Oslo» (x] {y}',
    "日本 \U0001f600 Beyoncé",
    "Oslo " * 2_000,
    "é" * 10_000,
    "\x00",
    "\ud800 Oslo \udfff",
]
NAMES = ["plain", "empty", "blank", "stop-words", "unknown", "brackets", "unicode", "long", "one-word", "nul", "halves"]


def towns(count: int) -> list[Passage]:
    """Passages that differ, with ids from "0" on."""
    kinds = ["port", "market", "capital", "mine", "village", "island", "fort"]
    return [
        Passage(str(i), f"Town {i}", f"A {kinds[i % 7]} of {i * 37 % 1000} people, {i} in all.") for i in range(count)
    ]


@cache
def minilm() -> SentenceEncoder:
    """The default encoder, loaded once for all tests of a process."""
    return SentenceEncoder(device="cpu")


class WordEncoder:
    """An encoder that takes no time: the normalised sum of a random direction for every word."""

    def __init__(self, dimension: int = 16, seed: int = 0) -> None:
        self.dimension, self.seed = dimension, seed
        self.digest = hashlib.blake2b(f"words {dimension} {seed}".encode(), digest_size=16).hexdigest()
        self.asked: list[str] = []
        """All texts that it was given so far."""

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([self._vector(text) for text in texts], np.float32).reshape(-1, self.dimension)

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        return self.queries([contents(passage.title, passage.text) for passage in passages])

    def _vector(self, text: str) -> np.ndarray:
        total = sum((self._direction(word) for word in text.split()), np.zeros(self.dimension))
        return total / max(float(np.linalg.norm(total)), 1e-9)

    def _direction(self, word: str) -> np.ndarray:
        name = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return np.random.default_rng([self.seed, *name]).standard_normal(self.dimension)


def answers(retriever: Retriever, queries: Sequence[str], k: int) -> list[Sequence[Hit]]:
    """What a search finds that fails for no query."""
    found = retriever.search(queries, k)
    assert not any(isinstance(hits, SearchFailed) for hits in found)
    return [hits for hits in found if not isinstance(hits, SearchFailed)]


def tiny_bert(folder: Path, *, labels: int | None = None, seed: int = 0) -> Path:
    """Write a real but tiny BERT with random weights, bare or with a head that gives scores for pairs."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

    words = sorted({word for p in CITIES for word in contents(p.title, p.text).lower().replace('"', "").split()})
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *letters, *(f"##{c}" for c in letters), *(w for w in words if len(w) > 1)]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
    # Weights so large that scores differ by more than rounding.
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.6,
    )
    config.num_labels = labels or 2
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertModel(config) if labels is None else BertForSequenceClassification(config)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return folder
