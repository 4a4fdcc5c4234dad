"""`rove`: parse arguments, call one public function, print. Commands are imported when they are used."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import warnings
from typing import Any, NamedTuple

import click

from rove import compat
from rove.cli import environments
from rove.cli.options import YES_FLAG, assume_yes, examples
from rove.core.errors import ConfigError, Error, nearest
from rove.utils.processes import GC_THRESHOLDS, is_out_of_memory
from rove.utils.terminal_text import hide_progress_bars, inert, protect_terminal


class Entry(NamedTuple):
    """A command in the list of commands."""

    target: str
    """Location of the command: a module of rove.cli, followed by a colon and the function's name if the name is not `command`."""
    help: str


GROUPS: dict[str, dict[str, Entry]] = {
    "Start": {
        "demo": Entry("train:demo_command", "Run the whole loop on a game: model, data, SFT, RL, results."),
        "init": Entry("init", "Create a new environment package."),
        "play": Entry("play", "Play an environment yourself, or watch a model play."),
        "list": Entry("install:list_command", "List installed environments and rove's examples."),
    },
    "Evaluate": {
        "eval": Entry("eval:eval_command", "Evaluate a model in an environment."),
        "compare": Entry("compare", "Compare two runs."),
        "rescore": Entry("eval:rescore_command", "Score a run again with a changed rubric."),
        "serve": Entry("serve", "Serve a model as an OpenAI-compatible endpoint."),
    },
    "Train": {
        "model": Entry("model", "Download, create, and merge models."),
        "doctor": Entry("doctor", "Check an endpoint, or a training run before it starts."),
        "sft": Entry("sft", "Fine-tune a model on filtered rollouts."),
        "train": Entry("train:train_command", "Train a model in any environment: data, SFT, RL, results."),
        "rl": Entry("rl", "Train a model in an environment with RL."),
    },
    "Inspect": {
        "view": Entry("view:view_command", "View runs in the browser."),
        "report": Entry("view:report_command", "Write a report of a run as one HTML file."),
        "export": Entry("export", "Export the rollouts of a run as a dataset."),
    },
    "Share": {
        "audit": Entry("audit", "Look for rewards that can be earned without doing the task."),
        "check": Entry("check", "Check whether environment packages run here."),
        "build": Entry("publish:build_command", "Build an environment package."),
        "push": Entry("publish:push_command", "Publish an environment on a hub."),
        "search": Entry("install:search_command", "Search a hub for environments."),
        "info": Entry("install:info_command", "Show details of an environment on a hub."),
        "install": Entry("install:install_command", "Install environments, each in its own virtual environment."),
        "uninstall": Entry("install:uninstall_command", "Uninstall environments."),
        "hub": Entry("hub", "Run a hub, or log in to one."),
    },
}
COMMANDS: dict[str, Entry] = {}
for _entries in GROUPS.values():
    COMMANDS |= _entries

COMPAT_FLAG = "--compat"
"""Flag of every command: `import verifiers` is rove even if verifiers is installed."""

COMMON_OPTIONS = (
    click.Option([YES_FLAG], is_flag=True, expose_value=False, help="Answer all questions with yes."),
    click.Option(
        [COMPAT_FLAG],
        is_flag=True,
        expose_value=False,
        help="Use rove for `import verifiers` even if verifiers is installed.",
    ),
)
"""Options of every command, for its help; `LazyGroup.parse_args` reads them."""


def add_common_options(command: click.Command) -> click.Command:
    """Add the common options to the help of a command and of its subcommands; return the command."""
    options: set[str] = set().union(*(param.opts for param in command.params))
    command.params += [option for option in COMMON_OPTIONS if not options & {*option.opts}]
    for subcommand in getattr(command, "commands", {}).values():
        add_common_options(subcommand)
    return command


class LazyGroup(click.Group):
    """A click group that imports a command only when it runs, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].target.partition(":")
        return add_common_options(getattr(importlib.import_module(f"rove.cli.{module}"), name or "command"))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove --compat and --yes, which may appear anywhere, and apply them."""
        assume_yes(YES_FLAG in args)
        environments.register_finder()
        if COMPAT_FLAG in args:
            compat.install(replace=True)
        else:
            compat.install_fallback()
        return super().parse_args(ctx, [word for word in args if word not in (COMPAT_FLAG, YES_FLAG)])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; for an unknown name, suggest the nearest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command '{args[0]}'; {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups, without importing them."""
        width = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries.items()])


CONTEXT: dict[str, object] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --run_dir is --run-dir
}


@click.group(
    cls=LazyGroup,
    context_settings=CONTEXT,
    invoke_without_command=True,
    epilog=examples(
        "rove eval tictactoe -m scripted:teacher   # no key, network or GPU needed",
        "rove view                                 # look at the rollouts",
        "rove play tictactoe -m scripted:optimal   # play against a scripted policy",
        "rove demo tictactoe                       # train a model in minutes",
    ),
)
@click.version_option(package_name="rove", message="rove %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """rove: reinforcement learning environments for language models. Evaluate, generate data, fine-tune, train with RL.

    An environment is a module, a package in ./environments, an example of rove, or OWNER/NAME on a hub (rove offers to install
    it on first use). Environments written for verifiers v0 run unchanged; add --compat if verifiers itself is installed.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


add_common_options(cli)


def main() -> None:
    """Run the command line. Errors become one line; the exit status is 2 for a ConfigError, 130 for Ctrl-C, else 1."""
    protect_terminal()
    hide_progress_bars()
    try:
        status = cli(prog_name="rove", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)  # click returns the status of Exit
    except click.ClickException as error:
        output = io.StringIO()
        error.show(file=output)
        click.echo(inert(output.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except Error as error:
        is_config = isinstance(error, ConfigError)
        if not (is_config and os.environ.get("LOCAL_RANK", "0") != "0"):  # under torchrun, report it once per node
            click.secho(inert(f"error: {error}"), fg="red", err=True)
        sys.exit(2 if is_config else 1)
    except (KeyboardInterrupt, click.Abort):
        # Ctrl-C between the creation of a coroutine and its start leaves one that never runs; Python warns about it at exit.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        click.secho("stopped; repeat the command to continue", fg="yellow", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Python flushes stdout when it exits, and would report the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = inert(str(error).strip().partition("\n")[0])
        advice = (
            "use smaller settings, such as micro_batch_tokens or max_concurrent, and repeat the command to continue"
        )
        click.secho(f"error: out of memory{f' ({reason})' if reason else ''}; {advice}", fg="red", err=True)
        sys.exit(1)
    except OSError as error:  # such as a full disk or a read-only folder
        if error.filename is None and error.errno is None:
            raise
        click.secho(inert(f"error: {error}"), fg="red", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
