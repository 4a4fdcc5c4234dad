"""`rove compare`: compare two runs, example by example."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.options import examples, json_option
from rove.core.errors import ConfigError
from rove.stages.comparison import (
    ComparedRun,
    comparison_markdown,
    named_models,
    read_questions,
    read_run,
)
from rove.stages.tables import movers_table
from rove.statistics import Comparison, compare
from rove.statistics.compare import ANY_FLAG, check_comparable, comparison_table, differing, run_names
from rove.utils.terminal_text import inert


def print_comparison(
    comparison: Comparison, settings: Mapping[str, list[Any]], questions: Mapping[str, str], console: Console
) -> None:
    """Print the verdict, the tables, and the settings that differ.

    Args:
        questions: The questions of the examples that changed most; see `read_questions`.
    """
    console.print(comparison.verdict, style="bold", soft_wrap=True)
    if comparison.paired:
        b = comparison.names[1]
        console.print(f"{b}: higher on {comparison.wins}, equal on {comparison.ties}, lower on {comparison.losses}")
    for note in comparison.notes:
        console.print(note, style="yellow", soft_wrap=True)
    console.print(comparison_table(comparison, console.width))
    if comparison.up or comparison.down:
        console.print(movers_table(comparison, questions, console.width))
    if settings:
        console.print("settings that differ:")
    for name, (old, new) in settings.items():
        console.print(f"  {name}: {_shown(old)} → {_shown(new)}", soft_wrap=True)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def next_steps(comparison: Comparison, runs: tuple[ComparedRun, ComparedRun], paths: tuple[str, str]) -> list[str]:
    """Return hints for the next step."""
    a, b = map(shlex.quote, paths)
    steps: list[str] = []
    needed = comparison.needed_examples or 0
    can_add_examples = all(run.settings["kind"] == "eval" and not run.has_all_examples for run in runs)
    if not comparison.main.direction and needed > comparison.main.examples and can_add_examples:
        commands = [f"rove eval --resume {run} -n {needed}" for run in (a, b)]
        steps.append(f"evaluate more examples in both runs: {' && '.join(commands)}")
    if comparison.others:
        name = comparison.others[0].name
        steps.append(f"compare another value: rove compare {a} {b} --value {shlex.quote(name)}")
    return steps


@click.command(
    epilog=examples(
        "rove compare runs/before runs/after",
        "rove compare runs/before runs/after --value win",
        "rove compare runs/before runs/after --markdown   # for a pull request",
    )
)
@click.argument("run_a")
@click.argument("run_b")
@click.option(
    "--value",
    default="reward",
    show_default=True,
    help="Value to compare: reward, or the name of a reward function or metric.",
)
@json_option
@click.option(ANY_FLAG, "any_environment", is_flag=True, help="Also compare runs of different environments or data.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the comparison as Markdown for a pull request.")
def command(run_a: str, run_b: str, value: str, any_environment: bool, as_json: bool, as_markdown: bool) -> None:
    """Compare two run folders, RUN_A and RUN_B, example by example.

    Only examples that both runs scored are compared; the interval is the confidence interval of the difference. If a rollout
    was repeated, the last attempt counts. Failed rollouts are excluded. Runs of different environments are refused, and so are
    runs without common examples whose environments have different versions, arguments or data.
    """
    if as_json and as_markdown:
        raise ConfigError("--json and --markdown exclude each other; choose one")
    console = console_for(as_json or as_markdown)
    run_a, run_b = str(Path(run_a)), str(Path(run_b))
    a, b = read_run(run_a), read_run(run_b)
    if not any_environment:
        keys_a, keys_b = ({outcome.example_key for outcome in run.outcomes} for run in (a, b))
        check_comparable(a.settings, b.settings, bool(keys_a & keys_b))
    comparison = compare(a.outcomes, b.outcomes, value, names=run_names(Path(run_a), Path(run_b)))
    settings = differing(a.settings, b.settings)
    if as_json:
        content = {"runs": [run_a, run_b], "settings": settings, "questions": read_questions(run_b, comparison)}
        print_json({**msgspec.to_builtins(comparison), **content})
        return
    settings = named_models(settings, a, b)
    if as_markdown:
        click.echo(inert(comparison_markdown(comparison, settings, (a, b))), nl=False)
    else:
        print_comparison(comparison, settings, read_questions(run_b, comparison), console)
    if "rl" in (a.settings["kind"], b.settings["kind"]):
        console.print("the model of an RL run changes during the run: compare evaluations instead")
    hint(console, *next_steps(comparison, (a, b), (run_a, run_b)))
