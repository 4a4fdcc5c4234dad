"""Progress within a long step: on a terminal and in a plain log."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from rove.cli import common
from rove.stages.reporter import Heartbeat, StepProgress

WAIT_S = 30.0
"""A test fails if its heartbeat takes longer."""


class Clock:
    """A clock whose time a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_describes_its_counts_and_shows_them_when_it_takes_long():
    clock = Clock()
    step = StepProgress(clock)
    step("rollouts", 12, 256)
    step("micro-batches", 3, 0)
    clock.now = 9.0
    assert step.__rich__().plain == ""
    clock.now = 42.0
    assert step.__rich__().plain == "  rollouts 12/256, micro-batches 3, 42 s in this step"
    step.start_next()
    assert step.text() == "0 s in this step"


class Log(io.StringIO):
    """A plain log that signals when a given text was written."""

    def __init__(self, awaited: str):
        super().__init__()
        self.awaited = awaited
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.awaited in self.getvalue():
            self.seen.set()
        return count


def test_a_plain_log_gets_a_line_while_a_step_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(common, "Heartbeat", lambda print_line: Heartbeat(print_line, 0.01))
    log = Log("never written")
    with progress(Console(file=log, width=200), "sft", 7) as report:
        report(1, "loss 2.5")
        report.step("micro-batches [2", 0, 0)  # markup is printed literally
        report.step("micro-batches", 2, 8)
        log.awaited = "sft 1/7  loss 2.5  micro-batches [2 0, micro-batches 2/8, "
        assert log.seen.wait(WAIT_S)
    assert "s in this step" in log.getvalue()


def test_loading_is_announced_at_once_and_repeatedly():
    log = Log("loading models/[x]: ")
    with working(Console(file=log, width=200), "loading models/[x]", every_s=0.01):
        assert log.getvalue().startswith("loading models/[x]\n")
        assert log.seen.wait(WAIT_S)


def test_a_heartbeat_is_silent_after_a_line_and_after_its_end():
    beats: list[str] = []
    with Heartbeat(lambda: beats.append("beat"), every_s=3600) as heartbeat:
        heartbeat.printed()
    assert beats == []
    assert not [thread for thread in threading.enumerate() if thread.name == "rove-heartbeat"]


def test_a_terminal_shows_the_progress_within_a_long_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(common, "SHOW_AFTER_S", -1.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress(console, "rl", 5) as report:
        report.step("rollouts", 3, 16)
    assert "rollouts 3/16" in out.getvalue()
