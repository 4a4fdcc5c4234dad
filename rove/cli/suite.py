"""Settings of `rove eval`: one evaluation, or the evaluations in a file with `[[eval]]` tables.

Settings come from these layers, of which a later layer takes precedence: the environment's `pyproject.toml`, the top of the
file, an `[[eval]]` table, a combination of values of its `sweep`, the command line.
"""

from __future__ import annotations

import builtins
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import msgspec
import tomli_w
from rich.console import Console
from rich.table import Table

from rove import compat
from rove.cli.common import hint, print_json
from rove.cli.options import confirm_foreign, settings
from rove.core.config import RUN_CONFIG, read_toml
from rove.core.errors import ConfigError, Error, nearest, traceback_text
from rove.core.plain import JsonMapping, JsonObject
from rove.envs.loading import environment_defaults
from rove.rollouts.evaluate import Options
from rove.runs.run import Run
from rove.stages.evaluation import EvalConfig
from rove.stages.naming import short
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.stages.suite import TABLES, Evaluation, as_words, error_source, expand, varied
from rove.statistics import EvaluationResult
from rove.statistics.format import caveats, folded, interval, number
from rove.statistics.summary import broken_reward
from rove.utils.console import styled
from rove.utils.processes import release_memory
from rove.utils.terminal_text import inert, inert_toml

CODE_ERRORS = frozenset(
    error.__name__
    for error in vars(builtins).values()
    if isinstance(error, type)
    and issubclass(
        error, (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
    )
) | {"Error"}
"""Types of errors that a rollout raises again when it is repeated: errors of code, and rove's for an invalid reward."""
ENVIRONMENT_DEFAULTS = frozenset({*Options.__struct_fields__, "max_tokens", "temperature"})
"""Settings for which an environment may define defaults: those for how to evaluate, but not model, keys or files."""


def resolve(ctx: click.Context, named: JsonMapping) -> tuple[list[Evaluation], bool]:
    """Return the evaluations that a command line specifies, and whether they come from a file with several evaluations."""
    paths, flags = _split_files(ctx.args)
    files = [(path, read_toml(path)) for path in paths]
    complete = any(content.keys() >= RUN_CONFIG for _, content in files)
    suites = [path for path, content in files if not content.keys().isdisjoint({*TABLES, "sweep"})]
    if not suites:
        return [_resolved(ctx, ctx.args, named, "", complete)], False
    if len(suites) > 1:
        raise ConfigError(f"{' and '.join(suites)} both contain several evaluations; give one such file at a time")
    [path] = suites
    position = paths.index(path)
    _, content = files[position]
    confirm_foreign(Path(path), content)
    words_before, words_after = _file_words(paths[:position]), _file_words(paths[position + 1 :])
    evaluations: dict[bytes, Evaluation] = {}
    with error_source(path, ", "):
        points = list(expand(content))
    for table, point, values in points:
        source = f"{path}, {table}" + (f" ({point})" if point else "")
        words = [*words_before, *as_words(values), *words_after, *flags]
        with error_source(source):
            evaluation = _resolved(ctx, words, named, source, complete)
        # A flag may override what a sweep varies; its points are then the same evaluation.
        evaluations.setdefault(table.encode() + msgspec.json.encode(evaluation.config, order="sorted"), evaluation)
    return list(evaluations.values()), True


def _file_words(paths: Sequence[str]) -> list[str]:
    """Return the command-line words that name these settings files."""
    words: list[str] = []
    for path in paths:
        words += ["@", path]
    return words


def _split_files(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files named after "@", and the other words."""
    files, other_words = [], []
    remaining = iter(words)
    for word in remaining:
        if word.startswith("@"):
            file = word[1:] or next(remaining, None)
            if file is None:
                raise ConfigError("expected a file after @")
            files.append(file)
        else:
            other_words.append(word)
    return files, other_words


def _resolved(ctx: click.Context, words: Sequence[str], named: JsonMapping, source: str, complete: bool) -> Evaluation:
    """Return the evaluation for these words. Set `complete` if they are all settings of a run, including defaults."""
    ctx.args = list(words)
    config = settings(EvalConfig, ctx, bare="env", **named)
    file_name, table = ("", {}) if complete else _defaults(config)
    if not table:
        return Evaluation(source, config, "")
    for key in table:
        if key not in ENVIRONMENT_DEFAULTS:
            raise ConfigError(f"{file_name}: unknown setting '{key}'; {nearest(key, ENVIRONMENT_DEFAULTS)}")
    ctx.args = [*as_words(table), *words]
    with error_source(file_name):
        whole = settings(EvalConfig, ctx, bare="env", **named)
    used = [key for key in table if getattr(whole, key) != getattr(config, key)]
    return Evaluation(source, whole, f"{file_name}: {', '.join(used)}" if used else "")


def _defaults(config: EvalConfig) -> tuple[str, JsonObject]:
    """Return an environment's defaults and their location: `[tool.rove.eval]`, else the table for verifiers."""
    file, table = environment_defaults(config.env, config.env_dir)
    if table:
        return f"{file}, [tool.rove.eval]", table
    file, table = environment_defaults(config.env, config.env_dir, compat.NAME)
    return f"{file}, [tool.{compat.NAME}.eval]", {key: table[key] for key in compat.EVAL_DEFAULTS if key in table}


def print_settings(evaluations: Sequence[Evaluation], is_suite: bool, as_json: bool) -> None:
    """Print all settings as an equivalent TOML file; several evaluations as `[[eval]]` tables."""
    plain = [_without_none(msgspec.to_builtins(evaluation.config)) for evaluation in evaluations]
    if as_json:
        print_json(plain if is_suite else plain[0])
        return
    for position, (evaluation, values) in enumerate(zip(evaluations, plain)):
        comments = f"# {evaluation.source}\n" if evaluation.source else ""
        if evaluation.defaults:
            comments += f"# from {evaluation.defaults}\n"
        if position > 0:
            comments = f"\n{comments}"
        text = tomli_w.dumps({"eval": [values]} if is_suite else values)
        click.echo(inert(comments) + inert_toml(text), nl=False)


def _without_none(values: JsonMapping) -> JsonObject:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


Runner = Callable[[EvalConfig, Reporter, str], tuple[EvaluationResult, Run | None]]
"""`rove.stages.evaluation.run_eval`: (settings, reporter, title) → (result, run folder)."""


def run_suite(evaluations: Sequence[Evaluation], run: Runner, console: Console, as_json: bool) -> int:
    """Run evaluations one after another, also after failures; print a summary and return the exit status."""
    rows: list[JsonObject] = []
    for position, (evaluation, differing) in enumerate(zip(evaluations, varied(evaluations)), start=1):
        config = evaluation.config
        for name in ("env", "model", "run_dir"):
            differing.pop(name, None)
        row = {"env": config.env, "model": config.model, "settings": differing}
        progress = f"{position}/{len(evaluations)} {config.env}"
        title = " · ".join([progress, short(config.model), *_pairs(differing)])
        try:
            result, folder = run(config, ConsoleReporter(console), title)
            rows.append({**row, **result.to_dict(), "run": str(folder.path) if folder else None})
        except Exception as error:
            message = str(error) if isinstance(error, Error) else traceback_text(error)
            console.print(f"{evaluation.source}: {message}", style="red", soft_wrap=True)
            rows.append({**row, "place": evaluation.source, "error": f"{type(error).__name__}: {error}", "run": None})
        release_memory()
    if as_json:
        print_json(rows)
    else:
        _print_rows(rows, console)
    return int(any(not _is_sound(row) for row in rows))


def _is_sound(row: JsonMapping) -> bool:
    """Return whether an evaluation finished with a meaningful mean reward."""
    if "error" in row or row.get("broken_rewards"):
        return False
    return bool(row["scored"] or not row["failed"])


def steps_to_complete(summaries: Sequence[JsonMapping]) -> list[str]:
    """Return hints how to run the missing and failed rollouts of evaluations."""
    code_errors: Counter[str] = Counter()
    is_incomplete = False
    for summary in summaries:
        is_incomplete |= "error" in summary or summary.get("not_run", 0) != 0
        for label, count in summary.get("errors", {}).items():
            error_type = label.rpartition(": ")[2]
            if error_type in CODE_ERRORS:
                code_errors[label] += count
            elif error_type != "ConfigError":  # its message states the fix
                is_incomplete = True
    steps: list[str] = []
    if code_errors:
        listed = ", ".join(sorted(code_errors))
        steps.append(f"fix the environment's code ({listed}), then repeat the command: without a fix, it fails again")
    if is_incomplete:
        steps.append("repeat the command to run what is missing or failed")
    return steps


def _print_rows(rows: Sequence[JsonMapping], console: Console) -> None:
    console.print(suite_table(rows))
    stopped = [row for row in rows if "error" in row]
    if stopped:
        console.print(f"{len(stopped)} of {len(rows)} evaluations did not finish:", style="red")
    for row in stopped:
        console.print(f"  {row['place']}: {row['error'].splitlines()[0]}", soft_wrap=True)
    for row in rows:
        for name, error in row.get("broken_rewards", {}).items():
            message = f"{row['env']} · {short(row['model'])}: {broken_reward(name, error)}"
            console.print(message, style="red", soft_wrap=True)
    steps = steps_to_complete(rows)
    for a, b in itertools.combinations((row for row in rows if row["run"]), 2):
        if a["env"] == b["env"]:
            steps.append(f"compare two of them: rove compare {a['run']} {b['run']}")
            break
    hint(console, *steps)


LABEL_WIDTH = 16
"""Maximum width of a name in the table of several evaluations, in columns."""


def suite_table(rows: Sequence[JsonMapping]) -> Table:
    """Return a table with one row per evaluation: model, environment, varied settings, and results."""
    noted = caveats(row["reward"] for row in rows if "error" not in row)
    table = Table(width=100, pad_edge=False, caption=noted or None, caption_justify="left")
    for name in ("environment", "model", "settings"):
        table.add_column(name, overflow="fold")
    has_pass_rates = any(row.get("pass@k") for row in rows)
    number_columns = ["n", "reward, 95%", "failed"]
    if has_pass_rates:
        number_columns.insert(2, "pass@1")
    for name in number_columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        labels = (
            folded(row["env"], LABEL_WIDTH),
            folded(short(row["model"]), LABEL_WIDTH),
            "\n".join(folded(pair, LABEL_WIDTH) for pair in _pairs(row["settings"])),
        )
        if "error" in row:
            cells = ["–"] * (len(number_columns) - 1)
            table.add_row(*labels, *cells, styled(("stopped", "red")))
            continue
        cells = [str(row["scored"]), f"{number(row['reward']['mean'])} {interval(row['reward'], 2)}"]
        if has_pass_rates:
            cells.append(number(row["pass@k"].get("1", {}).get("mean")))
        table.add_row(*labels, *cells, str(row["failed"]))
    return table


def _pairs(settings: JsonMapping) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value is not None]
