"""Settings of all tests."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a shared machine stalls for longer than any example takes. Derandomised, so that a failure in one place
# is a failure in every other; --hypothesis-profile=explore looks for new ones.
settings.register_profile("search-gym", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("search-gym")

# What is prepared once and kept goes with the tests, not into the caches of whoever runs them. `datasets` reads its
# variable when it is imported.
_CACHE = tempfile.TemporaryDirectory(prefix="search-gym-tests-")
os.environ["HF_DATASETS_CACHE"] = f"{_CACHE.name}/datasets"
os.environ["SEARCH_GYM_CACHE"] = f"{_CACHE.name}/search-gym"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A folder that comes into being where code is run that was only to be read."""
    return tmp_path / "code-has-run"


class _Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def trap(mark: Path) -> object:
    """What makes the folder `mark` where it is unpickled."""
    set_up = _Trap(mark)
    pickle.loads(pickle.dumps(set_up))
    mark.rmdir()  # so it works
    return set_up
