"""One exchange with a server over HTTP, what may go wrong with it, and asking again."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from search_gym.retrieval.processes import PerProcess

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 4.0
"""Seconds before asking again: at most the first after one attempt, at most twice as many after each further one, up to
the second."""
KEPT_SECONDS = 4.0
"""How long an idle connection is kept: less than uvicorn's 5 seconds, lest one is used while the server closes it."""
# The machine itself is reached without the proxy that the environment may name for all others.
_OWN = {"localhost", "127.0.0.1", "::1"}
# A jitter that neither disturbs the random numbers of whoever searches, nor is the same in every process.
_jitter = random.SystemRandom()


class Cause(Enum):
    """Why an attempt brought no answer, as far as it matters for the next one."""

    LATER = "the server is not there, or says to come back: ask again"
    STALLED = "it did not answer in time: the server hangs, or one of the queries makes it"
    BROKEN = "it failed within: for the moment, or at one of the queries"
    REFUSED = "it does not take this request: one of the queries may be the reason"
    FINAL = "it will never take such a request, or does not speak the protocol"


_LATER = {408, 425, 429, 502, 503, 504}
# These are about the address and who asks, never about the queries.
_FINAL = {401, 403, 404, 405, 407, 410}


class Trouble(Exception):
    """An attempt that brought no answer."""

    def __init__(self, reason: str, cause: Cause, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.cause = reason, cause
        self.pause = pause
        """Seconds that the server asks to be left alone for (Retry-After)."""


class Connection:
    """Connections to one server, kept open between requests; every process has its own.

    Args:
        url: of the server, http or https.
        pool: how many connections at most.

    Raises:
        ValueError: if that is no such URL; ImportError: without httpx and tenacity.
    """

    def __init__(self, url: str, pool: int) -> None:
        self._httpx = _library("httpx")
        _library("tenacity")
        try:
            given = self._httpx.URL(url)
        except self._httpx.InvalidURL as error:
            raise ValueError(f"{url!r} is not the URL of a server: {error}") from error
        if given.scheme not in ("http", "https") or not given.host:
            raise ValueError(f"{url!r} is not the URL of a server: write http://host:port")
        # A password is sent, but stands in no message.
        auth = (given.username, given.password) if given.username else None
        self.url: httpx.URL = given.copy_with(userinfo=b"")
        open_one = partial(
            self._httpx.Client,
            limits=self._httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEPT_SECONDS),
            auth=auth,
            trust_env=given.host not in _OWN,
        )
        self._idle = PerProcess(lambda: _Idle(pool, open_one), _Idle.close)

    def close(self) -> None:
        """Close the connections of this process."""
        self._idle.close()

    def exchange(self, method: str, url: httpx.URL, content: bytes | None, patience: float) -> bytes:
        """The body of the answer to a request.

        Args:
            method: GET or POST.
            url: on the server.
            content: JSON to send.
            patience: seconds that connecting, and then the answer, may take; > 0.

        Raises:
            Trouble: if there is none.
        """
        headers = {"Content-Type": "application/json"} if content is not None else {}
        until = time.monotonic() + patience
        try:
            with (
                self._idle.get().one(patience) as client,
                client.stream(method, url, content=content, headers=headers, timeout=patience) as response,
            ):
                body = bytearray()
                for part in response.iter_bytes():
                    body += part
                    if time.monotonic() > until:  # a server that answers drop by drop
                        raise Trouble(f"{url}: no whole answer within {patience:.3g} s", Cause.STALLED)
        except (self._httpx.ConnectTimeout, TimeoutError) as error:
            raise Trouble(f"{url}: no connection within {patience:.3g} s", Cause.LATER) from error
        except self._httpx.TimeoutException as error:
            raise Trouble(f"{url}: no answer within {patience:.3g} s", Cause.STALLED) from error
        except self._httpx.TransportError as error:
            raise Trouble(f"{url}: {error or type(error).__name__}", Cause.LATER) from error
        except self._httpx.DecodingError as error:
            raise Trouble(f"{url}: the answer cannot be decompressed: {error}", Cause.FINAL) from error
        if not response.is_success:
            raise _refusal(response, bytes(body), str(url))
        return bytes(body)


class _Idle:
    """The clients of one process that nobody uses at the moment, each with one connection.

    httpx has pools of its own, but where threads share one it may close a connection that another thread is about to
    use (github.com/encode/httpcore/issues/1110), whose request then hangs until its time is over.
    """

    def __init__(self, pool: int, make: Callable[..., httpx.Client]) -> None:
        self._make, self._slots = make, threading.Semaphore(pool)
        self._ssl = _library("httpx").create_ssl_context()  # takes 40 ms, a client without it 0.1
        self._clients: deque[httpx.Client] = deque()
        self._closed = False

    @contextmanager
    def one(self, patience: float) -> Iterator[httpx.Client]:
        """A client for this thread alone. TimeoutError: all are in use for so many seconds."""
        if not self._slots.acquire(timeout=patience):
            raise TimeoutError
        try:
            client = self._idle() or self._make(verify=self._ssl)
            try:
                yield client
            finally:
                self._clients.append(client)
                if self._closed:
                    self.close()
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close the clients, those that are in use when they are given back."""
        self._closed = True
        while client := self._idle():
            client.close()

    def _idle(self) -> httpx.Client | None:
        with suppress(IndexError):  # another thread may be faster
            return self._clients.pop()


def insist(
    attempt: Callable[[], T],
    worth: Callable[[Trouble, int], bool],
    until: float,
    on_first: Callable[[Trouble], object] = lambda _: None,
) -> T:
    """Try until it works: pauses between attempts grow, and are drawn by chance, so that many who wait for one server
    do not all come at once.

    Args:
        attempt: raises `Trouble` where it fails.
        worth: whether to go on, by the trouble and how many attempts were made.
        until: no attempt begins after this, as `time.monotonic` counts; the first always does.
        on_first: is told of the trouble of the first attempt, if another will follow.

    Raises:
        Trouble: that of the last attempt.
    """
    tenacity = _library("tenacity")
    longest = tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE)

    def pause(state: object) -> float:
        limit = longest(state)
        drawn = min(_jitter.uniform(limit / 2, limit), max(0.0, until - time.monotonic()))
        return max(drawn, _trouble(state).pause)

    def stop(state: object) -> bool:
        now = time.monotonic()
        return now >= until or now + _trouble(state).pause > until

    return tenacity.Retrying(
        retry=lambda state: isinstance(_trouble(state), Trouble) and worth(_trouble(state), state.attempt_number),
        wait=pause,
        stop=stop,
        before_sleep=lambda state: on_first(_trouble(state)) if state.attempt_number == 1 else None,
        reraise=True,
    )(attempt)


def _trouble(state: object) -> Trouble:
    """How the last attempt ended: what it raised, or None."""
    return state.outcome.exception()  # pyright: ignore[reportAttributeAccessIssue]


def _refusal(response: httpx.Response, body: bytes, url: str) -> Trouble:
    """The trouble that the status of an answer tells of."""
    code = response.status_code
    if code == 500:
        cause = Cause.BROKEN
    elif code in _LATER:
        cause = Cause.LATER
    else:
        cause = Cause.REFUSED if 400 <= code < 500 and code not in _FINAL else Cause.FINAL
    said = _detail(body)
    if response.is_redirect:
        said = f"give {response.headers.get('location')} as the URL"
    elif "html" in response.headers.get("content-type", ""):
        said = ""
    reason = f"{url}: {code} {response.reason_phrase}".rstrip() + (f": {said:.200}" if said else "")
    return Trouble(reason, cause, _retry_after(response.headers.get("retry-after", "")))


def _detail(body: bytes) -> str:
    """What a server says in the body of a refusal: FastAPI's "detail", or the beginning of the text."""
    try:
        answer = json.loads(body)
        detail = answer.get("detail") if isinstance(answer, dict) else None
    except (ValueError, RecursionError):
        detail = None
    return " ".join((detail if isinstance(detail, str) else body[:400].decode("utf-8", "replace")).split())


def _retry_after(value: str) -> float:
    """Seconds from now; 0 where the header says nothing."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _library(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"searching on a server needs {name}: pip install 'search-gym[remote]'") from error
