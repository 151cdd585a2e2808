"""The seven benchmarks: their published sizes, and where their questions are looked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from search_gym import sources
from search_gym.questions import benchmarks
from search_gym.questions.benchmarks import BENCHMARKS

LINE = json.dumps({"id": "test_0", "question": "Who?", "golden_answers": ["Ada"]}) + "\n"


def test_their_sizes_are_the_published_ones() -> None:
    assert sum(benchmark.size for benchmark in BENCHMARKS.values()) == 51_713
    assert {name for name, benchmark in BENCHMARKS.items() if benchmark.split == "dev"} == {
        "hotpotqa", "2wikimultihopqa", "musique",
    }  # fmt: skip


def test_they_are_chosen_by_name() -> None:
    assert benchmarks.select("all") == list(BENCHMARKS.values())
    assert [benchmark.title for benchmark in benchmarks.select("musique, nq")] == ["MuSiQue", "NQ"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("nq,trivia", "no benchmark 'trivia'; there are: nq, triviaqa, popqa, hotpotqa, .*; or all"),
        ("nq,nq", "'nq' is named twice"),
        ("nq,", "no benchmark ''"),
    ],
)
def test_a_name_that_cannot_be_used_is_said(names: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        benchmarks.select(names)


@pytest.mark.parametrize(
    "file", ["musique/dev.jsonl", "musique/dev.jsonl.gz", "musique.jsonl", "musique.jsonl.gz"], ids=lambda file: file
)
def test_a_file_is_found_where_flashrag_has_it_or_beside_the_others(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(LINE.encode()) if path.suffix == ".gz" else LINE.encode())
    (tmp_path / "musique").mkdir(exist_ok=True)
    (tmp_path / "musique" / "train.jsonl").write_text("not to be read")
    found = sources.list_questions(benchmarks.source(BENCHMARKS["musique"], tmp_path))
    assert [question.golds for question in found] == [("Ada",)]


def test_a_missing_file_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        benchmarks.source(BENCHMARKS["hotpotqa"], tmp_path)
    assert str(tmp_path / "hotpotqa" / "dev.jsonl") in str(raised.value)
    assert str(tmp_path / "hotpotqa.jsonl") in str(raised.value)
    assert "RUC-NLPIR/FlashRAG_datasets/resolve/main/hotpotqa/dev.jsonl" in str(raised.value)


def test_a_collection_on_the_hub_is_a_dataset_with_a_configuration_for_each() -> None:
    spec = {"config": "nq", "split": "test"}
    assert benchmarks.source(BENCHMARKS["nq"], "hf:") == {"source": "hf:RUC-NLPIR/FlashRAG_datasets", **spec}
    assert benchmarks.source(BENCHMARKS["nq"], "hf:a/b") == {"source": "hf:a/b", **spec}


def test_a_local_collection_is_read_as_the_one_on_the_hub_is(tmp_path: Path) -> None:
    """With a README that names the files of each configuration, as FlashRAG's does."""
    configs = [{"config_name": name, "data_files": [{"split": b.split, "path": f"{name}/{b.split}.jsonl"}]}
               for name, b in BENCHMARKS.items()]  # fmt: skip
    (tmp_path / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    for name, benchmark in BENCHMARKS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{benchmark.split}.jsonl").write_text(LINE.replace("Ada", name))
    source = benchmarks.source(BENCHMARKS["2wikimultihopqa"], f"hf:{tmp_path}")
    assert [question.golds for question in sources.list_questions(source)] == [("2wikimultihopqa",)]
    assert [question.golds for question in sources.list_questions(f"hf:{tmp_path}:musique:dev")] == [("musique",)]
    with pytest.raises(ValueError, match="names one config, and config='nq' another"):
        sources.list_questions({"source": f"hf:{tmp_path}:musique:dev", "config": "nq"})
