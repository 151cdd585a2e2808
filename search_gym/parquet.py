"""Reading parquet files: questions, as Search-R1, verl and SkyRL train from, and corpora."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from search_gym.jsonl import Row


def read(path: str | PathLike[str]) -> Iterator[tuple[str, Row]]:
    """The rows of a file, from "file:row 0" on.

    Raises:
        FileNotFoundError: if there is no such file; ValueError: if it is no parquet; ImportError: without pyarrow.
    """
    pyarrow, parquet = _libraries(path)
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield f"{path}:row {number}", row
                number += 1
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file: {error}") from error


def size(path: str | PathLike[str]) -> int:
    """How many rows a file has; raises what `read` does."""
    pyarrow, parquet = _libraries(path)
    try:
        return parquet.ParquetFile(path).metadata.num_rows
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a parquet file: {error}") from error


def _libraries(path: str | PathLike[str]) -> tuple[Any, Any]:
    """pyarrow and its parquet module, to read a file that is there."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"{path}: parquet needs pyarrow: pip install 'search-gym[data]'") from error

    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    return pyarrow, parquet
