"""Compare two runs, example by example, and write the comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.core.config import dotted
from rove.core.errors import ConfigError, RunError
from rove.core.messages import as_messages, text_of
from rove.core.plain import JsonMapping, JsonObject
from rove.core.records import Outcome
from rove.envs.question_files import is_question_file
from rove.runs.run import Run
from rove.statistics import Comparison
from rove.statistics.compare import comparison_row, scored_outcomes
from rove.statistics.format import caveats
from rove.utils.markdown import code, plain
from rove.utils.units import counted

ANY_FLAG = "--any-environment"
ENVIRONMENT_SETTINGS = ("env", "env_args", "rubric", "train")
"""Settings in a run's identity that determine the run's examples and rewards."""
FOLDER = "folder#"
"""Start of a model folder's digest in a run's identity; see `rove.core.digest.digest_model`."""


class ComparedRun(NamedTuple):
    """A run to compare."""

    settings: JsonObject
    """The run's identity under dotted names, including the kind of run."""
    outcomes: list[Outcome]
    """The run's scored rollouts."""
    unscored: int
    """Number of rollouts that ran and have no score."""
    config: JsonObject
    """Settings of the run's command."""
    rove: str | None
    """The version of rove that last wrote to the folder; None if the folder does not record it."""

    @property
    def model(self) -> str:
        """The name or the folder of the model."""
        return str(self.config.get("model") or self.settings.get("model", ""))

    @property
    def env(self) -> str:
        """The environment, with its version if it has one."""
        parts = str(self.settings.get("env", "")).split("#")  # name#version#digest of the code, or name#digest
        return f"{parts[0]} {parts[1]}" if len(parts) > 2 else parts[0]

    @property
    def env_name(self) -> str:
        """The environment without its version. All files of questions have the same name, because they are compared by
        their examples.
        """
        name = str(self.settings.get("env", "")).split("#")[0]
        return "a file of questions" if is_question_file(name) else name

    @property
    def counts(self) -> str:
        """The number of examples, and of rollouts per example."""
        examples = len({outcome.example_key for outcome in self.outcomes})
        planned = self.config.get("rollouts_per_example")
        if self.settings["kind"] != "eval" or not isinstance(planned, int):
            return f"{len(self.outcomes):,} scored rollouts"
        # Some have no score, and some may not have run.
        missing = max(self.unscored, examples * planned - len(self.outcomes))
        unscored = f" ({missing:,} not scored)" if missing else ""
        return f"{counted(examples, 'example')}, {counted(planned, 'rollout')} per example{unscored}"


def read_run(path: str) -> ComparedRun:
    """Return a run with its scored rollouts; if a rollout was repeated, the last attempt counts."""
    run = Run(path)
    config = run.config()
    last = scored_outcomes(run)
    if not last:
        raise RunError(f"{path} has no scored rollouts to compare; `rove eval` makes some")
    settings = dotted({"kind": config["kind"], **config["identity"]})
    versions = run.versions()
    version = versions[-1].get("rove") if versions else None
    return ComparedRun(settings, last, len(run.ledger()[0]) - len(last), config["config"], version)


def differing(a: JsonMapping, b: JsonMapping) -> dict[str, list[Any]]:
    """Return the settings that differ, with both values; a value is None if a run lacks the setting."""
    values = {name: [a.get(name), b.get(name)] for name in sorted(a.keys() | b.keys())}
    return {name: [old, new] for name, (old, new) in values.items() if old != new}


def named_models(settings: Mapping[str, list[Any]], a: ComparedRun, b: ComparedRun) -> dict[str, list[Any]]:
    """Return settings that differ, with models as folder paths; digests are added only if the paths are equal."""
    if "model" not in settings:
        return dict(settings)
    digests = settings["model"]
    models: list[Any] = []
    for run, digest in zip((a, b), digests, strict=True):
        models.append(run.model if str(digest).startswith(FOLDER) else digest)
    if models[0] == models[1]:
        models = [f"{run.model} ({digest})" for run, digest in zip((a, b), digests, strict=True)]
    return {**settings, "model": models}


def check_comparable(a: ComparedRun, b: ComparedRun) -> None:
    """Refuse runs whose results could differ for reasons other than the models."""
    names = [run.env_name for run in (a, b)]
    # Rewards of different environments have different scales.
    if names[0] != names[1]:
        raise ConfigError(
            f"the runs are of different environments, '{names[0]}' and '{names[1]}': a difference of their rewards says nothing "
            f"about the models. Compare runs of one environment, or give {ANY_FLAG}"
        )
    # Equal examples make runs comparable, even if their settings differ.
    if {outcome.example_key for outcome in a.outcomes} & {outcome.example_key for outcome in b.outcomes}:
        return
    changed = [name for name in differing(a.settings, b.settings) if name.split(".")[0] in ENVIRONMENT_SETTINGS]
    if changed:
        raise ConfigError(
            f"the runs share no examples, and these settings of the environment differ: {', '.join(changed)}. Evaluate both "
            f"models with the same settings, or give {ANY_FLAG}"
        )


def read_questions(path: str, comparison: Comparison) -> dict[str, str]:
    """Return the questions of the examples that changed most, by example key. A question is the last message of the prompt."""
    changed = {mover.example_key for mover in (*comparison.up, *comparison.down)}
    run = Run(path)
    lines = {key: line for (_, key, _), line in run.scored_lines().items() if key in changed}
    questions: dict[str, str] = {}
    for key, line in lines.items():
        prompt = as_messages(run.record_at(line.offset).prompt)
        questions[key] = text_of(prompt[-1]) if prompt else ""
    # A dataset of files or games may have prompts without text.
    return {key: question for key, question in questions.items() if question.strip()}


def comparison_markdown(
    comparison: Comparison,
    settings: Mapping[str, Sequence[Any]],
    runs: Sequence[ComparedRun] = (),
) -> str:
    """Return a comparison as Markdown: the verdict, a table of all values, the runs, notes, and the settings that differ.

    Args:
        settings: Both values of each setting that differs, by name; a value is None if a run lacks the setting.
    """
    align = ["---", "---:", "---:", "---:", "---:", "---"]
    values = (comparison.main, *comparison.others)
    noted = caveats({"caveat": value.caveat} for value in values)
    heading = ["value", *map(code, comparison.names), "difference", "95% interval", ""]
    lines = [f"**{plain(comparison.verdict)}**", "", _line(heading), _line(align)]
    for value in values:
        name, *cells = comparison_row(value)
        lines.append(_line([code(name), *map(plain, cells)]))
    if runs:
        lines += ["", *map(_run_line, comparison.names, runs)]
    if comparison.paired:
        counts = f"higher on {comparison.wins}, equal on {comparison.ties}, lower on {comparison.losses}"
        lines += ["", f"{code(comparison.names[1])}: {counts} examples"]
    notes = list(comparison.notes)
    if noted:
        notes.append(noted)
    if notes:
        lines += ["", *(f"- {plain(note)}" for note in notes)]
    if settings:
        lines += ["", "Settings that differ:", ""]
        lines += [f"- {code(name)}: {_value(old)} → {_value(new)}" for name, (old, new) in settings.items()]
    return "\n".join(lines) + "\n"


def _run_line(name: str, run: ComparedRun) -> str:
    """Return a list item about what a run evaluated."""
    version = "; " + plain(f"rove {run.rove}") if run.rove else ""
    return f"- {code(name)}: model {code(run.model)} in {code(run.env)}; {run.counts}{version}"


def _value(value: Any) -> str:
    return "not set" if value is None else code(repr(value))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
