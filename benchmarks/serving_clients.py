"""Many clients of a retrieval server, in a process of their own, for `benchmarks.serving`.

python -m benchmarks.serving_clients < LOAD

Each client keeps one connection and asks again as soon as it is answered. HTTP is written out here: an HTTP library
takes several times as long as the server does, and the server is what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from benchmarks.serving_worker import TOP_K

_ID = re.compile(rb'"id":"[^"]*"')


@dataclass(frozen=True)
class Load:
    """What is asked of a server."""

    url: str
    queries: list[str]
    clients: int
    seconds: float
    batch: int
    """Queries of a request."""
    seed: int


@dataclass
class Seen:
    """What came of it."""

    milliseconds: list[float] = field(default_factory=list)
    """Of every request that was answered."""
    errors: list[str] = field(default_factory=list)
    """Of every one that was not, or was answered with other passages than the same request before."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU of the clients together."""


async def play(load: Load) -> Seen:
    """Let all clients ask until the time is over, and then wait for what they have asked for."""
    seen = Seen()
    answers: dict[bytes, int] = {}
    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_client(load, place, start + load.seconds, seen, answers) for place in range(load.clients)))
    seen.seconds, seen.cpu = time.perf_counter() - start, time.process_time() - cpu
    return seen


def documents(answer: bytes) -> tuple[bytes, ...]:
    """The ids in an answer. Scores are left out: those of dense retrieval are rounded otherwise in another batch."""
    return tuple(_ID.findall(answer))


async def _client(load: Load, place: int, end: float, seen: Seen, answers: dict[bytes, int]) -> None:
    address = urlsplit(load.url)
    rng = random.Random(f"{load.seed} {place}")
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        while (start := time.perf_counter()) < end:
            body = json.dumps(
                {"queries": rng.sample(load.queries, load.batch), "topk": TOP_K, "return_scores": True}
            ).encode()
            status, answer = await _ask(reader, writer, address.netloc, body)
            seen.milliseconds.append(1000 * (time.perf_counter() - start))
            if status != 200:
                seen.errors.append(f"{status}: {answer[:200]!r}")
            elif answers.setdefault(body, found := hash(documents(answer))) != found:
                seen.errors.append(f"two answers to {body[:200]!r}")
    except (OSError, EOFError, ValueError) as error:
        seen.errors.append(repr(error))
    finally:
        writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, body: bytes) -> tuple[int, bytes]:
    head = f"POST /retrieve HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    answered = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answered.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return int(answered.split(b" ", 2)[1]), await reader.readexactly(length)


def main() -> None:
    """Read a load, and print what came of it."""
    print(json.dumps(asdict(asyncio.run(play(Load(**json.load(sys.stdin)))))))


if __name__ == "__main__":
    main()
