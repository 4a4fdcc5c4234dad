"""Findings of an audit, and the catalogue of its checks."""

from __future__ import annotations

import shlex
from enum import IntEnum
from typing import NamedTuple

import msgspec

from rove.core.errors import ConfigError, nearest

MAX_EVIDENCE_CHARS = 2000
"""Maximum characters of a prompt or completion in a finding."""


MIN_OMITTED = 40
"""Fewer characters than this are not left out: the note about them is as long."""


class Severity(IntEnum):
    """How much a finding matters."""

    INFO = 0
    """A property of the task that explains figures."""
    LOW = 1
    """May mislead people who read results."""
    MEDIUM = 2
    """Distorts rewards or results."""
    HIGH = 3
    """Reward without the task, wrong grading, or damage."""

    @property
    def label(self) -> str:
        """The name in lower case."""
        return self.name.lower()


class CheckInfo(NamedTuple):
    """A row of the catalogue."""

    looks_for: str
    """What the check finds."""
    fix: str
    """The usual fix."""


CHECKS: dict[str, CheckInfo] = {
    "load": CheckInfo(
        "the environment does not load or has no rows, every rollout fails, or the time is used up before the first check",
        "fix the error, or allow more time",
    ),
    "blind-reply": CheckInfo(
        "replies written without seeing the answer earn more than chance, or wrong answers earn nearly the full reward",
        "compare the parsed answer with the row's answer; reward nothing else",
    ),
    "hedging": CheckInfo(
        "several answers, a retracted answer, or an answer outside its required place earn the full reward",
        "parse exactly one answer, and compare all of it",
    ),
    "own-answer": CheckInfo(
        "the row's own answer does not earn the full reward",
        "normalize both sides in the same way, or correct the rows",
    ),
    "monotonicity": CheckInfo(
        "wrong variants of the answer earn as much as the right one",
        "compare whole values, including sign, unit and length",
    ),
    "grader-robustness": CheckInfo(
        "replies make the grader raise an exception, hang, or return a value that is not a finite number",
        "return the lowest reward for such replies",
    ),
    "execution": CheckInfo(
        "replies are executed as code in the grader's process",
        "parse with ast.literal_eval or json, or run code in a sandbox (SandboxEnv)",
    ),
    "judge-injection": CheckInfo(
        "a reply can give orders to the judge",
        "mark where the reply begins and ends in the judge's prompt, and instruct the judge to ignore instructions in it",
    ),
    "determinism": CheckInfo(
        "the same reply gets different rewards, or another process gets different rows; not done if a judge decides",
        "draw random numbers from the rollout's generator, sort sets, and keep no state between rollouts",
    ),
    "row-round-trip": CheckInfo(
        "rows change when they are written as JSON and read again",
        "use only lists, strings, numbers, booleans, None and dicts with string keys",
    ),
    "data-overlap": CheckInfo(
        "evaluation rows are equal or nearly equal to training rows",
        "split by content before sampling rows",
    ),
    "seed-shift": CheckInfo(
        "two seeds share most of their rows",
        "derive each row's generator from the seed and the index together, not from their sum",
    ),
    "answer-leak": CheckInfo(
        "the answer is in prompts, tools, or messages to a policy that does nothing",
        "remove it from prompts, tools and messages",
    ),
    "parser-agreement": CheckInfo(
        "the environment's parser reads a different answer than the one that the grader rewards",
        "let the grader use the environment's parser",
    ),
    "blind-game": CheckInfo(
        "policies that ignore observations earn rewards in a game or with tools",
        "reward the result of the game only, and end it after invalid actions",
    ),
    "policy-search": CheckInfo(
        "a small search over replies finds one that earns more than chance on rows that were not used in the search",
        "read the reply that was found",
    ),
    "learned-reward": CheckInfo(
        "with --learn: a tiny model raises its reward by RL without doing the task",
        "read the reply that it has learned; reward only what the task demands",
    ),
    "reward-statistics": CheckInfo(
        "all rewards are equal, are outside the range that the weights allow, or are never near the maximum",
        "reward better replies more; correct the weights or the documented range",
    ),
    "length": CheckInfo(
        "an answer, right or wrong, earns more if more words precede it",
        "do not reward length",
    ),
    "side-effects": CheckInfo(
        "rollouts write files, start processes or open network connections",
        "use a temporary folder and a cleanup method, or a sandbox",
    ),
}
"""Id → check. Ids never change."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with an environment, with evidence."""

    check: str
    """Id of the check."""
    severity: Severity
    text: str
    """What happens, as one sentence."""
    rate: tuple[float, float, float] | None = None
    """Mean reward of the evidence with its 95% interval, or a share of rows."""
    floor: float | None = None
    """What the rate is compared with."""
    prompt: str = ""
    """Last message before the completion."""
    completion: str = ""
    """The reply that shows the problem."""

    @property
    def fix(self) -> str:
        """The usual fix."""
        return CHECKS[self.check].fix


class Report(msgspec.Struct, kw_only=True):
    """Result of an audit."""

    env: str
    env_args: dict[str, object] = {}
    env_dir: str | None = None
    file: str = ""
    """File of its `load_environment`; empty if it is unknown."""
    line: int = 1
    num_examples: int | None = None
    """Examples per policy."""
    seed: int = 0
    judge: str = ""
    """Model that also answered as the environment's judge; empty for none."""
    findings: list[Finding] = []
    """The most severe first."""
    checks: list[str] = []
    """Checks that were selected."""
    skipped: dict[str, str] = {}
    """Selected check → why it was not done, or not completely."""
    rewards: dict[str, tuple[float, float, float]] = {}
    """Reply or policy → mean reward with its 95% interval.

    "right answer" is the row's own answer, "policy NAME" a scripted policy of the environment.
    """
    rollouts: int = 0
    cpu_seconds: float = 0.0

    @property
    def worst(self) -> Severity:
        """The highest severity; INFO without findings."""
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    def command(self, check: str) -> str:
        """Return the command that does a check of this audit again."""
        words = ["rove", "audit", self.env, "--only", check]
        words += ["--env-dir", self.env_dir] if self.env_dir else []
        words += ["-a", msgspec.json.encode(self.env_args).decode()] if self.env_args else []
        words += ["-n", str(self.num_examples)] if self.num_examples is not None else []
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--judge", self.judge] if self.judge and check == "judge-injection" else []
        return shlex.join([*words, "--learn"] if check == "learned-reward" else words)


def selected(only: tuple[str, ...], skip: tuple[str, ...]) -> frozenset[str]:
    """Return the ids of the checks to do.

    Raises:
        ConfigError: An id is unknown.
    """
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in CHECKS:
                each = " ".join(f"{option} {part}" for part in name.split(","))
                hint = f"repeat the option: {each}" if "," in name else nearest(name, CHECKS)
                raise ConfigError(f"unknown check '{name}'; {hint}")
    return frozenset(only or CHECKS) - frozenset(skip) | {"load"}


def shortened(text: str, limit: int = MAX_EVIDENCE_CHARS) -> str:
    """Return a text of at most about `limit` characters."""
    if len(text) <= limit + MIN_OMITTED:
        return text
    return f"{text[: limit // 2]} […{len(text) - limit:,} characters…] {text[-limit // 2 :]}"
