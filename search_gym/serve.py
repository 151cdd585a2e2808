"""`search-gym serve`: a retriever for other processes and machines, by Search-R1's protocol."""

from __future__ import annotations

import argparse

from search_gym.retrieval.answering import Limits
from search_gym.retrieval.running import bind, serve
from search_gym.retrieval.server import ServerConfig, passage_count
from search_gym.sources import open_retriever

_LIMITS, _CONFIG = Limits(), ServerConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `search-gym serve`."""
    parser.add_argument("source", help="embedded, a corpus file, or a folder that search-gym index made")
    parser.add_argument("--retriever", default="bm25", metavar="NAME", help="what searches in it (default: bm25)")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 serves other machines, too (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default: 8000)")
    _number(parser, "--top-k", _CONFIG.top_k, "hits of a query whose request does not say")
    _number(parser, "--max-queries", _LIMITS.max_queries, "queries of a request")
    _number(parser, "--max-query-length", _LIMITS.max_query_length, "characters of a query")
    _number(parser, "--max-top-k", _LIMITS.max_top_k, "hits of a query that a request may ask for")
    _number(parser, "--max-body-bytes", _LIMITS.max_body_bytes, "bytes of a request")
    _number(parser, "--max-batch", _CONFIG.max_batch, "queries of different requests that are searched at once")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; exit status 0."""
    limits = Limits(args.max_queries, args.max_query_length, args.max_top_k, args.max_body_bytes)
    config = ServerConfig(args.top_k, limits, args.max_batch)
    try:
        # Bound before the index is opened, which takes its time: that a port is taken is told at once.
        with bind(args.host, args.port) as bound:
            retriever = open_retriever(args.retriever, args.source)
            count = passage_count(retriever)
            what = args.retriever if count is None else f"{args.retriever} over {count:,} passages"
            serve(retriever, config, bound=bound, ready=lambda url: print(f"serving {what} at {url}", flush=True))
    except KeyboardInterrupt:  # while the index was opened: later, it ends the serving
        return 130
    return 0


def _number(parser: argparse.ArgumentParser, option: str, default: int, meaning: str) -> None:
    parser.add_argument(option, type=int, default=default, metavar="N", help=f"{meaning} (default: {default:,})")
