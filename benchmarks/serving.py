"""How many searches does the server answer? `search-gym serve` beside serving request by request, in one run.

python benchmarks/serving.py --corpus corpus.jsonl --questions nq.jsonl popqa.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a script has its own folder there
    sys.path.insert(0, str(ROOT))

from benchmarks.serving_clients import Load, Seen, documents
from benchmarks.serving_worker import KINDS, OURS, TOP_K
from search_gym.sources import list_questions

_COMPARED = 50  # queries whose answers must be the same from every server


def environment() -> dict[str, str]:
    """In which processes find the repository, and what this one was told of."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Threads of OpenMP that wait for each other spin unless told otherwise, which brings down whoever has several.
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Server:
    """A server of one kind in a process of its own; see `benchmarks.serving_worker`."""

    def __init__(self, kind: str, retriever: str, corpus: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_worker", kind, retriever, corpus],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        self.url = self._line()

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"a server ended: {self._log.read()}")
        return line.strip()


@dataclass
class Figures:
    """Of one server, over all rounds."""

    milliseconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Requests a second, round by round."""
    cpu: float = 0.0
    """Seconds that the server computed."""
    client_shares: list[float] = field(default_factory=list)
    """How much of a core the clients took, round by round."""

    def add(self, seen: Seen, cpu: float) -> None:
        """One more round."""
        self.milliseconds += seen.milliseconds
        self.errors += seen.errors
        self.rates.append(len(seen.milliseconds) / seen.seconds)
        self.cpu += cpu
        self.client_shares.append(seen.cpu / seen.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table; exit status 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="embedded", help="a corpus file or an index folder (default: embedded)")
    parser.add_argument("--questions", nargs="+", default=["embedded"], help="whose texts are the queries")
    parser.add_argument("--retriever", default="bm25", help="what all of them search with (default: bm25)")
    parser.add_argument("--clients", type=int, default=64, help="(default: 64)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="queries of a request (default: 1)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on each server (default: 60)")
    parser.add_argument("--rounds", type=int, default=6, help="in which they take turns (default: 6)")
    args = parser.parse_args(argv)
    queries = sorted({question.text for source in args.questions for question in list_questions(source)})
    failed = 0
    with ExitStack() as stack:
        servers = {kind: Server(kind, args.retriever, args.corpus) for kind in KINDS}
        for server in servers.values():
            stack.callback(server.close)
        check(servers, queries[:_COMPARED])
        for batch in args.batch:
            figures = {kind: Figures() for kind in servers}
            for number in range(args.rounds):
                for kind, server in servers.items():
                    load = Load(server.url, queries, args.clients, args.seconds / args.rounds, batch, number)
                    before = server.cpu()
                    seen = played(load)
                    figures[kind].add(seen, server.cpu() - before)
            title = (
                f"{args.retriever}, {args.clients} clients, {batch} {'query' if batch == 1 else 'queries'} a request"
            )
            print(f"{title}, {args.seconds:g} s in {args.rounds} rounds\n\n{table(figures, batch)}\n", flush=True)
            errors = [error for figure in figures.values() for error in figure.errors]
            print("\n".join(errors[:5]), end="\n" if errors else "")
            failed += len(errors)
    return 1 if failed else 0


def check(servers: dict[str, Server], queries: Sequence[str]) -> None:
    """ValueError unless all servers answer the same."""
    body = json.dumps({"queries": list(queries), "topk": TOP_K, "return_scores": True}).encode()
    answers = []
    for server in servers.values():
        request = urllib.request.Request(f"{server.url}/retrieve", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answers.append(documents(answer.read()))
    if any(answer != answers[0] for answer in answers):
        raise ValueError("the servers do not answer the same")


def played(load: Load) -> Seen:
    """The clients of one round, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving_clients"],
        input=json.dumps(asdict(load)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(),
    )
    return Seen(**json.loads(done.stdout))


def table(figures: dict[str, Figures], batch: int) -> str:
    """In Markdown. The ratio is the median over rounds, in each of which all had their turn."""
    lines = [
        "| server | queries/s | p50 ms | p95 ms | p99 ms | errors | CPU ms a query | CPU of clients | ours is faster |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    ours = figures[OURS].rates
    for kind, figure in figures.items():
        times = sorted(figure.milliseconds)
        p50, p95, p99 = (f"{times[round(share * (len(times) - 1))]:.1f}" for share in (0.5, 0.95, 0.99))
        ratio = median(a / b for a, b in zip(ours, figure.rates, strict=True))
        lines.append(
            f"| {kind} | {batch * median(figure.rates):,.0f} | {p50} | {p95} | {p99} | {len(figure.errors)} "
            f"| {1000 * figure.cpu / (batch * len(times)):.2f} | {median(figure.client_shares):.0%} "
            f"| {'' if kind == OURS else f'{ratio:.1f}x'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
