"""`rove compare`: is run B better than run A?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape

from rove.cli.common import console_for, hint, print_json
from rove.cli.markdown import comparison_markdown
from rove.cli.tables import comparison_table, movers_table
from rove.core.errors import ConfigError, RunError
from rove.core.records import Outcome
from rove.runs.run import Run
from rove.statistics import Comparison, compare


def read_run(path: str) -> tuple[dict[str, Any], list[Outcome]]:
    """What a run folder was made with, as flat settings, and its scored rollouts; of one that was repeated, the last.

    Raises:
        RunError: it is no run folder, or has no scored rollout.
    """
    run = Run(path)
    config = run.config()
    counted = {line.number for line in run.kept().values()}
    last = [outcome for number, outcome in enumerate(run.outcomes()) if number in counted]
    if not last:
        raise RunError(f"{path} has no scored rollouts to compare; `rove eval` makes some")
    return _flat({"kind": config["kind"], **config["identity"]}), last


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as the command line has them."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def run_names(path_a: str, path_b: str) -> tuple[str, str]:
    """What to call two runs: the names of their folders, or where they lie when those are the same."""
    a, b = Path(path_a).resolve().name, Path(path_b).resolve().name
    return (a, b) if a != b else (path_a, path_b)


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The settings that are not the same, with both values; None where a run does not have one."""
    return {name: [a.get(name), b.get(name)] for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)}


def print_comparison(comparison: Comparison, settings: Mapping[str, list[Any]], console: Console) -> None:
    """The verdict, the tables behind it, and what differs between the runs."""
    console.print(f"[bold]{escape(comparison.verdict)}[/bold]", soft_wrap=True)
    if comparison.paired:
        b = escape(comparison.names[1])
        console.print(f"{b}: higher on {comparison.wins}, equal on {comparison.ties}, lower on {comparison.losses}")
    for note in comparison.notes:
        console.print(f"[yellow]{escape(note)}[/yellow]", soft_wrap=True)
    console.print(comparison_table(comparison))
    if comparison.up or comparison.down:
        console.print(movers_table(comparison))
    if settings:
        console.print("settings that differ:")
    for name, (old, new) in settings.items():
        console.print(f"  {escape(f'{name}: {_shown(old)} → {_shown(new)}')}", soft_wrap=True)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def next_steps(comparison: Comparison, kinds: set[str], runs: tuple[str, str]) -> list[str]:
    """What to do with the answer."""
    steps: list[str] = []
    needed = comparison.needed_examples or 0
    if not comparison.main.direction and needed > comparison.main.examples and kinds == {"eval"}:
        steps.append(f"more examples, in both runs: rove eval @ {runs[0]}/config.toml -n {needed}")
    if comparison.others:
        name = comparison.others[0].name
        steps.append(f"another value: rove compare {' '.join(runs)} --value {name}")
    return steps


@click.command()
@click.argument("run_a")
@click.argument("run_b")
@click.option("--value", default="reward", show_default=True, help="The reward, a reward function or a metric.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the comparison as Markdown for a pull request.")
def command(run_a: str, run_b: str, value: str, as_json: bool, as_markdown: bool) -> None:
    """Say whether RUN_B is better than RUN_A, both run folders, example by example.

    Only examples that both runs have scored count; the interval is of the difference between the runs. Of a rollout that
    was repeated the last one counts, of one that failed none.
    """
    if as_json and as_markdown:
        raise ConfigError("--json and --markdown were given; choose one of them")
    console = console_for(as_json or as_markdown)
    run_a, run_b = str(Path(run_a)), str(Path(run_b))
    (settings_a, a), (settings_b, b) = read_run(run_a), read_run(run_b)
    comparison = compare(a, b, value, names=run_names(run_a, run_b))
    settings = differing(settings_a, settings_b)
    if as_json:
        print_json({**msgspec.to_builtins(comparison), "runs": [run_a, run_b], "settings": settings})
        return
    if as_markdown:
        click.echo(comparison_markdown(comparison, settings), nl=False)
    else:
        print_comparison(comparison, settings, console)
    kinds = {settings_a["kind"], settings_b["kind"]}
    if "rl" in kinds:
        console.print("rollouts of RL are of a model that changes while it runs: compare evaluations instead")
    hint(console, *next_steps(comparison, kinds, (run_a, run_b)))
