"""Looking on while a run trains: loggers are told of every step, alarms of those at which something starts to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rove.runs.run import Run
from rove.train.alerts import Alarm, AlarmLimits, started
from rove.train.loggers import open_loggers, scalars

OnAlarm = Callable[[Alarm], None]


class Watcher:
    """Told of every step of a run.

    Args:
        run: its folder, where alarms are kept.
        limits: of the alarms.
        loggers: names of loggers.
        config: settings of the run, for people to read.
        step: where the run goes on.
        on_alarm: told of an alarm when it starts.
    """

    def __init__(
        self,
        run: Run,
        limits: AlarmLimits,
        loggers: Sequence[str],
        config: msgspec.Struct,
        step: int,
        on_alarm: OnAlarm | None = None,
    ):
        self.run = run
        self.limits = limits
        self.on_alarm = on_alarm or (lambda alarm: None)
        self.loggers = open_loggers(loggers, run, msgspec.to_builtins(config), step)

    def close(self) -> None:
        """Let the loggers write out what they have."""
        for logger in self.loggers:
            logger.close()

    def step(self, history: Sequence[Mapping[str, Any]]) -> None:
        """A step has been taken; its metrics are the last of `history`."""
        row = history[-1]
        for logger in self.loggers:
            logger.log(int(row["step"]), scalars(row))
        for alarm in started(history, self.limits):
            self.run.append_alarm(msgspec.to_builtins(alarm))
            self.on_alarm(alarm)
