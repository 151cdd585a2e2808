"""What several files of these tests compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from sweeping import swept


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The small comparison that nobody disturbs, in one process. Made once, whichever worker of xdist is first."""
    base = tmp_path_factory.getbasetemp()
    out = (base if worker_id == "master" else base.parent) / "undisturbed"
    with FileLock(f"{out}.lock"):
        if not (out / "results.json").exists():
            code, output = swept(out)
            assert code == 0, output
    return out
