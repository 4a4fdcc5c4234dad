"""`rove check`: check whether environment packages run here, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rove.check.checker import Report, check
from rove.check.package_files import Package
from rove.check.report import as_json, as_markdown, report_notes
from rove.check.rollouts import CheckLimits
from rove.cli.common import check_outputs, console_for, hint, indented_json, print_json
from rove.cli.options import env_dir_option, examples, json_object, setting_range
from rove.hub.client.installed import packages_named
from rove.stages.reporter import WIDTH, ConsoleReporter
from rove.utils.console import styled
from rove.utils.files import atomic_write

MIN_COMPARABLE_ROLLOUTS = 20
"""Minimum number of rollouts with which a mean reward is informative about a policy."""
STYLES = {"runs unchanged": "green", "runs with deviations": "green", "needs": "yellow", "cannot run": "red"}


def write(reports: Sequence[Report], outputs: tuple[str, ...]) -> None:
    """Write the compatibility matrix of these reports to every output file."""
    for output in outputs:
        is_page = Path(output).suffix == ".md"
        atomic_write(Path(output), as_markdown(reports).encode() if is_page else indented_json(as_json(reports)))


def print_report(report: Report, console: Console) -> None:
    """Print the report of a package in a few lines."""
    style = STYLES[report.status]
    console.print(styled((report.package, "bold"), "  ", (report.verdict, style)), soft_wrap=True)
    lines = {"written for": report.generation}
    lines |= {f"names of {api}": ", ".join(names) for api, names in report.names.items()}
    result = report.rollouts
    if result.rollouts:
        rewards = ", ".join(f"{name} {value:g}" for name, value in result.rewards.items())
        lines["rollouts"] = f"{result.rollouts}, {result.failed} failed"
        rollouts_per_policy = result.rollouts // max(1, len(result.rewards))
        note = ", too few to compare" if rollouts_per_policy < MIN_COMPARABLE_ROLLOUTS else ""
        lines[f"mean reward of {rollouts_per_policy} rollouts each{note}"] = rewards
    for name, text in lines.items():
        if text:
            console.print(f"  {name}: {text}", soft_wrap=True)
    for deviation in report.deviations:
        console.print(f"  differs: {deviation.text}: {deviation.remedy}", soft_wrap=True)
    for text in report_notes(report):
        console.print(f"  {text}", soft_wrap=True)


def print_summary(reports: Sequence[Report], console: Console) -> None:
    """Print reports of many packages, one line each."""
    table = Table(width=min(WIDTH, console.width))
    for name in ("package", "written for", "rollouts", "failed"):
        table.add_column(name, overflow="fold")
    table.add_column("verdict", ratio=1, overflow="fold")
    for report in reports:
        result = report.rollouts
        numbers = (str(result.rollouts), str(result.failed)) if result.rollouts else ("–", "–")
        table.add_row(report.package, report.generation, *numbers, styled((report.verdict, STYLES[report.status])))
    console.print(table)


@click.command(
    options_metavar="[OPTIONS]",
    epilog=examples(
        "rove check tictactoe",
        "rove check ./my-environment",
        "rove check environments/ -o matrix.md   # every package in a folder",
    ),
)
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE...")
@env_dir_option
@click.option("-a", "--env-args", help="Environment arguments as a JSON object, for every package.")
@click.option(
    "-n",
    "--num-examples",
    type=setting_range(CheckLimits, "num_examples"),
    default=CheckLimits().num_examples,
    show_default=True,
    help="Number of examples per package.",
)
@click.option(
    "-o", "--output", multiple=True, help="Write the compatibility matrix to FILE.md or FILE.json; repeatable."
)
@click.option("--json", "as_json_", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    packages: tuple[str, ...],
    env_dir: str | None,
    env_args: str | None,
    output: tuple[str, ...],
    as_json_: bool,
    num_examples: int,
) -> None:
    """Check whether environment packages run here, which API they are written for, and what they need.

    PACKAGE is a project folder, a wheel, a source distribution, a module, the name of an installed or example environment, or a
    folder of packages. Each is installed into its own virtual environment and runs scripted rollouts in a separate process,
    which sees the environment variables, including API keys. The exit status is 1 if a package does not run.
    """
    console = console_for(as_json_)
    args, limits = json_object(env_args, "-a") or {}, CheckLimits(num_examples=num_examples)
    check_outputs(output, (".md", ".json"))
    named_packages: list[Package] = []
    for argument in packages:
        named_packages += packages_named(argument, env_dir)
    reports: list[Report] = []
    with ConsoleReporter(console).progress("check", len(named_packages)) as report_progress:
        for package in named_packages:
            # The default binds the name now: the variable changes with the loop.
            def step(words: str, name: str = package.name) -> None:
                if console.is_terminal:
                    report_progress(len(reports), f"{name}: {words}")

            reports.append(check(package, args, limits, step))
            write(reports, output)
            report_progress(len(reports), f"{package.name}: {reports[-1].verdict}")
    if as_json_:
        print_json(as_json(reports))
    elif len(reports) == 1:
        print_report(reports[0], console)
    else:
        print_summary(reports, console)
    if not as_json_:
        _hints(packages, env_dir, named_packages, reports, output, console)
    ctx.exit(0 if all(report.runs for report in reports) else 1)


def _hints(
    arguments: Sequence[str],
    env_dir: str | None,
    packages: Sequence[Package],
    reports: Sequence[Report],
    output: tuple[str, ...],
    console: Console,
) -> None:
    steps = [f"matrix: {', '.join(output)}"] if output else []
    if len(reports) > 1 and not output:
        steps.append("write a matrix with all details: repeat the command with -o matrix.md")
    if len(reports) == 1 and reports[0].runs:
        steps.append(_next(arguments[0], env_dir, packages[0]))
    if steps:
        hint(console, *steps)


def _next(argument: str, env_dir: str | None, package: Package) -> str:
    """Return a hint for a package that runs."""
    if env_dir is None and Path(argument).exists() and package.kind != "module":
        return f"install it in its own virtual environment: rove install {argument}"
    folder = env_dir or package.env_dir
    env_dir_option = f" --env-dir {folder}" if folder is not None else ""
    return f"evaluate it in a separate process: rove eval --isolated {package.name}{env_dir_option} -m MODEL"
