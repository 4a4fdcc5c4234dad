"""Helpers that the commands share: console, progress, run folders, hints."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, as_json
from rove.core.findings import Finding
from rove.remote.loading import IsolationConfig
from rove.runs.run import Run
from rove.utils.console import SafeConsole, styled
from rove.utils.terminal_text import inert, inert_json

RUNS = Path("runs")
CURVES = "curves.png"
"""File name of a training run's plot."""
WIDTH = 100
"""Columns if the output is not a terminal."""
PROGRESS_LINES = 5
"""Progress lines that a run prints if the output is not a terminal (approximately)."""
SHOW_AFTER_S = 10.0
"""Seconds after which a step shows the progress within it."""
LOG_EVERY_S = 30.0
"""Maximum seconds between two lines of a plain log."""

T = TypeVar("T")


class StepProgress:
    """Progress within the current step: the latest count of each kind. Thread-safe.

    Args:
        clock: Returns seconds; tests pass their own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.start_next()

    def start_next(self) -> None:
        """Start the next step."""
        self._started = self._clock()
        self._counts: dict[str, tuple[int, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Record that `done` of `total` are done (0 = unknown total); see `rove.train.callbacks.OnProgress`."""
        self._counts = {**self._counts, what: (done, total)}

    def text(self) -> str:
        """Return the progress within the step, such as "rollouts 12/256, 42 s in this step"."""
        counts = [
            f"{what} {done}/{total}" if total else f"{what} {done}" for what, (done, total) in self._counts.items()
        ]
        return ", ".join([*counts, f"{self._clock() - self._started:.0f} s in this step"])

    def __rich__(self) -> Text:
        """Return the text, or nothing until the step takes longer than `SHOW_AFTER_S`."""
        is_long = self._clock() - self._started > SHOW_AFTER_S
        return Text(f"  {self.text()}" if is_long else "", style="dim")


class Heartbeat:
    """Prints a line to a plain log if nothing else was printed for a while.

    Args:
        print_line: Prints the line.
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

    def _run(self) -> None:
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


@contextmanager
def working(console: Console, what: str, every_s: float = LOG_EVERY_S) -> Iterator[None]:
    """Print what is being done, such as "loading models/x", and show that it is still running until it is done."""
    if console.is_terminal:
        with console.status(styled(what)):
            yield
        return
    step = StepProgress()
    console.print(styled(what), soft_wrap=True)
    with Heartbeat(lambda: console.print(styled(f"{what}: {step.text()}"), soft_wrap=True), every_s):
        yield


def console_for(json: bool) -> Console:
    """Return the console for messages: stderr with --json, so that stdout holds only JSON."""
    console = SafeConsole(stderr=json)
    return console if console.is_terminal else SafeConsole(stderr=json, width=WIDTH)


def run_folder(given: str | Path | None, *parts: str, identity: Mapping[str, Any]) -> Path:
    """Return the run folder: `given`, or a name under runs/ that is the same for the same parts and identity."""
    if given is not None:
        return Path(given)
    name = "--".join(_file_name(part) for part in parts)
    return RUNS / f"{name}--{fingerprint(identity)}"


def _file_name(part: str) -> str:
    """Return the last two parts of a model or environment name, with unsafe characters replaced."""
    tail = "-".join(part.strip("/").split("/")[-2:])
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in tail)


def short(model: str) -> str:
    """Return the last two parts of a model's path, for progress lines."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    click.echo(inert_json(msgspec.json.encode(value).decode()))


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but react to Ctrl-C immediately.

    asyncio alone cancels `main` at its next await, which a wave of sampled tokens or a training step delays. Here Ctrl-C also
    interrupts the running Python code. `main` then cleans up; a second Ctrl-C interrupts the cleanup.

    Raises:
        KeyboardInterrupt: On Ctrl-C.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        interrupted = False

        def ignore_errors() -> None:
            loop.set_exception_handler(lambda *_: None)  # errors of cancelled tasks are not reported

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            ignore_errors()
            current = asyncio.current_task(loop)
            for other in asyncio.all_tasks(loop) - {current}:
                if other is task or not _has_started(other):
                    other.cancel()
            if current is not None:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            ignore_errors()
            if not interrupted:
                raise
            if not task.done():
                loop.run_until_complete(asyncio.wait([task]))
            raise KeyboardInterrupt from error
        finally:
            signal.signal(signal.SIGINT, before)


def _has_started(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


class ReportProgress(Protocol):
    """Reports progress: the number of finished items, a status text, and the total if it was unknown before."""

    def __call__(self, count: int, words: str | Text, total: int | None = None) -> None:
        """Report progress."""
        ...


def as_text(words: str | Text) -> Text:
    """Return words of a status as text, without markup and control characters."""
    return styled(words) if isinstance(words, str) else words


class ProgressDisplay:
    """The progress of a command; see `progress`.

    Args:
        show: Called after every change.
        done: Steps that an earlier process finished.
    """

    def __init__(self, title: str, total: int, show: Callable[[ProgressDisplay], None], done: int = 0):
        self.title = title
        self.count = done
        self.total = total
        self.words: str | Text = ""
        self.step = StepProgress()
        """Progress within the current step."""
        self._show = show

    def __call__(self, count: int, words: str | Text, total: int | None = None) -> None:
        """Record that `count` steps are done."""
        self.count, self.words, self.total = count, words, total or self.total
        self.step.start_next()
        self._show(self)

    @property
    def line(self) -> Text:
        """Return one line for a plain log."""
        return styled(f"{self.title} {self.count}/{self.total or '?'}  ").append(as_text(self.words))


@contextmanager
def progress(console: Console, title: str, total: int = 0, done: int = 0) -> Iterator[ProgressDisplay]:
    """Show a live progress bar with a status text and the progress within long steps.

    Without a terminal, print about `PROGRESS_LINES` lines in total, and one every `LOG_EVERY_S` seconds in long steps.
    `done` steps were finished by an earlier process; they do not count in the estimate of the remaining time.
    """
    if not console.is_terminal:
        with _log_lines(console, title, total, done) as display:
            yield display
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns)
    with Live(bar, console=console, refresh_per_second=10) as live:
        task = bar.add_task(inert(title), total=total or None, completed=done)

        def show(display: ProgressDisplay) -> None:
            bar.update(task, completed=display.count, total=display.total or None)
            live.update(Group(bar, styled("  ").append(as_text(display.words)), display.step))

        display = ProgressDisplay(title, total, show, done)
        live.update(Group(bar, display.step))
        yield display


@contextmanager
def _log_lines(console: Console, title: str, total: int, done: int) -> Iterator[ProgressDisplay]:
    def show(display: ProgressDisplay) -> None:
        if display.count % max(1, display.total // PROGRESS_LINES) == 0 or display.count == display.total:
            console.print(display.line, soft_wrap=True)
            heartbeat.printed()

    display = ProgressDisplay(title, total, show, done)
    with Heartbeat(
        lambda: console.print(display.line.append(inert(f"  {display.step.text()}")), soft_wrap=True)
    ) as heartbeat:
        yield display


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print warnings."""
    for warning in warnings:
        console.print(styled(f"warning: {warning}"), style="yellow", soft_wrap=True)


def alert_printer(console: Console) -> Callable[[Finding], None]:
    """Return a function that prints alerts of `rove.train.alerts`."""

    def show(alert: Finding) -> None:
        console.print(styled(f"step {alert.step}: {alert}"), style="yellow", soft_wrap=True)

    return show


def print_best_step(run: Run, console: Console) -> None:
    """Print the best evaluation of a training run, and why the run ended early if it did."""
    summary = run.summary() or {}
    best = summary.get("best")
    if best is not None:
        where = run.path / "checkpoints" / "best"
        text = f"best {best['metric']}: {best['value']:.4f} at step {best['step']}, kept in {where}"
        # The best of several measurements is too high on the examples that it was chosen by.
        console.print(f"{text}; other examples give a fair value", soft_wrap=True)
    if "stopped" in summary:
        console.print(f"stopped after step {summary['steps']}: {summary['stopped']}", soft_wrap=True)


def check_outputs(outputs: Iterable[str], suffixes: Sequence[str]) -> None:
    """Refuse output files that could not be written, before any work.

    Raises:
        ConfigError: A file's suffix is not one of `suffixes`, or its folder does not exist.
    """
    for output in outputs:
        if Path(output).suffix not in suffixes:
            expected = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
            raise ConfigError(f"-o {output}: expected a file name that ends in {expected}")
        if not Path(output).parent.is_dir():
            raise ConfigError(f"-o {output}: the folder {Path(output).parent} does not exist")


def hint(console: Console, *lines: str) -> None:
    """Print suggestions for the next step."""
    console.print()
    for line in lines:
        console.print(styled(("→", "dim"), f" {line}"), soft_wrap=True)


class EnvironmentSettings(Protocol):
    """Settings that name an environment: those of `rove eval` or `rove rl`."""

    @property
    def env(self) -> str: ...  # noqa: D102
    @property
    def env_dir(self) -> str | None: ...  # noqa: D102
    @property
    def env_args(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def isolation(self) -> IsolationConfig: ...  # noqa: D102


def environment_args(config: EnvironmentSettings) -> str:
    """Return the words of a command line that name the environment of these settings, with its arguments."""
    words = named_environment(config.env, config.env_dir, config.env_args)
    if config.isolation.python is not None:
        return f"{words} --isolated-python {shlex.quote(config.isolation.python)}"
    return f"{words} --isolated" if config.isolation.enabled else words


def named_environment(env: str, env_dir: str | None, env_args: Mapping[str, Any]) -> str:
    """Return the words of a command line that name an environment with its arguments."""
    words = [env, *(["--env-dir", env_dir] if env_dir else []), *(["-a", as_json(env_args)] if env_args else [])]
    return shlex.join(words)


def counted(count: int, what: str) -> str:
    """Return a count with its noun in the singular or plural."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
