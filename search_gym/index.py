"""`search-gym index`: build what a corpus is searched with, once, into a folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from search_gym.retrieval.bm25 import BM25Settings
from search_gym.retrieval.index import DenseSettings, Work, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `search-gym index`."""
    words, vectors = BM25Settings(), DenseSettings()
    parser.add_argument(
        "corpus",
        help="a JSONL file (also .gz), a parquet file, a folder of data files, or hf:NAME:SPLIT; its rows are "
        "{id, contents} or {id, title, text}",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder that the index goes to")
    parser.add_argument(
        "--retriever", default="bm25", choices=["bm25", "dense", "hybrid"], help="hybrid: both of the others"
    )
    parser.add_argument("--k1", type=float, default=words.k1, help=f"of BM25 (default: {words.k1})")
    parser.add_argument("--b", type=float, default=words.b, help=f"of BM25 (default: {words.b})")
    parser.add_argument(
        "--encoder",
        default=vectors.encoder,
        help="of dense: a folder or hub id of sentence-transformers (default: minilm, which comes with the extra)",
    )
    parser.add_argument(
        "--factory", default=vectors.factory, help='of dense: FAISS\'s factory string, such as "IVF4096,PQ48np"'
    )
    parser.add_argument("--devices", nargs="+", default=[], help="where the encoder runs: cpu, cuda:0 cuda:1 …")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="that count words (default: the machine's cores)"
    )


def run(args: argparse.Namespace) -> int:
    """Build the index; exit status 0."""
    made = build(
        args.corpus,
        args.out,
        args.retriever,
        words=BM25Settings(k1=args.k1, b=args.b),
        vectors=DenseSettings(encoder=args.encoder, factory=args.factory),
        work=Work(processes=args.processes, devices=tuple(args.devices)),
    )
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{len(made.passages):,} passages, {size / 2**20:,.1f} MiB in {args.out}; search it with")
    print(f"    search-gym serve {args.out}")
    print(f'    gymnasium.make("SearchQA-v0", retriever="{args.out}", …)')
    return 0
