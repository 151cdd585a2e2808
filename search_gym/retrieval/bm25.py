"""BM25 over a corpus in memory, by bm25s."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from search_gym.retrieval import Hit, Passage

# bm25s sets its logger to DEBUG, which would get past the level that an application chose: give the choice back.
logging.getLogger("bm25s").setLevel(logging.NOTSET)

_WORD = re.compile(r"\w+")
_ACCENT = re.compile("[\u0300-\u036f]")


class BM25Retriever:
    """Finds the passages that share words with a query, title and text taken together.

    Words are runs of letters and digits in lower case without accents, so "Beyonce" finds "Beyoncé"; nothing is
    stemmed. A passage that has no word of the query is no hit; equal scores come in the order of the corpus; a query
    finds the same alone and in a batch.

    Args:
        passages: at least one, each with an id of its own, one of them with a word.
        k1: how much a repeated word adds, >= 0.
        b: how much long passages are held back, in [0, 1]. The defaults of both are Lucene's; Pyserini, and with it
            Search-R1, uses 0.9 and 0.4.
        stopwords: words that are left out of passages and queries, in lower case; by default Lucene's 33 for English.

    Raises:
        ValueError: if the corpus or a parameter is not as above.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        stopwords: Collection[str] = STOPWORDS_EN,
    ) -> None:
        if not (k1 >= 0 and 0 <= b <= 1):
            raise ValueError(f"k1 must be at least 0 and b in [0, 1], not {k1} and {b}")
        if not passages:
            raise ValueError("the corpus is empty: there is nothing to search in")
        identifier, count = Counter(passage.id for passage in passages).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} passages of the corpus have the id {identifier!r}")
        self._passages = list(passages)
        self._stopwords = frozenset(stopwords)
        self._vocabulary: dict[str, int] = {}
        ids = [
            [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in self._words(f"{p.title} {p.text}")]
            for p in passages
        ]
        if not self._vocabulary:
            raise ValueError("no passage of the corpus holds a word that can be searched for")
        self._index = bm25s.BM25(k1=k1, b=b)
        self._index.index((ids, self._vocabulary), create_empty_token=False, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find up to `k` passages for every query, best first; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if isinstance(queries, str):
            raise TypeError(f"queries must be a list of strings, not a string: search([{queries!r:.80}], k)")
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Hit]:
        ids = [self._vocabulary[word] for word in self._words(query) if word in self._vocabulary]
        if not ids:
            return []
        # Not `retrieve`: it orders equal scores by chance, fills up with passages that score 0, and refuses a large k.
        scores = self._index.get_scores_from_ids(ids)
        return [Hit(p.id, p.title, p.text, float(scores[i])) for i in _best(scores, k) for p in [self._passages[i]]]

    def _words(self, text: str) -> list[str]:
        if not text.isascii():
            text = _ACCENT.sub("", unicodedata.normalize("NFKD", text))
        return [word for word in _WORD.findall(text.lower()) if word not in self._stopwords]


def _best(scores: np.ndarray, k: int) -> list[int]:
    """Places of the k greatest scores above 0, equal ones in ascending order of place."""
    places = np.flatnonzero(scores > 0)  # few of them, most often
    if k < len(places):
        found = scores[places]
        places = places[found >= np.partition(found, -k)[-k]]
    return places[np.argsort(-scores[places], kind="stable")][:k].tolist()
