"""`rove check`: what environment packages are written for, what they need, whether they run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rove.check.matrix import as_json, as_markdown, told_of
from rove.check.package import Report, check
from rove.check.packages import Package, packages_in
from rove.check.run import Limited
from rove.cli.common import WIDTH, console_for, hint, print_json, progress
from rove.cli.options import json_object
from rove.core.errors import ConfigError
from rove.hub.client.installed import find
from rove.hub.package.names import parse_reference
from rove.utils.files import atomic_write

STYLES = {"runs unchanged": "green", "runs with deviations": "green", "needs": "yellow", "cannot run": "red"}


def check_outputs(outputs: tuple[str, ...]) -> None:
    """Refuse a file that could not be written, before any work.

    Raises:
        ConfigError: its name or its folder is wrong.
    """
    for output in outputs:
        if Path(output).suffix not in (".md", ".json"):
            raise ConfigError(
                f"-o {output}: the matrix is written as Markdown or JSON; give a name that ends in .md or .json"
            )
        if not Path(output).parent.is_dir():
            raise ConfigError(f"-o {output}: there is no folder {Path(output).parent}")


def write(reports: Sequence[Report], outputs: tuple[str, ...]) -> None:
    """The matrix so far, into every file."""
    for output in outputs:
        if Path(output).suffix == ".md":
            content = as_markdown(reports).encode()
        else:
            content = msgspec.json.format(msgspec.json.encode(as_json(reports)), indent=1) + b"\n"
        atomic_write(Path(output), content)


def print_report(report: Report, console: Console) -> None:
    """One package in a few lines."""
    style = STYLES[report.status]
    console.print(f"[bold]{escape(report.package)}[/bold]  [{style}]{escape(report.verdict)}[/{style}]", soft_wrap=True)
    lines = {"written for": report.generation}
    lines |= {f"names of {api}": ", ".join(names) for api, names in report.names.items()}
    played = report.played
    if played.rollouts:
        rewards = ", ".join(f"{name} {value:g}" for name, value in played.rewards.items())
        lines["rollouts"] = f"{played.rollouts}, {played.failed} failed"
        lines["mean reward"] = rewards
    for name, text in lines.items():
        if text:
            console.print(f"  {name}: {escape(text)}", soft_wrap=True)
    for one in report.deviations:
        console.print(f"  differs: {escape(one.what)}: {escape(one.here)}", soft_wrap=True)
    for text in told_of(report):
        console.print(f"  {escape(text)}", soft_wrap=True)


def print_summary(reports: Sequence[Report], console: Console) -> None:
    """Many packages, a line each."""
    table = Table(width=min(WIDTH, console.width))
    for name in ("package", "written for", "rollouts", "failed"):
        table.add_column(name, overflow="fold")
    table.add_column("verdict", ratio=1, overflow="fold")
    for report in reports:
        played = report.played
        numbers = (str(played.rollouts), str(played.failed)) if played.rollouts else ("–", "–")
        table.add_row(report.package, report.generation, *numbers, Text(report.verdict, STYLES[report.status]))
    console.print(table)


@click.command(options_metavar="[OPTIONS]")
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE...")
@click.option("-a", "--env-args", help="Environment arguments as JSON, for every package.")
@click.option("-n", "--num-examples", default=Limited().num_examples, show_default=True, help="Examples to play.")
@click.option("-o", "--output", multiple=True, help="Write the matrix to FILE.md or FILE.json; may be given twice.")
@click.option("--start-seconds", default=Limited().start_seconds, show_default=True, help="For loading a package.")
@click.option("--hang-seconds", default=Limited().hang_seconds, show_default=True, help="For one thing it does.")
@click.option("--play-seconds", default=Limited().play_seconds, show_default=True, help="For all its rollouts.")
@click.option("--install-seconds", default=Limited().install_seconds, show_default=True, help="For what it needs.")
@click.option("--json", "as_json_", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    packages: tuple[str, ...],
    env_args: str | None,
    output: tuple[str, ...],
    as_json_: bool,
    **limits: Any,
) -> None:
    """Say whether environment packages run here, and what they are written for and need.

    PACKAGE is a project's folder, a wheel, a source distribution, a module, the name of an installed environment or of an
    example, or a folder of such. Each is installed into a virtual environment of its own and plays scripted rollouts in a
    process of its own. It sees the environment variables, keys included. Exit status 1: not all of them run.
    """
    console = console_for(as_json_)
    args, limited = json_object(env_args, "-a") or {}, Limited(**limits)
    check_outputs(output)
    found = [one for given in packages for one in _packages(given)]
    reports: list[Report] = []
    with progress(console, "check", len(found)) as tell:
        for package in found:

            def step(words: str, name: str = package.name) -> None:
                if console.is_terminal:
                    tell(len(reports), escape(f"{name}: {words}"))

            reports.append(check(package, args, limited, step))
            write(reports, output)
            tell(len(reports), escape(f"{package.name}: {reports[-1].verdict}"))
    if as_json_:
        print_json(as_json(reports))
    elif len(reports) == 1:
        print_report(reports[0], console)
    else:
        print_summary(reports, console)
    if not as_json_:
        _hints(packages, found, reports, output, console)
    ctx.exit(0 if all(report.runs for report in reports) else 1)


def _packages(given: str) -> list[Package]:
    """What a word of the command line means; an environment of a hub is its wheel, beside its virtual environment."""
    installed = find(parse_reference(given)) if "/" in given and not Path(given).exists() else None
    if installed is None:
        return packages_in(given)
    [wheel] = installed.path.glob("*.whl")
    return [Package(given, "wheel", wheel)]


def _hints(
    given: Sequence[str],
    packages: Sequence[Package],
    reports: Sequence[Report],
    output: tuple[str, ...],
    console: Console,
) -> None:
    steps = [f"the matrix: {', '.join(output)}"] if output else []
    if len(reports) > 1 and not output:
        steps.append("the matrix with all that was found: the same command with -o matrix.md")
    if len(reports) == 1 and reports[0].runs:
        steps.append(_next(given[0], packages[0]))
    if steps:
        hint(console, *steps)


def _next(given: str, package: Package) -> str:
    """What to do with a package that runs, so that it works where it was checked."""
    if Path(given).exists() and package.kind != "module":
        return f"install it, in a virtual environment of its own: rove install {given}"
    where = f" --env-dir {package.env_dir}" if package.env_dir is not None else ""
    return f"evaluate it in a process of its own: rove eval --isolated {package.name}{where} -m MODEL"
