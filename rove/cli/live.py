"""Progress within a long step, on a terminal or in a plain log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.text import Text

SHOW_AFTER_S = 10.0
"""Seconds after which a step shows the progress within it."""
LOG_EVERY_S = 30.0
"""Most seconds between two lines of a plain log."""


class StepProgress:
    """What is done within the current step: the last count of everything that is counted. Safe to call from any thread.

    Args:
        clock: seconds; a test gives its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.start_next()

    def start_next(self) -> None:
        """Begin the next step."""
        self._started = self._clock()
        self._counts: dict[str, tuple[int, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note that `done` of `total` are done (0 = the total is unknown); see `rove.train.callbacks.OnProgress`."""
        self._counts = {**self._counts, what: (done, total)}

    def text(self) -> str:
        """Describe the progress within the step, like "rollouts 12/256, 42 s in this step"."""
        counts = [
            f"{what} {done}/{total}" if total else f"{what} {done}" for what, (done, total) in self._counts.items()
        ]
        return ", ".join([*counts, f"{self._clock() - self._started:.0f} s in this step"])

    def __rich__(self) -> Text:
        """The text, on a terminal, once the step takes long."""
        is_long = self._clock() - self._started > SHOW_AFTER_S
        return Text(f"  {self.text()}" if is_long else "", style="dim")


class Heartbeat:
    """Prints a line to a plain log where nothing else was printed for a while.

    Args:
        print_line: prints the line.
        every_s: most seconds between two lines.
    """

    def __init__(self, print_line: Callable[[], None], every_s: float = LOG_EVERY_S):
        self._print_line = print_line
        self._every_s = every_s
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rove-heartbeat", daemon=True)

    def printed(self) -> None:
        """Note that a line was printed just now."""
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
    """Say at once what is being done, such as "loading models/x"; show that it still runs until it is done."""
    if console.is_terminal:
        with console.status(escape(what)):
            yield
        return
    step = StepProgress()
    console.print(what, markup=False, soft_wrap=True)
    with Heartbeat(lambda: console.print(f"{what}: {step.text()}", markup=False, soft_wrap=True), every_s):
        yield
