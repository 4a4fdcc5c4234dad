"""Compare the audits of two versions of an environment: which findings are closed, and what honest policies lose."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from rove.audit.findings import CHECKS, Report
from rove.audit.report import rate_text
from rove.core.errors import ConfigError
from rove.core.findings import Finding, Severity, current_row
from rove.core.plain import JsonObject
from rove.utils.markdown import cell, table_lines

Rate = tuple[float, float, float]
"""Mean with its 95% interval."""
HONEST = ("right answer", "policy ")
"""Beginnings of the names of honest policies in `Report.rewards`."""
Status = Literal["new", "remains", "not checked", "closed"]
STATUSES: tuple[Status, ...] = ("new", "remains", "not checked", "closed")
"""In the order of tables."""


class Change(msgspec.Struct, frozen=True):
    """What became of a finding."""

    status: Status
    """"not checked": the check was not done on the new version, so the finding may be there."""
    old: Finding | None
    new: Finding | None
    note: str = ""

    @property
    def latest(self) -> Finding:
        """The finding in the new version, or in the old one if it is closed."""
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def is_worse(self) -> bool:
        """Whether the finding is new, or more severe than before."""
        return self.new is not None and (self.old is None or self.new.severity > self.old.severity)


class HonestReward(msgspec.Struct, frozen=True):
    """Reward of a policy that does the task, in both versions."""

    policy: str
    old: Rate
    new: Rate

    @property
    def difference(self) -> Rate:
        """New minus old reward with its 95% interval; the two rewards are from different rollouts."""
        mean = self.new[0] - self.old[0]
        low = math.hypot(self.new[0] - self.new[1], self.old[2] - self.old[0])
        high = math.hypot(self.new[2] - self.new[0], self.old[0] - self.old[1])
        return mean, mean - low, mean + high


class Comparison(msgspec.Struct, kw_only=True):
    """Two audits side by side."""

    old: str
    """Name of the environment, or of the file with its report."""
    new: str
    changes: list[Change]
    honest: list[HonestReward]

    def worst_new(self) -> Severity | None:
        """Return the highest severity of findings that are new or more severe than before; None if there are none."""
        return max((one.latest.severity for one in self.changes if one.is_worse), default=None)


def compare(old: Report, new: Report, names: tuple[str, str] = ("", "")) -> Comparison:
    """Compare two audits.

    Findings of the same check are the same finding; if a check has several, the most severe ones belong together.

    Args:
        names: Names of the versions. Default: the names of the environments.
    """
    changes: list[Change] = []
    before, after = _by_check(old), _by_check(new)
    for check in CHECKS:
        first, second = before.get(check, []), after.get(check, [])
        pairs = min(len(first), len(second))
        changes += [Change("remains", a, b) for a, b in zip(first, second)]
        reason = _not_done(new, check)
        changes += [Change("not checked" if reason else "closed", one, None, reason) for one in first[pairs:]]
        unknown = _not_done(old, check)
        note = f"not checked in the old version: {unknown}" if unknown else ""
        changes += [Change("new", None, one, note) for one in second[pairs:]]
    changes.sort(key=lambda one: one.latest.severity, reverse=True)
    changes.sort(key=lambda one: STATUSES.index(one.status))
    honest = [
        HonestReward(name, rate, new.rewards[name])
        for name, rate in old.rewards.items()
        if name in new.rewards and (name == HONEST[0] or name.startswith(HONEST[1]))
    ]
    return Comparison(old=names[0] or old.env, new=names[1] or new.env, changes=changes, honest=honest)


def _by_check(report: Report) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(report.findings, key=lambda one: one.severity, reverse=True):
        found[finding.id].append(finding)
    return found


def _not_done(report: Report, check: str) -> str:
    """Return why a check was not done; "" if it was."""
    return report.skipped.get(check, "") if check in report.checks else "not selected"


def read_report(path: str | Path) -> Report:
    """Read a report that `rove audit --json` or `-o FILE.json` has written."""
    try:
        values: Any = msgspec.json.decode(Path(path).read_bytes())
        values["findings"] = [current_row(row) for row in values["findings"]]
        if unknown := [row["id"] for row in values["findings"] if row["id"] not in CHECKS]:
            raise ConfigError(
                f"{path} has findings of an unknown check '{unknown[0]}'; expected a report of this version of rove"
            )
        report = msgspec.convert(values, Report)
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no report of an audit ({error}); expected a file of rove audit -o FILE.json"
        ) from error
    return report


def rates_text(change: Change) -> str:
    """Return the rates of both versions."""
    rates = [f"{one.rate[0]:.2f}" for one in (change.old, change.new) if one is not None and one.rate is not None]
    return " → ".join(rates) if len(rates) == 2 else rate_text(change.latest)


def severities_text(change: Change) -> str:
    """Return the severity, or both if they differ."""
    both = dict.fromkeys(one.severity.value for one in (change.old, change.new) if one is not None)
    return " → ".join(both)


def reward_text(rate: Rate, sign: str = "") -> str:
    """Return a reward with its interval: "0.95 [0.91, 0.98]"."""
    mean, low, high = (value + 0.0 for value in rate)
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def json_comparison(comparison: Comparison) -> JsonObject:
    """Return a comparison as JSON values."""
    values: JsonObject = msgspec.to_builtins(comparison)
    for value, one in zip(values["honest"], comparison.honest, strict=True):
        value["difference"] = one.difference
    worst = comparison.worst_new()
    return {**values, "worst_new": worst.value if worst is not None else None}


def markdown_comparison(comparison: Comparison) -> str:
    """Return a comparison as a Markdown page with two tables."""
    lines = [f"# Audit of {cell(comparison.old)} and {cell(comparison.new)}", ""]
    lines += table_lines(
        ("", "severity", "check", "finding", "reward or share"),
        [
            (one.status, severities_text(one), one.latest.id, text_of(one), rates_text(one))
            for one in comparison.changes
        ],
    )
    if comparison.honest:
        lines += ["", "Rewards of right answers and scripted policies, with 95% intervals:", ""]
        lines += table_lines(
            ("policy", "old", "new", "difference"),
            [
                (one.policy, reward_text(one.old), reward_text(one.new), reward_text(one.difference, "+"))
                for one in comparison.honest
            ],
        )
    return "\n".join(lines) + "\n"


def text_of(change: Change) -> str:
    """Return the text of the latest finding, and the note."""
    return f"{change.latest.text} ({change.note})" if change.note else change.latest.text
