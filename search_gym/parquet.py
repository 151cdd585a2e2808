"""Reading parquet files: questions, as Search-R1, verl and SkyRL train from, and corpora."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from search_gym.jsonl import Row


def read(path: str | PathLike[str]) -> Iterator[tuple[str, Row]]:
    """The rows of a file, from "file:row 0" on.

    Raises:
        FileNotFoundError: if there is no such file; ValueError: if it is no parquet; ImportError: without pyarrow.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"{path}: parquet needs pyarrow: pip install 'search-gym[data]'") from error

    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path}:row {number}", row
                number += 1
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file: {error}") from error
