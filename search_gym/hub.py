"""Reading Hugging Face datasets, by name on the hub or by path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from search_gym.jsonl import Row

_PREFIX = "hf:"


def parts(source: object) -> tuple[str, str, str] | None:
    """Of "hf:NAME", "hf:NAME:SPLIT" or "hf:NAME:CONFIG:SPLIT" the name, the configuration and the split, "" where there
    is none; None: the source is something else."""
    if not (isinstance(source, str) and source.startswith(_PREFIX)):
        return None
    name, _, rest = source.removeprefix(_PREFIX).partition(":")
    config, _, split = rest.rpartition(":")
    return name, config, split


def open_dataset(name: str, *, config: str | None, split: str | None, streaming: bool) -> tuple[Any, str]:
    """A dataset, and the name of its split.

    Args:
        name: a name on the hub; a folder of data files; or a folder that `save_to_disk` wrote.
        config: which of the configurations of the dataset.
        split: which of its splits; None: the only one, or "train".
        streaming: read it as it is used, instead of loading it first.

    Raises:
        ValueError: if there is no such dataset, configuration or split; ImportError: without datasets.
    """
    if not name:
        raise ValueError("a dataset has a name: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise ImportError(f"{name}: a dataset needs datasets: pip install 'search-gym[data]'") from error

    try:
        if any((Path(name) / file).exists() for file in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(name)
            if streaming:
                raise ValueError("what save_to_disk wrote is not streamed: it is memory-mapped already")
        else:
            found = datasets.load_dataset(name, config, streaming=streaming)
    except (ValueError, OSError, RuntimeError, DatasetsError) as error:  # RuntimeError: it has a script, not run
        raise ValueError(f"cannot open the dataset {name!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        if split is not None and split != str(found.split):
            raise ValueError(f"the dataset {name!r} is a single split, {found.split}; it has no {split!r}")
        return found, str(found.split or "row")
    chosen = split or (next(iter(found)) if len(found) == 1 else "train")
    if chosen not in found:
        asked = f"has no split {chosen!r}" if split else "has several splits, none of them 'train': say which"
        raise ValueError(f"the dataset {name!r} {asked}; there are: {', '.join(map(str, found))}")
    return found[chosen], str(chosen)


def read(dataset: Any, name: str) -> Iterator[tuple[str, Row]]:
    """The rows of a dataset, from "name:row 0" on."""
    for number, row in enumerate(dataset):
        yield f"{name}:row {number}", row
