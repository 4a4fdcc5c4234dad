"""The card of an environment: one page from its audit and, if there is one, from a finished `rove train`."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec

from rove.audit.comparison import Rate, is_honest, reward_text
from rove.audit.findings import CHECKS, Report, severity_text
from rove.audit.report import rate_text
from rove.core.errors import ConfigError
from rove.core.findings import Finding
from rove.core.plain import UNREADABLE, JsonObject
from rove.envs.loading import environment_version
from rove.runs.train_folder import RECIPE, TrainFolder
from rove.statistics import needed_examples
from rove.utils.markdown import code, plain, table_lines
from rove.utils.units import counted

CARD_FILE = "audit_card.json"
"""Name of the card in a package, which the hub shows."""
DIFFERENCE = 0.05
"""Difference of rewards for which the card states the number of examples."""
NOT_MEASURED = "not measured"


class NamedReward(msgspec.Struct, frozen=True):
    """Mean reward of a reply or policy with its 95% interval."""

    name: str
    reward: Rate


class TrainedModel(msgspec.Struct, frozen=True):
    """A row of the results table of `rove train`."""

    stage: str
    """Such as "base", "+ SFT" and "+ RL"."""
    condition: str
    mean: float
    """Mean reward."""
    low: float | None = None
    """Lower limit of its 95% interval; None without an interval."""
    high: float | None = None
    tokens: float = 0.0
    """Tokens of prompts and completions per rollout."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an environment for people who choose one."""

    environment: str
    """Name, version and hash of the code."""
    env_args: dict[str, object] = {}
    date: str
    """Day of the audit."""
    rove_version: str
    num_examples: int | None = None
    contacted: list[str] | None = None
    """Hosts that the environment contacted when it was loaded; None if that was not measured."""
    deterministic: bool | None = None
    """Whether the same reply earned the same reward again; None if that was not measured."""
    checks_done: int
    findings: list[Finding] = []
    known_defects: list[str] = []
    not_applicable: list[str] = []
    """Checks that could not find anything in such an environment."""
    unchecked: dict[str, str] = {}
    """Checks that matter and were not done, with the reasons."""
    floor: NamedReward | None = None
    """The best policy that does not do the task."""
    ceiling: NamedReward | None = None
    """The best policy that does the task."""
    models: list[TrainedModel] = []
    """What models reached in a finished `rove train`; empty if that was not measured."""
    model: str = ""
    """The model that `rove train` began with."""
    training_cost: str = ""
    needed_examples: int | None = None
    """Number of examples that reveals a difference of 0.05 between two evaluations for any rewards that they may have."""
    cpu_seconds: float | None = None
    """CPU-seconds per 1,000 rollouts of the audit, including the start of its processes."""


def make_card(report: Report, train_folder: str | Path | None = None) -> Card:
    """Return the card of an audited environment.

    Args:
        train_folder: Folder of a finished `rove train` in the same environment. Default: learnability is not measured.

    Raises:
        ConfigError: See `check_train_folder`.
    """
    folder = None if train_folder is None else check_train_folder(train_folder, report.env)
    honest = [NamedReward(name, rate) for name, rate in report.rewards.items() if is_honest(name)]
    ceiling = max(honest, key=lambda policy: policy.reward[0], default=None)
    floor = NamedReward(report.floor, report.rewards[report.floor]) if report.floor in report.rewards else None
    needed = None if floor is None or ceiling is None else _needed(floor, ceiling)
    return Card(
        environment=environment_version(report.env, report.env_dir, report.env_args),
        env_args=report.env_args,
        date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        rove_version=version("rove"),
        num_examples=report.num_examples,
        contacted=report.contacted,
        deterministic=_is_deterministic(report),
        checks_done=len(set(report.checks) - set(report.skipped)),
        findings=report.findings,
        known_defects=report.known_defects,
        unchecked=report.unchecked,
        not_applicable=[name for name in report.skipped if name not in report.unchecked],
        floor=floor,
        ceiling=ceiling,
        models=[] if folder is None else _models(folder),
        model="" if folder is None else _initial_model(folder),
        training_cost="" if folder is None else folder.completion().cost,
        needed_examples=needed,
        cpu_seconds=round(1000 * report.cpu_seconds / report.rollouts, 1) if report.rollouts else None,
    )


def check_train_folder(path: str | Path, env: str) -> TrainFolder:
    """Return the folder of a finished `rove train` in an environment.

    Raises:
        ConfigError: The folder is not from `rove train`, is not finished, or is from another environment.
    """
    folder = TrainFolder(path)
    if not folder.is_complete or not (folder.path / RECIPE).is_file():
        raise ConfigError(f"{path} is not the folder of a finished rove train; finish the run, or leave the folder out")
    trained_env = _recipe(folder).get("env", env)
    if Path(trained_env).stem != Path(env).stem:  # a path, a file of questions, or a name at a hub
        raise ConfigError(f"{path} is a training in the environment '{trained_env}'; expected one in '{env}'")
    return folder


def _recipe(folder: TrainFolder) -> JsonObject:
    return msgspec.toml.decode((folder.path / RECIPE).read_bytes())


def _initial_model(folder: TrainFolder) -> str:
    """Describe the model that the recipe begins with: a folder or name, or the settings of a new one."""
    model = _recipe(folder).get("model", "")
    if isinstance(model, str):
        return Path(model).name
    return f"a new model (size {model.get('size', 'tiny')})"


def _models(folder: TrainFolder) -> list[TrainedModel]:
    """Return the rows of the results table that are models in training."""
    models: list[TrainedModel] = []
    for row in folder.rows():
        is_model = row.is_trained or row.name == "base"
        for condition, summary in row.conditions.items():
            if is_model:
                reward = summary["reward"]
                tokens = sum(summary.get("tokens_per_rollout", {}).values())
                models.append(TrainedModel(row.name, condition, reward["mean"], reward["low"], reward["high"], tokens))
    return models


def _is_deterministic(report: Report) -> bool | None:
    if any(finding.id == "determinism" for finding in report.findings):
        return False
    is_done = "determinism" in report.checks and "determinism" not in report.skipped
    return True if is_done else None


def _needed(floor: NamedReward, ceiling: NamedReward) -> int | None:
    """Return the number of examples for the largest variance that rewards can have.

    The variance of a model is unknown: it is largest if half of the rewards are the highest and half the lowest ones.
    """
    range_ = ceiling.reward[0] - min(0.0, floor.reward[0])
    variance = range_**2 / 4
    return needed_examples(2 * variance, DIFFERENCE)


def card_markdown(card: Card) -> str:
    """Return a card as Markdown for a README."""
    lines = [f"## Audit of {code(card.environment)}", ""]
    lines += table_lines(("property", "value"), _properties(card))
    if card.findings:
        lines += ["", "### Findings", ""]
        lines += table_lines(
            ("severity", "check", "finding", "reward or share"),
            [(_safe(severity_text(row)), row.id, _safe(row.text), rate_text(row)) for row in card.findings],
        )
    if card.models:
        lines += ["", "### Learnability", ""]
        lines += [f"`rove train` began with {_safe(card.model)} and {_safe(card.training_cost)}.", ""]
        rows: list[tuple[str, ...]] = []
        for model in card.models:
            limits = "" if model.low is None or model.high is None else f" [{model.low:.3f}, {model.high:.3f}]"
            rows.append(
                (_safe(model.stage), _safe(model.condition), f"{model.mean:.3f}{limits}", f"{model.tokens:.0f}")
            )
        lines += table_lines(("stage", "evaluation", "reward", "tokens per rollout"), rows)
    return "\n".join(lines) + "\n"


def _properties(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the rows of the first table."""
    audited = _safe(f"{card.date}, rove {card.rove_version}")
    yield "audited", audited if card.num_examples is None else f"{audited}, {counted(card.num_examples, 'example')}"
    if card.env_args:
        yield "arguments", code(msgspec.json.encode(card.env_args).decode())
    offline = NOT_MEASURED if card.contacted is None else "yes"
    yield "loads offline", f"no, contacts {_safe(', '.join(card.contacted))}" if card.contacted else offline
    words = {True: "yes", False: "no", None: NOT_MEASURED}
    yield "deterministic rewards", words[card.deterministic]
    yield "checks done", f"{card.checks_done} of {len(CHECKS)}"
    counts: dict[str, int] = {}
    for finding in card.findings:
        kind = "accepted" if finding.accepted else finding.severity.value
        counts[kind] = counts.get(kind, 0) + 1
    yield "findings", ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
    for text in card.known_defects:
        yield "known defect", _safe(text)
    if card.unchecked:
        yield "not checked", _safe(", ".join(card.unchecked))
    if card.not_applicable:
        yield "not applicable", _safe(", ".join(card.not_applicable))
    for label, named in (("floor", card.floor), ("ceiling", card.ceiling)):
        yield label, NOT_MEASURED if named is None else f"{reward_text(named.reward)} ({_safe(named.name)})"
    yield "learnability", "see below" if card.models else NOT_MEASURED
    needed = NOT_MEASURED if card.needed_examples is None else f"at most {card.needed_examples:,}"
    yield f"examples to see a difference of {DIFFERENCE}", needed
    is_cost_known = card.cpu_seconds is not None and math.isfinite(card.cpu_seconds)
    yield "CPU-seconds per 1,000 rollouts", f"{card.cpu_seconds:g}" if is_cost_known else NOT_MEASURED


def _safe(text: str) -> str:
    """Escape a text for a table; `table_lines` escapes "|" itself, and a second backslash would end the cell."""
    return plain(text.replace("|", "\u2502"))


def read_card(content: bytes) -> Card | None:
    """Return the card in a file of a package; None if the file has another format."""
    try:
        return msgspec.json.decode(content, type=Card)
    except (KeyError, *UNREADABLE):  # KeyError: the file names a check that this version of rove does not have
        return None
