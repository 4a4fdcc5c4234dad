"""`rove view` and `rove report`: look at runs, in the browser or as one file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from rove.cli.common import console_for, hint
from rove.cli.options import examples, in_range
from rove.core.errors import ConfigError
from rove.core.ranges import NonNegativeInt, Port
from rove.runs.layout import is_train_folder
from rove.runs.run import Run
from rove.runs.train_folder import TrainFolder
from rove.stages.naming import RUNS
from rove.utils.event_loop import run_async
from rove.utils.terminal_text import inert
from rove.viewer.report import MAX_ROLLOUTS, markdown, stages_markdown, write_report, write_stages_report


@click.command(
    epilog=examples(
        "rove view",
        "rove view runs/mine --open",
        "rove view --annotate   # allow tags and notes",
    )
)
@click.argument("folder", metavar="[RUNS_DIR]", type=click.Path(path_type=Path), default=RUNS)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; if other machines can reach it, access requires a token.",
)
@click.option(
    "--port",
    type=in_range(Port),
    default=8123,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--annotate", is_flag=True, help="Allow viewers to tag runs and rollouts, and to write notes.")
@click.option("--open", "opened", is_flag=True, help="Also open the page in the browser.")
def view_command(folder: Path, host: str, port: int, annotate: bool, opened: bool) -> None:
    """View runs in the browser: rollouts, training progress, comparisons.

    RUNS_DIR is a folder of run folders, or a single run folder.  [default: runs]

    The viewer only reads run folders, so it also works during a run, after a crash, and with runs from other people.
    """
    from rove.server import is_loopback
    from rove.viewer.app import serve_viewer
    from rove.viewer.run_store import RunStore

    store = RunStore(folder, annotate)
    console = console_for(False)
    token = None if is_loopback(host) else secrets.token_urlsafe(16)

    def started(url: str) -> None:
        console.print(f"showing {folder} at {url} (Ctrl-C stops it)", soft_wrap=True)
        if token:
            console.print(
                "warning: anyone with this address can read your runs; it is sent unencrypted", style="yellow"
            )
        if opened:
            click.launch(url)

    try:
        run_async(serve_viewer(store, host, port, token, started))
    except KeyboardInterrupt:
        console.print("stopped")


FILE = "report.html"
"""File name of a run's report."""


@click.command(epilog=examples("rove report runs/mine", "rove report runs/mine --markdown"))
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--html", type=click.Path(path_type=Path), help=f"HTML file to write.  [default: RUN/{FILE}]")
@click.option(
    "--markdown",
    "as_markdown",
    is_flag=True,
    help="Print a Markdown summary for a pull request; write HTML only with --html.",
)
@click.option(
    "--rollouts",
    type=in_range(NonNegativeInt),
    default=MAX_ROLLOUTS,
    show_default=True,
    help="Maximum number of rollouts in the report.",
)
def report_command(run: Path, html: Path | None, as_markdown: bool, rollouts: int) -> None:
    """Write a report of the evaluation or training run in the folder RUN: one HTML file that can be read offline.

    RUN can also be the folder of `rove train`, with all of its stages.
    """
    if html is not None and html.suffix not in (".html", ".htm"):  # a typo must not overwrite a file of the run
        raise ConfigError(f"--html is '{html}'; expected a file name that ends in .html")
    stages = TrainFolder(run) if run.is_dir() and is_train_folder(os.listdir(run)) else None
    console = console_for(as_markdown)
    if as_markdown:
        summary = markdown(Run(run)) if stages is None else stages_markdown(stages)
        click.echo(inert(summary), nl=False)
    if html is not None or not as_markdown:
        file = html or run / FILE
        written = write_report(Run(run), file, rollouts) if stages is None else write_stages_report(stages, file)
        console.print(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    if not as_markdown:
        hint(console, f"summarize it for a pull request: rove report {run} --markdown")
