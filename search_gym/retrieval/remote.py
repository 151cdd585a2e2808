"""Searching on a server, over HTTP."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from search_gym.retrieval import Hit, SearchFailed, checked, wire
from search_gym.retrieval.asking import Counts
from search_gym.retrieval.http import Cause, Connection, Trouble, insist
from search_gym.retrieval.processes import PerProcess
from search_gym.retrieval.strict import SearchError

_log = logging.getLogger(__name__)
_ALONE = (Cause.STALLED, Cause.BROKEN, Cause.REFUSED)
# So often a server may fail within before one of several queries is taken for the reason.
_PATIENCE_WITH_BROKEN = 3


class RemoteRetriever:
    """Searches on a server that speaks Search-R1's protocol (see `search_gym.retrieval.wire`): `search-gym serve`,
    Search-R1's own retrieval server, and those that follow it.

    One request asks all queries of a call, each once; empty ones are not sent, for they find nothing. A server that is
    not there, that says to come back (408, 425, 429, 502, 503, 504), fails within (500) or does not answer is asked
    again, after pauses that grow, for `retry_for` seconds from the beginning of the call, so that a run lives through
    a server that is killed and started again. A pause that the server asks for (Retry-After) is kept; one that
    leads past that time ends the asking at once. Then the queries are `SearchFailed`, with the reason.

    No query spoils the others: where several were asked, and the server refuses them (other codes from 400 to 499),
    does not answer in time, fails three times, or does not give one result for each, they are asked one by one, up to
    `pool` at a time, and those alone fail that fail alone. The time for this is shared among them, so that even where
    many hang, each has its turn.

    A call takes at most about `retry_for` + 2 * `timeout` seconds, whatever the server does; where every request hangs,
    the longer of `retry_for` and `timeout`, + `timeout`.

    It may be used by several threads, after a fork and from pickle: every process opens connections of its own, when it
    first searches. Proxies and certificates are those that the environment names, as httpx reads them; no proxy is used
    for the machine itself.

    Args:
        url: http://host:port, to which /retrieve is added, or with the path of the server's own.
        timeout: seconds that the server may take to be connected with, and to answer; > 0.
        retry_for: seconds for which a search that cannot be carried out is tried again; 0: never.
        pool: how many connections there are at most, > 0.

    Raises:
        ValueError: if an argument is not as above; ImportError: without httpx and tenacity.
    """

    def __init__(self, url: str, *, timeout: float = 30.0, retry_for: float = 60.0, pool: int = 32) -> None:
        if not (timeout > 0 and retry_for >= 0 and pool >= 1):
            raise ValueError(
                f"timeout must be above 0, retry_for at least 0 and pool at least 1, not {timeout}, {retry_for} and "
                f"{pool}"
            )
        self._settings: dict[str, Any] = {"url": url, "timeout": timeout, "retry_for": retry_for, "pool": pool}
        self._timeout, self._retry_for, self._pool = timeout, retry_for, pool
        self._connection = Connection(url, pool)
        given = self._connection.url
        self._endpoint = given if given.path.strip("/") else given.copy_with(path="/retrieve")
        self._digest: str | None = None
        self._lock = PerProcess(threading.Lock)
        self._counted = 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        """Find up to `k` passages for every query, in one request; see `search_gym.retrieval.Retriever`.

        Raises:
            ValueError: if k < 1; TypeError: if `queries` is a single string.
        """
        asked = list(dict.fromkeys(query for query in checked(queries, k) if query))
        answers = dict(zip(asked, self._answers(asked, k), strict=True)) if asked else {}
        with self._lock.get():
            self._counted += len(queries)
        found = [answers.get(query, []) for query in queries]
        reasons = Counter(one.reason for one in found if isinstance(one, SearchFailed))
        if reasons:
            (reason, _), count = reasons.most_common(1)[0], reasons.total()
            _log.warning("%d of %d searches failed: %s", count, len(queries), reason)
        return [one if isinstance(one, SearchFailed) else list(one) for one in found]

    @property
    def digest(self) -> str:
        """Names all that the answers depend on: what the server's GET /health says under "digest".

        A server that has no such thing, as Search-R1's, is known by its URL alone: then whoever changes its index must
        delete what was cached. The server is asked once, when this is first needed.

        Raises:
            SearchError: if the server cannot be asked, for as long as a search is tried.
        """
        if self._digest is None:
            self._digest = self._ask_digest()
        return self._digest

    def take_counts(self) -> Counts:
        """How many queries it was asked since the last call; see `asking.take_counts`."""
        with self._lock.get():
            counted, self._counted = self._counted, 0
        return {"search_queries": counted}

    def close(self) -> None:
        """Close the connections of this process. A later search opens new ones."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._settings

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__init__(**settings)

    def _answers(self, asked: Sequence[str], k: int) -> Sequence[list[Hit] | SearchFailed]:
        """For every query what came of it."""
        until = time.monotonic() + self._retry_for
        worth = _worth_for_one if len(asked) == 1 else _worth_for_several
        try:
            return insist(lambda: self._post(asked, k, self._timeout), worth, until, self._say_again)
        except Trouble as trouble:
            if len(asked) > 1 and trouble.cause in _ALONE:
                return self._one_by_one(asked, k, until)
            return [SearchFailed(trouble.reason)] * len(asked)

    def _one_by_one(self, asked: Sequence[str], k: int, until: float) -> list[list[Hit] | SearchFailed]:
        """Ask for every query alone, because something is wrong with one of them."""
        start = time.monotonic()
        end = max(start, until) + self._timeout
        patience = min(self._timeout, (end - start) / math.ceil(len(asked) / self._pool))
        healthy = threading.Event()

        def worth(trouble: Trouble, attempts: int) -> bool:
            # Once others are answered, a failure is that of the query.
            broken = trouble.cause is Cause.BROKEN and not (healthy.is_set() and attempts >= _PATIENCE_WITH_BROKEN)
            return broken or trouble.cause is Cause.LATER

        def ask(query: str) -> list[Hit] | SearchFailed:
            if time.monotonic() >= end:
                return SearchFailed(f"{self._endpoint}: no time was left to ask for it, after the others hung")
            try:
                (found,) = insist(lambda: self._post([query], k, min(patience, end - time.monotonic())), worth, until)
            except Trouble as trouble:
                return SearchFailed(trouble.reason)
            healthy.set()
            return found

        with ThreadPoolExecutor(min(len(asked), self._pool)) as threads:
            return list(threads.map(ask, asked))

    def _post(self, queries: Sequence[str], k: int, patience: float) -> list[list[Hit] | SearchFailed]:
        body = self._connection.exchange("POST", self._endpoint, wire.request(queries, k), patience)
        try:
            return wire.results(body, len(queries), k)
        except wire.Malformed as error:
            cause = Cause.REFUSED if isinstance(error, wire.Miscounted) else Cause.FINAL
            raise Trouble(f"{self._endpoint}: {error}", cause) from error

    def _say_again(self, trouble: Trouble) -> None:
        _log.warning("%s; asking again for up to %.3g s", trouble.reason, self._retry_for)

    def _ask_digest(self) -> str:
        health = self._endpoint.join("health")
        try:
            until = time.monotonic() + self._retry_for
            asking = partial(self._connection.exchange, "GET", health, None, self._timeout)
            answer = json.loads(insist(asking, _worth_for_one, until, self._say_again))
            digest = answer.get("digest") if isinstance(answer, dict) else None
        except Trouble as trouble:
            if trouble.cause not in (Cause.REFUSED, Cause.FINAL):
                raise SearchError(f"cannot learn what the server searches in: {trouble.reason}") from trouble
            digest = None
        except ValueError:
            digest = None
        if isinstance(digest, str) and digest:
            return digest
        return hashlib.blake2b(str(self._endpoint).encode(), digest_size=16).hexdigest()


def _worth_for_one(trouble: Trouble, _: int) -> bool:
    return trouble.cause in (Cause.LATER, Cause.STALLED, Cause.BROKEN)


def _worth_for_several(trouble: Trouble, attempts: int) -> bool:
    return trouble.cause is Cause.LATER or (trouble.cause is Cause.BROKEN and attempts < _PATIENCE_WITH_BROKEN)
