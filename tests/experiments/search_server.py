"""A search server in a process of its own, over the embedded world: search_server.py PORT [--hang-at N | --refuse].

The server is that of `search-gym serve`. It prints "listening" once it answers, and "hanging" when it does not answer
the Nth search.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from search_gym.retrieval import Hit
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.running import serve
from search_gym.sources import embedded_world

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


class Hanging:
    """Passes searches on, but for the Nth, which never ends."""

    def __init__(self, retriever: BM25Retriever, hang_at: int) -> None:
        self.retriever, self.digest = retriever, retriever.digest
        self._hang_at, self._searches = hang_at, count(1)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if next(self._searches) == self._hang_at:
            print("hanging", flush=True)
            time.sleep(600)
        return self.retriever.search(queries, k)


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--hang-at", type=int, default=0)
    parser.add_argument("--refuse", action="store_true")
    args = parser.parse_args()
    if args.refuse:
        server = HTTPServer(("127.0.0.1", args.port), BaseHTTPRequestHandler)  # 501 to everything
        print("listening", server.server_address[1], flush=True)
        server.serve_forever()
    retriever = Hanging(BM25Retriever(embedded_world().corpus), args.hang_at)
    serve(retriever, port=args.port, ready=lambda url: print("listening", url.rpartition(":")[2], flush=True))


if __name__ == "__main__":
    main()
