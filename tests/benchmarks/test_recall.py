"""What counts as found, and how the benchmarks of retrieval make their corpora."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recall import holds, recall
from benchmarks.retrieval_worker import factory
from benchmarks.synthetic import VectorEncoder, queries, write_corpus
from search_gym.questions import Question
from search_gym.retrieval import Hit, Passage, SearchFailed, corpus, store


@pytest.mark.parametrize(
    ("text", "golds", "found"),
    [
        ("The capital is Paris.", ["paris"], True),
        ("A comparison of cities.", ["Paris"], False),  # words, not characters
        ("Born in 1,984.", ["1984"], True),
        ("New York City", ["york", "London"], True),
        ("Anything", ["the", ""], False),  # nothing is left of these
    ],
)
def test_an_answer_is_found_among_the_words(text: str, golds: list[str], found: bool) -> None:
    assert holds(Hit("a", "", text, 1.0), golds) == found
    assert holds(Hit("a", text, "x", 1.0), golds) == found


class Ranked:
    """Finds for every query the same: nothing, nothing, the answer."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        hits = [Hit(str(rank), "", text, -rank) for rank, text in enumerate(["no", "neither", "Oslo", "Oslo"])]
        return [SearchFailed("down") if query == "down" else hits[:k] for query in queries]


def test_recall_is_the_share_of_questions_with_an_answer_so_far() -> None:
    asked = [Question("a", "?", ("Oslo",)), Question("b", "?", ("Rome",))]
    assert recall(Ranked(), asked, batch=1) == [0.0, 0.5, 0.5, 0.5]  # at 1, 3, 5 and 10
    with pytest.raises(RuntimeError, match="the search for question 'c' failed: down"):
        recall(Ranked(), [Question("c", "down", ("Oslo",))], batch=1)


def test_a_synthetic_corpus_is_the_same_every_time_and_its_queries_are_words_of_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_corpus(tmp_path / name, 50)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    passages = store.write(corpus.read(tmp_path / "one"), tmp_path / "store", "synthetic")
    assert len(passages) == 50
    words = [{*passage.text.split()} for passage in passages]
    assert all(any({*query.split()} <= some for some in words) for query in queries(passages, 20))


def test_synthetic_vectors_have_length_one_and_depend_on_nothing_but_their_number() -> None:
    encoder = VectorEncoder()
    some = encoder.passages([Passage("7", "", ""), Passage("8", "", "")])
    np.testing.assert_allclose(np.linalg.norm(some, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(encoder.queries(["3", "4"]), encoder.queries(["3", "4", "5"])[:2])


@pytest.mark.parametrize(("size", "lists"), [(10_000, 256), (100_000, 1024), (1_000_000, 4096)])
def test_lists_grow_with_the_root_of_the_corpus(size: int, lists: int) -> None:
    assert factory("ivfpq", size) == f"IVF{lists},PQ48np"
    assert 2 <= lists / size**0.5 <= 5
