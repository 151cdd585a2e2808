"""What a search client and a server say to each other: Search-R1's protocol, in JSON.

asked     {"queries": ["…", …], "topk": k, "return_scores": true}
answered  {"result": [[{"document": {…}, "score": s}, …], …]}   a list for each query, in order, best first
      or  {"result": [[{…}, …], …]}                             bare documents

A server of ours adds "errors": [{"query": place, "reason": "…"}, …] for searches that failed, whose lists are empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from search_gym import jsonl
from search_gym.retrieval import Hit, Passage, SearchFailed
from search_gym.retrieval.corpus import title_and_text
from search_gym.retrieval.store import passages_digest
from search_gym.unicode import whole

# FAISS fills up results that are too short with places -1 and this score, or minus it; Search-R1's server takes place
# -1 for the last passage of its corpus.
_PADDING = 3.4028234e38


class Malformed(ValueError):
    """The answer is none of this protocol; the message says why."""


class Miscounted(Malformed):
    """There is not one result a query."""


def request(queries: Sequence[str], k: int) -> bytes:
    """What is asked, as JSON in UTF-8. Half a surrogate pair, which UTF-8 does not have, becomes U+FFFD."""
    body = {"queries": [whole(query) for query in queries], "topk": k, "return_scores": True}
    return json.dumps(body, ensure_ascii=False).encode("utf-8")


def results(content: bytes, count: int, k: int) -> list[list[Hit] | SearchFailed]:
    """What was answered.

    A document is {id, contents} or {id, title, text}, see `search_gym.retrieval.corpus`; the id may be a number. A
    document without an id is named by a digest of its title and text. Where there is no score, the hits get -1, -2, …:
    still, a higher one is better.

    Args:
        content: the body of the answer.
        count: of the queries that were asked.
        k: how many hits were asked for. What a server gives beyond them is left out, and so are passages that come
            twice and the padding of FAISS.

    Returns:
        For every query its hits; or `SearchFailed`, where the server says so, or they alone cannot be read.

    Raises:
        Malformed: if the whole cannot be read; Miscounted: if there is not one result a query.
    """
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the answer is not JSON; it begins with {content[:60]!r}") from error
    found = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise Malformed(f'the answer has no list "result"; it begins with {content[:60]!r}')
    if len(found) != count:
        raise Miscounted(f"the answer has {len(found)} results for {count} queries")
    read = [_result(result, k) for result in found]
    for place, reason in _errors(answer):
        if place < count:
            read[place] = SearchFailed(reason)
    return read


def _errors(answer: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The places of queries whose search failed, and why; what else stands there is not known here."""
    errors = answer.get("errors")
    for error in errors if isinstance(errors, list) else []:
        place, reason = (error.get("query"), error.get("reason")) if isinstance(error, dict) else (None, None)
        if isinstance(place, int) and place >= 0 and isinstance(reason, str) and reason:
            yield place, reason


def _result(items: Any, k: int) -> list[Hit] | SearchFailed:
    try:
        if not isinstance(items, list):
            raise ValueError(f"a result must be a list, not {items!r:.60}")
        hits: dict[str, Hit] = {}
        for rank, item in enumerate(items, start=1):
            hit = _hit(item, rank)
            if abs(hit.score) < _PADDING:
                hits.setdefault(hit.id, hit)
        return list(hits.values())[:k]
    except ValueError as error:
        return SearchFailed(f"the answer cannot be read: {error}")


def _hit(item: Any, rank: int) -> Hit:
    scored = isinstance(item, dict) and "document" in item
    document, score = (item["document"], item.get("score")) if scored else (item, None)
    if not isinstance(document, dict):
        raise ValueError(f"a document must be an object, not {document!r:.60}")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        score = -rank
    passage = _passage(document)
    return Hit(passage.id, passage.title, passage.text, float(score))


def _passage(document: jsonl.Row) -> Passage:
    identified = document.get("id") not in (None, "")
    # With an id, title and text are the passage's own. Without, they come from Search-R1's Pyserini searcher, which
    # strips quotes off its titles, however many there are: its contents are nearer to the passage.
    if "contents" in document and not (identified and isinstance(document.get("text"), str)):
        title, text = title_and_text(jsonl.text(document, "contents"))
    else:
        title, text = jsonl.text(document, "title") if document.get("title") else "", jsonl.text(document, "text")
    if identified:
        return Passage(jsonl.identifier(document), title, text)
    return Passage(passages_digest([Passage("", title, text)]), title, text)
