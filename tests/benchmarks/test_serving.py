"""The load test of the server runs, counts errors, and puts its figures together as it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from benchmarks.serving import Figures, main, table
from benchmarks.serving_clients import Load, Seen, documents, play
from benchmarks.serving_worker import KINDS, OURS


@pytest.mark.slow
def test_all_kinds_of_servers_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "4", "--seconds", "0.4", "--rounds", "2", "--batch", "1", "3"]
    assert main(options) == 0
    out = capsys.readouterr().out
    assert "bm25, 4 clients, 1 query a request, 0.4 s in 2 rounds\n" in out
    assert "bm25, 4 clients, 3 queries a request, 0.4 s in 2 rounds\n" in out
    for kind in KINDS:
        assert out.count(f"| {kind} |") == 2


def answered(answer: Callable[[int], bytes], clients: int) -> Seen:
    """What clients see of a server that answers so."""

    async def run() -> Seen:
        asked = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            while head := await reader.readline():
                while (line := await reader.readline()) != b"\r\n":
                    head += line.lower()
                body = json.loads(await reader.readexactly(int(head.rpartition(b"content-length:")[2])))
                assert len(body["queries"]) == 1
                asked += 1
                writer.write(answer(asked))
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await play(Load(f"http://127.0.0.1:{port}", ["a"], clients, 0.05, 1, 0))

    return asyncio.run(run())


def response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


def test_clients_tell_errors_and_other_answers() -> None:
    seen = answered(lambda _: response(200, b'{"id":"a","score":1.5}'), 2)
    assert not seen.errors
    assert len(seen.milliseconds) > 2
    assert seen.seconds >= 0.05
    assert answered(lambda _: response(503, b"down"), 2).errors[0] == "503: b'down'"
    assert "two answers to" in answered(lambda n: response(200, b'{"id":"%d"}' % n), 1).errors[0]
    assert "Error" in answered(lambda _: b"none of HTTP\r\n\r\n", 1).errors[0]
    assert documents(b'[{"id":"a","score":1.5},{"id":"b","score":1}]') == documents(
        b'[{"id":"a","score":2},{"id":"b"}]'
    )


def test_the_table_holds_medians_of_rounds_and_percentiles_of_requests() -> None:
    figures = {kind: Figures() for kind in list(KINDS)[:2]}
    other = next(kind for kind in figures if kind != OURS)
    for slow in (1.0, 2.0, 4.0):
        figures[OURS].add(Seen([slow * ms for ms in range(1, 101)], [], seconds=slow, cpu=slow / 4), cpu=0.3)
        figures[other].add(Seen([9.0] * 100, ["e"], seconds=4 * slow, cpu=1.0), cpu=0.6)
    ours, theirs = table(figures, batch=2).splitlines()[2:]
    assert ours == f"| {OURS} | 100 | 87.0 | 340.0 | 388.0 | 0 | 1.50 | 25% |  |"
    assert theirs == f"| {other} | 25 | 9.0 | 9.0 | 9.0 | 3 | 3.00 | 12% | 4.0x |"
