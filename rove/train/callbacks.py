"""Callbacks of a training run: loggers, alerts, and the progress within a step. They do not change the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from rove.core.findings import Finding
from rove.core.plain import JsonMapping
from rove.core.records import ErrorInfo, Outcome, RolloutRecord
from rove.runs.run import Run
from rove.train.alerts import AlertLimits, new_alerts
from rove.train.loggers import open_loggers, scalars

T = TypeVar("T")

OnAlert = Callable[[Finding], None]
OnProgress = Callable[[str, int, int], None]
"""(name of the counted items, such as "rollouts"; number of finished items; total) → None. May be called from any thread."""


def ignore(activity: str, done: int, total: int) -> None:
    """Discard the report."""


def counted(items: Sequence[T], activity: str, on_progress: OnProgress) -> Iterator[T]:
    """Yield the items; report the number of finished items before the first item and after each one."""
    on_progress(activity, 0, len(items))
    for done, item in enumerate(items, start=1):
        yield item
        on_progress(activity, done, len(items))


class EvaluationProgress:
    """Reports the progress of an evaluation, and keeps its first error. It is the evaluation's `on_record`."""

    def __init__(self, name: str, total: int, on_progress: OnProgress):
        self.name = name
        self.total = total
        self.on_progress = on_progress
        self.done = 0
        self.first_error: ErrorInfo | None = None

    def __call__(self, record: RolloutRecord | Outcome) -> None:
        """Count a finished rollout."""
        self.done += 1
        self.on_progress(f"rollouts of {self.name}", self.done, self.total)
        if self.first_error is None:
            self.first_error = record.error


class TrainingCallbacks:
    """Sends the metrics of each step to the loggers, and raises alerts.

    Args:
        run: Run folder; it stores the alerts.
        config: All settings of the run, which hosted loggers store with it.
    """

    def __init__(
        self,
        run: Run,
        limits: AlertLimits,
        loggers: Sequence[str],
        config: JsonMapping,
        step: int,
        on_alert: OnAlert | None = None,
    ):
        self.run = run
        self.limits = limits
        self.on_alert = on_alert
        self.loggers = open_loggers(loggers, run, config, step)

    def after_step(self, history: Sequence[JsonMapping]) -> None:
        """Log the last step of `history` and check it for alerts."""
        row = history[-1]
        for logger in self.loggers:
            logger.log(int(row["step"]), scalars(row))
        steps = [metrics for metrics in history if metrics["step"]]  # without the measurement of the initial weights
        # In the run folder as well as to the caller: `rove view` shows alerts at their step.
        for alert in new_alerts(steps, self.limits):
            self.run.append_alert(msgspec.to_builtins(alert))
            if self.on_alert is not None:
                self.on_alert(alert)

    def close(self) -> None:
        """Flush and close the loggers."""
        for logger in self.loggers:
            logger.close()
