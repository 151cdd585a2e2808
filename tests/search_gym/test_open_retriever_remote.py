"""Servers and caches by name."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from playing import SMALL, TOKENIZER
from stub_server import Reply, StubServer, echo, over

from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.cache import CachedRetriever
from search_gym.retrieval.remote import RemoteRetriever
from search_gym.retrieval.strict import StrictRetriever
from search_gym.sources import embedded_world, open_retriever

BM25 = BM25Retriever(embedded_world().corpus)


def test_an_address_is_a_server() -> None:
    with StubServer(echo) as server:
        with open_retriever(server.url) as opened:  # pyright: ignore[reportGeneralTypeIssues]
            assert isinstance(opened, RemoteRetriever)
            assert len(opened.search(["a"], 1)[0]) == 1  # pyright: ignore[reportArgumentType]
        opened = open_retriever({"name": server.url, "timeout": 3.0, "retry_for": 0.5})
        assert isinstance(opened, RemoteRetriever)
        with pytest.raises(ValueError, match="brings its own passages"):
            open_retriever(server.url, "embedded")
        with pytest.raises(ValueError, match="time_out"):
            open_retriever({"name": server.url, "time_out": 3.0})


def test_a_cache_is_within_and_failures_without(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    opened = open_retriever(BM25, on_search_error="raise", cache=path)
    assert isinstance(opened, StrictRetriever)
    assert isinstance(opened.retriever, CachedRetriever)
    assert opened.search(["Selby"], 2) == BM25.search(["Selby"], 2)
    opened.retriever.close()
    with StubServer(over(BM25), Reply({"digest": BM25.digest})) as server:
        opened = open_retriever(server.url, cache=str(path))
        assert isinstance(opened, CachedRetriever)
        assert opened.search(["Selby"], 2) == BM25.search(["Selby"], 2)
        assert server.asked == []  # what was found without the server is known, for the digest is the same
        opened.close()
        assert isinstance(opened.retriever, RemoteRetriever)
        opened.retriever.close()


def test_an_environment_over_a_server_is_that_over_its_retriever() -> None:
    turn = TOKENIZER.encode("<search> Selby </search>")
    seen = []
    with StubServer(over(BM25)) as server:
        for retriever in (BM25, server.url):
            env = gymnasium.make("SearchQATurns-v0", retriever=retriever, **SMALL)
            env.reset(seed=3)
            observation, *_ = env.step(turn)
            seen.append(observation["tokens"].tolist())
        env.unwrapped.setting.retriever.close()  # type: ignore[attr-defined]
        assert len(server.asked) == 1
    assert seen[0] == seen[1]
