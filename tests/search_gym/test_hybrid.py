"""Reciprocal rank fusion: laws over any rankings, then the cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from encoding import CITIES, WordEncoder, answers, towns
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval import Hit, SearchFailed
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.dense import in_memory
from search_gym.retrieval.hybrid import HybridRetriever

RANKING = st.lists(st.sampled_from("abcdefgh"), unique=True)
RANKINGS = st.lists(RANKING, min_size=1, max_size=4)


class Fixed:
    """Finds the same for every query: what a test wants fused."""

    def __init__(self, ranking: Sequence[str], digest: str | None = "f", corpus: str | None = None) -> None:
        self.ranking = ranking
        self.asked: list[int] = []
        if digest is not None:
            self.digest = digest
        if corpus is not None:
            self.corpus_digest = corpus

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked.append(k)
        hits = [Hit(name, f"title of {name}", f"text of {name}", -rank) for rank, name in enumerate(self.ranking)]
        return [hits[:k] for _ in queries]


class Failing:
    """Cannot answer the queries that say so."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        return [SearchFailed("no route") if "fail" in query else [] for query in queries]


@given(RANKINGS, st.integers(1, 12), st.integers(1, 12), st.data())
def test_scores_are_those_of_the_formula(rankings: list[list[str]], k: int, depth: int, data: st.DataObject) -> None:
    """Written out in fractions: the sum of weight / (60 + rank) over the rankings that hold the passage."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(rankings), max_size=len(rankings)))
    seen = [ranking[: max(k, depth)] for ranking in rankings]
    expected = {
        name: sum(Fraction(w, 60 + r.index(name) + 1) for w, r in zip(weights, seen, strict=True) if name in r)
        for name in set().union(*seen)
    }
    retriever = HybridRetriever([Fixed(ranking) for ranking in rankings], weights=weights, depth=depth)
    (hits,) = answers(retriever, ["q"], k)
    assert [hit.score for hit in hits] == pytest.approx(sorted(map(float, expected.values()), reverse=True)[:k])
    assert {hit.id: hit.score for hit in hits} == pytest.approx({hit.id: float(expected[hit.id]) for hit in hits})
    assert all((hit.title, hit.text) == (f"title of {hit.id}", f"text of {hit.id}") for hit in hits)
    assert len({hit.id for hit in hits}) == len(hits) == min(k, len(expected))


@given(RANKINGS)
def test_equal_scores_come_in_the_order_of_the_first_retriever(rankings: list[list[str]]) -> None:
    def rank(name: str, ranking: list[str]) -> float:
        return ranking.index(name) if name in ranking else math.inf

    (hits,) = answers(HybridRetriever([Fixed(ranking) for ranking in rankings]), ["q"], 9)
    keys = [(-hit.score, *(rank(hit.id, ranking) for ranking in rankings)) for hit in hits]
    assert keys == sorted(keys)


@given(RANKING, st.integers(1, 4))
def test_retrievers_that_agree_are_left_as_they_are(ranking: list[str], count: int) -> None:
    (hits,) = answers(HybridRetriever([Fixed(ranking)] * count), ["q"], 9)
    assert [hit.id for hit in hits] == ranking


@given(RANKINGS, st.integers(1, 5))
def test_the_best_k_begin_all_the_hits(rankings: list[list[str]], k: int) -> None:
    retriever = HybridRetriever([Fixed(ranking) for ranking in rankings])
    assert answers(retriever, ["q"], k)[0] == answers(retriever, ["q"], 9)[0][:k]


@given(st.lists(st.text() | st.sampled_from(["port", "Town 7", "the"]), max_size=5), st.integers(1, 9))
def test_a_query_finds_the_same_alone_and_in_a_batch(queries: list[str], k: int) -> None:
    batch = REAL.search(queries, k)
    # Vectors that differ by rounding alone may change ranks, and those the scores: WordEncoder does not round.
    assert batch == [REAL.search([query], k)[0] for query in queries]


REAL = HybridRetriever([BM25Retriever(towns(20)), in_memory(towns(20), WordEncoder())])


def test_a_passage_that_both_find_is_before_those_that_one_finds() -> None:
    (hits,) = answers(HybridRetriever([Fixed("abc"), Fixed("xyc")]), ["q"], 3)
    assert [hit.id for hit in hits] == ["c", "a", "x"]


@pytest.mark.parametrize(
    ("weights", "expected"), [(None, "axby"), ((2, 1), "abxy"), ((1, 2), "xyab"), ((1, 1.01), "xayb")], ids=str
)
def test_weights(weights: tuple[float, float] | None, expected: str) -> None:
    (hits,) = answers(HybridRetriever([Fixed("ab"), Fixed("xy")], weights=weights), ["q"], 4)
    assert [hit.id for hit in hits] == list(expected)


def test_each_is_asked_for_enough() -> None:
    parts = [Fixed("ab"), Fixed("cd")]
    HybridRetriever(parts).search(["q"], 3)
    HybridRetriever(parts, depth=5).search(["q"], 30)
    assert [part.asked for part in parts] == [[100, 30]] * 2


def test_a_search_that_failed_is_no_half_answer() -> None:
    retriever = HybridRetriever([Fixed("ab"), Failing()])
    failed, found = retriever.search(["this will fail", "fine"], 2)
    assert failed == SearchFailed("no route")
    assert isinstance(found, list)
    assert [hit.id for hit in found] == ["a", "b"]


def test_nothing_is_found_where_nobody_finds_anything() -> None:  # R1
    assert REAL.search(["", " \n"], 3) == [[], []]
    assert REAL.search([], 3) == []
    (hits,) = answers(HybridRetriever([BM25Retriever(CITIES), in_memory(CITIES, WordEncoder())]), ["Oslo"], 5)
    assert {hit.id for hit in hits} == {"o", "p", "b"}
    assert len(hits) == 3


def test_different_corpora_are_refused_where_they_are_known() -> None:
    with pytest.raises(ValueError, match=r"search different corpora, .*: Fixed one, Fixed two"):
        HybridRetriever([Fixed("ab", corpus="one"), Fixed("ab"), Fixed("ab", corpus="two")])
    assert HybridRetriever([Fixed("ab", corpus="one"), Fixed("ab")]).corpus_digest == "one"
    assert HybridRetriever([Fixed("ab")]).corpus_digest is None
    dense = in_memory(towns(20), WordEncoder())
    assert HybridRetriever([dense, dense]).corpus_digest == dense.corpus_digest
    with pytest.raises(ValueError, match="search different corpora"):
        HybridRetriever([dense, in_memory(towns(19), WordEncoder())])


def test_digests_name_what_the_hits_depend_on() -> None:
    a, b = Fixed("", "a"), Fixed("", "b")
    retrievers = [
        HybridRetriever([a, b]),
        HybridRetriever([b, a]),
        HybridRetriever([a]),
        HybridRetriever([a, b], weights=[1, 2]),
        HybridRetriever([a, b], depth=99),
        HybridRetriever([a, b], constant=59),
    ]
    assert len({retriever.digest for retriever in retrievers}) == len(retrievers)
    assert HybridRetriever([a, b], weights=[1, 1]).digest == retrievers[0].digest
    assert not hasattr(HybridRetriever([Fixed("", None)]), "digest")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": [1]}, "a weight for each, not 2 and 1"),
        ({"weights": [1, 0]}, "weights must be above 0"),
        ({"weights": [1, float("nan")]}, "weights must be above 0"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"constant": -1}, "the constant at least 0"),
    ],
    ids=["one-weight", "zero-weight", "nan-weight", "depth", "constant"],
)
def test_faulty_options_are_refused(options: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        HybridRetriever([Fixed("a"), Fixed("b")], **options)


def test_faulty_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one retriever"):
        HybridRetriever([])
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        REAL.search(["Oslo"], 0)
    with pytest.raises(TypeError, match="queries must be a list of strings"):
        REAL.search("Oslo", 1)
