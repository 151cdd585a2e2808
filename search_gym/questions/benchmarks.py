"""The seven question sets that papers on search agents report, by name, with the splits that they report.

Names, folders and files are those of FlashRAG's collection, https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

COLLECTION = "RUC-NLPIR/FlashRAG_datasets"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Benchmark:
    """A question set with the split that is evaluated on."""

    name: str
    """As FlashRAG names its folder."""
    title: str
    """As papers write it."""
    split: str
    """"test", or "dev" where the answers to the test questions are not public."""
    size: int
    """How many questions the whole split has."""


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("nq", "NQ", "test", 3_610),
        Benchmark("triviaqa", "TriviaQA", "test", 11_313),
        Benchmark("popqa", "PopQA", "test", 14_267),
        Benchmark("hotpotqa", "HotpotQA", "dev", 7_405),
        Benchmark("2wikimultihopqa", "2WikiMultihopQA", "dev", 12_576),
        Benchmark("musique", "MuSiQue", "dev", 2_417),
        Benchmark("bamboogle", "Bamboogle", "test", 125),
    )
}


def select(names: str) -> list[Benchmark]:
    """Benchmarks by name.

    Args:
        names: separated by commas, or "all".

    Raises:
        ValueError: if there is none of that name, or one comes twice; the message lists those there are.
    """
    if names.strip() == "all":
        return list(BENCHMARKS.values())
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in BENCHMARKS:
            raise ValueError(f"there is no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}; or all")
        if chosen.count(name) > 1:
            raise ValueError(f"the benchmark {name!r} is named twice")
    return [BENCHMARKS[name] for name in chosen]


def source(benchmark: Benchmark, data: str | PathLike[str]) -> Any:
    """Where the questions of a benchmark are, as `search_gym.sources.open_questions` takes it.

    Args:
        data: a folder that holds NAME/SPLIT.jsonl, as FlashRAG's does, or NAME.jsonl; likewise .jsonl.gz and .parquet.
            Or "hf:", FlashRAG's collection on the Hugging Face hub; or "hf:COLLECTION", one like it.

    Raises:
        FileNotFoundError: if the folder holds no such file: names those that were looked for, and where to get them.
    """
    if str(data).startswith("hf:"):
        collection = str(data).removeprefix("hf:") or COLLECTION
        return {"source": f"hf:{collection}", "config": benchmark.name, "split": benchmark.split}
    folder = Path(data)
    places = [folder / benchmark.name / benchmark.split, folder / benchmark.name]
    for place in places:
        for suffix in _SUFFIXES:
            if (path := place.with_name(place.name + suffix)).is_file():
                return path
    address = f"https://huggingface.co/datasets/{COLLECTION}/resolve/main/{benchmark.name}/{benchmark.split}.jsonl"
    looked = " or ".join(f"{place}.jsonl" for place in places)
    raise FileNotFoundError(
        f"no questions of {benchmark.title}: there is no {looked} (or .jsonl.gz, .parquet). Get {address} as the "
        "first, or read it from there with hf: instead of a folder"
    )
