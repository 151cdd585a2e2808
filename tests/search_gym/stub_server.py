"""A real HTTP server on loopback that answers as a test says, and one that answers as Search-R1's server does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.remote import RemoteRetriever


@dataclass(frozen=True)
class Reply:
    """One answer of a server."""

    content: Any = None
    """What JSON can hold, or bytes as they are; None: the connection is closed without an answer."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[[dict[str, Any]], Reply]
NOT_FOUND = Reply({"detail": "Not Found"}, 404)


class StubServer:
    """Serves in threads of this process, from the beginning of a `with` block to its end.

    Args:
        answer: to a search.
        health: to GET /health.
        port: where; 0: anywhere.
    """

    def __init__(self, answer: Answer, health: Reply = NOT_FOUND, port: int = 0) -> None:
        self.asked: list[dict[str, Any]] = []
        """The searches that came, in order."""
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.clients: set[tuple[str, int]] = set()
        """The connections they came by."""
        self.closing = threading.Event()
        """Set at the end: what hangs waits for it."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                stub.paths.append(self.path)
                self._send(health)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.paths.append(self.path)
                stub.headers.append(dict(self.headers))
                stub.clients.add(self.client_address)
                stub.asked.append(body)
                self._send(answer(body))

            def _send(self, reply: Reply) -> None:
                if reply.content is None:
                    self.close_connection = True
                    return
                content = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
                self.send_response(reply.status)
                for name, value in ({"Content-Length": str(len(content))} | reply.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(
                self, request: object, client_address: object
            ) -> None:  # a client that did not wait for its answer
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def hang(self) -> Reply:
        """Answer nothing, until the server ends."""
        self.closing.wait(60)
        return Reply()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def hits(*documents: Any) -> list[Any]:
    """Documents with scores that fall from 0.9 on."""
    return [{"document": document, "score": 0.9 - 0.1 * rank} for rank, document in enumerate(documents)]


def echo(body: dict[str, Any]) -> Reply:
    """For every query one document, whose text is the query."""
    return Reply({"result": [hits({"id": "1", "title": "T", "text": query}) for query in body["queries"]]})


def over(retriever: Retriever) -> Answer:
    """Answers from a retriever, as `search-gym serve` does."""

    def answer(body: dict[str, Any]) -> Reply:
        rows = []
        for found in retriever.search(body["queries"], body["topk"]):
            assert not isinstance(found, SearchFailed)
            rows.append([{"document": {"id": h.id, "title": h.title, "text": h.text}, "score": h.score} for h in found])
        return Reply({"result": rows})

    return answer


def client(server: StubServer, **settings: Any) -> RemoteRetriever:
    given: dict[str, Any] = {"timeout": 5.0, "retry_for": 5.0}
    return RemoteRetriever(server.url, **given | settings)


def texts(found: list[list[Hit] | SearchFailed]) -> list[Any]:
    """The text of the first hit, None for no hit, "failed"."""
    return ["failed" if isinstance(one, SearchFailed) else one[0].text if one else None for one in found]


def hits_of(remote: RemoteRetriever, k: int) -> list[Hit]:
    (found,) = remote.search(["q"], k)
    assert not isinstance(found, SearchFailed), found.reason
    return found


def failure(found: list[Hit] | SearchFailed) -> str:
    assert isinstance(found, SearchFailed)
    return found.reason


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
