"""What becomes of searches that fail: the policy is told, or SearchError ends the run."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playing import SMALL, TOKENIZER

import search_gym
from search_gym import SearchError, SearchFailed
from search_gym.retrieval import Hit
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.cache import CachedRetriever
from search_gym.retrieval.strict import StrictRetriever
from search_gym.sources import embedded_world, open_retriever

BM25 = BM25Retriever(embedded_world().corpus)


class Failing:
    """Answers nothing to queries with "bad", and like BM25 to others."""

    def __init__(self, reason: str = "it is away") -> None:
        self.reason = reason

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        found = BM25.search(queries, k)
        return [SearchFailed(self.reason) if "bad" in q else hits for q, hits in zip(queries, found, strict=True)]


@given(st.lists(st.sampled_from(["Selby", "river", "bad", "bad Selby", ""]), max_size=5), st.integers(1, 4))
def test_it_answers_or_raises(queries: list[str], k: int) -> None:
    strict = StrictRetriever(Failing())
    failed = [query for query in queries if "bad" in query]
    if not failed:
        assert strict.search(queries, k) == BM25.search(queries, k)
        return
    with pytest.raises(SearchError) as error:
        strict.search(queries, k)
    assert (error.value.query, error.value.reason) == (failed[0], "it is away")
    assert str(error.value) == f"the search for {failed[0]!r} failed: it is away"


def test_the_error_may_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(SearchError("away", "Oslo")))
    assert (error.reason, error.query, str(error)) == ("away", "Oslo", "the search for 'Oslo' failed: away")
    assert str(SearchError("no server")) == "no server"


def test_digest_and_counts_are_those_of_the_retriever_within() -> None:
    strict = StrictRetriever(CachedRetriever(BM25))
    assert strict.digest == BM25.digest
    strict.search(["Selby", "Selby"], 1)
    assert strict.take_counts() == {"search_queries": 2, "search_cache_hit_rate": 0.5}
    assert not hasattr(StrictRetriever(Failing()), "digest")
    assert StrictRetriever(Failing()).take_counts() == {}


def search(env: gymnasium.Env[Any, Any], query: str) -> Any:
    env.reset(seed=0)
    return env.step(TOKENIZER.encode(f"<search> {query} </search>"))


def test_an_environment_tells_the_policy_or_raises() -> None:
    env = gymnasium.make("SearchQATurns-v0", retriever=Failing(), **SMALL)
    *_, info = search(env, "bad")
    assert (info["searches"], info["failed_searches"]) == (1, 1)
    env = gymnasium.make("SearchQATurns-v0", retriever=Failing(), on_search_error="raise", **SMALL)
    *_, info = search(env, "Selby")
    assert (info["searches"], info["failed_searches"]) == (1, 0)
    with pytest.raises(search_gym.SearchError, match="the search for 'bad' failed: it is away"):
        search(env, "bad")


def test_a_vector_environment_raises_as_well() -> None:
    envs = gymnasium.make_vec(
        "SearchQATurns-v0",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        retriever=Failing(),
        on_search_error="raise",
        **SMALL,
    )
    envs.reset(seed=0)
    with pytest.raises(SearchError, match="failed: it is away"):
        envs.step([TOKENIZER.encode(f"<search> {query} </search>") for query in ("Selby", "bad")])


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown on_search_error 'ignore'; there are: tell, raise"):
        open_retriever("bm25", on_search_error="ignore")  # pyright: ignore[reportArgumentType]
