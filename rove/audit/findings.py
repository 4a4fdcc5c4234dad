"""The result of an audit, and its checks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from rove.core.errors import ConfigError, nearest
from rove.core.findings import Finding, Severity, findings_by_area
from rove.utils.notebook import ShownAsText, data_frame
from rove.utils.units import counted

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingTypeStubs]

MAX_EVIDENCE_CHARS = 2000
"""Maximum characters of a prompt or completion in a finding."""


MIN_OMITTED = 40
"""Minimum number of characters that are left out: the note about fewer characters would be as long as the characters."""


CHECKS = tuple(findings_by_area()["audit"])
"""Ids of the checks, which are the ids of their findings."""


NOT_APPLICABLE = frozenset(
    (
        "only for several turns",
        "only for single turns",
        "only with --learn",
        "the environment queries no judge",
        "the environment has no tools",
        "the environment has no argument 'seed'",
        "rows of a task with several turns have no answers",
        "a reply without the answer is known already",
    )
)
"""Reasons for leaving out a check that could not find anything in such an environment."""
FAILED = "failed: "
"""Beginning of the reason for a check that an error ended."""


class Report(ShownAsText, msgspec.Struct, kw_only=True):
    """Result of an audit."""

    env: str
    env_args: dict[str, object] = {}
    env_dir: str | None = None
    file: str = ""
    """File with the environment's `load_environment`; "" if unknown."""
    line: int = 1
    num_examples: int | None = None
    """Number of examples per policy."""
    seed: int = 0
    judge: str = ""
    """Model that also answered as the environment's judge; "" if there was none."""
    findings: list[Finding] = []
    """The findings, the most severe first."""
    checks: list[str] = []
    """Checks that were selected."""
    skipped: dict[str, str] = {}
    """Selected check → the reason why it was not done or was not completed."""
    rewards: dict[str, tuple[float, float, float]] = {}
    """Reply or policy → mean reward with its 95% interval.

    "right answer" is the row's own answer, "policy NAME" a scripted policy of the environment.
    """
    visible_share: float | None = None
    """Smallest share of the rows that a reply must be paid for to be distinguished from chance; None if nothing was measured."""
    floor: str = ""
    """Name in `rewards` of the best policy without knowledge of the row; "" if it was not measured."""
    contacted: list[str] | None = None
    """Hosts that the environment contacted when it was loaded and its rows were read; None if they were not read."""
    known_defects: list[str] = []
    """Warnings about known defects of another library's tasks, which no check needs to find."""
    unmatched: list[str] = []
    """Entries of the baseline file that match no finding any more."""
    visible_shares: dict[str, float] = {}
    """Check without a finding → the smallest share of the rows in which a defect must show for this check to see it."""
    rollouts: int = 0
    cpu_seconds: float = 0.0

    @property
    def open_findings(self) -> list[Finding]:
        """The findings that no baseline file accepts."""
        return [finding for finding in self.findings if not finding.accepted]

    @property
    def worst(self) -> Severity:
        """The highest severity of the findings that no baseline file accepts; INFO without such findings."""
        return max((finding.severity for finding in self.open_findings), default=Severity.INFO)

    @property
    def unchecked(self) -> dict[str, str]:
        """Checks that matter for this environment and were not done, or not completely, with the reasons."""
        return {name: reason for name, reason in self.skipped.items() if reason not in NOT_APPLICABLE}

    @property
    def failed(self) -> dict[str, str]:
        """Checks that an error ended, with the errors: an audit with such checks does not show that the environment is sound."""
        return {name: reason for name, reason in self.skipped.items() if reason.startswith(FAILED)}

    @property
    def without_findings(self) -> str:
        """What a report without findings says: "no findings" alone only if every check that matters was done."""
        if not self.unchecked:
            return "no findings"
        listed = "; ".join(_by_reason(self.unchecked))
        return f"no findings in the checks that were done; not checked: {listed}"

    @property
    def done(self) -> str:
        """How many checks were done: "20 of 24 checks done"."""
        total = len(self.checks)
        return f"{total - len(self.skipped)} of {counted(total, 'check')} done"

    @property
    def not_done(self) -> list[str]:
        """The checks that were not done, one text for each reason: "paid-calls, needed-calls (the environment has no tools)"."""
        return _by_reason(self.skipped)

    @property
    def power(self) -> str:
        """What the number of examples allows to see; "" if nothing was measured."""
        if self.visible_share is None:
            return ""
        return (
            f"with these examples, a reply that is paid in fewer than {self.visible_share:.0%} of the rows cannot be "
            "distinguished from chance (-n N for more examples)"
        )

    @property
    def clean_checks(self) -> str:
        """The checks without a finding, by the smallest share of the rows that they could have seen; "" if there are none."""
        checks_by_share: dict[float, list[str]] = {}
        for check, share in self.visible_shares.items():
            checks_by_share.setdefault(share, []).append(check)
        if not checks_by_share:
            return ""
        listed = [f"{share:.0%} ({', '.join(checks)})" for share, checks in sorted(checks_by_share.items())]
        return f"a clean check would have seen a defect from this share of the rows on: {', '.join(listed)}"

    def __str__(self) -> str:
        """Return the findings, one per line, and the number of checks that were done."""
        findings = [f"{severity_text(finding)}: {finding}" for finding in self.findings] or [self.without_findings]
        return "\n".join([f"audit of {self.env}: {self.done}", *findings])

    def to_pandas(self) -> DataFrame:
        """Return a `pandas.DataFrame` with a row per finding, the most severe first.

        Columns: severity, check, finding, rate, low, high, floor, remedy, prompt, completion. `low` and `high` are the limits of
        the rate's 95% interval; nan without an interval.

        Raises:
            ConfigError: pandas is not installed.
        """
        rows: list[dict[str, object]] = []
        for finding in self.findings:
            rate, low, high = finding.rate or (None, None, None)
            row: dict[str, object] = {"severity": finding.severity.value, "check": finding.id, "finding": finding.text}
            row |= {"rate": rate, "low": low, "high": high, "floor": finding.floor}
            row |= {"remedy": finding.remedy, "prompt": finding.prompt, "completion": finding.completion}
            rows.append(row)
        numbers = ["rate", "low", "high", "floor"]
        columns = ["severity", "check", "finding", *numbers, "remedy", "prompt", "completion"]
        return data_frame(rows, columns=columns).astype(dict.fromkeys(numbers, float))

    def command(self, check: str) -> str:
        """Return the command that does a check of this audit again."""
        words = ["rove", "audit", self.env, "--only", check]
        words += ["--env-dir", self.env_dir] if self.env_dir else []
        words += ["-a", msgspec.json.encode(self.env_args).decode()] if self.env_args else []
        words += ["-n", str(self.num_examples)] if self.num_examples is not None else []
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--judge", self.judge] if self.judge and check == "judge-injection" else []
        return shlex.join([*words, "--learn"] if check == "learned-reward" else words)


def _by_reason(skipped: Mapping[str, str]) -> list[str]:
    """Return the names of checks for each reason, as texts."""
    names: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(of_reason)} ({reason})" for reason, of_reason in names.items()]


def severity_text(finding: Finding) -> str:
    """Return a finding's severity, and the reason if a baseline file accepts the finding."""
    reason = f", accepted: {finding.accepted}" if finding.accepted else ""
    return f"{finding.severity.value}{reason}"


def selected(only: tuple[str, ...], skip: tuple[str, ...]) -> frozenset[str]:
    """Return the ids of the checks to do."""
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in CHECKS:
                each = " ".join(f"{option} {part}" for part in name.split(","))
                hint = f"repeat the option: {each}" if "," in name else nearest(name, CHECKS)
                raise ConfigError(f"unknown check '{name}'; {hint}")
    selected_checks = frozenset(only or CHECKS) - frozenset(skip)
    return selected_checks | {"load"}  # the other checks need a loaded environment


def shortened(text: str, limit: int = MAX_EVIDENCE_CHARS) -> str:
    """Return a text of at most about `limit` characters."""
    if len(text) <= limit + MIN_OMITTED:
        return text
    beginning = text[: limit // 2]
    end = text[-limit // 2 :]
    return f"{beginning} […{len(text) - limit:,} characters…] {end}"
