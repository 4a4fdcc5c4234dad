"""Compare two runs, example by example, and write the comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.core.errors import RunError
from rove.core.messages import as_messages, text_of
from rove.core.plain import JsonObject
from rove.core.records import Outcome
from rove.runs.run import Run
from rove.statistics import Comparison
from rove.statistics.compare import comparison_row, run_settings, scored_outcomes
from rove.statistics.format import caveats
from rove.utils.markdown import code, plain
from rove.utils.units import counted

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
    examples: int
    """Number of examples of which a rollout ran."""
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
    def has_all_examples(self) -> bool:
        """Whether no examples remain: the run was to evaluate all examples, or more than there are."""
        planned = self.config.get("num_examples")
        return planned == -1 or (isinstance(planned, int) and planned > self.examples)

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
    lines = run.ledger()[0]
    if not last:
        raise RunError(f"{path} has no scored rollouts to compare; `rove eval` makes some")
    versions = run.versions()
    version = versions[-1].get("rove") if versions else None
    examples = len({key for _, key, _ in lines})
    return ComparedRun(run_settings(run), last, len(lines) - len(last), examples, config["config"], version)


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
