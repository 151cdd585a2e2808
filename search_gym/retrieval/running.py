"""Running the retrieval server: a socket, signals, a clean end."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from search_gym.retrieval import Retriever
from search_gym.retrieval.server import ServerConfig, make_app

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

# Seconds. Between two searches of a policy lies the sampling of a turn: a connection should outlive it.
_KEEP_ALIVE = 120
# Seconds for which answers that are on their way hold up the end.
_GRACE = 30


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, which does not listen yet.

    Args:
        host: a name or an address; "127.0.0.1" is reached from this machine alone, "0.0.0.0" from everywhere.
        port: 0 for any that is free: `socket.getsockname` tells which.

    Raises:
        ValueError: if there is no such port; OSError: if the address is taken, or none of this machine.
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OSError(f"there is no host {host!r}: {error.strerror}") from error
    made = socket.socket(family, kind, protocol)
    try:
        # A server that was killed can be started again at once: connections of its predecessor hold up nobody.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise OSError(f"cannot serve at {host}:{port}: {error.strerror}; choose another port, or 0 for any") from error
    return made


def url(bound: socket.socket) -> str:
    """The address of a socket, as clients take it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def make_server(app: FastAPI, *, ready: Callable[[str], object] | None = None, grace: int = _GRACE) -> uvicorn.Server:
    """A uvicorn server; `run([bound])` serves at a socket that `bind` gave, and returns after `should_exit` was set.

    Args:
        app: what `search_gym.retrieval.server.make_app` gave.
        ready: is called with the server's address once it listens.
        grace: seconds for which requests that are on their way hold up the end, > 0. Those that take longer are let go
            without an answer.

    Raises:
        ImportError: without uvicorn.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("a server needs uvicorn: pip install 'search-gym[serve]'") from error

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and sockets:
                ready(url(sockets[0]))

    return Server(
        uvicorn.Config(
            app,
            log_config=None,  # whoever runs it decides on logging; warnings go to stderr unless told otherwise
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=grace,
        )
    )


def serve(
    retriever: Retriever,
    config: ServerConfig | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    bound: socket.socket | None = None,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT; those that are on their way then are answered still.

    Args:
        retriever, config: see `search_gym.retrieval.server.make_app`.
        host, port: see `bind`.
        bound: what `bind` gave, instead of `host` and `port`.
        ready: is called with the server's address once it listens.

    Raises:
        OSError, ValueError: as `bind` does; ImportError: without fastapi, prometheus_client or uvicorn.
    """
    server = make_server(make_app(retriever, config), ready=ready)
    with bound or bind(host, port) as sock, _signals_end_quietly(), _index_left_alone_by_gc():
        server.run([sock])


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn sends itself the signal that it was ended by once more, to die of it: the end that was asked for is no
    failure."""

    def ignore(_: int, __: FrameType | None) -> None:
        """Nothing is left to do."""

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _index_left_alone_by_gc() -> Iterator[None]:
    """What there is when the serving begins, above all the passages, is no garbage: to look through it again and again
    took a sixth of the server's time, and made requests wait for 0.1 s, over 8,619 passages in memory."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
