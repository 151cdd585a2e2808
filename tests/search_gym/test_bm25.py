"""BM25: laws over any corpus and queries, then the cases."""

from __future__ import annotations

import logging
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval import Passage
from search_gym.retrieval.bm25 import BM25Retriever

CITIES = [
    Passage("o", "Oslo", "Oslo is the capital of Norway."),
    Passage("p", "Paris", "Paris is the capital of France, on the Seine."),
    Passage("b", "Beyoncé", "A singer of Houston."),
]
WORDS = st.lists(st.sampled_from(["oslo", "Paris", "the", "capital", "Beyoncé", "x", "!", "日本"]), max_size=8).map(
    " ".join
)
TEXTS = st.lists(WORDS, min_size=1, max_size=12).filter(lambda texts: any("x" in text for text in texts))
QUERIES = st.lists(WORDS | st.text(), max_size=6)


def corpus(texts: list[str]) -> list[Passage]:
    return [Passage(str(i), "", text) for i, text in enumerate(texts)]


@given(TEXTS, QUERIES, st.integers(1, 15))
def test_a_query_finds_the_same_alone_and_in_a_batch(texts: list[str], queries: list[str], k: int) -> None:
    retriever = BM25Retriever(corpus(texts))
    assert retriever.search(queries, k) == [retriever.search([query], k)[0] for query in queries]


@given(TEXTS, QUERIES, st.integers(1, 15))
def test_hits_are_distinct_positive_and_best_first_in_the_order_of_the_corpus(
    texts: list[str], queries: list[str], k: int
) -> None:
    for hits in BM25Retriever(corpus(texts)).search(queries, k):
        assert len({hit.id for hit in hits}) == len(hits) <= min(k, len(texts))
        assert all(hit.score > 0 for hit in hits)
        keys = [(-hit.score, int(hit.id)) for hit in hits]
        assert keys == sorted(keys)


@given(TEXTS, QUERIES, st.integers(1, 15))
def test_the_best_k_begin_all_the_hits(texts: list[str], queries: list[str], k: int) -> None:
    retriever = BM25Retriever(corpus(texts))
    everything = retriever.search(queries, len(texts) + 5)
    assert retriever.search(queries, k) == [hits[:k] for hits in everything]


@given(TEXTS, WORDS)
def test_scores_are_those_of_the_formula(texts: list[str], query: str) -> None:
    """Lucene's BM25, written out: idf(w) tf / (tf + k1 (1 - b + b length / mean length)), summed over the query."""

    def words(text: str) -> list[str]:
        return [w for w in re.findall(r"\w+", text.lower().replace("é", "e")) if w != "the"]

    k1, b = 1.5, 0.6
    documents = [words(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)

    def score(document: list[str]) -> float:
        total = 0.0
        for word in words(query):
            containing = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            tf = document.count(word)
            total += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
        return total

    expected = {str(i): s for i, document in enumerate(documents) if (s := score(document)) > 0}
    (hits,) = BM25Retriever(corpus(texts), k1=k1, b=b).search([query], len(texts))
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)


def test_a_k_beyond_the_corpus_gives_what_there_is() -> None:  # R1
    retriever = BM25Retriever(CITIES)
    (hits,) = retriever.search(["Oslo Paris Beyoncé"], 5)
    assert {hit.id for hit in hits} == {"o", "p", "b"}
    assert len(hits) == 3


@pytest.mark.parametrize(
    "query",
    [
        "capital of Norway",
        "",
        " \n",
        "the of is",
        "zzz",
        '"Paris" & 50% «Oslo»',
        "日本 \U0001f600 Beyoncé",
        "Oslo " * 2_000,
        "\x00\ud800",
    ],
)
def test_any_string_is_a_query(query: str) -> None:  # R1
    retriever = BM25Retriever(CITIES)
    batch = retriever.search(["France", query, "", query], 2)
    assert batch[1] == batch[3] == retriever.search([query], 2)[0]
    assert batch[2] == []


def test_nothing_is_found_for_words_that_are_nowhere_and_for_stop_words() -> None:
    retriever = BM25Retriever(CITIES)
    assert retriever.search(["", "the of is", "zzz", "?!"], 3) == [[], [], [], []]
    assert retriever.search([], 3) == []
    assert BM25Retriever(CITIES, stopwords=()).search(["the"], 3)[0] != []


def test_passages_without_a_word_of_the_query_are_no_hits() -> None:
    ((hit,),) = BM25Retriever(CITIES).search(["Norway"], 3)
    assert (hit.id, hit.title, hit.text) == ("o", CITIES[0].title, CITIES[0].text)


def test_title_and_accents() -> None:
    queries = ["beyonce", "BEYONCÉ", "Beyonce\u0301"]
    assert [[hit.id for hit in hits] for hits in BM25Retriever(CITIES).search(queries, 3)] == [["b"]] * 3


def test_equal_scores_come_in_the_order_of_the_corpus() -> None:
    twins = [Passage(str(i), "", "oslo") for i in range(50)]
    assert [hit.id for hit in BM25Retriever(twins).search(["oslo"], 7)[0]] == list("0123456")


def test_faulty_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="the corpus is empty"):
        BM25Retriever([])
    with pytest.raises(ValueError, match="no passage of the corpus holds a word"):
        BM25Retriever(corpus(["the", "!"]))
    with pytest.raises(ValueError, match="2 passages of the corpus have the id 'o'"):
        BM25Retriever([*CITIES, CITIES[0]])
    with pytest.raises(ValueError, match="k1 must be at least 0"):
        BM25Retriever(CITIES, k1=float("nan"))
    retriever = BM25Retriever(CITIES)
    for k in (0, -1):
        with pytest.raises(ValueError, match="k must be at least 1"):
            retriever.search(["Oslo"], k)
    with pytest.raises(TypeError, match="queries must be a list of strings"):
        retriever.search("Oslo", 1)


def test_indexing_and_searching_print_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        caplog.handler.setLevel(logging.NOTSET)  # as the handlers of an application are: the logger alone decides
        BM25Retriever(CITIES).search(["Oslo", ""], 2)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
