"""`rove audit`: look for rewards that can be earned without doing the task."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rove.audit.acceptance import accept_findings, read_baseline_file
from rove.audit.auditor import AuditOptions
from rove.audit.card import card_markdown, check_train_folder, make_card
from rove.audit.findings import Report, shortened
from rove.audit.report import json_report, junit_report, markdown_report, sarif_report
from rove.audit.subject import OUT_OF_TIME
from rove.cli.audit_comparison import compare_audits
from rove.cli.common import check_outputs, console_for, hint, indented_json, print_json
from rove.cli.findings import print_findings
from rove.cli.options import (
    env_args_option,
    env_dir_option,
    examples,
    json_object,
    json_option,
    scorer_option,
    setting_range,
)
from rove.core.errors import ConfigError
from rove.core.findings import Severity, findings_by_area
from rove.core.plain import JsonObject
from rove.stages.auditing import located, run_audit
from rove.stages.clients import show_device
from rove.stages.naming import run_folder
from rove.stages.reporter import WIDTH, ConsoleReporter
from rove.utils.console import styled
from rove.utils.files import atomic_write

LEVELS = [severity.value for severity in Severity if severity > Severity.SKIPPED]
MAX_SHOWN_CHARS = 300
"""Maximum characters of a prompt or completion on the screen."""
SUFFIXES = (".md", ".json", ".sarif", ".xml")
"""Suffixes of report files."""
CARD_SUFFIXES = (".md", ".json")


def print_checks(console: Console) -> None:
    """Print the catalog of checks."""
    table = Table("id", "looks for", "usual fix", width=WIDTH)
    for name, info in findings_by_area()["audit"].items():
        table.add_row(name, info.title, info.remedy)
    console.print(table)


def print_report(report: Report, console: Console) -> None:
    """Print the findings, the most severe first, with their evidence."""
    if report.findings:
        print_findings(report.findings, f"audit of {report.env}", console)
    else:
        console.print(styled((report.env, "bold"), f": {report.without_findings}"))
    for finding in report.findings:
        if finding.severity >= Severity.MEDIUM and not finding.accepted:
            console.print(f"\n{finding.id}", style="bold", soft_wrap=True)
            for name in ("prompt", "completion"):
                text = shortened(" ".join(getattr(finding, name).split()), MAX_SHOWN_CHARS)
                if text:
                    console.print(f"  {name}: {text}", soft_wrap=True)
            console.print(f"  usual fix: {finding.remedy}", soft_wrap=True)
            console.print(f"  repeat: {report.command(finding.id)}", soft_wrap=True)
    unmatched = [f"no finding matches this entry of the baseline file any more: {entry}" for entry in report.unmatched]
    for text in [*report.known_defects, *unmatched]:
        console.print(f"\n{text}", soft_wrap=True)
    console.print(f"\n{report.rollouts:,} rollouts, {report.cpu_seconds:g} CPU-s; {report.done}")
    for text in report.not_done:
        console.print(f"  not done: {text}", soft_wrap=True)
    for text in filter(None, (report.power, report.clean_checks)):
        console.print(f"  {text}", soft_wrap=True)
    if OUT_OF_TIME in report.skipped.values():
        default = AuditOptions().seconds
        console.print(f"  to give the checks more time: --seconds N (of wall time; default {default:g})")


def write(report: Report, output: str, fail_on: Severity) -> None:
    """Write a report to a file; its suffix chooses the format."""
    suffix = Path(output).suffix
    if suffix == ".md":
        content = markdown_report([report]).encode()
    elif suffix == ".sarif":
        content = indented_json(sarif_report([report]))
    elif suffix == ".xml":
        content = junit_report([report], fail_on)
    else:
        content = indented_json(json_report(report))
    atomic_write(Path(output), content)


def write_files(
    report: Report, outputs: tuple[str, ...], fail_on: Severity, cards: tuple[str, ...], trained: str | None
) -> None:
    """Write a report and the environment's card to files; suffixes choose the formats."""
    for file in outputs:
        write(report, file, fail_on)
    for file in map(Path, cards):
        card = make_card(report, trained)
        is_page = file.suffix == ".md"
        atomic_write(file, card_markdown(card).encode() if is_page else indented_json(card))


def _learner_settings(learn: bool, device: str | None, folder: Path, seed: int, console: Console) -> JsonObject | None:
    """Return the settings of the learner, and print its device; None without --learn."""
    if not learn:
        if device is not None:
            raise ConfigError(f"--device is '{device}', but no model is trained: add --learn, or leave it out")
        return None
    show_device(device or "auto", ConsoleReporter(console))
    return {"folder": folder, "seed": seed, "device": device or "auto"}


def _check_comparison(env: str | None, learn: bool, baseline: str | None, card: tuple[str, ...]) -> None:
    """Refuse arguments that do not go with --compare."""
    if env is not None:
        raise ConfigError(f"--compare OLD NEW takes no other environment; remove '{env}'")
    if baseline is not None:
        raise ConfigError(f"--compare reports what is new, even if '{baseline}' accepts it; remove --baseline")
    if learn:
        raise ConfigError("--compare trains no model: write two reports with --learn -o FILE.json, and compare these")
    if card:
        raise ConfigError("--card is for one environment; remove it or --compare")


@click.command(
    epilog=examples(
        "rove audit tictactoe",
        "rove audit my_task --only blind-reply --only hedging",
        "rove audit my_task --learn                           # a tiny model looks for holes by RL",
        "rove audit my_task -o audit.sarif                    # in CI",
        "rove audit questions.jsonl --scorer numeric          # a file of questions",
        "rove audit --compare v1/my_task v2/my_task           # what a fix closed, and what it costs",
        "rove audit --list                                    # all checks",
    )
)
@click.argument("env", required=False)
@env_args_option
@env_dir_option
@scorer_option
@click.option(
    "-n",
    "--num-examples",
    type=setting_range(AuditOptions, "num_examples"),
    default=60,
    show_default=True,
    help="Number of examples that each policy answers.",
)
@click.option("--only", multiple=True, help="Run only this check; repeatable.  [default: all]")
@click.option("--skip", multiple=True, help="Skip this check; repeatable.")
@click.option(
    "--seconds",
    type=setting_range(AuditOptions, "seconds"),
    default=600.0,
    show_default=True,
    help="Time budget in seconds of wall time; --learn gets an additional budget of the same size.",
)
@click.option(
    "--seed", type=setting_range(AuditOptions, "seed"), default=0, show_default=True, help="Random seed of the audit."
)
@click.option(
    "-o", "--output", multiple=True, help="Write the report to a file: .md, .json, .sarif or .xml (JUnit); repeatable."
)
@click.option(
    "--fail-on",
    type=click.Choice(LEVELS),
    default=Severity.MEDIUM.value,
    show_default=True,
    help="Lowest severity of a finding that sets exit status 1.",
)
@click.option(
    "--card",
    multiple=True,
    metavar="FILE",
    help="Write a page about the environment for its README (.md) or for the hub (.json); repeatable.",
)
@click.option(
    "--trained",
    metavar="FOLDER",
    help="Folder of a finished rove train, whose results the card shows.  [default: none]",
)
@click.option(
    "--baseline",
    metavar="FILE",
    help="Accept the findings that a TOML file lists with reasons: they are shown, but do not set the exit status.",
)
@click.option(
    "--learn", is_flag=True, help="Train a tiny model with RL, and check whether its reward comes from doing the task."
)
@click.option("--device", help="Device of the model that --learn trains.  [default: auto]")
@click.option(
    "--judge",
    metavar="MODEL",
    help="Also use MODEL as the environment's judge, and try to inject instructions into it.",
)
@click.option("--run-dir", type=click.Path(), help="Folder for the learner's runs.  [default: runs/ENV--audit--hash]")
@click.option(
    "--compare",
    nargs=2,
    metavar="OLD NEW",
    help="Compare two versions of an environment: names, paths, or reports written by -o FILE.json.",
)
@click.option("--list", "list_", is_flag=True, help="List the checks without an audit.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    env: str | None,
    env_args: str | None,
    env_dir: str | None,
    scorer: str | None,
    num_examples: int,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    seconds: float,
    seed: int,
    output: tuple[str, ...],
    fail_on: str,
    card: tuple[str, ...],
    trained: str | None,
    baseline: str | None,
    learn: bool,
    device: str | None,
    judge: str | None,
    run_dir: str | None,
    compare: tuple[str, str] | None,
    list_: bool,
    as_json: bool,
) -> None:
    """Audit ENV: try replies and policies that do not do the task, and report each one that earns a reward, with evidence.

    ENV is a name, a path, or a file of questions. The environment runs in a separate process, which sees the environment
    variables, including API keys. The exit status is 1 if a finding has at least the severity of --fail-on, or if an
    error ended a check.
    """
    console = console_for(as_json)
    if list_:
        print_checks(console)
        return
    settings = AuditOptions(num_examples=num_examples, only=only, skip=skip, seconds=seconds, seed=seed)
    args = (json_object(env_args, "-a") or {}) | ({"scorer": scorer} if scorer else {})
    if trained is not None and not card:
        raise ConfigError(f"--trained {trained} is for a card: add --card FILE, or leave it out")
    if compare:
        _check_comparison(env, learn, baseline, card)
        run = partial(run_audit, env_args=args, options=settings, reporter=ConsoleReporter(console), judge=judge)
        worst = compare_audits(compare, env_dir, run, console, output, as_json)
        ctx.exit(int(worst is not None and worst >= Severity(fail_on)))
    if env is None:
        raise ConfigError("no environment given: rove audit ENV")
    if "learned-reward" in only and not learn:
        raise ConfigError("the check 'learned-reward' trains a model; add --learn")
    check_outputs(output, SUFFIXES)
    check_outputs(card, CARD_SUFFIXES, "--card")
    accepted = [] if baseline is None else read_baseline_file(baseline)
    env, env_dir = located(env, env_dir)
    if trained is not None:
        check_train_folder(trained, env)
    folder = run_folder(run_dir, env, "audit", identity={"env_args": args, "seed": seed})
    learner = _learner_settings(learn, device, folder, seed, console)
    report = run_audit(env, env_dir, args, settings, ConsoleReporter(console), learner, judge)
    accept_findings(report, accepted)
    write_files(report, output, Severity(fail_on), card, trained)
    if as_json:
        print_json(json_report(report))
    else:
        print_report(report, console)
        curves = [f"curves and transcripts of the learner: rove view {folder}"] if learn else []
        hint(console, "all checks: rove audit --list", *curves)
    is_found = report.worst >= Severity(fail_on) and bool(report.open_findings)
    ctx.exit(int(is_found or bool(report.failed)))
