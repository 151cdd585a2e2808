"""The client: laws over any queries, what servers give, processes and threads. On real servers."""

from __future__ import annotations

import gc
import math
import multiprocessing
import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import NOT_FOUND, Reply, StubServer, client, echo, failure, free_port, hits, hits_of, over, texts

from search_gym import World
from search_gym.retrieval import Hit
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.remote import RemoteRetriever
from search_gym.retrieval.strict import SearchError

BM25 = BM25Retriever(World(0).corpus)
WORDS = st.lists(st.sampled_from(["Selby", "river", "the", "painter", "«é»", "&", "50%", "日本"]), max_size=5).map(
    " ".join
)
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # half surrogate pairs as well
QUERIES = st.lists(WORDS | ANY_TEXT, max_size=6)


@pytest.fixture(scope="module")
def bm25_server() -> Iterator[StubServer]:
    with StubServer(over(BM25), Reply({"status": "ok", "digest": BM25.digest})) as server:
        yield server


@given(queries=QUERIES, k=st.integers(1, 12))
def test_a_server_answers_as_the_retriever_behind_it(bm25_server: StubServer, queries: list[str], k: int) -> None:
    with client(bm25_server) as remote:
        assert remote.search(queries, k) == BM25.search(queries, k)
        assert remote.search(queries, k) == [remote.search([query], k)[0] for query in queries]


def test_one_request_asks_each_query_once_and_no_empty_one() -> None:
    with StubServer(echo) as server, client(server) as remote:
        assert texts(remote.search(["a", "", "b", "a", " "], 3)) == ["a", None, "b", "a", " "]
        assert server.asked == [{"queries": ["a", "b", " "], "topk": 3, "return_scores": True}]
        assert remote.search([], 3) == []
        assert remote.search(["", ""], 3) == [[], []]
        assert len(server.asked) == 1
        remote.search(["c"], 1)
        assert len(server.clients) == 1


def test_the_result_of_one_query_can_be_changed_without_changing_that_of_another() -> None:
    with StubServer(echo) as server, client(server) as remote:
        first, second = remote.search(["a", "a"], 1)
        assert isinstance(first, list)
        first.clear()
        assert second != []


@pytest.mark.parametrize(
    ("query", "arrives"),
    [
        ("A & B + 50% «é»", "A & B + 50% «é»"),  # R4
        ('"quotes" \\ [brackets] {braces}\n\t\0', '"quotes" \\ [brackets] {braces}\n\t\0'),
        ("日本 \U0001f600\u2028", "日本 \U0001f600\u2028"),
        ("half \ud800 a pair", "half \ufffd a pair"),
        ("two halves \ud83d\ude00", "two halves \U0001f600"),
        ("\ufeffx", "\ufeffx"),
        ("x" * 100_000, "x" * 100_000),
    ],
    ids=["signs", "quotes", "unicode", "half", "halves", "mark", "long"],
)
def test_queries_arrive_unchanged(query: str, arrives: str) -> None:
    with StubServer(echo) as server, client(server) as remote:
        assert texts(remote.search([query], 1)) == [arrives]
        assert server.asked[0]["queries"] == [arrives]


# ---- what servers give ----


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"id": "7", "contents": '"Oslo"\nA city.'}, Hit("7", "Oslo", "A city.", 0.9)),
        ({"id": 7, "contents": '"""Weird Al"" Yankovic"\nA man.'}, Hit("7", '"Weird Al" Yankovic', "A man.", 0.9)),
        ({"id": 0, "title": "Oslo", "text": "A city."}, Hit("0", "Oslo", "A city.", 0.9)),
        ({"id": "7", "title": None, "text": "A city."}, Hit("7", "", "A city.", 0.9)),
        ({"id": "7", "title": "a\nb", "text": "c", "contents": '"a\nb"\nc'}, Hit("7", "a\nb", "c", 0.9)),
    ],
    ids=["contents", "quotes", "number", "no-title", "both"],
)
def test_documents_of_both_shapes(document: dict[str, Any], expected: Hit) -> None:
    for item in (hits(document), [document]):
        with StubServer(lambda _, item=item: Reply({"result": [item]})) as server, client(server) as remote:
            (hit,) = hits_of(remote, 3)
            bare = item == [document]
            assert hit == Hit(expected.id, expected.title, expected.text, -1.0 if bare else 0.9)


def test_no_more_than_k_distinct_hits_best_first() -> None:  # R3
    documents = [{"id": i, "text": f"text {i}"} for i in (4, 4, 2, 9, 1)]
    for results in (hits(*documents), documents):
        with StubServer(lambda _, results=results: Reply({"result": [results]})) as server, client(server) as remote:
            first, second = hits_of(remote, 2)
            assert (first.id, second.id) == ("4", "2")
            assert first.score > second.score


def search_r1(body: dict[str, Any]) -> Reply:
    """What PeterGriffinJin/Search-R1, search_r1/search/retrieval_server.py, gives with an index over E5.

    Rows of wiki-18.jsonl as they are; with more asked for than there are, FAISS fills up with place -1, which is the
    last row to Python, and the least float32.
    """
    corpus = [
        {"id": "0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
        {"id": "1", "contents": '"Paris"\nParis is the capital of France.'},
        {"id": "2", "contents": '"Rome"\nRome is the capital of Italy.'},
    ]
    places = [0, 1, 2, -1, -1][: body["topk"]]
    scores = [0.8612, 0.8333, 0.79, -3.4028234663852886e38, -3.4028234663852886e38]
    rows = [{"document": corpus[place], "score": score} for place, score in zip(places, scores, strict=False)]
    return Reply(
        {"result": [rows if body["return_scores"] else [row["document"] for row in rows]] * len(body["queries"])}
    )


def search_r1_pyserini(body: dict[str, Any]) -> Reply:
    """The same with a Pyserini index: no id, the title stripped of its quotes, and no document where none matches."""
    contents = '"""Weird Al"" Yankovic"\nA man.'
    first, rest = contents.split("\n")
    document = {"title": first.strip('"'), "text": rest, "contents": contents}
    return Reply({"result": [[{"document": document, "score": 11.25}] if "man" in q else [] for q in body["queries"]]})


def test_search_r1_s_server_is_read() -> None:
    with StubServer(search_r1) as server, client(server) as remote:
        found = remote.search(["capital of Norway", "capital"], 5)
        assert found == [[
            Hit("0", "Oslo", "Oslo is the capital of Norway.", 0.8612),
            Hit("1", "Paris", "Paris is the capital of France.", 0.8333),
            Hit("2", "Rome", "Rome is the capital of Italy.", 0.79),
        ]] * 2  # fmt: skip
    with StubServer(search_r1_pyserini) as server, client(server) as remote:
        one, none = remote.search(["a man", "zzz"], 3)
        assert none == []
        assert isinstance(one, list)
        assert (one[0].title, one[0].text, one[0].score) == ('"Weird Al" Yankovic', "A man.", 11.25)
        assert one[0].id
        assert remote.search(["man"], 1) == [one]


# ---- processes and threads ----


def test_it_may_be_pickled_and_copied() -> None:
    with StubServer(echo) as server, client(server) as remote:
        remote.search(["a"], 1)
        again = pickle.loads(pickle.dumps(remote))
        with again:
            assert texts(again.search(["b"], 1)) == ["b"]
            assert again.digest == remote.digest


def search_in_child(remote: RemoteRetriever, results: Any) -> None:
    results.put(texts(remote.search(["child"], 1)))
    remote.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_another_process_opens_connections_of_its_own(method: str) -> None:
    context = multiprocessing.get_context(method)
    with StubServer(echo) as server, client(server) as remote:
        remote.search(["parent"], 1)
        results = context.Queue()
        children = [
            context.Process(  # pyright: ignore[reportAttributeAccessIssue]
                target=search_in_child, args=(remote, results)
            )
            for _ in range(2)
        ]
        for child in children:
            child.start()
        assert [results.get(timeout=60) for _ in children] == [["child"]] * 2
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert texts(remote.search(["parent"], 1)) == ["parent"]
        assert len(server.clients) >= 3  # more where a child takes so long that the parent's is closed
        results.close()
        results.join_thread()


def test_threads_share_it(caplog: pytest.LogCaptureFixture) -> None:
    with StubServer(echo) as server, client(server, pool=4, timeout=60.0) as remote, ThreadPoolExecutor(16) as threads:
        batches = [[f"{i}", f"{i}!"] for i in range(500)]
        assert list(threads.map(lambda batch: texts(remote.search(batch, 1)), batches)) == batches
        assert len(server.clients) <= 4
        assert remote.take_counts() == {"search_queries": 1000}
        assert remote.take_counts() == {"search_queries": 0}
        assert caplog.records == []  # no connection was taken from under another thread


def test_it_can_be_used_again_after_it_was_closed() -> None:
    with StubServer(echo) as server:
        remote = client(server)
        for _ in range(2):
            assert texts(remote.search(["a"], 1)) == ["a"]
            remote.close()
        remote.close()


@pytest.mark.skipif(sys.platform != "linux", reason="open files are read from /proc")
def test_connections_are_closed_with_the_last_that_has_it() -> None:
    def sockets() -> int:
        return sum("socket:" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    with StubServer(echo) as server:
        remote = client(server)
        before = sockets()
        remote.search(["a"], 1)
        assert sockets() > before
        del remote
        gc.collect()
        time.sleep(0.1)  # until the server has closed its end
        assert sockets() <= before


# ---- digest and arguments ----


def test_the_digest_is_the_server_s(bm25_server: StubServer) -> None:
    with client(bm25_server) as remote:
        assert remote.digest == BM25.digest
        asked = len(bm25_server.paths)
        assert remote.digest == BM25.digest
        assert len(bm25_server.paths) == asked


@pytest.mark.parametrize(
    "health", [NOT_FOUND, Reply(b"ok"), Reply(["ok"]), Reply({"status": "ok"}), Reply({"digest": 3})], ids=range(5)
)
def test_without_one_it_is_made_of_the_url(health: Reply) -> None:
    with StubServer(echo, health) as server, client(server) as remote:
        assert len(remote.digest) == 32
        with RemoteRetriever(f"{server.url}/retrieve") as same, RemoteRetriever(f"{server.url}/other") as other:
            assert remote.digest == same.digest != other.digest
        named = server.url.replace("//", "//user:secret@")
        with RemoteRetriever(named) as same:
            assert same.digest == remote.digest


def test_a_server_that_is_away_has_no_digest() -> None:
    with (
        RemoteRetriever(f"http://127.0.0.1:{free_port()}", retry_for=0.2) as remote,
        pytest.raises(SearchError, match=r"cannot learn what the server searches in: .*Connection refused"),
    ):
        _ = remote.digest


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("", "/retrieve"),
        ("/", "/retrieve"),
        ("/retrieve", "/retrieve"),
        ("/api/search", "/api/search"),
        ("/search?index=2", "/search?index=2"),
    ],
)
def test_a_path_of_the_url_is_taken_as_it_is(path: str, asked: str) -> None:
    with StubServer(echo) as server, RemoteRetriever(server.url + path) as remote:
        remote.search(["a"], 1)
        _ = remote.digest
        assert server.paths == [asked, f"{asked.rpartition('/')[0]}/health"]


def test_a_password_is_sent_and_never_shown() -> None:
    with StubServer(lambda _: Reply({}, 403)) as server:
        with RemoteRetriever(server.url.replace("//", "//user:secret@")) as remote:
            reason = failure(remote.search(["a"], 1)[0])
        assert server.headers[0]["Authorization"] == "Basic dXNlcjpzZWNyZXQ="
        assert "secret" not in reason


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://host", "http://", "http://host:port", "127.0.0.1:8000"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        RemoteRetriever(url)


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"retry_for": -1}, {"pool": 0}, {"timeout": math.nan}])
def test_faulty_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0, retry_for at least 0 and pool at least 1"):
        RemoteRetriever("http://127.0.0.1:1", **settings)


def test_faulty_arguments_are_refused() -> None:
    remote = RemoteRetriever("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="k must be at least 1"):
        remote.search(["a"], 0)
    with pytest.raises(TypeError, match="queries must be a list"):
        remote.search("a", 1)


@pytest.mark.parametrize("name", ["httpx", "tenacity"])
def test_what_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {name}: pip install 'search-gym\[remote\]'"):
        RemoteRetriever("http://127.0.0.1:1")
