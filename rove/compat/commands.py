"""The commands of verifiers v0 (`vf-eval`, `vf-init`, `vf-install`, `vf-vllm`) as rove's commands with the same arguments.

The shim distribution installs them. Each prints the command that it runs.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_ENVIRONMENTS_FOLDER = "./environments"
"""Where v0 looks for environments."""


class Command(NamedTuple):
    """How the arguments of a command of v0 become those of a command of rove."""

    rove: str
    options: dict[str, str]
    """Option with a value → rove's option."""
    flags: dict[str, str]
    """Option without a value → rove's option."""
    ignored_options: tuple[str, ...] = ()
    """Options with a value that have no effect here."""
    ignored_flags: tuple[str, ...] = ()


COMMANDS = {
    "vf-eval": Command(
        "eval",
        {
            **{"-m": "-m", "--model": "-m", "-n": "-n", "--num-examples": "-n"},
            **{"-r": "-r", "--rollouts-per-example": "-r", "-c": "-c", "--max-concurrent": "-c"},
            **{"-t": "-t", "--max-tokens": "-t", "-T": "-T", "--temperature": "-T"},
            **{"-S": "-S", "--sampling-args": "-S", "-a": "-a", "--env-args": "-a"},
            **{"-b": "-b", "--api-base-url": "-b", "-k": "-k", "--api-key-var": "-k"},
            **{"-e": "-e", "--endpoints-path": "-e", "--env-dir-path": "--env-dir", "--resume": "--resume"},
        },
        {"-s": "--save", "--save-results": "--save"},
        ("--max-concurrent-generation", "--max-concurrent-scoring", "--state-columns", "-C", "--save-every", "-f"),
        (
            "-v",
            "--verbose",
            "-N",
            "--no-interleave-scoring",
            "-i",
            "--independent-scoring",
            "-d",
            "--disable-env-server",
        ),
    ),
    "vf-init": Command("init", {"--path": "--dir", "-p": "--dir"}, {}, (), ("--multi-file", "--rewrite-readme")),
    "vf-install": Command("install", {"--path": "path", "-p": "path"}, {}),
    "vf-vllm": Command(
        "serve",
        {"--model": "model", "--host": "--host", "--port": "--port"},
        {},
        ("--tensor-parallel-size", "--data-parallel-size", "--dtype", "--gpu-memory-utilization"),
        ("--enforce-eager", "--disable-log-requests"),
    ),
}
"""Command of v0 → its translation. `path` and `model` become rove's argument."""


def translate(name: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of rove for those of a command of v0, and the options that have no effect.

    Raises:
        ValueError: an option has no counterpart, or lacks its value.
    """
    command = COMMANDS[name]
    translated: list[str] = []
    positional: list[str] = []
    ignored: list[str] = []
    values: dict[str, str] = {}
    remaining = list(_split_at_equals(arguments))
    while remaining:
        argument = remaining.pop(0)
        if not argument.startswith("-"):
            positional.append(argument)
        elif argument in command.flags:
            translated.append(command.flags[argument])
        elif argument in command.ignored_flags:
            ignored.append(argument)
        elif argument in command.options or argument in command.ignored_options:
            if not remaining:
                raise ValueError(f"{name} {argument} needs a value")
            value = remaining.pop(0)
            option = command.options.get(argument, "")
            if not option:
                ignored.append(argument)
            elif option.startswith("-"):
                translated += [option, value]
            else:
                values[option] = value
        else:
            raise ValueError(f"{name} {argument} has no counterpart in `rove {command.rove}`; see its --help")
    if name == "vf-eval" and "--save" not in translated and "--resume" not in translated:
        translated.append("--no-save")
    if name == "vf-install":
        folder = Path(values.get("path", _ENVIRONMENTS_FOLDER))
        positional = [str(folder / environment.replace("-", "_")) for environment in positional]
        translated.append("--into-current")
    if "model" in values:
        positional.append(values["model"])
    return [command.rove, *positional, *translated], ignored


def _split_at_equals(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--option=value` as two of them."""
    split: list[str] = []
    for argument in arguments:
        split += argument.split("=", 1) if argument.startswith("--") else [argument]
    return split


def run(name: str, arguments: Sequence[str]) -> int:
    """Run rove's command for a command of v0, and return its exit status."""
    try:
        translated, ignored = translate(name, arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if ignored:
        print(f"{name} ignores {', '.join(ignored)}", file=sys.stderr)
    print(f"rove {shlex.join(translated)}", file=sys.stderr)
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
