"""The client and servers that fail, hang, refuse, or come and go: on real ones."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from stub_server import Reply, StubServer, client, echo, failure, free_port, hits, hits_of, texts

from search_gym.retrieval import SearchFailed
from search_gym.retrieval.remote import RemoteRetriever

# ---- what servers do wrong ----


@pytest.mark.parametrize("status", [500, 429, 502, 503, 504, None])
def test_two_failures_then_an_answer_is_success(status: int | None) -> None:  # R4
    bad = Reply() if status is None else Reply({"detail": "oh"}, status)
    replies = itertools.chain([bad, bad], itertools.repeat(None))
    with StubServer(lambda body: next(replies) or echo(body)) as server, client(server) as remote:
        assert texts(remote.search(["a", "b"], 3)) == ["a", "b"]
        assert len(server.asked) == 3


@pytest.mark.parametrize("queries", [["a"], ["a", "b", "c"]], ids=len)
def test_a_server_that_always_hangs_costs_a_bounded_time(queries: list[str]) -> None:  # R4
    with StubServer(lambda _: server.hang()) as server, client(server, timeout=0.3, retry_for=0.5) as remote:
        start = time.monotonic()
        found = remote.search(queries, 3)
        assert 0.5 <= time.monotonic() - start < 0.5 + 2 * 0.3 + 2  # for threads, on a busy machine
        assert all("no answer within" in failure(one) for one in found)


@pytest.mark.parametrize("status", [503, 500])
def test_a_server_that_always_fails_costs_a_bounded_time(status: int) -> None:
    with StubServer(lambda _: Reply({"detail": "oh"}, status)) as server, client(server, retry_for=0.6) as remote:
        start = time.monotonic()
        found = remote.search(["a", "b"], 3)
        assert 0.6 <= time.monotonic() - start < 4
        assert all(f"{status} " in failure(one) and "oh" in failure(one) for one in found)
        assert len(server.asked) > 2


@pytest.mark.parametrize("wrong", ["hangs", 500, 422, 400, 413, "miscounted", "unreadable", "closed"])
def test_other_members_of_a_batch_are_unaffected(wrong: str | int) -> None:  # R4
    def answer(body: dict[str, Any]) -> Reply:
        if "bad" not in body["queries"]:
            return echo(body)
        if wrong == "hangs":
            return server.hang()
        if isinstance(wrong, int):
            return Reply({"detail": "not that one"}, wrong)
        result = [hits({"id": 1, "text": q}) if q != "bad" else [{"id": 1}] for q in body["queries"]]
        return Reply({"result": result[1:] if wrong == "miscounted" else result}) if wrong != "closed" else Reply()

    with StubServer(answer) as server, client(server, timeout=0.5, retry_for=1.0) as remote:
        start = time.monotonic()
        expected = ["failed"] * 3 if wrong == "closed" else ["a", "failed", "c"]
        assert texts(remote.search(["a", "bad", "c"], 3)) == expected
        assert time.monotonic() - start < 5


def test_more_queries_that_hang_than_connections_leave_time_for_the_others() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return server.hang() if any(query.startswith("bad") for query in body["queries"]) else echo(body)

    with StubServer(answer) as server, client(server, timeout=1.0, retry_for=0.0, pool=2) as remote:
        start = time.monotonic()
        found = texts(remote.search(["bad 1", "bad 2", "bad 3", "bad 4", "a", "b"], 3))
        assert found == ["failed"] * 4 + ["a", "b"]
        assert time.monotonic() - start < 5


def test_a_query_that_breaks_the_server_does_not_use_up_the_time() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return Reply({"detail": "oh"}, 500) if "bad" in body["queries"] else echo(body)

    with StubServer(answer) as server, client(server, retry_for=60.0) as remote:
        start = time.monotonic()
        assert texts(remote.search(["a", "bad"], 3)) == ["a", "failed"]
        assert time.monotonic() - start < 20


@pytest.mark.parametrize("status", [401, 403, 404, 405, 307, 501])
def test_what_no_query_is_the_reason_of_is_asked_once(status: int) -> None:
    with (
        StubServer(lambda _: Reply({}, status, {"Location": "http://else.where/"})) as server,
        client(server) as remote,
    ):
        found = remote.search(["a", "b"], 3)
        assert all(f"{server.url}/retrieve: {status} " in failure(one) for one in found)
        assert len(server.asked) == 1
        assert ("give http://else.where/ as the URL" in failure(found[0])) == (status == 307)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"detail": "a query may have 2,000\ncharacters"}, ": a query may have 2,000 characters"),
        ({"detail": [{"msg": "no"}]}, ': {"detail": [{"msg": "no"}]}'),
        (b"no\xff" + b"x" * 1000, ": no\ufffd" + "x" * 197),
        (b"", ""),
    ],
    ids=range(4),
)
def test_a_refusal_says_why(content: Any, said: str) -> None:
    with StubServer(lambda _: Reply(content, 422)) as server, client(server) as remote:
        (found,) = remote.search(["a"], 3)
        assert failure(found) == f"{server.url}/retrieve: 422 Unprocessable Entity{said}"
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<!DOCTYPE html><html>...", "the answer is not JSON; it begins with b'<!DOCTYPE"),
        (b'{"result": [', "the answer is not JSON"),
        (b"\xff\xfe", "the answer is not JSON"),
        (b"[" * 100_000, "the answer is not JSON"),
        ([[]], 'the answer has no list "result"'),
        ({"results": [[]]}, 'the answer has no list "result"'),
        ({"result": {}}, 'the answer has no list "result"'),
        ({"result": []}, "the answer has 0 results for 1 queries"),
        ({"result": [[], []]}, "the answer has 2 results for 1 queries"),
        ({"result": [None]}, "a result must be a list, not None"),
        ({"result": [["text"]]}, "a document must be an object, not 'text'"),
        ({"result": [[{"document": None, "score": 1}]]}, "a document must be an object, not None"),
        ({"result": [[{"id": 1}]]}, '"text" must be a string, not missing'),
        ({"result": [[{"id": 1.5, "text": "x"}]]}, '"id" must be a string or a whole number'),
        ({"result": [[{"id": 1, "contents": 3}]]}, '"contents" must be a string'),
    ],
    ids=range(15),
)
def test_a_malformed_answer_is_a_failure_with_a_reason(content: Any, reason: str) -> None:
    with StubServer(lambda _: Reply(content)) as server, client(server) as remote:
        (found,) = remote.search(["a"], 3)
        assert reason in failure(found)
        assert len(server.asked) == 1


@pytest.mark.parametrize("score", ["x", None, True, math.nan, math.inf])
def test_a_score_that_is_none_is_the_rank(score: Any) -> None:
    items = [{"document": {"id": i, "text": "x"}, "score": score} for i in range(2)]
    with StubServer(lambda _: Reply({"result": [items]})) as server, client(server) as remote:
        first, second = hits_of(remote, 3)
        assert (first.score, second.score) == (-1.0, -2.0)


def test_an_answer_drop_by_drop_is_given_up() -> None:
    def answer(_: dict[str, Any]) -> Reply:
        return Reply(b"{", headers={"Content-Length": "1000"})

    with StubServer(answer) as server, client(server, timeout=0.3, retry_for=0.0) as remote:
        assert "answer within 0.3 s" in failure(remote.search(["a"], 1)[0])


def test_errors_that_the_server_tells_of_are_failures_of_their_queries() -> None:
    errors = [{"query": 1, "reason": "too odd"}, {"query": 7, "reason": "x"}, {"query": "0", "reason": "x"}, 3, {}]
    reply = Reply({"result": [[], [], []], "errors": errors})
    with StubServer(lambda _: reply) as server, client(server) as remote:
        assert remote.search(["a", "b", "c"], 3) == [[], SearchFailed("too odd"), []]


# ---- when to ask again ----


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_retry_after_is_kept(as_date: bool) -> None:
    times: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        if len(times) > 1:
            return echo(body)
        moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return Reply({}, 503, {"Retry-After": moment if as_date else "1"})

    with StubServer(answer) as server, client(server) as remote:
        assert texts(remote.search(["a"], 1)) == ["a"]
        assert times[1] - times[0] >= 1 - 0.01


@pytest.mark.parametrize("value", ["3600", "Fri, 31 Dec 2999 23:59:59 GMT"])
def test_a_pause_longer_than_the_time_that_is_left_ends_the_asking(value: str) -> None:
    with StubServer(lambda _: Reply({}, 429, {"Retry-After": value})) as server, client(server) as remote:
        start = time.monotonic()
        assert "429 Too Many Requests" in failure(remote.search(["a", "b"], 1)[0])
        assert time.monotonic() - start < 4
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "value", ["soon", "-1", "", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 -0000"]
)
def test_a_retry_after_that_says_nothing_is_passed_over(value: str) -> None:
    replies = iter([Reply({}, 503, {"Retry-After": value})])
    with StubServer(lambda body: next(replies, None) or echo(body)) as server, client(server) as remote:
        assert texts(remote.search(["a"], 1)) == ["a"]


def test_a_server_that_comes_late_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    found: list[Any] = []
    with RemoteRetriever(f"http://127.0.0.1:{port}", retry_for=20) as remote:
        search = threading.Thread(target=lambda: found.extend(remote.search(["a", "b"], 1)))
        search.start()
        time.sleep(1)
        with StubServer(echo, port=port):
            search.join()
    assert texts(found) == ["a", "b"]
    assert [record.levelno for record in caplog.records if record.name.startswith("search_gym")] == [logging.WARNING]
    assert "Connection refused; asking again for up to 20 s" in caplog.text


def test_a_server_that_never_comes_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    with RemoteRetriever(f"http://127.0.0.1:{free_port()}", retry_for=0.5) as remote:
        start = time.monotonic()
        found = remote.search(["a", "", "b"], 1)
        assert 0.5 <= time.monotonic() - start < 1.5
        assert found[1] == []
        assert "Connection refused" in failure(found[0])
        assert found[0] == found[2]
    assert "2 of 3 searches failed: " in caplog.text
