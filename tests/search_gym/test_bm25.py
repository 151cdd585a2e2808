"""BM25: laws over any corpus and queries, then the cases."""

from __future__ import annotations

import logging
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
from encoding import CITIES
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval import Passage, store
from search_gym.retrieval.bm25 import BM25Retriever, BM25Settings, build
from search_gym.retrieval.postings import Analyzer, Block, score

WORDS = st.lists(st.sampled_from(["oslo", "Paris", "the", "capital", "Beyoncé", "x", "!", "日本"]), max_size=8).map(
    " ".join
)
TEXTS = st.lists(WORDS, min_size=1, max_size=12).filter(lambda texts: any("x" in text for text in texts))
QUERIES = st.lists(WORDS | st.text(), max_size=6)
INDEX_FILES = [
    "data.csc.index.npy",
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "manifest.json",
    "params.index.json",
    "vocab.index.json",
]


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


def saved(passages: list[Passage], folder: str, **options: Any) -> BM25Retriever:
    """The passages and their index on disk, opened again."""
    stored = store.write(passages, Path(folder) / "passages", "here")
    build(stored, Path(folder) / "bm25", BM25Settings(**options))
    return BM25Retriever.open(Path(folder) / "bm25", stored)


@given(TEXTS, QUERIES, st.integers(1, 15), st.integers(1, 5))
def test_on_disk_in_blocks_of_any_size_it_answers_as_in_memory(
    texts: list[str], queries: list[str], k: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("search_gym.retrieval.bm25.BLOCK_PASSAGES", block)
        on_disk, in_memory = saved(corpus(texts), folder, k1=0.9, b=0.4), BM25Retriever(corpus(texts), k1=0.9, b=0.4)
        assert on_disk.search(queries, k) == in_memory.search(queries, k)
        assert on_disk.digest == in_memory.digest != BM25Retriever(corpus(texts)).digest
        assert sorted(path.name for path in (Path(folder) / "bm25").iterdir()) == INDEX_FILES


@given(TEXTS)
def test_the_matrix_is_the_one_that_bm25s_makes(texts: list[str]) -> None:
    analyzer = Analyzer(frozenset(["the"]))
    matrix = score([Block.of(texts[:3], analyzer), Block.of(texts[3:], analyzer)], k1=1.5, b=0.6)
    theirs = bm25s.BM25(k1=1.5, b=0.6)
    ids = [[matrix.vocabulary[word] for word in analyzer.words(text)] for text in texts]
    theirs.index((ids, matrix.vocabulary), create_empty_token=False, show_progress=False)
    assert theirs.scores["indices"].tolist() == matrix.indices.tolist()
    assert theirs.scores["indptr"].tolist() == matrix.indptr.tolist()
    np.testing.assert_allclose(matrix.data, theirs.scores["data"], rtol=1e-6)


def test_an_index_of_other_passages_or_settings_is_refused(tmp_path: Path) -> None:  # R2
    saved(CITIES, str(tmp_path))
    with pytest.raises(
        ValueError, match=rf"built from 3 passages with the digest {store.passages_digest(CITIES)}; these are 2"
    ):
        BM25Retriever.open(tmp_path / "bm25", CITIES[:2])
    with pytest.raises(ValueError, match=r"was built with k1=1\.2, not with k1=0\.9"):
        BM25Retriever.open(tmp_path / "bm25", CITIES, BM25Settings(k1=0.9))
    with pytest.raises(ValueError, match="no BM25 index here"):
        BM25Retriever.open(tmp_path / "passages" / "none", CITIES)


def test_a_build_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search_gym.retrieval.bm25.BLOCK_PASSAGES", 1)
    stored = store.write(CITIES, tmp_path / "passages", "here")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    told: list[int] = []
    seen = iter([told.append, told.append, stop])
    with pytest.raises(KeyboardInterrupt):
        build(stored, tmp_path / "bm25", BM25Settings(), advance=lambda count: next(seen)(count))
    with pytest.raises(ValueError, match="no BM25 index here, or not all of it"):
        BM25Retriever.open(tmp_path / "bm25", stored)
    told.clear()
    build(stored, tmp_path / "bm25", BM25Settings(), advance=told.append)
    assert told == [2, 1]  # two blocks were there, one was counted
    assert BM25Retriever.open(tmp_path / "bm25", stored).search(["Paris"], 1) == BM25Retriever(CITIES).search(
        ["Paris"], 1
    )


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
