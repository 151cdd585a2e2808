"""A search server in a process of its own, over the embedded world: search_server.py PORT [--hang-at N | --refuse].

It prints "listening" once it answers, and "hanging" when it does not answer the Nth search.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class SearchServer:
    """The process, from the beginning of a `with` block to its end.

    Args:
        port: where; 0: anywhere.
        options: as on the command line.
    """

    def __init__(self, port: int = 0, *options: str) -> None:
        command = [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')", str(port)]
        # The folder from which it runs comes first on its path, so that it loads what is tested here.
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.port = int(self.wait_for("listening").split()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, word: str) -> str:
        """The next line that begins with a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line
        raise RuntimeError(f"the server ended before it said {word!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    """Serve until the process is killed."""
    from search_gym.retrieval.bm25 import BM25Retriever
    from search_gym.sources import embedded_world

    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--hang-at", type=int, default=0)
    parser.add_argument("--refuse", action="store_true")
    args = parser.parse_args()
    retriever, searches = BM25Retriever(embedded_world().corpus), count(1)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send(200, {"status": "ok", "digest": retriever.digest})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if next(searches) == args.hang_at:
                print("hanging", flush=True)
                time.sleep(600)
            if args.refuse:
                self._send(403, {"detail": "not for you"})
                return
            found = retriever.search(asked["queries"], asked["topk"])
            rows = [
                [{"document": {"id": h.id, "title": h.title, "text": h.text}, "score": h.score} for h in hits]
                for hits in found
            ]
            self._send(200, {"result": rows})

        def _send(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    print("listening", server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
