"""`rove export`: export the rollouts of a run as a dataset."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.options import examples, json_option
from rove.core.errors import ConfigError
from rove.rollouts.export import FORMATS, RunRows, check_name, check_target, push, write_rows
from rove.rollouts.filters import FUNCTIONS, NAMES, Filter
from rove.runs.run import OWNED, Run


def form_of(to: str | None, output: Path | None, upload: bool) -> str:
    """Return the file format: `to`, else the format of the file's suffix, else jsonl."""
    by_suffix = {kind.suffix: form for form, kind in FORMATS.items() if kind.suffix}
    suffix = output.suffix if output else ""
    if to is None and not upload and suffix and suffix not in by_suffix:
        raise ConfigError(f"{output} ends in '{suffix}'; expected {', '.join(by_suffix)}, or give the form with --to")
    form = to or ("hf-dir" if upload else by_suffix.get(suffix, "jsonl"))
    if suffix in by_suffix and by_suffix[suffix] != form:
        raise ConfigError(f"{output} ends in '{suffix}', but the form is {form}; give another -o or leave --to out")
    if upload and form != "hf-dir":
        raise ConfigError(f"--push uploads a dataset folder; leave --to {form} out, or give --to hf-dir")
    return form


def target_of(run: Path, output: Path | None, form: str) -> Path:
    """Return the file or folder to write."""
    target = output or run / f"data{FORMATS[form].suffix}"
    if target.resolve() in {(run / name).resolve() for name in (*OWNED, "")}:
        raise ConfigError(f"{target} is part of the run; give another -o")
    check_target(target, form)
    return target


def print_rows(console: Console, run: Path, target: Path, form: str, count: int, rows: RunRows) -> None:
    """Print the counts and hints."""
    failed = f" ({rows.failed} failed rollouts excluded)" if rows.failed else ""
    message = f"{count} of {rows.scored} scored rollouts → {target}{failed}"
    console.print(message, soft_wrap=True)
    hint(
        console,
        f"load it: {FORMATS[form].load.format(target)}",
        f"or train on the run directly: rove sft --data {run} -m MODEL --min-reward R",
    )


@click.command(
    epilog=examples(
        "rove export runs/mine -o data.jsonl",
        "rove export runs/mine --filter 'reward >= 1 and not is_truncated' --to parquet",
        "rove export runs/mine --push me/my-dataset",
        note=f"Names in a filter: {', '.join(NAMES)}. Functions: {', '.join(FUNCTIONS)}.",
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--filter", "expression", help="Filter, such as 'metrics.win > 0 and not is_truncated'.  [default: all rollouts]"
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="Export only rollouts with at least one of these tags (see rove view --annotate); repeatable.",
)
@click.option("--not-tag", "not_tags", multiple=True, help="Leave out rollouts with this tag; repeatable.")
@click.option("--to", type=click.Choice(list(FORMATS)), help="File format.  [default: the suffix of -o, else jsonl]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File or folder to write.  [default: RUN/data…]")
@click.option(
    "--push", "upload", metavar="OWNER/NAME", help="Also upload to the Hugging Face Hub; a new dataset is private."
)
@json_option
def command(
    run: Path,
    expression: str | None,
    tags: tuple[str, ...],
    not_tags: tuple[str, ...],
    to: str | None,
    output: Path | None,
    upload: str | None,
    as_json: bool,
) -> None:
    """Export the scored rollouts of the folder RUN as dataset rows: prompt, completion, answer, reward, info, metrics, ….

    Failed rollouts are excluded. In a filter, metrics.NAME is the value of a reward function or metric.
    """
    passes = None if expression is None else Filter(expression)
    if upload is not None:
        check_name(upload)
    form = form_of(to, output, upload is not None)
    target = target_of(run, output, form)
    rows = RunRows(Run(run), passes, tags, not_tags)
    count = write_rows(rows, target, form)
    console = console_for(as_json)
    if not as_json:
        print_rows(console, run, target, form, count, rows)
    address = None if upload is None else push(target, upload)
    if as_json:
        counts = {"rows": count, "scored": rows.scored, "failed": rows.failed}
        print_json({**counts, "path": str(target), "form": form, "pushed": address})
    elif address is not None:
        console.print(f"uploaded: {address}", soft_wrap=True)
