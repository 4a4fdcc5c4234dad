"""Compare the audits of two versions of an environment: closed findings, and losses of honest policies."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from rove.audit.baseline import RIGHT_ANSWER
from rove.audit.findings import CHECKS, Report
from rove.audit.report import rate_text
from rove.core.errors import ConfigError
from rove.core.findings import Finding, Severity
from rove.core.plain import UNREADABLE, JsonObject
from rove.utils.markdown import cell, table_lines

Rate = tuple[float, float, float]
"""Mean with its 95% interval."""
Status = Literal["new", "remains", "not checked", "closed"]
STATUSES: tuple[Status, ...] = ("new", "remains", "not checked", "closed")
"""The statuses of a change, in the order in which tables list them."""


class Change(msgspec.Struct, frozen=True):
    """The change of a finding between two audits."""

    status: Status
    """"not checked" means that the check was not done on the new version, so the finding may still apply."""
    old: Finding | None
    new: Finding | None
    note: str = ""

    @property
    def latest(self) -> Finding:
        """The finding in the new version, or in the old one if it is closed."""
        finding = self.new or self.old
        assert finding is not None
        return finding

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
        return max((change.latest.severity for change in self.changes if change.is_worse), default=None)


def compare(old: Report, new: Report, names: tuple[str, str] = ("", "")) -> Comparison:
    """Compare two audits.

    Findings of the same check count as the same finding; if a check has several, they are paired by severity.

    Args:
        names: Names of the versions. Default: the names of the environments.
    """
    changes: list[Change] = []
    old_findings, new_findings = _by_check(old), _by_check(new)
    for check in CHECKS:
        first, second = old_findings.get(check, []), new_findings.get(check, [])
        pairs = min(len(first), len(second))  # the more severe ones come first in both
        changes += [Change("remains", a, b) for a, b in zip(first, second)]
        reason = _not_done(new, check)
        changes += [Change("not checked" if reason else "closed", finding, None, reason) for finding in first[pairs:]]
        unknown = _not_done(old, check)
        note = f"not checked in the old version: {unknown}" if unknown else ""
        changes += [Change("new", None, finding, note) for finding in second[pairs:]]
    changes.sort(key=lambda change: change.latest.severity, reverse=True)
    changes.sort(key=lambda change: STATUSES.index(change.status))
    honest: list[HonestReward] = []
    for name, rate in old.rewards.items():
        if is_honest(name) and name in new.rewards:
            honest.append(HonestReward(name, rate, new.rewards[name]))
    return Comparison(old=names[0] or old.env, new=names[1] or new.env, changes=changes, honest=honest)


def is_honest(name: str) -> bool:
    """Return whether a name in `Report.rewards` is that of a policy that does the task."""
    return name == RIGHT_ANSWER or name.startswith("policy ")


def _by_check(report: Report) -> dict[str, list[Finding]]:
    by_check: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(report.findings, key=lambda finding: finding.severity, reverse=True):
        by_check[finding.id].append(finding)
    return by_check


def _not_done(report: Report, check: str) -> str:
    """Return the reason why a check was not done; "" if it was done."""
    return report.skipped.get(check, "") if check in report.checks else "not selected"


def read_report(path: str | Path) -> Report:
    """Read a report that `rove audit --json` or `-o FILE.json` has written."""
    try:
        values: Any = msgspec.json.decode(Path(path).read_bytes())
        values.pop("unchecked", None)  # follows from the skipped checks
        if unknown := [row["id"] for row in values["findings"] if row["id"] not in CHECKS]:
            raise ConfigError(
                f"{path} has findings of an unknown check '{unknown[0]}'; expected a report of this version of rove"
            )
        return msgspec.convert(values, Report)
    except (OSError, KeyError, TypeError, AttributeError, *UNREADABLE) as error:
        raise ConfigError(
            f"{path} is not a report of an audit ({error}); expected a file of rove audit -o FILE.json"
        ) from error


def rates_text(change: Change) -> str:
    """Return the rates of both versions as a text."""
    findings = filter(None, (change.old, change.new))
    rates = [f"{finding.rate[0]:.2f}" for finding in findings if finding.rate is not None]
    return " → ".join(rates) if len(rates) == 2 else rate_text(change.latest)


def severities_text(change: Change) -> str:
    """Return the severity of a finding, or both severities if they differ."""
    findings = filter(None, (change.old, change.new))
    severities = dict.fromkeys(finding.severity.value for finding in findings)
    return " → ".join(severities)


def reward_text(rate: Rate, sign: str = "") -> str:
    """Return a reward with its interval: "0.95 [0.91, 0.98]"."""
    mean, low, high = (value + 0.0 for value in rate)  # -0.0 would be shown with a sign
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def json_comparison(comparison: Comparison) -> JsonObject:
    """Return a comparison as JSON values."""
    values: JsonObject = msgspec.to_builtins(comparison)
    for value, reward in zip(values["honest"], comparison.honest, strict=True):
        value["difference"] = reward.difference
    worst = comparison.worst_new()
    return {**values, "worst_new": worst.value if worst is not None else None}


def markdown_comparison(comparison: Comparison) -> str:
    """Return a comparison as a Markdown page with two tables."""
    lines = [f"# Audit of {cell(comparison.old)} and {cell(comparison.new)}", ""]
    lines += table_lines(
        ("", "severity", "check", "finding", "reward or share"),
        [
            (change.status, severities_text(change), change.latest.id, text_of(change), rates_text(change))
            for change in comparison.changes
        ],
    )
    if comparison.honest:
        lines += ["", "Rewards of right answers and scripted policies, with 95% intervals:", ""]
        lines += table_lines(
            ("policy", "old", "new", "difference"),
            [
                (reward.policy, reward_text(reward.old), reward_text(reward.new), reward_text(reward.difference, "+"))
                for reward in comparison.honest
            ],
        )
    return "\n".join(lines) + "\n"


def text_of(change: Change) -> str:
    """Return the text of the latest finding, followed by the note of the change in parentheses, if it has one."""
    return f"{change.latest.text} ({change.note})" if change.note else change.latest.text
