"""`rove`: parse, call one public function, print. Sub-commands are imported when they are used."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

import click

from rove import compat
from rove.cli import confirm as asking
from rove.cli import environments
from rove.core.errors import ConfigError, Error, nearest

COMMANDS = {
    "init": ("rove.cli.init", "Scaffold a new environment package."),
    "build": ("rove.cli.build", "Make a package of an environment."),
    "eval": ("rove.cli.eval", "Evaluate a model in an environment."),
    "compare": ("rove.cli.compare", "Say whether one run is better than another."),
    "view": ("rove.cli.view", "Look at runs in the browser, also while they go on."),
    "report": ("rove.cli.report", "Make a page of a run to read or send."),
    "rescore": ("rove.cli.rescore", "Score the rollouts of a run again with a changed rubric."),
    "export": ("rove.cli.export", "Write the rollouts of a run as a dataset."),
    "model": ("rove.cli.model", "Make small models from scratch."),
    "sft": ("rove.cli.sft", "Fine-tune a model on filtered rollouts."),
    "rl": ("rove.cli.rl", "Train a model in an environment with RL."),
    "doctor": ("rove.cli.doctor", "Check an endpoint, or a training run before it starts."),
    "check": ("rove.cli.check", "Say whether environment packages run here, and what they need."),
    "serve": ("rove.cli.serve", "Serve a model with OpenAI's API."),
    "play": ("rove.cli.play", "Play an environment yourself, or against a model."),
    "hub": ("rove.cli.hub", "Run a hub, where environments are shared as packages; log in to one."),
    "push": ("rove.cli.push", "Publish an environment on a hub, and results in it."),
    "search": ("rove.cli.search", "Find environments on a hub."),
    "info": ("rove.cli.info", "Show what an environment on a hub is."),
    "install": ("rove.cli.install", "Install environments, each in a virtual environment of its own."),
    "list": ("rove.cli.list", "List the environments that are installed."),
    "uninstall": ("rove.cli.uninstall", "Take environments away."),
    "demo": ("rove.cli.demo", "Run the whole loop on a game: model, data, SFT, RL, table."),
}

KERNELS = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""How many compiled matrix products PyTorch's CPU libraries keep, unless the environment says so. By default 1,024 each: half
a gigabyte and more where shapes hardly ever come back, under a server's mixed requests as in RL, and not any faster."""

COMPAT = "--compat"
"""Flag of every command: rove stands for `verifiers` even where that is installed."""

GARBAGE = (100_000, 10, 10)
"""How many more objects there must be before Python looks for unreachable cycles among them (by default 700). It looks at
them all, the libraries' own too, over and over while rollouts are made: a fifth of the CPU time of sampling a small model."""


COMMON_OPTIONS = (
    click.Option([asking.FLAG], is_flag=True, expose_value=False, help="Answer every question with yes."),
    click.Option(
        [COMPAT],
        is_flag=True,
        expose_value=False,
        help="Use rove for `import verifiers` even if verifiers is installed.",
    ),
)
"""Options of every command, for its help; `LazyGroup.parse_args` reads them."""


def add_common_options(command: click.Command) -> click.Command:
    """List the common options in the help of a command and of its sub-commands; return the command."""
    known = {name for param in command.params for name in param.opts}
    command.params += [option for option in COMMON_OPTIONS if not known & {*option.opts}]
    for below in getattr(command, "commands", {}).values():
        add_common_options(below)
    return command


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the loop."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        return add_common_options(importlib.import_module(COMMANDS[cmd_name][0]).command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take --compat and --yes out, wherever they stand: they are of all commands."""
        asking.answer_all(asking.FLAG in args)
        environments.offer()
        if COMPAT in args:
            compat.install(replace=True)
        else:
            compat.install_fallback()
        return super().parse_args(ctx, [word for word in args if word not in (COMPAT, asking.FLAG)])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command, or say which was probably meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command '{args[0]}'; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from their one-line descriptions."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --run_dir is --run-dir
}


@click.group(cls=LazyGroup, context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(package_name="rove", message="rove %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """rove: environments for language models. Evaluate, generate data, warm up with SFT, train with RL.

    Start with: rove eval tictactoe -m scripted:teacher

    Environments written for the library verifiers v0 run as they are where it is not installed; with --compat also where it is.
    OWNER/NAME is an environment of a hub, installed when it is first used, after a question; --yes answers it.
    """
    for variable, number in KERNELS.items():  # read once, by the import of torch, which no command has made yet
        os.environ.setdefault(variable, number)
    gc.set_threshold(*GARBAGE)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


add_common_options(cli)


def main() -> None:
    """Entry point: rove's own errors become one line, exit status 2 for a wrong setting, else 1; Ctrl-C becomes 130."""
    try:
        status = cli(prog_name="rove", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)  # click returns what a command gave to Exit
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Error as error:
        wrong = isinstance(error, ConfigError)
        if not (wrong and os.environ.get("LOCAL_RANK", "0") != "0"):  # of torchrun's, one on each machine tells it
            click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2 if wrong else 1)
    except (KeyboardInterrupt, click.Abort):
        click.secho("stopped; the same command continues where it was", fg="yellow", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written
        if error.filename is None and error.errno is None:
            raise
        click.secho(f"error: {error}", fg="red", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
