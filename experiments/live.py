"""The runs of a comparison while they go on, on the terminal: one bar, a table of all runs, or plain lines."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from experiments.launch.job import Job
from experiments.launch.status import Status, Watch, overall

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 20
"""Of a sparkline, in characters."""
_STYLES = {"waiting": "dim", "training": "cyan", "evaluating": "cyan", "done": "green", "failed": "bold red"}
_ORDER = ("training", "evaluating", "failed", "waiting", "done")


@contextmanager
def watching(jobs: Sequence[Job], questions: int, console: Console, *, live: bool) -> Iterator[None]:
    """Show how far the runs are, until the block is left. All is read from their folders.

    Args:
        jobs: the runs.
        questions: the number of held-out ones.
        console: where.
        live: a table of all runs, or lines where the console is no terminal; else one bar for all.
    """
    watches = [Watch(job, questions) for job in jobs]

    def look() -> list[Status]:
        return [watch.look() for watch in watches]

    if not live:
        with Bar(look, questions, console):
            yield
    elif console.is_terminal:
        shown = Live(
            get_renderable=lambda: table(look(), questions, console.height), console=console, refresh_per_second=1
        )
        with shown:
            yield
    else:
        with _lines(look, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)):
            yield


class Bar(Progress):
    """One bar that counts episodes, for they take the time.

    Args:
        look: gives the statuses.
        questions: the number of held-out ones.
        console: where.
    """

    def __init__(self, look: Callable[[], list[Status]], questions: int, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True),
        )  # fmt: skip
        self._look, self._questions = look, questions
        super().__init__(*columns, console=console, speed_estimate_period=120, refresh_per_second=2)
        self.add_task("", total=1.0)

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar as it is now."""
        statuses = self._look()
        at_work = [status.job.name for status in statuses if status.state in ("training", "evaluating")]
        name = (at_work or ["waiting" if any(s.state == "waiting" for s in statuses) else "done"])[0]
        more = f" and {len(at_work) - 1} more" if len(at_work) > 1 else ""
        for bar in self.task_ids:  # none before it is set up
            self.update(bar, completed=overall(statuses, self._questions), description=f"{name}{more}")
        yield from super().get_renderables()


def table(statuses: Sequence[Status], questions: int, height: int) -> Table:
    """A row for each run; where they are more than the terminal has lines, those at work come first.

    Args:
        statuses: of the runs.
        questions: the number of held-out ones.
        height: of the terminal, in lines.
    """
    counts = Counter(status.state for status in statuses)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.caption = Text(
        f"{', '.join(f'{counts[state]} {state}' for state in _ORDER if counts[state])}; "
        f"{100 * overall(statuses, questions):.0f} % of all episodes are played"
    )
    grid.caption_justify = "left"
    for name in ("Run", "State", "Progress", "Steps", "Reward", "", "Ratio", "Left"):
        side = "right" if name in ("Steps", "Ratio", "Left") else "left"
        grid.add_column(name, justify=side, no_wrap=True, min_width=WIDTH if name == "Reward" else None)
    room = height - 6
    if len(statuses) > room:
        statuses = sorted(statuses, key=lambda status: _ORDER.index(status.state))[: max(room, 1)]
    highest = max((reward for status in statuses for reward in status.rewards), default=0.0)
    lowest = min((reward for status in statuses for reward in status.rewards), default=0.0)
    for status in statuses:
        grid.add_row(*_row(status, questions, min(lowest, 0.0), highest))
    return grid


def _row(status: Status, questions: int, low: float, high: float) -> tuple[RenderableType, ...]:
    steps = status.job.config.trainer.steps
    tries = f" (process {status.tries})" if status.tries > 1 else ""
    return (
        Text(status.job.name),  # a label is no markup
        Text(status.state + tries, _STYLES[status.state]),
        ProgressBar(total=1.0, completed=overall([status], questions), width=12),
        f"{status.step}/{steps}" if status.job.label else "",
        Text(sparkline(status.rewards, low, high)),
        f"{status.rewards[-1]:.3f}" if status.rewards else "",
        "" if status.ratio is None else f"{status.ratio:.3f}",
        "" if status.seconds_left is None else duration(status.seconds_left),
    )


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """A curve in at most `WIDTH` characters, each the mean of as many values as the others, or one more.

    Args:
        values: the curve.
        low, high: what the lowest and the highest block stand for.
    """
    count = min(len(values), WIDTH)
    cuts = [place * len(values) // max(count, 1) for place in range(count + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(cuts)]
    span = (high - low) or 1.0
    return "".join(BLOCKS[max(0, min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS))))] for value in means)


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class Lines:
    """What is new about the runs, as lines: another state, and another tenth of the steps.

    Args:
        say: gets each line.
    """

    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._said: dict[str, tuple[str, int, int]] = {}

    def show(self, statuses: Sequence[Status]) -> None:
        """Say what is new since the last call; a run that has not begun is nothing new."""
        for status in statuses:
            tenth = 10 * status.step // max(status.job.config.trainer.steps, 1)
            now = status.state, status.tries, tenth if status.state == "training" else -1
            if self._said.get(status.job.name) != now and status.state != "waiting":
                self.say(line(status))
            self._said[status.job.name] = now


def line(status: Status) -> str:
    """A run in one line."""
    parts = [f"{status.job.name}: {status.state}"]
    if status.job.label:
        parts.append(f"step {status.step}/{status.job.config.trainer.steps}")
    if status.rewards:
        parts.append(f"reward {status.rewards[-1]:.3f}")
    if status.ratio is not None:
        parts.append(f"ratio {status.ratio:.3f}")
    if status.seconds_left is not None:
        parts.append(f"{duration(status.seconds_left)} left")
    if status.tries > 1:
        parts.append(f"process {status.tries}")
    return "  ".join(parts)


@contextmanager
def _lines(look: Callable[[], list[Status]], say: Callable[[str], None]) -> Iterator[None]:
    """`Lines` beside the block, every second, and once more at its end."""
    lines, ended = Lines(say), threading.Event()

    def repeat() -> None:
        while not ended.wait(1.0):
            lines.show(look())

    beside = threading.Thread(target=repeat)
    beside.start()
    try:
        yield
    finally:
        ended.set()
        beside.join()
        lines.show(look())
