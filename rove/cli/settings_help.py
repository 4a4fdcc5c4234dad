"""The option `--help-all`, which lists every setting of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from rove.core.settings_docs import settings_of


def help_all_option(load: Callable[[], type[msgspec.Struct]]) -> Callable[[Any], Any]:
    """Return a decorator that adds `--help-all`, which lists every setting of the command.

    Args:
        load: Imports and returns the settings struct; called only if the flag is given.
    """

    def show(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
        if not requested or ctx.resilient_parsing:  # shell completion parses without running anything
            return
        formatter = ctx.make_formatter()
        formatter.write(f"Settings of {ctx.command_path}: --KEY VALUE on the command line, KEY = VALUE in @ FILE.\n\n")
        for setting in settings_of(load()):
            default = "required" if setting.default == "required" else f"default: {setting.default}"
            formatter.write(f"{setting.name}  ({setting.type}; {default})\n")
            if setting.meaning:
                with formatter.indentation():
                    formatter.write_text(setting.meaning)
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="List every setting with its meaning and default, and exit.",
    )
