"""Show the progress of a stage: in a terminal, a plain log or a notebook, as JSON lines, or not at all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rove.core.records import RolloutRecord
from rove.stages.tables import rollout_text
from rove.utils.console import SafeConsole, styled
from rove.utils.terminal_text import inert
from rove.utils.units import human_seconds

WIDTH = 100
"""Width in columns if the output is not a terminal."""
PROGRESS_LINES = 5
"""Approximate number of progress lines that a task prints if the output is not a terminal."""
SHOW_AFTER_S = 10.0
"""Seconds after which a step shows the progress within it."""
LOG_AFTER_S = 5.0
"""Minimum seconds between two lines of a task in a plain log, except for its last line."""
LOG_EVERY_S = 30.0
"""Maximum seconds between two lines of a plain log."""


class StepProgress:
    """Progress within the current step: the latest count of each activity. Thread-safe.

    Args:
        clock: Function that returns the time in seconds; tests pass their own clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.start_next()

    def start_next(self) -> None:
        """Start the next step."""
        self._started = self._clock()
        self._counts: dict[str, tuple[int, int]] = {}

    def __call__(self, activity: str, done: int, total: int) -> None:
        """Record that `done` of `total` items are finished (0 = unknown total); see `rove.train.callbacks.OnProgress`."""
        # A new dict instead of a change: another thread may be reading the counts.
        self._counts = {**self._counts, activity: (done, total)}

    def text(self) -> str:
        """Return the progress within the step, such as "rollouts 12/256, 42 s in this step"."""
        parts: list[str] = []
        for activity, (done, total) in self._counts.items():
            parts.append(f"{activity} {done}/{total}" if total else f"{activity} {done}")
        parts.append(f"{self._clock() - self._started:.0f} s in this step")
        return ", ".join(parts)

    def __rich__(self) -> Text:
        """Return the text; an empty text until the step takes longer than `SHOW_AFTER_S`."""
        is_long = self._clock() - self._started > SHOW_AFTER_S
        return Text(f"  {self.text()}" if is_long else "", style="dim")


class TaskProgress:
    """The progress of a task in steps.

    Args:
        title: Name of the task.
        total: Number of steps; 0 if it is unknown.
        show: Called after every change.
        done: Number of steps that an earlier process finished.
        clock: Function that returns the time in seconds; tests pass their own clock.
    """

    def __init__(
        self,
        title: str,
        total: int,
        show: Callable[[TaskProgress], None],
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.title = title
        self.count = done
        self.total = total
        self.status: str | Text = ""
        self.step = StepProgress()
        """Progress within the current step."""
        self._show, self._clock = show, clock
        self._first: tuple[int, float] | None = None
        """Number and time of the first step that was recorded: the work before it, such as loading, is not repeated."""

    def __call__(self, count: int, status: str | Text, total: int | None = None) -> None:
        """Record that `count` steps are done, with a status text; pass `total` if the number of steps becomes known only now."""
        self.count, self.status, self.total = count, status, total or self.total
        if self._first is None:
            self._first = (count, self._clock())
        self.step.start_next()
        self._show(self)

    @property
    def line(self) -> Text:
        """Return one line for a plain log."""
        counts = f"{self.title} {self.count}/{self.total or '?'}{self._time_left()}  "
        return styled(counts).append(_as_text(self.status))

    def _time_left(self) -> str:
        """Return text such as ", up to 5.0 min left" ("up to": some tasks end early); "" if the time is unknown or short."""
        if self._first is None or self.count <= self._first[0] or not self.total:
            return ""
        first_count, first_time = self._first
        seconds_per_step = (self._clock() - first_time) / (self.count - first_count)
        seconds = seconds_per_step * (self.total - self.count)
        return f", up to {human_seconds(seconds)} left" if seconds > SHOW_AFTER_S else ""


class Reporter(Protocol):
    """Shows the activity of a stage. All texts are plain English sentences or labels without markup."""

    def title(self, text: str) -> None:
        """Show the title of a stage that starts."""
        ...

    def note(self, text: str, *, important: bool = False) -> None:
        """Show a message."""
        ...

    def warning(self, text: str) -> None:
        """Show a warning: what happened, and what to do."""
        ...

    def hints(self, *texts: str) -> None:
        """Show suggestions for next steps, such as commands."""
        ...

    def sample(self, record: RolloutRecord, title: str) -> None:
        """Show a sampled rollout."""
        ...

    def table(self, table: Table) -> None:
        """Show a table."""
        ...

    def working(self, text: str) -> AbstractContextManager[None]:
        """Show the current activity, such as "loading models/x", until the end of the `with` block."""
        ...

    def progress(self, title: str, total: int = 0, done: int = 0) -> AbstractContextManager[TaskProgress]:
        """Show the progress of a task until the end of the `with` block.

        Args:
            title: Name of the task.
            total: Number of steps; 0 if it is unknown.
            done: Number of steps that an earlier process finished; they do not count in the estimate of the remaining time.
        """
        ...


class ConsoleReporter:
    """Prints to a console: live progress bars in a terminal, a few lines in a plain log or a notebook.

    Args:
        console: The console.  [default: stdout, 100 columns wide if it is not a terminal]
        every_s: Maximum seconds between two lines of a plain log.
    """

    def __init__(self, console: Console | None = None, every_s: float = LOG_EVERY_S):
        self.console = console or plain_console()
        self.every_s = every_s

    def title(self, text: str) -> None:
        """Print a title in bold, after an empty line."""
        self.console.print(f"\n{text}", style="bold")

    def note(self, text: str, *, important: bool = False) -> None:
        """Print a message; print an important message in yellow."""
        self.console.print(styled(text), style="yellow" if important else None, soft_wrap=True)

    def warning(self, text: str) -> None:
        """Print a warning in yellow."""
        self.note(f"warning: {text}", important=True)

    def hints(self, *texts: str) -> None:
        """Print suggestions for next steps."""
        self.console.print()
        for text in texts:
            self.console.print(styled(("→", "dim"), f" {text}"), soft_wrap=True)

    def sample(self, record: RolloutRecord, title: str) -> None:
        """Print a rollout as text."""
        self.console.print(rollout_text(record, title), markup=False, soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table."""
        self.console.print(table)

    @contextmanager
    def working(self, text: str) -> Generator[None]:
        """Print the current activity, and show that it is still running until the block ends."""
        if self.console.is_terminal:
            with self.console.status(styled(text)):
                yield
            return
        step = StepProgress()
        self.note(text)
        with Heartbeat(lambda: self.note(f"{text}: {step.text()}"), self.every_s):
            yield

    @contextmanager
    def progress(self, title: str, total: int = 0, done: int = 0) -> Generator[TaskProgress]:
        """Show a live progress bar with a status text and the progress within long steps.

        Without a terminal, print at most about `PROGRESS_LINES` lines, fewer for a quick task, and a line every `every_s` seconds
        in long steps.
        """
        if not self.console.is_terminal:
            with self._log_lines(title, total, done) as task:
                yield task
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns)
        with Live(bar, console=self.console, refresh_per_second=10) as live:
            # With None, rich shows a moving bar; with 0, it would show a finished one.
            number = bar.add_task(inert(title), total=total or None, completed=done)

            def show(task: TaskProgress) -> None:
                bar.update(number, completed=task.count, total=task.total or None)
                live.update(Group(bar, styled("  ").append(_as_text(task.status)), task.step))

            task = TaskProgress(title, total, show, done)
            live.update(Group(bar, task.step))
            yield task

    @contextmanager
    def _log_lines(self, title: str, total: int, done: int) -> Generator[TaskProgress]:
        def show(task: TaskProgress) -> None:
            # A log of a long run should not consist of progress lines, nor should that of many quick tasks.
            is_due = task.count % max(1, task.total // PROGRESS_LINES) == 0 and heartbeat.silence() >= LOG_AFTER_S
            if is_due or task.count == task.total:
                self.console.print(task.line, soft_wrap=True)
                heartbeat.printed()

        def show_step() -> None:
            self.console.print(task.line.append(inert(f"  {task.step.text()}")), soft_wrap=True)

        task = TaskProgress(title, total, show, done)
        with Heartbeat(show_step, self.every_s) as heartbeat:
            yield task


class JsonLinesReporter:
    """Writes one JSON object per event and line: `{"event": "progress", "title": …, "count": …, "total": …, "status": …}`.

    The other events are "title", "note", "warning", "hint" and "working" with a `text`; "sample" with a `title` and the
    rollout's `text`; "table" with `title`, `columns` and `rows`.

    Args:
        stream: Stream to write to.  [default: stderr]
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr

    def _write(self, event: str, **values: Any) -> None:
        self.stream.write(msgspec.json.encode({"event": event, **values}).decode() + "\n")
        # Through a pipe, a program would otherwise get the events late, in blocks of kilobytes.
        self.stream.flush()

    def title(self, text: str) -> None:
        """Write a "title" event."""
        self._write("title", text=text)

    def note(self, text: str, *, important: bool = False) -> None:
        """Write a "note" event, except for an empty line."""
        # An empty note only separates paragraphs in a terminal.
        if text:
            self._write("note", text=text, important=important)

    def warning(self, text: str) -> None:
        """Write a "warning" event."""
        self._write("warning", text=text)

    def hints(self, *texts: str) -> None:
        """Write a "hint" event for each text."""
        for text in texts:
            self._write("hint", text=text)

    def sample(self, record: RolloutRecord, title: str) -> None:
        """Write a "sample" event."""
        self._write("sample", title=title, text=rollout_text(record))

    def table(self, table: Table) -> None:
        """Write a "table" event."""
        columns = [str(column.header) for column in table.columns]
        rows = zip(*([str(cell) for cell in column.cells] for column in table.columns))
        self._write("table", title=str(table.title or ""), columns=columns, rows=list(rows))

    @contextmanager
    def working(self, text: str) -> Generator[None]:
        """Write a "working" event."""
        self._write("working", text=text)
        yield

    @contextmanager
    def progress(self, title: str, total: int = 0, done: int = 0) -> Generator[TaskProgress]:
        """Write a "progress" event after every step."""

        def show(task: TaskProgress) -> None:
            status = str(_as_text(task.status))
            self._write("progress", title=task.title, count=task.count, total=task.total, status=status)

        yield TaskProgress(title, total, show, done)


class SilentReporter:
    """A reporter without output."""

    def title(self, text: str) -> None:
        """Ignore a title."""

    def note(self, text: str, *, important: bool = False) -> None:
        """Ignore a message."""

    def warning(self, text: str) -> None:
        """Ignore a warning."""

    def hints(self, *texts: str) -> None:
        """Ignore suggestions."""

    def sample(self, record: RolloutRecord, title: str) -> None:
        """Ignore a rollout."""

    def table(self, table: Table) -> None:
        """Ignore a table."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """Ignore the current activity."""
        return nullcontext()

    def progress(self, title: str, total: int = 0, done: int = 0) -> AbstractContextManager[TaskProgress]:
        """Count the steps without showing them."""
        return nullcontext(TaskProgress(title, total, lambda task: None, done))


class Heartbeat:
    """Prints a line to a plain log if no other line was printed for a while.

    Args:
        print_line: Function that prints the line.
        every_s: Maximum seconds between two lines.
    """

    def __init__(self, print_line: Callable[[], None], every_s: float = LOG_EVERY_S):
        self._print_line = print_line
        self._every_s = every_s
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rove-heartbeat", daemon=True)

    def printed(self) -> None:
        """Record that a line was printed now."""
        self._last = time.monotonic()

    def silence(self) -> float:
        """Return the seconds since the last line, or since the start."""
        return time.monotonic() - self._last

    def _run(self) -> None:
        # Waits from the last line, so that regular lines of the task keep the heartbeat silent.
        while not self._ended.wait(max(0.0, self._last + self._every_s - time.monotonic())):
            if time.monotonic() - self._last >= self._every_s:
                self._print_line()
                self.printed()

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def plain_console(stderr: bool = False) -> Console:
    """Return a console; if it is not a terminal, its width is `WIDTH`, so that logs do not depend on the window."""
    console = SafeConsole(stderr=stderr)
    return console if console.is_terminal else SafeConsole(stderr=stderr, width=WIDTH)


def _as_text(status: str | Text) -> Text:
    """Return a status as text, without markup and control characters."""
    return styled(status) if isinstance(status, str) else status
