"""The cache: it answers as the retriever does, asks it once, and survives what happens to files and processes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_gym.retrieval import Hit, Passage, SearchFailed
from search_gym.retrieval.bm25 import BM25Retriever
from search_gym.retrieval.cache import CachedRetriever

PASSAGES = [
    Passage(str(i), f"Title {i}", f"{word} \ud800 city") for i, word in enumerate(["oslo", "paris", "oslo rome"])
]
BM25 = BM25Retriever(PASSAGES)
QUERY = st.sampled_from(
    ["oslo", "paris", "city", "", "oslo rome", "日本", "\ud800", "'; DROP TABLE results; --"]
) | st.text(st.characters(exclude_categories=()), max_size=3)
BATCH = st.tuples(st.lists(QUERY, max_size=5), st.integers(1, 4))
CALLS = st.lists(st.tuples(st.integers(0, 2), BATCH), max_size=12)
FILL = "import sys; sys.path.insert(0, 'tests/search_gym'); import test_cache; test_cache.fill(*sys.argv[1:])"


class Echo:
    """Finds k hits for any query."""

    digest = "echo"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        return [[Hit(str(rank), "T", query * 50, 1.0 / (1 + rank)) for rank in range(k)] for query in queries]


def fill(path: str, name: str, number: str) -> None:
    """What a child process does: it searches, again and again, and prints how often it did."""
    with CachedRetriever(Echo(), path=Path(path)) as cached:
        for i in range(int(number)):
            cached.search([f"{name} {i}", f"common {i}"], 3)
            print(i + 1, flush=True)


class Counting:
    """A retriever that remembers what it was asked; queries with "bad" fail as long as `failing`."""

    def __init__(self, digest: str | None = "counting") -> None:
        self.asked: list[tuple[list[str], int]] = []
        self.failing = True
        if digest is not None:
            self.digest = digest

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
        self.asked.append((list(queries), k))
        return [SearchFailed("away") if self.failing and "bad" in q else [Hit(q, "", q, float(k))] for q in queries]


@given(calls=CALLS, memory=st.sampled_from([0, 1, 3, 100]))
def test_cached_is_uncached(calls: list[tuple[int, tuple[list[str], int]]], memory: int) -> None:
    cached = CachedRetriever(BM25, memory=memory)
    for _, (queries, k) in calls:
        assert cached.search(queries, k) == BM25.search(queries, k)


@given(calls=CALLS, memory=st.sampled_from([0, 2, 100]))
def test_cached_is_uncached_whoever_shares_the_file(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[int, tuple[list[str], int]]], memory: int
) -> None:
    """Two instances of one retriever, and one of another, with other answers."""
    path = tmp_path_factory.mktemp("cache") / "c.sqlite"
    other = BM25Retriever(PASSAGES[:2])
    within = [BM25, BM25, other]
    cached = [CachedRetriever(one, memory=memory, path=path) for one in within]
    for which, (queries, k) in calls:
        assert cached[which].search(queries, k) == within[which].search(queries, k)
    for one in cached:
        one.close()


@given(calls=CALLS)
def test_nothing_is_asked_twice(tmp_path_factory: pytest.TempPathFactory, calls: list[Any]) -> None:
    within, path = Counting(), tmp_path_factory.mktemp("cache") / "c.sqlite"
    cached = [CachedRetriever(within, path=path) for _ in range(3)]
    for which, (queries, k) in calls:
        cached[which].search(queries, k)
    asked = [(query, k) for queries, k in within.asked for query in queries]
    assert len(set(asked)) == len(asked)
    wanted = sum(len(queries) for _, (queries, _) in calls)
    assert sum(one.hits + one.misses for one in cached) == wanted
    assert sum(one.misses for one in cached) == len(asked)
    for one in cached:
        one.close()


def test_only_what_is_missing_is_asked_for_in_one_call() -> None:
    within = Counting()
    cached = CachedRetriever(within)
    cached.search(["a", "b", "a"], 2)
    cached.search(["c", "a", "d", "c"], 2)
    cached.search(["a", "d"], 2)
    cached.search(["a"], 3)
    assert within.asked == [(["a", "b"], 2), (["c", "d"], 2), (["a"], 3)]
    assert (cached.hits, cached.misses) == (5, 5)


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_failed_searches_are_not_kept(tmp_path: Path, on_disk: bool) -> None:
    within = Counting()
    with CachedRetriever(within, path=tmp_path / "c.sqlite" if on_disk else None) as cached:
        assert cached.search(["a", "bad", "bad"], 1) == [[Hit("a", "", "a", 1.0)], *[SearchFailed("away")] * 2]
        assert cached.search(["a", "bad"], 1)[1] == SearchFailed("away")
        within.failing = False
        assert cached.search(["bad"], 1) == [[Hit("bad", "", "bad", 1.0)]]
        assert within.asked == [(["a", "bad"], 1), (["bad"], 1), (["bad"], 1)]


def test_what_was_used_last_stays_in_memory() -> None:
    within = Counting()
    cached = CachedRetriever(within, memory=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        cached.search([query], 1)
    assert [queries for queries, _ in within.asked] == [["a"], ["b"], ["c"], ["b"]]


def test_a_result_can_be_changed_without_changing_the_cache() -> None:
    cached = CachedRetriever(BM25)
    for _ in range(3):
        first, second = cached.search(["oslo", "oslo"], 3)
        assert isinstance(first, list)
        assert first == second != []
        first.clear()


def test_counts_are_those_since_the_last_time() -> None:
    class Inner(Counting):
        def take_counts(self) -> dict[str, float]:
            return {"search_queries": 99, "of_the_inner": 7}

    cached = CachedRetriever(Inner())
    cached.search(["a", "b", "a", "a"], 1)
    assert cached.take_counts() == {"search_queries": 4, "search_cache_hit_rate": 0.5, "of_the_inner": 7}
    assert cached.take_counts() == {"search_queries": 0, "search_cache_hit_rate": None, "of_the_inner": 7}


# ---- on disk ----


def test_a_file_outlives_its_cache_and_belongs_to_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "c.sqlite"
    within = {name: Counting(name) for name in ("first", "other")} | {
        "again": Counting("first"),
        "keyed": Counting(None),
    }
    for name, key in (("first", None), ("again", None), ("other", None), ("keyed", "first"), ("other", "first")):
        with CachedRetriever(within[name], path=path, key=key) as cached:
            assert cached.search(["a"], 2) == [[Hit("a", "", "a", 2.0)]]
    assert {name: len(one.asked) for name, one in within.items()} == {"first": 1, "other": 1, "again": 0, "keyed": 0}


@pytest.mark.parametrize(
    "hit",
    [
        Hit("1", "half \ud800 a pair", "\0\n\u2028", -0.0),
        Hit("", "", "", float("inf")),
        Hit("1", '"', "日本 \U0001f600", 1 / 3),
        Hit("1", "", "", 5e-324),
    ],
    ids=range(4),
)
def test_hits_come_back_as_they_were(tmp_path: Path, hit: Hit) -> None:
    class One(Counting):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
            super().search(queries, k)
            return [[hit]]

    within = One()
    for _ in range(2):
        with CachedRetriever(within, path=tmp_path / "c.sqlite") as cached:
            assert repr(cached.search(["a"], 1)) == repr([[hit]])
    assert len(within.asked) == 1


def test_more_than_a_statement_can_hold_at_once(tmp_path: Path) -> None:
    within, queries = Counting(), [str(i) for i in range(40_000)]
    for _ in range(2):
        with CachedRetriever(within, memory=10, path=tmp_path / "c.sqlite") as cached:
            assert [hits[0].id for hits in cached.search(queries, 1) if not isinstance(hits, SearchFailed)] == queries
    assert len(within.asked) == 1


def test_a_retriever_without_a_digest_is_refused_on_disk_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Counting has no digest, .*: give the cache a key="):
        CachedRetriever(Counting(None), path=tmp_path / "c.sqlite")
    assert not list(tmp_path.iterdir())
    cached = CachedRetriever(Counting(None))
    assert not hasattr(cached, "digest")
    cached.search(["a"], 1)
    assert CachedRetriever(BM25).digest == BM25.digest


def made(path: Path) -> None:
    with CachedRetriever(Counting(), path=path) as cached:
        cached.search([f"{i} {'x' * 200}" for i in range(500)], 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b"Dear diary," * 500), "is damaged, or is none .file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:50_000]), "is damaged"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096)),
            "is damaged",
        ),
        (lambda path: edit(path, "UPDATE results SET hits = 'x'"), "it holds a result that cannot be read"),
        (lambda path: edit(path, "UPDATE results SET hits = CAST('[[1]]' AS BLOB)"), "it holds a result that cannot"),
        (lambda path: edit(path, "PRAGMA user_version = 2"), "of version 2, and this program reads 1: delete it"),
        (lambda path: edit(path, "PRAGMA application_id = 7"), "a database of another program: name another file"),
        (lambda path: edit(path, "PRAGMA application_id = 0"), "a database of another program: name another file"),
        (lambda path: edit(path, "DROP TABLE results"), "is damaged, or is none .no such table"),
    ],
    ids=range(9),
)
def test_a_damaged_or_foreign_file_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    path = tmp_path / "c.sqlite"
    made(path)
    damage(path)
    with pytest.raises(ValueError, match=rf"c\.sqlite: .*{message}"):
        made(path)


def edit(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def test_a_foreign_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    edit(path, "CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="a database of another program"):
        made(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the search cache cannot be used: .*see that the folder is there"):
        made(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        made(tmp_path / "file" / "c.sqlite")


def test_an_empty_file_is_a_new_cache(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").touch()
    made(tmp_path / "c.sqlite")


# ---- threads and processes ----


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_threads_share_it(tmp_path: Path, on_disk: bool) -> None:
    path = tmp_path / "c.sqlite" if on_disk else None
    with CachedRetriever(Echo(), memory=20, path=path) as cached, ThreadPoolExecutor(8) as threads:
        batches = [[f"{i % 37}", f"{i % 11}"] for i in range(400)]
        found = list(threads.map(lambda batch: cached.search(batch, 2), batches))
        assert found == [Echo().search(batch, 2) for batch in batches]
        assert cached.hits + cached.misses == 800


def child(path: Path, name: str, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FILL, str(path), name, str(number)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)


def test_processes_make_and_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    children = [child(path, name, 100) for name in "abcd"]
    for one in children:
        output, errors = one.communicate(timeout=120)
        assert one.returncode == 0, errors
        assert output.split()[-1] == "100"
    with CachedRetriever(Counting("echo"), path=path) as cached:
        queries = [f"{name} {i}" for name in [*"abcd", "common"] for i in range(100)]
        assert cached.search(queries, 3) == Echo().search(queries, 3)
        assert (cached.hits, cached.misses) == (500, 0)


def test_what_was_found_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    for name in "ab":
        writer = child(path, name, 10**9)
        assert writer.stdout is not None
        for line in writer.stdout:
            if line.strip() == "50":
                break
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
        output, _ = writer.communicate(timeout=60)
        done = int(([50] + [int(line) for line in output.split("\n")[:-1] if line])[-1])
        within = Counting("echo")
        with CachedRetriever(within, path=path) as cached:
            queries = [f"{name} {i}" for i in range(done)]
            assert cached.search(queries, 3) == Echo().search(queries, 3)
            assert within.asked == []
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def search_in_child(cached: CachedRetriever, results: Any) -> None:
    found = cached.search(["child", "parent"], 2)
    results.put((found == Echo().search(["child", "parent"], 2), cached.hits, cached.misses))
    cached.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_opens_the_file_for_itself(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with CachedRetriever(Echo(), path=tmp_path / "c.sqlite") as cached:
        cached.search(["parent"], 2)
        process = context.Process(target=search_in_child, args=(cached, results))
        process.start()
        assert results.get() == (True, 1, 2)
        process.join()
        assert process.exitcode == 0
        cached.search(["child"], 2)
        assert (cached.hits, cached.misses) == (1, 1)
    results.close()


def test_a_lock_that_is_held_at_a_fork_does_not_stop_the_child() -> None:
    cached, held, done = CachedRetriever(BM25), threading.Event(), threading.Event()

    def hold() -> None:
        with cached._lock.get():
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=cached.search, args=(["oslo"], 1))
    process.start()
    process.join(60)
    done.set()
    holder.join()
    assert process.exitcode == 0


def test_it_may_be_pickled(tmp_path: Path) -> None:
    with CachedRetriever(BM25, path=tmp_path / "c.sqlite", memory=5) as cached:
        cached.search(["oslo"], 1)
        with pickle.loads(pickle.dumps(cached)) as again:
            assert again.search(["oslo"], 1) == BM25.search(["oslo"], 1)
            assert (again.hits, again.misses) == (1, 0)


def test_it_can_be_used_again_after_it_was_closed(tmp_path: Path) -> None:
    cached = CachedRetriever(BM25, path=tmp_path / "c.sqlite", memory=0)
    for _ in range(2):
        cached.search(["oslo"], 1)
        cached.close()
    cached.close()
    assert (cached.hits, cached.misses) == (1, 1)


def test_faulty_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 results or more, not -1"):
        CachedRetriever(BM25, memory=-1)
    cached = CachedRetriever(BM25)
    with pytest.raises(ValueError, match="k must be at least 1"):
        cached.search(["oslo"], 0)
    with pytest.raises(TypeError, match="queries must be a list"):
        cached.search("oslo", 1)

    class Short(Counting):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchFailed]:
            return []

    with pytest.raises(ValueError, match=r"Short\.search was asked 1 queries and gave 0 results"):
        CachedRetriever(Short()).search(["oslo"], 1)
