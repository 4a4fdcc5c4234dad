"""Looking on while a run trains: loggers are told of every step, alerts of those at which something starts to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rove.runs.run import Run
from rove.train.alerts import Alert, AlertLimits, new_alerts
from rove.train.loggers import open_loggers, scalars

OnAlert = Callable[[Alert], None]


class Watcher:
    """Told of every step of a run.

    Args:
        run: its folder, where alerts are kept.
        limits: of the alerts.
        loggers: names of loggers.
        config: settings of the run, for people to read.
        step: where the run goes on.
        on_alert: told of an alert when it starts.
    """

    def __init__(
        self,
        run: Run,
        limits: AlertLimits,
        loggers: Sequence[str],
        config: msgspec.Struct,
        step: int,
        on_alert: OnAlert | None = None,
    ):
        self.run = run
        self.limits = limits
        self.on_alert = on_alert or (lambda alert: None)
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
        for alert in new_alerts(history, self.limits):
            self.run.append_alert(msgspec.to_builtins(alert))
            self.on_alert(alert)
