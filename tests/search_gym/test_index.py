"""Index folders and the cache: what is built is found again, and what does not fit is refused by name."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import search_gym
from search_gym.cli import main
from search_gym.retrieval import Passage, store
from search_gym.retrieval.bm25 import BM25Retriever, BM25Settings
from search_gym.retrieval.index import IndexFolder, build, cache_folder
from search_gym.sources import open_retriever

PASSAGES = [
    Passage("o", "Oslo", "Oslo is the capital of Norway."),
    Passage("p", "Paris", "Paris is the capital of France."),
    Passage("l", "Lima", "Lima is the capital of Peru."),
]
QUERIES = ["capital of Norway", "", "France", "nothing like it"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "c.jsonl", PASSAGES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEARCH_GYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, passages: list[Passage]) -> Path:
    rows = ({"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in passages)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def contents(folder: Path) -> dict[str, int]:
    """Every file, and when it was last written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_every_way_to_the_same_corpus_finds_the_same(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "index", "bm25")
    ways: list[Any] = [
        open_retriever("bm25", PASSAGES),
        open_retriever("bm25", corpus),
        open_retriever("bm25", str(corpus)),
        open_retriever({"name": "bm25"}, corpus),
        open_retriever("bm25", tmp_path / "index"),
        open_retriever(tmp_path / "index"),
        open_retriever(str(tmp_path / "index")),
        search_gym_env(tmp_path / "index").setting.retriever,
    ]
    expected = BM25Retriever(PASSAGES).search(QUERIES, 2)
    assert [way.search(QUERIES, 2) for way in ways] == [expected] * len(ways)
    assert len({way.digest for way in ways}) == 1


def names(found: Any) -> list[list[str]]:
    """The ids of the hits of each query."""
    return [[hit.id for hit in hits] for hits in found]


def search_gym_env(retriever: Path) -> Any:
    import gymnasium

    return gymnasium.make(f"{search_gym.__name__}:SearchQA-v0", retriever=str(retriever)).unwrapped


def test_a_corpus_is_read_and_indexed_once(corpus: Path, cache: Path) -> None:
    open_retriever("bm25", corpus)
    before = contents(cache)
    assert len(before) > 3
    open_retriever("bm25", corpus)
    assert contents(cache) == before
    open_retriever({"name": "bm25", "k1": 0.9}, corpus)  # beside the other
    assert contents(cache).items() > before.items()


def test_a_corpus_that_changed_is_read_again(corpus: Path) -> None:
    assert open_retriever("bm25", corpus).search(["Rome"], 1) == [[]]
    write(corpus, [*PASSAGES, Passage("r", "Rome", "Rome is old.")])
    assert names(open_retriever("bm25", corpus).search(["Rome"], 1)) == [["r"]]


def test_options_reach_the_index(corpus: Path) -> None:
    one, other = open_retriever("bm25", corpus), open_retriever({"name": "bm25", "k1": 0.0}, corpus)
    assert one.search(["Norway"], 1) != other.search(["Norway"], 1)
    assert other.search(["Norway"], 1) == BM25Retriever(PASSAGES, k1=0.0).search(["Norway"], 1)


def test_building_again_keeps_what_is_whole(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "index", "bm25")
    before = contents(tmp_path / "index")
    os.utime(corpus)  # the same passages in a file that was touched
    build(corpus, tmp_path / "index", "bm25")
    assert contents(tmp_path / "index") == before


def test_an_index_that_does_not_fit_is_refused(corpus: Path, tmp_path: Path) -> None:  # R2
    made = build(corpus, tmp_path / "index", "bm25")
    other = write(tmp_path / "other.jsonl", PASSAGES[:2])
    with pytest.raises(ValueError, match=r"index holds the passages of .*c\.jsonl.*not those of .*other\.jsonl"):
        build(other, tmp_path / "index", "bm25")
    with pytest.raises(ValueError, match=r"was built with k1=1\.2, not with k1=0\.9"):
        build(corpus, tmp_path / "index", "bm25", words=BM25Settings(k1=0.9))
    with pytest.raises(ValueError, match=r"was built with"):
        open_retriever({"name": "bm25", "k1": 0.9}, tmp_path / "index")
    store.write(PASSAGES[:2], tmp_path / "index" / "passages", "other")
    with pytest.raises(ValueError, match=rf"built from 3 passages with the digest {made.passages.digest}; these are 2"):  # pyright: ignore[reportAttributeAccessIssue]
        open_retriever(tmp_path / "index")


@pytest.mark.parametrize(
    ("retriever", "source", "reason"),
    [
        ("bm26", None, "unknown retriever 'bm26'; there are: bm25, dense, hybrid, rerank; or give a folder"),
        ({"k1": 1}, None, "needs a 'name'"),
        ({"name": "bm25", "k3": 1}, None, "unknown option k3 of a retriever; there are: k1, b, stopwords"),
        ({"name": "bm25", "k1": -1}, None, "k1 must be at least 0"),
        ("bm25", [], "the corpus is empty"),
    ],
)
def test_a_faulty_description_is_refused(retriever: Any, source: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        open_retriever(retriever, source)


def test_an_index_takes_no_corpus_besides(corpus: Path, tmp_path: Path) -> None:
    build(corpus, tmp_path / "index", "bm25")
    with pytest.raises(ValueError, match="brings its own passages: leave the corpus"):
        open_retriever(tmp_path / "index", corpus)


def test_a_folder_without_an_index_says_how_to_build_one(corpus: Path) -> None:
    IndexFolder.of_file(corpus)
    (folder,) = (cache_folder() / "indexes").iterdir()
    with pytest.raises(ValueError, match=r"holds passages and no index: search-gym index CORPUS --out"):
        open_retriever(folder)


def _open(corpus: Path) -> int:
    return len(names(open_retriever("bm25", corpus).search(["capital"], 5))[0])


def test_processes_that_open_a_corpus_at_once_all_find_it(corpus: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_open, [corpus] * 8) == [3] * 8


def test_the_command_builds_and_says_how_to_search(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(corpus), "--out", str(tmp_path / "index"), "--processes", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 passages, ")
    assert f"search-gym serve {tmp_path / 'index'}" in out
    assert err == ""
    assert names(open_retriever(tmp_path / "index").search(["Peru"], 1)) == [["l"]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"id": "x"}', 'c.jsonl:4: a passage needs "contents"'),
        ('{"id": "o", "text": "again"}', "c.jsonl:4: the id 'o' is that of line 1, too"),
        ('{"id": "x", "text": " "}', "c.jsonl:4: the passage is empty"),
        ("{", "c.jsonl:4: not JSON"),
    ],
    ids=["no-text", "duplicate", "empty", "not-json"],
)
def test_the_command_names_a_bad_line(
    corpus: Path, tmp_path: Path, row: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.write_text(corpus.read_text() + row + "\n")
    assert main(["index", str(corpus), "--out", str(tmp_path / "index")]) == 2
    assert reason in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown retriever"):
        open_retriever(tmp_path / "index")


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    many = [Passage(str(i), f"t{i}", f"w{i % 97} w{i % 89} w{i}") for i in range(60_000)]
    corpus = write(tmp_path / "c.jsonl", many)
    command = [sys.executable, "-m", "search_gym.cli", "index", str(corpus), "--processes", "1", "--out"]
    for wait in (0.5, 1.0, 1.5, 2.0, 2.5):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL)
    build(corpus, tmp_path / "whole", "bm25")
    one, other = open_retriever(tmp_path / "killed"), open_retriever(tmp_path / "whole")
    asked = [f"w{i}" for i in range(0, 60_000, 997)]
    assert one.search(asked, 5) == other.search(asked, 5)
