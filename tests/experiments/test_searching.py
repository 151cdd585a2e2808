"""Training that searches on a server, with a cache, and with searches that fail: for real but small."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from search_server import SearchServer

import algos
from algos.training.config import TrainerConfig
from algos.training.engines.hf import HFEngine
from algos.training.evaluation import evaluate
from algos.training.loading import load_policy
from algos.training.trainer import Trainer
from experiments import ablate, models
from experiments.task import Task
from search_gym import SearchError, sources, tokenizers
from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.retrieval.cache import CachedRetriever
from search_gym.retrieval.remote import RemoteRetriever
from search_gym.trajectory import Trajectory, read_jsonl

CONFIG = TrainerConfig(steps=2, batch_questions=4, group_size=4, minibatches=2, save_trajectories=16)
BM25 = sources.open_retriever("bm25")
SMALL = [
    "--steps", "1", "--batch-questions", "2", "--group-size", "4", "--minibatches", "2", "--held-out-size", "6",
    "--seeds", "1", "--algos", "grpo",
]  # fmt: skip


def trainer(retriever: Retriever, config: TrainerConfig = CONFIG) -> Trainer:
    model = models.resolve("embedded")
    policy, tokenizer = load_policy(model, device="cpu"), tokenizers.load(model)
    engine, questions = HFEngine(policy, tokenizer, 0), sources.list_questions("embedded")
    return Trainer(
        policy, algos.make("grpo"), engine, tokenizer, retriever, Task().rules(), list(questions), config
    )  # fmt: skip


def trained(retriever: Retriever, out: Path) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Metrics of every step, and trajectories, of a small run."""
    trainer(retriever).train(out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return rows, list(read_jsonl(out / "trajectories.jsonl"))


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    return trained(BM25, tmp_path_factory.mktemp("in-process"))


class Forgetful:
    """Fails every other query that it is asked."""

    def __init__(self) -> None:
        self.asked = self.failed = 0

    def search(self, queries: Sequence[str], k: int) -> list[Sequence[Hit] | SearchFailed]:
        found: list[Sequence[Hit] | SearchFailed] = []
        for hits in BM25.search(queries, k):
            self.asked += 1
            found.append(SearchFailed("forgotten") if self.asked % 2 else hits)
        self.failed += sum(isinstance(hits, SearchFailed) for hits in found)
        return found


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_costs_nothing_but_time(
    tmp_path: Path, in_process: tuple[list[dict[str, Any]], list[Trajectory]]
) -> None:
    exit_codes: list[int] = []

    def kill_and_restart(first: SearchServer) -> None:
        first.wait_for("hanging")  # a search of the run is under way, and never answered
        first.process.send_signal(signal.SIGKILL)
        exit_codes.append(first.process.wait())
        time.sleep(2)  # meanwhile connections are refused
        second.append(SearchServer(first.port))

    second: list[SearchServer] = []
    with SearchServer(0, "--hang-at", "4") as first, RemoteRetriever(first.url) as remote:
        killer = threading.Thread(target=kill_and_restart, args=(first,))
        killer.start()
        rows, trajectories = trained(remote, tmp_path)
        killer.join()
    with second[0]:
        pass
    assert exit_codes == [-signal.SIGKILL]
    assert [row["failed_searches"] for row in rows] == [0.0] * CONFIG.steps
    assert [row["search_queries"] for row in rows] == [round(row["searches"] * row["episodes"]) for row in rows]
    expected, played = in_process
    assert without(rows, "seconds", "speed", "search_queries") == without(expected, "seconds", "speed")
    assert trajectories == played
    assert sum(t.searches for t in trajectories) > 20


def test_a_cache_changes_nothing_but_who_is_asked(
    tmp_path: Path, in_process: tuple[list[dict[str, Any]], list[Trajectory]]
) -> None:
    path = tmp_path / "c.sqlite"
    rates = []
    for name in ("cold", "warm"):
        with CachedRetriever(BM25, path=path) as cached:
            cached.search(["before the first step"], 1)  # which is of none
            rows, trajectories = trained(cached, tmp_path / name)
        expected, played = in_process
        assert without(rows, "seconds", "speed", "search_queries", "search_cache_hit_rate") == without(
            expected, "seconds", "speed"
        )
        assert trajectories == played
        assert [row["search_queries"] for row in rows] == [round(row["searches"] * row["episodes"]) for row in rows]
        rates.append([row["search_cache_hit_rate"] for row in rows])
    assert all(0 < rate < 1 for rate in rates[0])
    assert rates[1] == [1.0] * CONFIG.steps


def test_failed_searches_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    forgetful = Forgetful()
    rows, trajectories = trained(forgetful, tmp_path)
    assert forgetful.failed > 10
    assert sum(row["failed_searches"] * row["episodes"] for row in rows) == forgetful.failed
    assert sum(t.failed_searches for t in trajectories) == forgetful.failed
    assert {turn.failed for t in trajectories for turn in t.turns} == {"", "forgotten"}
    made, before = trainer(forgetful), forgetful.failed
    result, played = evaluate(
        sources.list_questions("embedded:test")[:8],
        engine=made.engine,
        tokenizer=made.tokenizer,
        retriever=forgetful,
        rules=made.rules,
        temperature=0.0,
    )
    assert result.failed_searches * 8 == sum(t.failed_searches for t in played) == forgetful.failed - before > 0


def test_a_run_stops_at_the_first_if_asked_to(tmp_path: Path) -> None:
    strict = sources.open_retriever(Forgetful(), on_search_error="raise")
    with pytest.raises(SearchError, match="failed: forgotten"):
        replace(trainer(strict)).train(tmp_path)


# ---- the command ----


@pytest.fixture(scope="module")
def server() -> Iterator[SearchServer]:
    with SearchServer() as one:
        yield one


@pytest.fixture(scope="module")
def refusing() -> Iterator[SearchServer]:
    with SearchServer(0, "--refuse") as one:
        yield one


def run(out: Path, *options: str) -> int:
    return ablate.main([*SMALL, "--out", str(out), *options])


def results(out: Path) -> list[dict[str, Any]]:
    runs = json.loads((out / "results.json").read_text())["runs"]
    return without(runs, "seconds", "speed")


@pytest.mark.slow
def test_the_command_on_a_server_gives_what_it_gives_in_process(
    tmp_path: Path, server: SearchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = str(tmp_path / "c.sqlite")
    assert run(tmp_path / "local") == 0
    assert run(tmp_path / "remote", "--retriever", server.url, "--search-cache", cache) == 0
    assert results(tmp_path / "local") == results(tmp_path / "remote")
    assert results(tmp_path / "local")[0]["failed_searches"] == 0
    assert "failed" not in capsys.readouterr().out
    row = json.loads((tmp_path / "remote" / "runs" / "grpo-seed0" / "metrics.jsonl").read_text())
    assert row["search_cache_hit_rate"] > 0
    # Where the results are kept, and what becomes of failures, is no other comparison.
    assert run(tmp_path / "remote", "--retriever", server.url, "--on-search-error", "raise") == 0


def test_the_command_says_how_many_searches_failed(
    tmp_path: Path, refusing: SearchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--retriever", refusing.url) == 0
    (result,) = results(tmp_path)
    sampled = [(result[when][how]["failed_searches"], result[when][how]["searches"]) for when, how in (
        ("start", "sampled"), ("start", "greedy"), ("end", "sampled"), ("end", "greedy"),
    )]  # fmt: skip
    assert all(failed == made > 0 for failed, made in sampled)
    at_start = round(6 * (sampled[0][0] + sampled[1][0]))
    of_run = round(6 * (sampled[2][0] + sampled[3][0])) + result["failed_searches"]
    where = f"(start: {at_start}, grpo seed 0: {of_run})"
    expected = f"{at_start + of_run} searches failed, of which the policies were told {where}."
    assert expected in " ".join(capsys.readouterr().out.split())


def test_the_command_stops_at_the_first_if_asked_to(
    tmp_path: Path, refusing: SearchServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--retriever", refusing.url, "--on-search-error", "raise") == 1
    error = capsys.readouterr().err
    assert "ablate: error: start: SearchError: the search for " in error
    assert "/retrieve: 501 Unsupported method" in error
    assert not (tmp_path / "results.json").exists()
