"""Reporters: a terminal, a plain log, JSON lines and silence."""

from __future__ import annotations

import io
import json
import threading

import pytest
from rich.console import Console
from rich.table import Table
from run_folders import make_record as made_record

from rove.core.records import RolloutRecord
from rove.stages import reporter as reporter
from rove.stages.reporter import (
    ConsoleReporter,
    Heartbeat,
    JsonLinesReporter,
    Reporter,
    SilentReporter,
    StepProgress,
    TaskProgress,
)

WAIT_S = 30.0
"""A test fails if its heartbeat takes longer."""


class Clock:
    """A clock whose time a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_step_describes_its_counts_and_shows_them_when_it_takes_long():
    clock = Clock()
    step = StepProgress(clock)
    step("rollouts", 12, 256)
    step("micro-batches", 3, 0)
    clock.seconds = 9.0
    assert step.__rich__().plain == ""
    clock.seconds = 42.0
    assert step.__rich__().plain == "  rollouts 12/256, micro-batches 3, 42 s in this step"
    step.start_next()
    assert step.text() == "0 s in this step"


class Log(io.StringIO):
    """A plain log that signals when a given text was written."""

    def __init__(self, expected_text: str):
        super().__init__()
        self.expected_text = expected_text
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.expected_text in self.getvalue():
            self.was_written.set()
        return count


def test_a_line_of_a_log_says_how_long_the_remaining_steps_take():
    clock = Clock()
    task = TaskProgress("rl", 100, lambda task: None, clock=clock)
    lines: list[str] = []
    for count, seconds in ((0, 50.0), (10, 80.0), (97, 341.0)):
        clock.seconds = seconds
        task(count, "reward 0.5")
        lines.append(task.line.plain)
    assert lines == ["rl 0/100  reward 0.5", "rl 10/100, up to 4.5 min left  reward 0.5", "rl 97/100  reward 0.5"]


def test_a_plain_log_gets_a_line_while_a_step_runs():
    log = Log("never written")
    with ConsoleReporter(Console(file=log, width=200), every_s=0.01).progress("sft", 7) as report:
        report(1, "loss 2.5")
        report.step("micro-batches [2", 0, 0)  # markup is printed literally
        report.step("micro-batches", 2, 8)
        log.expected_text = "sft 1/7  loss 2.5  micro-batches [2 0, micro-batches 2/8, "
        assert log.was_written.wait(WAIT_S)
    assert "s in this step" in log.getvalue()


def test_loading_is_announced_at_once_and_repeatedly():
    log = Log("loading models/[x]: ")
    with ConsoleReporter(Console(file=log, width=200), every_s=0.01).working("loading models/[x]"):
        assert log.getvalue().startswith("loading models/[x]\n")
        assert log.was_written.wait(WAIT_S)


def test_a_heartbeat_is_silent_after_a_line_and_after_its_end():
    beats: list[str] = []
    with Heartbeat(lambda: beats.append("beat"), every_s=3600) as heartbeat:
        heartbeat.printed()
    assert beats == []
    assert not [thread for thread in threading.enumerate() if thread.name == "rove-heartbeat"]


def test_a_terminal_shows_the_progress_within_a_long_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporter, "SHOW_AFTER_S", -1.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with ConsoleReporter(console).progress("rl", 5) as report:
        report.step("rollouts", 3, 16)
    assert "rollouts 3/16" in out.getvalue()


def report_everything(reporter: Reporter) -> None:
    """Call every method of a reporter."""
    reporter.title("SFT")
    reporter.note("")
    reporter.note("loading [x]", important=True)
    reporter.warning("batch_size is 8")
    reporter.hints("evaluate it: rove eval", "train it")
    reporter.sample(record(), "step 3")
    table = Table("model", "reward", title="results")
    table.add_row("base", "0.5")
    reporter.table(table)
    with reporter.working("loading models/x"):
        pass
    with reporter.progress("sft", 2, done=1) as progress:
        progress.step("rollouts", 1, 2)
        progress(2, "loss 0.5")


def record() -> RolloutRecord:
    """Return a scored rollout of one turn."""
    return made_record(completion=[{"role": "assistant", "content": "hello"}])


def test_json_lines_have_one_object_per_event() -> None:
    stream = io.StringIO()
    report_everything(JsonLinesReporter(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == [
        *("title", "note", "warning", "hint", "hint", "sample", "table", "working", "progress")
    ]
    assert events[1] == {"event": "note", "text": "loading [x]", "important": True}
    assert events[5]["title"] == "step 3" and "assistant: hello" in events[5]["text"]
    assert events[6] == {
        "event": "table",
        "title": "results",
        "columns": ["model", "reward"],
        "rows": [["base", "0.5"]],
    }
    assert events[8] == {"event": "progress", "title": "sft", "count": 2, "total": 2, "status": "loss 0.5"}


def test_a_console_prints_every_event() -> None:
    stream = io.StringIO()
    report_everything(ConsoleReporter(Console(file=stream, width=80)))
    text = stream.getvalue()
    for part in (
        "\nSFT\n",
        "loading [x]",
        "warning: batch_size is 8",
        "→ train it",
        "step 3 · ",
        "base",
        "sft 2/2  loss 0.5",
    ):
        assert part in text


def test_silence_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report_everything(SilentReporter())
    assert capsys.readouterr() == ("", "")
