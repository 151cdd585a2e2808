"""Reranking by a real cross-encoder, tiny and with random weights: the order is that of its scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from encoding import CITIES, NAMES, QUERIES, WordEncoder, answers, tiny_bert
from hypothesis import given, settings
from hypothesis import strategies as st

from search_gym.retrieval import Hit, Passage, SearchFailed
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.dense import in_memory
from search_gym.retrieval.rerank import RerankRetriever

pytest.importorskip("sentence_transformers")
WORDS = ["oslo", "paris", "is", "the", "capital", "of", "norway.", "singer", "x1", "seine."]
PASSAGES = [
    Passage(str(i), WORDS[i % 10] if i % 3 else "", " ".join(WORDS[(i * 7 + j * (i + 1)) % 10] for j in range(5)))
    for i in range(30)
]
PASSAGES = list({contents(passage.title, passage.text): passage for passage in PASSAGES}.values())
TEXT = st.text() | st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@cache
def folder() -> Path:
    kept.append(TemporaryDirectory(prefix="search-gym-rerank-"))
    return tiny_bert(Path(kept[-1].name) / "cross", labels=1)


kept: list[TemporaryDirectory] = []


@cache
def retriever(depth: int = 50) -> RerankRetriever:
    return RerankRetriever(in_memory(PASSAGES, WordEncoder()), str(folder()), depth=depth, device="cpu")


def predicted(query: str, passages: Sequence[Passage]) -> dict[str, float]:
    """What sentence-transformers itself gives for each pair."""
    from sentence_transformers import CrossEncoder

    scores = CrossEncoder(str(folder()), device="cpu").predict(
        [(query, contents(passage.title, passage.text)) for passage in passages]
    )
    return dict(zip([passage.id for passage in passages], scores.tolist(), strict=True))


@pytest.mark.parametrize("query", ["capital of norway.", "singer", "oslo paris seine.", "unknown words"])
def test_the_order_is_that_of_the_scores_of_the_model(query: str) -> None:
    expected = predicted(query, PASSAGES)
    assert len({round(score, 4) for score in expected.values()}) > len(PASSAGES) / 2  # not all the same
    (hits,) = answers(retriever(), [query], len(PASSAGES))
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-5)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


@given(st.lists(TEXT, max_size=4), st.integers(1, 40))
@settings(max_examples=15)
def test_a_query_finds_the_same_alone_and_in_a_batch(queries: list[str], k: int) -> None:
    batch = answers(retriever(), queries, k)
    assert len(batch) == len(queries)
    for query, hits in zip(queries, batch, strict=True):
        (alone,) = retriever().search([query], k)
        assert isinstance(hits, list)
        assert isinstance(alone, list)
        assert len({hit.id for hit in hits}) == len(hits) == (min(k, len(PASSAGES)) if query.strip() else 0)
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in alone], atol=1e-4)
        everything = {hit.id: hit.score for hit in answers(retriever(), [query], 99)[0]}
        assert all(abs(everything[hit.id] - hit.score) <= 1e-4 for hit in hits)


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_any_string_is_a_query(query: str) -> None:  # R1
    batch = answers(retriever(), ["oslo", query, ""], 5)
    assert [len(hits) for hits in batch] == [5, 5 if query.strip() else 0, 0]


def test_only_the_first_hits_are_reranked() -> None:
    inner = in_memory(PASSAGES, WordEncoder())
    (before,) = inner.search(["oslo capital"], 4)
    (hits,) = answers(retriever(4), ["oslo capital"], 2)
    scores = predicted("oslo capital", [passage for passage in PASSAGES if passage.id in {hit.id for hit in before}])
    assert [hit.id for hit in hits] == sorted(scores, key=lambda name: -scores[name])[:2]
    (hits,) = answers(retriever(4), ["oslo capital"], 9)  # more are asked for than the depth: all of those are reranked
    assert {hit.id for hit in hits} == {hit.id for hit in inner.search(["oslo capital"], 9)[0]}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_equal_scores_keep_the_order_of_the_retriever() -> None:
    twins = [Passage(str(i), "", "oslo") for i in range(9)]
    (hits,) = answers(RerankRetriever(in_memory(twins, WordEncoder()), str(folder())), ["oslo"], 9)
    assert [hit.id for hit in hits] == [str(i) for i in range(9)]


class Failing:
    """Cannot answer the queries that say so."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        hits = [Hit(p.id, p.title, p.text, 1.0) for p in CITIES]
        return [SearchFailed("no route") if "fail" in query else hits[:k] for query in queries]


def test_a_search_that_failed_stays_one() -> None:
    reranked = RerankRetriever(Failing(), str(folder())).search(["oslo", "this will fail", "seine."], 2)
    assert reranked[1] == SearchFailed("no route")
    for query, hits in (("oslo", reranked[0]), ("seine.", reranked[2])):
        scores = predicted(query, CITIES)
        assert isinstance(hits, list)
        assert [hit.id for hit in hits] == sorted(scores, key=lambda name: -scores[name])[:2]


def test_digests_name_what_the_hits_depend_on(tmp_path: Path) -> None:
    inner, other = in_memory(PASSAGES, WordEncoder()), in_memory(PASSAGES, WordEncoder(seed=1))
    another = str(tiny_bert(tmp_path / "another", labels=1, seed=1))
    retrievers = [
        RerankRetriever(inner, str(folder())),
        RerankRetriever(other, str(folder())),
        RerankRetriever(inner, another),
        RerankRetriever(inner, str(folder()), depth=49),
        RerankRetriever(inner, str(folder()), max_length=20),
    ]
    assert len({each.digest for each in retrievers}) == len(retrievers)
    assert RerankRetriever(inner, str(folder()), batch_size=3).digest == retrievers[0].digest
    assert retrievers[0].corpus_digest == inner.corpus_digest
    assert RerankRetriever(Failing(), str(folder())).corpus_digest is None
    assert not hasattr(RerankRetriever(Failing(), str(folder())), "digest")


def test_faulty_arguments_are_refused(tmp_path: Path) -> None:
    faulty: list[dict[str, Any]] = [{"depth": 0}, {"batch_size": 0}, {"max_length": 0}]
    for options in faulty:
        with pytest.raises(ValueError, match="depth, batch_size and max_length are at least 1"):
            RerankRetriever(Failing(), str(folder()), **options)
    with pytest.raises(ValueError, match="gives 3 scores for a query and a passage"):
        RerankRetriever(Failing(), str(tiny_bert(tmp_path / "three", labels=3)))
    with pytest.raises(FileNotFoundError, match="there is no folder here that could hold a model"):
        RerankRetriever(Failing(), str(tmp_path / "none"))
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        retriever().search(["Oslo"], 0)
    with pytest.raises(TypeError, match="queries must be a list of strings"):
        retriever().search("Oslo", 1)


def test_loading_and_reranking_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    RerankRetriever(Failing(), str(folder())).search(["oslo"], 2)
    assert capfd.readouterr() == ("", "")
