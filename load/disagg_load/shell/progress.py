"""What a replay shows while it runs: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from disagg_load.records import Outcome, RequestRecord

from .replay import Observer

LINE_EVERY_SECONDS = 10.0


@dataclass
class _Counts:
    sent: int = 0
    finished: int = 0
    errors: int = 0

    def take(self, record: RequestRecord) -> None:
        self.finished += 1
        self.errors += record.outcome.is_error or record.outcome is Outcome.TRUNCATED

    def __str__(self) -> str:
        return f"{self.sent - self.finished} in flight, {self.errors} failed"


@dataclass
class LineProgress:
    """Prints a line when the last one is old enough. `clock` gives seconds."""

    planned: int
    console: Console
    clock: Callable[[], float]
    counts: _Counts = field(default_factory=_Counts)
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def sent(self, index: int) -> None:
        """A request was dispatched."""
        self.counts.sent += 1
        self._tick()

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        self.counts.take(record)
        self._tick()

    def _tick(self) -> None:
        now = self.clock()
        if now - self._last >= LINE_EVERY_SECONDS:
            self._last = now
            self.console.print(f"{self.counts.finished} of {self.planned} finished, {self.counts}", highlight=False)


@dataclass
class BarProgress:
    """Moves a bar."""

    progress: Progress
    task: TaskID
    counts: _Counts = field(default_factory=_Counts)

    def sent(self, index: int) -> None:
        """A request was dispatched."""
        self.counts.sent += 1
        self.progress.update(self.task, counts=str(self.counts))

    def finished(self, record: RequestRecord) -> None:
        """A request ended."""
        self.counts.take(record)
        self.progress.update(self.task, advance=1, counts=str(self.counts))


@contextmanager
def show_progress(planned: int, console: Console, clock: Callable[[], float]) -> Iterator[Observer]:
    """The observer that suits `console`, for as long as the context lasts."""
    if not console.is_terminal:
        yield LineProgress(planned, console, clock)
        return
    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as progress:
        yield BarProgress(progress, progress.add_task("replay", total=planned, counts=""))
