"""`search-gym serve`, in a process of its own: what it prints, how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from serving import CITIES

from search_gym.cli import main
from search_gym.retrieval.running import bind, url

SERVE = [sys.executable, "-m", "search_gym.cli", "serve"]
# A server whose searches take the seconds that the query says.
SLOW = """
import sys, time
from search_gym.retrieval.running import serve
class Slow:
    def search(self, queries, k):
        print("searching", flush=True)
        time.sleep(float(queries[0]))
        return [[] for _ in queries]
serve(Slow(), port=0, ready=lambda url: print(url, flush=True))
print("over", flush=True)
"""


@contextmanager
def process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves, and the line that it prints when it is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert line, started.communicate()[1]
            yield started, line
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_answers_and_ends_in_peace(number: signal.Signals) -> None:
    with process([*SERVE, "embedded", "--port", "0", "--top-k", "2", "--max-top-k", "5"]) as (server, line):
        start, _, address = line.rstrip("\n").rpartition(" ")
        assert start.startswith("serving bm25 over ")
        assert start.endswith(" passages at")
        with httpx.Client(base_url=address) as client:  # an idle connection holds up nothing
            passages = client.get("/health").json()["passages"]
            assert f"over {passages:,} passages" in start
            assert len(client.post("/retrieve", json={"query": "the born in of a"}).json()["result"][0]) <= 2
            assert client.post("/retrieve", json={"query": "a", "topk": 6}).status_code == 422
            server.send_signal(number)
            out, err = server.communicate(timeout=30)
    assert (server.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_on_their_way_are_answered_before_it_ends(number: signal.Signals) -> None:
    with process([sys.executable, "-c", SLOW]) as (server, line), ThreadPoolExecutor(2) as threads:
        address = line.strip()
        answers = [threads.submit(httpx.post, f"{address}/retrieve", json={"query": "1"}, timeout=30)]
        assert server.stdout is not None
        assert server.stdout.readline() == "searching\n"
        answers.append(threads.submit(httpx.post, f"{address}/retrieve", json={"query": "0.5"}, timeout=30))
        while "waiting_queries 1.0" not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.01)
        server.send_signal(number)
        assert [answer.result().json() for answer in answers] == [{"result": [[]]}] * 2
        out, err = server.communicate(timeout=30)
    assert (server.returncode, out, err) == (0, "searching\nover\n", "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_a_killed_server_is_started_again_at_its_port() -> None:
    with process([*SERVE, "embedded", "--port", "0"]) as (server, line):
        address = line.split()[-1]
        with httpx.Client(base_url=address) as client:
            assert client.get("/health").status_code == 200
            server.kill()
            server.wait()
    with process([*SERVE, "embedded", "--port", address.rpartition(":")[2]]):
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_port_that_is_taken_is_told_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "nowhere.jsonl", "--port", str(port)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error == (
        f"search-gym: error: cannot serve at 127.0.0.1:{port}: Address already in use; choose another port, or 0 for "
        "any\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["embedded", "--retriever", "magic"], "unknown retriever 'magic'"),
        (["embedded", "--port", "65536"], "a port is a number from 0 to 65535, not 65536"),
        (["embedded", "--host", "no host"], "there is no host 'no host'"),
        (["embedded", "--host", "203.0.113.1"], "cannot serve at 203.0.113.1:0: Cannot assign requested address"),
        (["embedded", "--top-k", "0"], "top_k must be from 1 to max_top_k, 100, not 0"),
        (["embedded", "--max-queries", "-1"], "max_queries must be at least 1, not -1"),
        (["embedded", "--max-batch", "0"], "max_batch must be at least 1, not 0"),
    ],
    ids=lambda value: "-".join(value[-2:]) if isinstance(value, list) else "",
)
def test_what_cannot_be_served_is_one_line(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, *port]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("search-gym: error: ")
    assert reason in error
    assert error.count("\n") == 1


def test_addresses_are_written_as_clients_take_them() -> None:
    with bind("127.0.0.1", 0) as bound:
        assert url(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
    if socket.has_ipv6:
        try:
            bound = bind("::1", 0)
        except OSError:
            pytest.skip("there is no IPv6 here")
        with bound:
            assert url(bound) == f"http://[::1]:{bound.getsockname()[1]}"


def test_a_corpus_file_is_served(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "o", "contents": "\\"Oslo\\"\\nA city."}\n')
    with process([*SERVE, str(path), "--port", "0"]) as (_, line):
        answer = httpx.post(f"{line.split()[-1]}/retrieve", json={"query": CITIES[0].title}).json()
    assert line.startswith("serving bm25 over 1 passages at ")
    expected = {"id": "o", "contents": '"Oslo"\nA city.', "title": "Oslo", "text": "A city."}
    assert answer == {"result": [[expected]]}
