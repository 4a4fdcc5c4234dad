"""Helpers that the commands share: console, JSON, output files, hints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from rove.core.errors import ConfigError
from rove.stages.reporter import ConsoleReporter, plain_console
from rove.utils.terminal_text import inert_json


def console_for(json: bool) -> Console:
    """Return the console for messages: stderr with --json, so that stdout holds only JSON."""
    return plain_console(stderr=json)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout."""
    click.echo(inert_json(msgspec.json.encode(value).decode()))


def indented_json(value: Any) -> bytes:
    """Return the content of a JSON file that people read as well."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print warnings."""
    for warning in warnings:
        ConsoleReporter(console).warning(warning)


def check_outputs(outputs: Iterable[str], suffixes: Sequence[str], option: str = "-o") -> None:
    """Refuse output files that cannot be written, before any work is done."""
    for output in outputs:
        if Path(output).suffix not in suffixes:
            expected = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
            raise ConfigError(f"{option} {output}: expected a file name that ends in {expected}")
        if not Path(output).parent.is_dir():
            raise ConfigError(f"{option} {output}: the folder {Path(output).parent} does not exist")


def hint(console: Console, *lines: str) -> None:
    """Print suggestions for the next step."""
    ConsoleReporter(console).hints(*lines)
