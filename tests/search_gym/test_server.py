"""The retrieval server over real connections: what it answers, what it refuses, and the clients of others."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import CITIES, Watched, served, watched

from search_gym.retrieval import Hit, Passage, corpus
from search_gym.retrieval.answering import Limits
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.corpus import contents
from search_gym.retrieval.server import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".venv-peers/bin/python"
SMALL = Limits(max_queries=3, max_query_length=10, max_top_k=4, max_body_bytes=500)
BM25 = BM25Retriever(CITIES)
TITLES = st.text().map(lambda title: title.replace("\n", "")).filter(bool)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Of a server with the usual limits."""
    with served(watched()) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    """Of a server with small limits."""
    with served(BM25, ServerConfig(top_k=2, limits=SMALL)) as url, httpx.Client(base_url=url) as client:
        yield client


def post(client: httpx.Client, asked: Any) -> httpx.Response:
    return client.post("/retrieve", content=json.dumps(asked), headers={"content-type": "application/json"})


def document(hit: Hit | Passage) -> dict[str, str]:
    return {"id": hit.id, "contents": contents(hit.title, hit.text), "title": hit.title, "text": hit.text}


def scored(hits: Sequence[Hit]) -> list[dict[str, Any]]:
    return [{"document": document(hit), "score": hit.score} for hit in hits]


# What is answered


@given(
    st.lists(st.text() | st.sampled_from(["capital", 'the "city" & 50% «é» [1] + B', "\x00\ud800 trouble"]), max_size=6)
)
def test_over_the_wire_any_queries_find_what_they_find_here(client: httpx.Client, queries: list[str]) -> None:
    answer = post(client, {"queries": queries, "topk": 3, "return_scores": True})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"result": [scored(hits) for hits in BM25.search(queries, 3)]}
    alone = [post(client, {"query": query, "topk": 3, "return_scores": True}).json() for query in queries]
    assert [answer.json()["result"]] == [[one["result"][0] for one in alone]]


def test_more_hits_than_passages_are_distinct_and_no_padding(client: httpx.Client) -> None:  # R1
    (hits,) = post(client, {"queries": ["capital Oslo"], "topk": 50, "return_scores": True}).json()["result"]
    assert sorted(hit["document"]["id"] for hit in hits) == ["b", "o", "p", "x"]
    assert all(math.isfinite(hit["score"]) for hit in hits)


@pytest.mark.parametrize("scores", [{}, {"return_scores": None}, {"return_scores": False}, {"return_scores": True}])
@pytest.mark.parametrize("asked", [{}, {"topk": None}, {"topk": 1}, {"topk": 2}])
def test_as_many_documents_as_asked_with_scores_or_bare(scores: dict[str, Any], asked: dict[str, Any]) -> None:  # R3
    class Generous(BM25Retriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return super().search(queries, 4)

    hits = BM25.search(["capital"], 4)[0][: asked.get("topk") or 3]
    expected = scored(hits) if scores.get("return_scores") else [document(hit) for hit in hits]
    with served(Generous(CITIES), ServerConfig(top_k=3)) as url, httpx.Client(base_url=url) as client:
        for query in ({"queries": ["capital"]}, {"query": "capital"}):
            assert post(client, {**query, **asked, **scores}).json() == {"result": [expected]}


def test_no_query_is_no_result_and_what_is_not_known_is_left_alone(client: httpx.Client) -> None:
    # Search-R1's client asks for nothing in a step in which no policy searches.
    assert post(client, {"queries": [], "topk": 3}).json() == {"result": []}
    assert post(client, {"queries": ["zzz"], "memory_type": "flat", "topk": None}).json() == {"result": [[]]}


@given(TITLES, st.text())
def test_contents_hold_title_and_text(title: str, text: str) -> None:
    assert corpus.title_and_text(contents(title, text)) == (title, text)
    assert contents("", text) == text


# What is refused


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"queries": ["a"] * 4}, {"limit": "max_queries", "value": 3, "sent": 4}),
        ({"queries": ["a", "b" * 11]}, {"limit": "max_query_length", "value": 10, "sent": 11, "query": 1}),
        ({"query": "b" * 11}, {"limit": "max_query_length", "value": 10, "sent": 11, "query": 0}),
        ({"query": "a", "topk": 5}, {"limit": "max_top_k", "value": 4, "sent": 5}),
    ],
    ids=["queries", "length", "length-of-one", "topk"],
)
def test_what_is_beyond_a_limit_is_refused_by_its_name(small: httpx.Client, asked: Any, told: dict[str, Any]) -> None:
    answer = post(small, asked)
    detail = answer.json().pop("detail")
    assert answer.status_code == 422
    assert answer.json() == {"detail": detail, **told}
    assert {told["limit"], str(told["value"]), str(told["sent"])} <= set(re.findall(r"\w+", detail))


def test_what_is_at_a_limit_is_answered(small: httpx.Client) -> None:
    assert post(small, {"queries": ["b" * 10] * 3, "topk": 4}).status_code == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "the body is not JSON"),
        ("{", "the body is not JSON"),
        ("[" * 200, "the body is not JSON"),
        (b'{"query": "\xff"}', "the body is not JSON"),
        ('{"query": "a", "topk": ' + "9" * 400 + "}", "at most 4 are allowed"),
        ("[]", "the body must be a JSON object, not a list"),
        ('"Oslo"', "the body must be a JSON object, not 'Oslo' (str)"),
        ("{}", 'either "queries", a list of strings, or "query", a string, is needed; there is: nothing'),
        ('{"topk": 1}', "there is: 'topk'"),
        ('{"query": "a", "queries": ["a"]}', "either"),
        ('{"queries": "Oslo"}', "\"queries\" must be a list of strings, not 'Oslo' (str)"),
        ('{"queries": ["a", 3]}', "query 1 must be a string, not 3 (int)"),
        ('{"query": {"a": []}}', "query 0 must be a string, not an object"),
        ('{"query": "a", "topk": 0}', '"topk" must be a whole number, 1 or more, not 0 (int)'),
        ('{"query": "a", "topk": true}', '"topk" must be a whole number'),
        ('{"query": "a", "topk": 1.5}', '"topk" must be a whole number'),
        ('{"query": "a", "return_scores": 1}', '"return_scores" must be true or false, not 1 (int)'),
    ],
)
def test_what_is_not_of_the_protocol_is_refused(small: httpx.Client, body: str | bytes, reason: str) -> None:
    answer = small.post("/retrieve", content=body)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]


def test_json_nested_too_deeply_is_refused(client: httpx.Client) -> None:
    answer = client.post("/retrieve", content="[" * 500_000)
    assert (answer.status_code, answer.json()["detail"]) == (422, "the body is JSON that is nested too deeply")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [501, 5_000_000])
def test_a_body_that_is_too_large_is_refused_and_the_connection_stays(
    small: httpx.Client, size: int, chunked: bool
) -> None:
    body = b" " * size
    answer = small.post("/retrieve", content=iter([body[:300], body[300:]]) if chunked else body)
    assert answer.status_code == 413
    assert answer.json() == {
        "detail": f"the body has {size} bytes, and at most 500 are allowed (max_body_bytes)",
        "limit": "max_body_bytes",
        "value": 500,
        "sent": size,
    }


def test_other_methods_and_paths_are_refused(client: httpx.Client) -> None:
    assert client.get("/retrieve").status_code == 405
    assert post(client, {}).status_code == 422
    assert client.get("/elsewhere").status_code == 404


def test_faulty_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_queries must be at least 1, not 0"):
        Limits(max_queries=0)
    for top_k in (0, 101):
        with pytest.raises(ValueError, match="top_k must be from 1 to max_top_k, 100"):
            ServerConfig(top_k=top_k)
    with pytest.raises(ValueError, match="max_batch must be at least 1"), served(BM25, ServerConfig(max_batch=0)):
        pass


# What fails


def test_a_search_that_failed_is_told_apart_from_one_that_found_nothing(client: httpx.Client) -> None:
    some = post(client, {"queries": ["zzz", "down", "Norway", "down"], "topk": 1})
    error = {"reason": "down"}
    assert some.status_code == 200
    assert some.json()["result"] == [[], [], [document(BM25.search(["Norway"], 1)[0][0])], []]
    assert some.json()["errors"] == [{"query": 1, **error}, {"query": 3, **error}]
    every = post(client, {"query": "down"})
    assert every.status_code == 503
    assert every.json() == {"detail": "the search failed: down", "errors": [{"query": 0, **error}]}


def test_a_poisoned_query_fails_its_request_and_no_other() -> None:
    retriever = watched()
    with served(retriever) as url, ThreadPoolExecutor(9) as threads:
        retriever.gate.clear()
        first = threads.submit(httpx.post, f"{url}/retrieve", json={"query": "first"}, timeout=60)
        assert retriever.begun.acquire(timeout=30)
        asked = [["Norway"], ["a", "poison"], ["France"], ["b", "Norway"], ["poison"]]
        later = [
            threads.submit(httpx.post, f"{url}/retrieve", json={"queries": q, "topk": 3}, timeout=60) for q in asked
        ]
        waiting = "search_gym_waiting_queries 7.0"
        while waiting not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        retriever.gate.set()
        assert first.result().status_code == 200
        assert [answer.result().status_code for answer in later] == [200, 500, 200, 200, 500]
        assert "StopIteration('this cannot be searched for')" in later[1].result().json()["detail"]
        assert later[3].result().json()["result"] == [
            [document(h) for h in hits] for hits in BM25.search(["b", "Norway"], 3)
        ]
    # One search for all that waited, then one for each of them.
    assert sorted(len(queries) for queries, _ in retriever.searches) == [1, 1, 1, 1, 2, 2, 5]


@pytest.mark.parametrize("score", [math.nan, -math.inf])
def test_a_score_that_json_cannot_hold_is_an_error(score: float) -> None:
    class Odd:
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return [[Hit("a", "", "b", score)] for _ in queries]

    with served(Odd()) as url:
        assert httpx.post(f"{url}/retrieve", json={"query": "a", "return_scores": True}).status_code == 500
        assert httpx.post(f"{url}/retrieve", json={"query": "a"}).status_code == 200


def test_clients_that_leave_harm_nobody() -> None:
    retriever = watched()
    with served(retriever) as url, ThreadPoolExecutor(1) as threads:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        retriever.gate.clear()
        body = b'{"query": "Norway"}'
        head = b"POST /retrieve HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        for sent in (head % len(body) + body, head % len(body) + body, head % 1000 + body, b"POST /retr"):
            with socket.create_connection(address) as left:
                left.sendall(sent)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/retrieve", json={"query": "Norway"}, timeout=0.1)
        stays = threads.submit(httpx.post, f"{url}/retrieve", json={"query": "Norway"}, timeout=60)
        retriever.gate.set()
        assert stays.result().json()["result"][0][0]["id"] in "ob"
        metrics = httpx.get(f"{url}/metrics").text
        assert 'search_gym_requests_total{code="499"} 1.0' in metrics
        assert 'code="500"' not in metrics


# Many clients


def test_each_of_many_clients_gets_its_own_answers_from_fewer_searches_than_requests() -> None:
    passages = [Passage(str(i), f"Place {i}", f"word{i} and word{i + 1}") for i in range(50)]
    expected = BM25Retriever(passages)
    retriever = Watched(BM25Retriever(passages), pause=0.005)

    def ask(place: int) -> list[Any]:
        with httpx.Client(base_url=url, timeout=60) as client:
            queries = [[f"word{(7 * place + i) % 60}", f"word{i}"][: 1 + i % 2] for i in range(12)]
            answers = [post(client, {"queries": q, "topk": 1 + place % 3, "return_scores": True}) for q in queries]
        wanted = [[scored(hits) for hits in expected.search(q, 1 + place % 3)] for q in queries]
        assert [answer.json() for answer in answers] == [{"result": result} for result in wanted]
        return answers

    with served(retriever) as url, ThreadPoolExecutor(16) as threads:
        assert sum(len(answers) for answers in threads.map(ask, range(16))) == 16 * 12
    assert len(retriever.searches) < 16 * 12 / 2


# /health and /metrics


def test_health_tells_what_is_served(small: httpx.Client) -> None:
    health = small.get("/health").json()
    assert health.pop("version")
    limits = {"max_queries": 3, "max_query_length": 10, "max_top_k": 4, "max_body_bytes": 500}
    assert health == {"status": "ok", "digest": BM25.digest, "passages": 4, "top_k": 2, "limits": limits}


def test_health_of_a_retriever_that_says_nothing_and_of_one_that_fails(client: httpx.Client) -> None:
    health = client.get("/health").json()
    assert (health["status"], health["digest"], health["passages"]) == ("ok", None, None)

    class Broken(Watched):
        @property
        def digest(self) -> str:
            raise OSError("the server behind is not there")

    with served(Broken(BM25)) as url:
        answer = httpx.get(f"{url}/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "failing", "detail": "OSError: the server behind is not there"}


def test_metrics_count_what_happened() -> None:
    with served(watched()) as url, httpx.Client(base_url=url) as client:
        post(client, {"queries": ["a", "b", "down"]})
        post(client, {"queries": ["c"]})
        post(client, {"queries": 3})
        post(client, {"queries": ["poison"]})
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for line in (
        'search_gym_requests_total{code="200"} 2.0',
        'search_gym_requests_total{code="422"} 1.0',
        'search_gym_requests_total{code="500"} 1.0',
        "search_gym_queries_total 5.0",
        "search_gym_failed_queries_total 2.0",
        "search_gym_request_seconds_count 4.0",
        'search_gym_batch_queries_bucket{le="1.0"} 1.0',
        'search_gym_batch_queries_bucket{le="4.0"} 2.0',
        "search_gym_waiting_queries 0.0",
    ):
        assert f"\n{line}\n" in answer.text


# Clients of others


def test_the_client_of_search_r1_reads_it() -> None:
    """Its `_batch_search` and `_passages2string`: what they send, and the members that they read."""
    requests = pytest.importorskip("requests", reason="requests, which Search-R1 asks with, is not installed")
    with served(BM25) as url:
        payload = {"queries": ["port Oslo", "zzz", '"City of Light" & B + 50% «é»'], "topk": 2, "return_scores": True}
        result = requests.post(f"{url}/retrieve", json=payload).json()["result"]
        nothing = requests.post(f"{url}/retrieve", json={"queries": [], "topk": 3, "return_scores": True}).json()[
            "result"
        ]
    read = []
    for i in range(len(result)):
        items = [result[i][j]["document"]["contents"].split("\n") for j in range(len(result[i]))]
        read.append([(lines[0], "\n".join(lines[1:])) for lines in items])
    assert read[0][0] == ('"Oslo"', CITIES[0].text)
    assert read[1] == nothing == []
    assert read[2][0] == ('"The ""City of Light"""', CITIES[1].text)


_SKYRL = """
import json, sys
from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig
extras = {"reward_spec": {"ground_truth": {"target": ["Oslo"]}}, "max_turns": 5}
env = SearchEnv(SearchEnvConfig(search_url=sys.argv[1] + "/retrieve", topk=2), extras)
searches = ["<search> capital of Norway </search>", "<search>zzz</search>", "<search>B + 50% «é»</search>"]
steps = [env.step(turn) for turn in [*searches, "<answer>Oslo</answer>"]]
print(json.dumps([[s["observations"], s["reward"], s["done"]] for s in steps]))
"""


@pytest.mark.skipif(not PEERS.exists(), reason="skyrl-gym is not here: make peers")
def test_the_search_environment_of_skyrl_gym_plays_on_it() -> None:
    with served(BM25) as url:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [str(PEERS), "-c", _SKYRL, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    *searches, answer = json.loads(done.stdout)
    found = []
    for observations, reward, over in searches:
        assert (reward, over) == (0, False)
        text = observations[0]["content"].removeprefix("\n<information>").removesuffix("</information>\n")
        found.append(json.loads(text)["result"])
    first, second = (contents(hit.title, hit.text) for hit in BM25.search(["capital of Norway"], 2)[0])
    assert found[0] == f"Doc 1: {first}\nDoc 2: {second}\n"
    assert found[1] == ""
    assert found[2].startswith(f"Doc 1: {contents(CITIES[1].title, CITIES[1].text)}\n")
    assert answer == [[], 1.0, True]
