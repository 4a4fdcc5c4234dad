"""The commands of verifiers v0 (`vf-eval`, `vf-init`, `vf-install`, `vf-vllm`) as rove's commands with the same arguments.

The shim distribution installs them. Each prints the command that it runs.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_ENVIRONMENTS_FOLDER = "./environments"
"""Folder in which v0 looks for environments."""


class Option(NamedTuple):
    """An option of a command of v0."""

    names: tuple[str, ...]
    rove: str = ""
    """rove's option, `ARGUMENT` or `FOLDER`; without it, the option has no effect here."""
    is_flag: bool = False


ARGUMENT = "argument"
"""The value becomes the argument of rove's command."""
FOLDER = "folder"
"""The value is the folder that contains the environments."""

COMMANDS: dict[str, tuple[str, tuple[Option, ...]]] = {
    "vf-eval": (
        "eval",
        (
            Option(("-m", "--model"), "-m"),
            Option(("-n", "--num-examples"), "-n"),
            Option(("-r", "--rollouts-per-example"), "-r"),
            Option(("-c", "--max-concurrent", "--max-concurrent-requests"), "-c"),
            Option(("-t", "--max-tokens"), "-t"),
            Option(("-T", "--temperature"), "-T"),
            Option(("-S", "--sampling-args"), "-S"),
            Option(("-a", "--env-args"), "-a"),
            Option(("-b", "--api-base-url"), "-b"),
            Option(("-k", "--api-key-var"), "-k"),
            Option(("-e", "--endpoints-path"), "-e"),
            Option(("--env-dir-path",), "--env-dir"),
            Option(("--max-retries",), "--max_retries"),
            Option(("--resume",), "--resume"),
            Option(("-s", "--save-results", "--save-dataset"), "--save", is_flag=True),
            Option(("--max-concurrent-generation",)),
            Option(("--max-concurrent-scoring",)),
            Option(("-C", "--state-columns")),
            Option(("-f", "--save-every")),
            Option(("-v", "--verbose"), is_flag=True),
            Option(("-N", "--no-interleave-scoring"), is_flag=True),
            Option(("-i", "--independent-scoring"), is_flag=True),
            Option(("-d", "--disable-env-server"), is_flag=True),
        ),
    ),
    "vf-init": (
        "init",
        (
            Option(("-p", "--path"), "--dir"),
            Option(("--multi-file",), is_flag=True),
            Option(("--rewrite-readme",), is_flag=True),
        ),
    ),
    "vf-install": ("install", (Option(("-p", "--path"), FOLDER),)),
    "vf-vllm": (
        "serve",
        (
            Option(("--model",), ARGUMENT),
            Option(("--host",), "--host"),
            Option(("--port",), "--port"),
            Option(("--tensor-parallel-size",)),
            Option(("--data-parallel-size",)),
            Option(("--dtype",)),
            Option(("--gpu-memory-utilization",)),
            Option(("--enforce-eager",), is_flag=True),
            Option(("--disable-log-requests",), is_flag=True),
        ),
    ),
}
"""Command of v0 → rove's command, and the options."""


def translate(name: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return rove's arguments for the arguments of a v0 command, and the options that have no effect.

    Exits with status 2 if an option has no counterpart or lacks its value.
    """
    command, options = COMMANDS[name]
    values = vars(_parser(name).parse_args(arguments))
    names: list[str] = values["names"]
    folder = Path(_ENVIRONMENTS_FOLDER)
    translated: list[str] = []
    ignored: list[str] = []
    for option in options:
        value = values[option.names[-1]]
        if value in (None, False):
            continue
        if not option.rove:
            ignored.append(option.names[-1])
        elif option.rove == ARGUMENT:
            names = [value]
        elif option.rove == FOLDER:
            folder = Path(value)
        elif option.is_flag:
            translated.append(option.rove)
        else:
            translated += [option.rove, value]
    # v0 saves results only with -s; `rove eval` saves them by default.
    is_saved = "--save" in translated or "--resume" in translated
    if name == "vf-eval" and not is_saved:
        translated.append("--no-save")
    if name == "vf-install":
        names = [str(folder / environment.replace("-", "_")) for environment in names]
        # `rove install` makes a virtual environment by default; vf-install installed where it ran.
        translated += ["--into-current", "--yes"]
    return [command, *names, *translated], ignored


def _parser(name: str) -> argparse.ArgumentParser:
    command, options = COMMANDS[name]
    parser = argparse.ArgumentParser(name, description=f"Runs `rove {command}`.", allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME")
    for option in options:
        description = option.rove if option.rove.startswith("-") else ""
        if not option.rove:
            description = "has no effect"
        keywords: dict[str, Any] = {"action": "store_true"} if option.is_flag else {"metavar": "VALUE"}
        parser.add_argument(*option.names, dest=option.names[-1], help=description, **keywords)
    return parser


def run(name: str, arguments: Sequence[str]) -> int:
    """Run rove's command for a command of v0, and return its exit status."""
    translated, ignored = translate(name, arguments)
    # `rove install` also takes names on a hub, so a misspelled folder would be looked up there.
    if name == "vf-install":
        folders = [word for word in translated[1:] if not word.startswith("-")]
        missing = [folder for folder in folders if not Path(folder).is_dir()]
        if missing:
            sys.stderr.write(f"error: no folder {', '.join(missing)}; give the folder that contains it with --path\n")
            return 2
    if ignored:
        sys.stderr.write(f"{name} ignores {', '.join(ignored)}\n")
    sys.stderr.write(f"rove {shlex.join(translated)}\n")
    return subprocess.call([sys.executable, "-m", "rove", *translated])


def vf_eval() -> None:
    """Run `rove eval`."""
    sys.exit(run("vf-eval", sys.argv[1:]))


def vf_init() -> None:
    """Run `rove init`."""
    sys.exit(run("vf-init", sys.argv[1:]))


def vf_install() -> None:
    """Run `rove install` with a folder of ./environments."""
    sys.exit(run("vf-install", sys.argv[1:]))


def vf_vllm() -> None:
    """Run `rove serve`."""
    sys.exit(run("vf-vllm", sys.argv[1:]))
