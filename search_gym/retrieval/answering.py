r"""What is read from and written to clients of the retrieval server: Search-R1's protocol, and SkyRL's form of it.

asked     {"queries": ["…", …], "topk": k, "return_scores": true}   by Search-R1, verl and `search_gym.retrieval.remote`
      or  {"query": "…", "topk": k, "return_scores": true}          by skyrl-gym
answered  {"result": [[{"document": {…}, "score": s}, …], …]}       a list for each query, in order, best first
      or  {"result": [[{…}, …], …]}                                 without "return_scores": the documents alone

A document is {"id", "contents", "title", "text"}, its contents '"Title"\ntext' as FlashRAG has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from search_gym.retrieval import Hit, SearchFailed
from search_gym.retrieval.batching import Found
from search_gym.retrieval.corpus import contents

_MAX_SHOWN = 80
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Raises:
        ValueError: if one is below 1.
    """

    max_queries: int = 1024
    """Queries of a request."""
    max_query_length: int = 16_384
    """Characters of a query."""
    max_top_k: int = 100
    """Hits of a query."""
    max_body_bytes: int = 2**24
    """Bytes of a request's body."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True)
class Asked:
    """A request."""

    queries: list[str]
    k: int
    with_scores: bool


class Refused(ValueError):
    """A request that is not carried out.

    Args:
        detail: what is wrong with it.
        status: the code of HTTP.
        about: what is told apart from `detail`, for programs: of a limit, its name, its value and what was sent; the
            place of the query.
    """

    def __init__(self, detail: str, *, status: int = 422, **about: int | str) -> None:
        super().__init__(detail)
        self.status = status
        self.body: dict[str, Any] = {"detail": detail, **about}


def read(body: bytes, limits: Limits, default_k: int) -> Asked:
    """What a request asks.

    Members that the protocol does not know are left alone, for those who follow Search-R1 add some.

    Args:
        body: JSON.
        limits: those of the server.
        default_k: stands where "topk" is left out or null.

    Raises:
        Refused: if it is none of the protocol, or beyond a limit.
    """
    asked = _object(body)
    if ("queries" in asked) == ("query" in asked):
        there = ", ".join(repr(key[:_MAX_SHOWN]) for key in list(asked)[:10]) or "nothing"
        raise Refused(f'either "queries", a list of strings, or "query", a string, is needed; there is: {there}')
    with_scores = asked.get("return_scores")
    if not isinstance(with_scores, bool | None):
        raise Refused(f'"return_scores" must be true or false, not {_shown(with_scores)}')
    return Asked(_queries(asked, limits), _top_k(asked.get("topk"), limits, default_k), bool(with_scores))


def written(found: Sequence[Found], with_scores: bool) -> tuple[int, bytes]:
    """The answer to a request: the code of HTTP, and JSON in ASCII, which has a form for any string.

    Where some searches failed, the answer is 200 all the same: their hits are an empty list, and "errors" says which
    and why, [{"query": place, "reason": "…"}, …]. Where all did, it is 503 with the same "errors" and no "result":
    clients that look at the code, as SkyRL's and verl's do, ask again, and Search-R1's, which does not, stops instead
    of training on nothing.

    Args:
        found: for every query what was found.
        with_scores: whether scores were asked for.

    Raises:
        ValueError: if a score is no finite number.
    """
    errors = [
        {"query": place, "reason": hits.reason} for place, hits in enumerate(found) if isinstance(hits, SearchFailed)
    ]
    if errors and len(errors) == len(found):
        return 503, encoded({"detail": f"the search failed: {errors[0]['reason']}", "errors": errors})
    answer: dict[str, Any] = {
        "result": [
            [] if isinstance(hits, SearchFailed) else [_item(hit, with_scores) for hit in hits] for hits in found
        ]
    }
    if errors:
        answer["errors"] = errors
    return 200, encoded(answer)


def encoded(content: Mapping[str, Any]) -> bytes:
    """JSON in ASCII: half a surrogate pair, which UTF-8 does not have, is written as an escape."""
    return _ENCODER.encode(content).encode("ascii")


def _item(hit: Hit, with_scores: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": contents(hit.title, hit.text), "title": hit.title, "text": hit.text}
    return {"document": document, "score": hit.score} if with_scores else document


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except RecursionError as error:
        raise Refused("the body is JSON that is nested too deeply") from error
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise Refused(f"the body must be a JSON object, not {_shown(asked)}")
    return asked


def _queries(asked: dict[str, Any], limits: Limits) -> list[str]:
    queries = asked["queries"] if "queries" in asked else [asked["query"]]
    if not isinstance(queries, list):
        raise Refused(f'"queries" must be a list of strings, not {_shown(queries)}')
    if len(queries) > limits.max_queries:
        raise _beyond("max_queries", limits.max_queries, len(queries), f"there are {len(queries)} queries")
    for place, query in enumerate(queries):
        if not isinstance(query, str):
            raise Refused(f"query {place} must be a string, not {_shown(query)}", query=place)
        if len(query) > limits.max_query_length:
            what = f"query {place} has {len(query)} characters"
            raise _beyond("max_query_length", limits.max_query_length, len(query), what, query=place)
    return queries


def _top_k(k: Any, limits: Limits, default: int) -> int:
    if k is None:
        return default
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise Refused(f'"topk" must be a whole number, 1 or more, not {_shown(k)}')
    if k > limits.max_top_k:
        raise _beyond("max_top_k", limits.max_top_k, k, f'"topk" is {k}')
    return k


def _beyond(limit: str, value: int, sent: int, what: str, **about: int) -> Refused:
    return Refused(f"{what}, and at most {value} are allowed ({limit})", limit=limit, value=value, sent=sent, **about)


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return f"{repr(value)[:_MAX_SHOWN]} ({type(value).__name__})"
