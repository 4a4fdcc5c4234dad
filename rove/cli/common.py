"""What the commands share: settings from flags, where runs live, progress on the terminal."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rove.cli.live import Heartbeat, StepProgress
from rove.core.config import load, parse_value
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, in_json
from rove.runs.run import Run

RUNS = Path("runs")
CURVES = "curves.png"
"""The plot of a training run, in its folder."""
WIDTH = 100
"""Columns when the output is no terminal."""
LINES = 5
"""Without a terminal a progress line is printed about so many times in a run."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
"""click settings of commands that take `@ file.toml` and dotted overrides."""


def console_for(json: bool) -> Console:
    """Where people read; with --json that is stderr, so that stdout holds JSON alone."""
    console = Console(stderr=json, highlight=False)
    return console if console.is_terminal else Console(stderr=json, highlight=False, width=WIDTH)


trust_option = click.option(
    "--trust-remote-code",
    is_flag=True,
    default=None,
    help="Run Python files that come with the model.  [default: refuse such a model]",
)
"""The option of commands that load a model folder."""


FLAG_SETTINGS = {
    "isolated": "isolation.enabled",
    "isolated_python": "isolation.python",
    "loss": "loss.kind",
    "ray": "ray.address",
}
"""Flags that are shorter than the dotted name of their setting."""


def settings(kind: type[T], ctx: click.Context, bare: str = "", **named: Any) -> T:
    """A command's settings from its named flags and its remaining words; a bare word is the setting `bare`."""
    flags = {opt.lstrip("-").replace("-", "_") for param in ctx.command.params for opt in param.opts if opt[:2] == "--"}
    named = {FLAG_SETTINGS.get(name, name): value for name, value in named.items()}
    return load(kind, named, _long_flags(ctx.args), bare, flags)


def _long_flags(words: list[str]) -> list[str]:
    for word in words:
        if word.startswith("-") and not word.startswith("--") and not _is_number(word):
            raise ConfigError(f"unknown flag '{word}'; see --help, or give settings as --key value")
    return list(words)


def _is_number(word: str) -> bool:
    return isinstance(parse_value(word), (int, float))


def json_object(text: str | None, flag: str) -> dict[str, Any] | None:
    """The value of a flag that takes a JSON object.

    Raises:
        ConfigError: it is not one.
    """
    if text is None:
        return None
    value = parse_value(text)
    if not isinstance(value, dict):
        raise ConfigError(f"{flag} takes a JSON object like '{{\"seed\": 1}}', got {text!r}")
    return value


def run_folder(given: str | Path | None, *parts: str, identity: Mapping[str, Any]) -> Path:
    """The run's folder: as given, else runs/ and a name made of `parts` and the identity, the same for the same command."""
    if given is not None:
        return Path(given)
    name = "--".join(_file_name(part) for part in parts)
    return RUNS / f"{name}--{fingerprint(identity)}"


def _file_name(part: str) -> str:
    """A model or environment name as a file name: the last two parts of a path, separators made harmless."""
    tail = "-".join(part.strip("/").split("/")[-2:])
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in tail)


def short(model: str) -> str:
    """A model's name for a progress line: the last two parts of a path."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(msgspec.json.encode(value).decode())


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, but Ctrl-C is never kept waiting.

    asyncio alone cancels `main` at its next await, which is as far away as a wave of sampled tokens or a training step
    takes. Here Ctrl-C also interrupts Python code where it stands. Then `main` cleans up; another Ctrl-C cuts that short.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        interrupted = False

        def hush() -> None:
            loop.set_exception_handler(lambda *_: None)  # what is cut off has nothing more to say

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            hush()
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
            hush()
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


class Tell(Protocol):
    """Reports progress: how many are done, what to say, and how many there are if that was not known before."""

    def __call__(self, count: int, words: str, total: int | None = None) -> None:
        """Show it."""
        ...


class ProgressDisplay:
    """Shows the progress of a command; see `progress`.

    Args:
        show: called after every change.
    """

    def __init__(self, title: str, total: int, show: Callable[[ProgressDisplay], None]):
        self.title = title
        self.count = 0
        self.total = total
        self.words = ""
        self.step = StepProgress()
        """Progress within the current step."""
        self._show = show

    def __call__(self, count: int, words: str, total: int | None = None) -> None:
        """A step is done: `count` of them in all."""
        self.count, self.words, self.total = count, words, total or self.total
        self.step.start_next()
        self._show(self)

    @property
    def line(self) -> str:
        """One line for a plain log, in rich markup."""
        return f"{self.title} {self.count}/{self.total or '?'}  {self.words}"


@contextmanager
def progress(console: Console, title: str, total: int = 0) -> Iterator[ProgressDisplay]:
    """A live bar with a few words below it, and progress within a step that takes long.

    Without a terminal it prints about `LINES` lines in all, and one every `LOG_EVERY_S` seconds where that is more.
    """
    if not console.is_terminal:
        with _log_lines(console, title, total) as display:
            yield display
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns)
    with Live(bar, console=console, refresh_per_second=10) as live:
        task = bar.add_task(title, total=total or None)

        def show(display: ProgressDisplay) -> None:
            bar.update(task, completed=display.count, total=display.total or None)
            live.update(Group(bar, Text.from_markup(f"  {display.words}"), display.step))

        display = ProgressDisplay(title, total, show)
        live.update(Group(bar, display.step))
        yield display


@contextmanager
def _log_lines(console: Console, title: str, total: int) -> Iterator[ProgressDisplay]:
    def show(display: ProgressDisplay) -> None:
        if display.count % max(1, display.total // LINES) == 0 or display.count == display.total:
            console.print(display.line, soft_wrap=True)
            heartbeat.printed()

    display = ProgressDisplay(title, total, show)
    with Heartbeat(
        lambda: console.print(f"{display.line}  {escape(display.step.text())}", soft_wrap=True)
    ) as heartbeat:
        yield display


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """What is allowed but rarely wise."""
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def alert_printer(console: Console) -> Callable[[Any], None]:
    """A function that prints an alert of `rove.train.alerts`."""

    def show(alert: Any) -> None:
        console.print(f"step {alert.step}: {alert.text}", style="yellow", markup=False, soft_wrap=True)

    return show


def tell_goal(run: Run, console: Console) -> None:
    """What was best in a training run, and why it ended early if it did."""
    summary = run.summary() or {}
    best = summary.get("best")
    if best is not None:
        where = run.path / "checkpoints" / "best"
        console.print(
            f"best {best['metric']}: {best['value']:.4f} at step {best['step']}, kept in {where}", soft_wrap=True
        )
    if "stopped" in summary:
        console.print(f"stopped after step {summary['steps']}: {summary['stopped']}", soft_wrap=True)


def hint(console: Console, *lines: str) -> None:
    """What to do next."""
    console.print()
    for line in lines:
        console.print(f"[dim]→[/dim] {escape(line)}", soft_wrap=True)


def environment_words(config: Any) -> str:
    """How a command line names the environment of these settings: with the flags without which it would be another."""
    words = [config.env]
    words += ["--env-dir", config.env_dir] if config.env_dir else []
    words += ["-a", in_json(config.env_args)] if config.env_args else []
    if config.isolation.python is not None:
        words += ["--isolated-python", config.isolation.python]
    elif config.isolation.enabled:
        words.append("--isolated")
    return shlex.join(words)


def counted(count: int, what: str) -> str:
    """A number of things in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
