"""What holds for every retriever that a name can open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from encoding import CITIES, NAMES, QUERIES, answers
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import served

from search_gym.retrieval import Hit, Retriever
from search_gym.retrieval.index import build
from search_gym.sources import open_retriever

KINDS = ["bm25", "dense", "hybrid", "index", "server", "cached"]
TEXT = st.sampled_from(QUERIES) | st.text(st.characters(exclude_categories=()), max_size=30)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Opens a retriever of each kind over `CITIES`, once."""
    folder: Path = tmp_path_factory.mktemp("retrievers")
    with served(open_retriever("bm25", CITIES)) as url:

        @cache
        def opened(kind: str) -> Retriever:
            if kind == "server":
                return open_retriever(url)
            if kind == "cached":
                return open_retriever("bm25", CITIES, cache=folder / "cache.sqlite")
            if kind == "index":
                rows = "".join(f'{{"id": "{p.id}", "title": "{p.title}", "text": "{p.text}"}}\n' for p in CITIES)
                (folder / "c.jsonl").write_text(rows)
                build(folder / "c.jsonl", folder / "index", "hybrid")
                return open_retriever(folder / "index")
            return open_retriever(kind, CITIES)

        yield opened


def agree(one: Sequence[Hit], other: Sequence[Hit]) -> None:
    """The same hits, but for the rounding of a model: rank fusion makes of that a step between two ranks."""
    assert {hit.id for hit in one} == {hit.id for hit in other}
    assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@given(queries=st.lists(TEXT, max_size=4), k=st.integers(3, 5))
@settings(max_examples=15)
def test_a_query_finds_the_same_alone_and_in_a_batch(every: Any, kind: str, queries: list[str], k: int) -> None:
    retriever = every(kind)
    batch = answers(retriever, queries, k)
    assert len(batch) == len(queries)
    for query, hits in zip(queries, batch, strict=True):
        agree(hits, answers(retriever, [query], k)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_hits_are_distinct_passages_best_first(every: Any, kind: str, query: str, k: int) -> None:  # R1
    (hits,) = answers(every(kind), [query], k)
    passages = {(p.id, p.title, p.text) for p in CITIES}
    assert len({hit.id for hit in hits}) == len(hits) <= min(k, len(CITIES))
    assert {(hit.id, hit.title, hit.text) for hit in hits} <= passages
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    if not query.strip():
        assert hits == []


@pytest.mark.parametrize("kind", KINDS)
def test_three_passages_are_three_hits_for_five(every: Any, kind: str) -> None:  # R1
    (hits,) = answers(every(kind), ["Oslo, Paris, Houston"], 5)
    assert {hit.id for hit in hits} == {"o", "p", "b"}
    assert len(hits) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_faulty_arguments_are_refused(every: Any, kind: str) -> None:
    with pytest.raises(ValueError, match="k must be at least 1"):
        every(kind).search(["Oslo"], 0)
    with pytest.raises(TypeError, match="queries must be a list"):
        every(kind).search("Oslo", 1)


def test_digests_are_those_of_what_is_searched(every: Any) -> None:
    digests = {kind: every(kind).digest for kind in KINDS}
    assert digests["bm25"] == digests["server"] == digests["cached"]
    assert digests["hybrid"] == digests["index"]
    assert len({*digests.values()}) == 3
