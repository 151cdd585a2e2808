"""What the tests of the viewer's page share: a run that was played, its page, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, open_chromium
from recorded import NASTY, measured, play, write_run

from search_gym.cli import main
from search_gym.trajectory import Trajectory

COUNT = 60


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with open_chromium() as browser:
        yield browser


def valued(trajectory: Trajectory) -> Trajectory:
    """With a ratio of 0.5, 1, 2 and so on, and entropies that grow."""
    length = len(trajectory.ids)
    ratio = [(0.5, 1.0, 2.0)[place % 3] for place in range(length)]
    return measured(
        trajectory, ratio=ratio, advantage=trajectory.reward - 0.5, entropy=[0.01 * i for i in range(length)]
    )


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    return [valued(play(seed, NASTY)) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, played: list[Trajectory]) -> Path:
    run = write_run(tmp_path_factory.mktemp("viewer") / "run", played)
    assert main(["view", str(run), "--no-open"]) == 0
    return run / "view.html"


DESKTOP = {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture(scope="module")
def desktop(chromium: Any) -> Any:
    """A window that tests share: only to open one takes long."""
    return chromium.new_context(**DESKTOP)


@pytest.fixture
def visit(chromium: Any, desktop: Any, page_file: Path) -> Iterator[Callable[..., Visit]]:
    """Opens the page. At the end it has complained of nothing and asked for nothing."""
    opened: list[Visit] = []

    def open_page(fragment: str = "", path: Path = page_file, **context: Any) -> Visit:
        opened.append(Visit(chromium.new_context(**DESKTOP | context) if context else desktop, path, fragment))
        return opened[-1]

    yield open_page
    for one in opened:
        assert one.complaints == []
        assert one.requests == []
        one.page.close()
