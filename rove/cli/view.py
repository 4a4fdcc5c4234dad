"""`rove view` and `rove report`: look at runs, in the browser, in the terminal or as one file."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from rove.cli.common import RUNS, console_for, hint, run_async
from rove.core.errors import ConfigError
from rove.runs.run import Run
from rove.viewer.report import ROLLOUTS, markdown, write_report


@click.command()
@click.argument("folder", metavar="[RUNS_DIR]", type=click.Path(path_type=Path), default=RUNS)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; beyond this machine it takes a token."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8123, show_default=True, help="0 = any that is free.")
@click.option("--annotate", is_flag=True, help="Let those who look tag runs and rollouts, and write notes.")
@click.option("--terminal", is_flag=True, help="Look at them in this terminal instead (extra: terminal).")
@click.option("--open", "opened", is_flag=True, help="Open it in the browser, too.")
def view_command(folder: Path, host: str, port: int, annotate: bool, terminal: bool, opened: bool) -> None:
    """Look at runs in the browser, or in the terminal: rollouts, training as it goes, comparisons.

    RUNS_DIR is a folder of run folders, or one of them.  [default: runs]

    Reads run folders and nothing else, so that it works while a run goes on, after a crash, and on somebody else's runs.
    """
    if terminal:
        _in_the_terminal(folder, annotate)
        return
    from rove.server import is_loopback
    from rove.viewer.app import serve_viewer
    from rove.viewer.run_store import RunStore

    shelf = RunStore(folder, annotate)
    console = console_for(False)
    token = None if is_loopback(host) else secrets.token_urlsafe(16)

    def started(url: str) -> None:
        console.print(f"looking at {folder}: {url} (Ctrl-C stops it)", markup=False, soft_wrap=True)
        if token:
            console.print("whoever has this address can read your runs; it is not encrypted on its way", style="yellow")
        if opened:
            click.launch(url)

    try:
        run_async(serve_viewer(shelf, host, port, token, started))
    except KeyboardInterrupt:
        console.print("stopped")


def _in_the_terminal(folder: Path, annotate: bool) -> None:
    try:
        from rove.cli.terminal import Terminal
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise ConfigError("--terminal needs the library textual: pip install 'rove[terminal]'") from error
    from rove.viewer.run_store import RunStore

    shelf = RunStore(folder, annotate)
    try:
        Terminal(shelf).run()
    finally:
        shelf.close()


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
def report_command(run: Path, html: Path | None, as_markdown: bool, rollouts: int) -> None:
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
