"""`rove report`: a run as one HTML file, or as Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from rove.cli.common import console_for, hint
from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.viewer.report import ROLLOUTS, markdown, write_report

FILE = "report.html"
"""The report of a run, in its folder."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--html", type=click.Path(path_type=Path), help=f"The file to write.  [default: RUN/{FILE}]")
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print a summary for a pull request; no file unless --html."
)
@click.option(
    "--rollouts", type=click.IntRange(min=0), default=ROLLOUTS, show_default=True, help="Rollouts shown at most."
)
def command(run: Path, html: Path | None, as_markdown: bool, rollouts: int) -> None:
    """Make a report of the run in the folder RUN, evaluation or training: one HTML file that needs no network."""
    if html is not None and html.suffix not in (".html", ".htm"):  # a slip must not replace a file of the run
        raise ConfigError(f"--html takes the name of an .html file, got '{html}'")
    folder = Run(run)
    console = console_for(as_markdown)
    if as_markdown:
        click.echo(markdown(folder), nl=False)
    if html is not None or not as_markdown:
        written = write_report(folder, html or run / FILE, rollouts)
        console.print(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB)", soft_wrap=True, markup=False)
    if not as_markdown:
        hint(console, f"a summary for a pull request: rove report {run} --markdown")
