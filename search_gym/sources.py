"""From the names that a user types to question sets and retrievers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, cast

from search_gym import hub, jsonl, parquet
from search_gym.questions import Question, QuestionList, QuestionSet
from search_gym.questions.mixture import Mixture
from search_gym.questions.rows import Row, collect
from search_gym.questions.stream import QuestionStream
from search_gym.questions.world import SPLITS, World
from search_gym.retrieval import Retriever
from search_gym.retrieval.cache import CachedRetriever
from search_gym.retrieval.index import RETRIEVERS, IndexFolder, construct, is_index
from search_gym.retrieval.remote import RemoteRetriever
from search_gym.retrieval.strict import OnSearchError, StrictRetriever


@dataclass(frozen=True)
class QuestionSpec:
    """Where questions come from, and which of them. A mapping with the same keys does as well, so JSON can hold it."""

    source: Any
    """What `open_questions` takes."""
    split: str | None = None
    """A split of the embedded world or of a dataset; None: its training split."""
    config: str | None = None
    """A configuration of a dataset."""
    streaming: bool = False
    """Whether a dataset is read while it is used, instead of loaded first."""
    sample: int | None = None
    """Take only so many questions, drawn by `seed`; None: all."""
    seed: int = 0
    """Of the sample."""
    skip_bad: bool = False
    """Leave out rows that are no question, with a warning that counts them; otherwise they are errors."""
    weight: float = 1.0
    """In a mixture: how often the set is drawn from, in proportion to the others."""


@cache
def embedded_world() -> World:
    """The world that "embedded" names: always the same one."""
    return World(seed=0)


def open_questions(source: Any) -> QuestionSet:
    """The question set that a source describes.

    Args:
        source: one of

            - "embedded", "embedded:dev", "embedded:test": a split of the embedded world;
            - the path of a file, JSONL or (ending in ".parquet") parquet, in any format that
              `search_gym.questions.rows` reads;
            - "hf:NAME", "hf:NAME:SPLIT" or "hf:NAME:CONFIG:SPLIT", or the path of a folder: a Hugging Face dataset;
            - a sequence of `Question`, or a `QuestionSet`;
            - a `QuestionSpec`, or a mapping with a "source": one of these, and which part of it;
            - a mapping from names to any of these: a `Mixture`.

    Raises:
        ValueError: if there is no question, two share an id, a row cannot be read ("where: reason"), or the source is
            none of these; FileNotFoundError: if there is no such file; ImportError: if a format needs an extra.
    """
    if isinstance(source, Mapping) and "source" not in source:
        specs = {str(name): _spec(part) for name, part in source.items()}
        return Mixture({name: (_open(spec), spec.weight) for name, spec in specs.items()})
    return _open(_spec(source))


def list_questions(source: Any) -> QuestionList:
    """`open_questions` for those who need all of them at hand, a mixture in order.

    Raises:
        ValueError: as there, and if the questions are streamed.
    """
    questions = open_questions(source)
    if isinstance(questions, QuestionList):
        return questions
    if isinstance(questions, Mixture) and questions.finite:
        return QuestionList(questions.one_pass(None))
    raise ValueError("a list of questions is needed here, and these have no known end: do not stream them")


def open_retriever(
    retriever: Any = "bm25",
    source: Any = None,
    *,
    on_search_error: OnSearchError = "tell",
    cache: str | PathLike[str] | None = None,
) -> Retriever:
    """The retriever that a description names.

    Args:
        retriever: one of

            - "bm25", "dense", "hybrid" or "rerank" over `source`; or a mapping with such a "name" and the options that
              `search_gym.retrieval.index.IndexFolder.open` documents;
            - the path of a folder that `search-gym index` made, searched as its index is made for;
            - "http://host:port", a server that speaks Search-R1's protocol; with options, a mapping with the address
              as its "name" and those of `search_gym.retrieval.remote.RemoteRetriever`;
            - an object with `search(queries, k)`.
        source: the corpus: "embedded", the default; anything that `search_gym.retrieval.corpus.read` takes, whose index
            is then kept in the user's cache; a folder that `search-gym index` made; a sequence of `Passage`. A
            retriever that brings its own passages takes none, and an object leaves it unused.
        on_search_error: what becomes of searches that fail, see `search_gym.retrieval.strict`.
        cache: a file in which results are kept, and then in memory, too; None: neither.

    Raises:
        ValueError: if no retriever has that name, an index does not fit, or `source` is of no use; the message says
            what there is. FileNotFoundError: if there is no such file. ImportError: if something needs an extra.
    """
    if on_search_error not in ("tell", "raise"):
        raise ValueError(f"unknown on_search_error {on_search_error!r}; there are: tell, raise")
    opened = _opened(retriever, source)
    if cache is not None:
        opened = CachedRetriever(opened, path=Path(cache))
    return opened if on_search_error == "tell" else StrictRetriever(opened)


def _opened(retriever: Any, source: Any) -> Retriever:
    if not isinstance(retriever, str | PathLike | Mapping):
        return retriever
    name, options = _described(retriever)
    if name not in RETRIEVERS:
        return _elsewhere(name, options, source)
    if source is None or (isinstance(source, str) and source == "embedded"):
        source = embedded_world().corpus
    if not isinstance(source, str | PathLike):
        return IndexFolder.of_passages(list(source)).open(name, options)
    return (IndexFolder.at(source) if is_index(source) else IndexFolder.of_file(source)).open(name, options)


def _described(retriever: str | PathLike[str] | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options of a description of a retriever."""
    if not isinstance(retriever, Mapping):
        return str(retriever), {}
    options = dict(retriever)
    if "name" not in options:
        raise ValueError(f"a description of a retriever needs a 'name'; there are: {[*options]}")
    return str(options.pop("name")), options


def _elsewhere(name: str, options: dict[str, Any], source: Any) -> Retriever:
    """A retriever that is not built here: a folder of an index, or a server."""
    server = name.startswith(("http://", "https://"))
    if not (server or is_index(name)):
        raise ValueError(
            f"unknown retriever {name!r}; there are: {', '.join(RETRIEVERS)}; or give a folder that search-gym index "
            "made, a server's http:// address, or an object"
        )
    if source is not None:
        raise ValueError(f"{name} brings its own passages: leave the corpus {str(source)!r:.80} out")
    return construct(RemoteRetriever, name, **options) if server else IndexFolder.at(name).open(None, options)


def _spec(source: Any) -> QuestionSpec:
    if isinstance(source, QuestionSpec):
        return source
    if not isinstance(source, Mapping):
        return QuestionSpec(source)
    known = [field.name for field in fields(QuestionSpec)]
    unknown = [str(key) for key in source if key not in known]
    if unknown or "source" not in source:
        what = f"unknown key {', '.join(unknown)}" if unknown else "no 'source'"
        raise ValueError(f"{what} in a description of questions; there are: {', '.join(known)}")
    return QuestionSpec(**cast("dict[str, Any]", source))


def _open(spec: QuestionSpec) -> QuestionSet:
    questions = _whole(spec)
    if spec.sample is None:
        return questions
    if not isinstance(questions, QuestionList):
        raise ValueError(f"a sample can only be taken of a list of questions, not of {spec.source!r}")
    return questions.sample(spec.sample, spec.seed)


def _whole(spec: QuestionSpec) -> QuestionSet:
    """The questions of a spec before the sample is taken."""
    source = spec.source
    if isinstance(source, str) and source.partition(":")[0] == "embedded":
        split = _one(spec, "split", source.partition(":")[2]) or SPLITS[0]
        return QuestionList(embedded_world().questions(split))
    if (on_hub := hub.parts(source)) is not None:
        name, config, split = on_hub
        return _dataset(spec, name, _one(spec, "config", config), _one(spec, "split", split))
    if isinstance(source, str | PathLike) and Path(source).is_dir():
        return _dataset(spec, str(source), spec.config, spec.split)
    if spec.split or spec.config or spec.streaming:
        raise ValueError(f"{source!r:.80} has no split and no config, and is not streamed: only a dataset is")
    if isinstance(source, str | PathLike):
        return _file(spec, Path(source))
    if callable(getattr(source, "one_pass", None)) and callable(getattr(source, "find", None)):
        return source
    if not isinstance(source, Sequence) or not all(isinstance(question, Question) for question in source):
        raise ValueError(f"questions are a name, a path, a sequence of Question or a QuestionSet, not {source!r:.80}")
    return QuestionList(source)


def _one(spec: QuestionSpec, key: str, named: str) -> str | None:
    """The split or the configuration, which the source may name as well as the spec."""
    given = getattr(spec, key)
    if named and given and named != given:
        raise ValueError(f"{spec.source!r} names one {key}, and {key}={given!r} another")
    return named or given


def _file(spec: QuestionSpec, path: Path) -> QuestionList:
    if path.suffix == ".parquet":
        return _read(spec, parquet.read(path), str(path), "row_")
    lines = ((f"{path}:{number}", row) for number, row in jsonl.read(path, dict))
    return _read(spec, lines, str(path), None)


def _dataset(spec: QuestionSpec, name: str, config: str | None, split: str | None) -> QuestionSet:
    dataset, chosen = hub.open_dataset(name, config=config, split=split, streaming=spec.streaming)
    if spec.streaming:
        return QuestionStream(dataset, name, chosen, skip_bad=spec.skip_bad)
    return _read(spec, hub.read(dataset, f"{name}:{chosen}"), name, f"{chosen}_")


def _read(spec: QuestionSpec, rows: Iterable[tuple[str, Row]], name: str, numbered: str | None) -> QuestionList:
    skipped: list[str] = []
    found = list(collect(rows, numbered=numbered, skipped=skipped.append if spec.skip_bad else None))
    if not found:
        reason = f"no row of it is a question, the first for this reason: {skipped[0]}" if skipped else "it is empty"
        raise ValueError(f"{name}: {reason}")
    if skipped:
        warnings.warn(
            f"{name}: {len(skipped)} of {len(skipped) + len(found)} rows were left out, the first for this reason: "
            f"{skipped[0]}",
            stacklevel=2,
        )
    return QuestionList(found)
