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

    Exits with status 2 if an option has no counterpart, or lacks its value.
    """
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(name, description=f"Runs `rove {command.rove}`.", allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    for option in (*command.options, *command.ignored_options):
        parser.add_argument(option, dest=option)
    for flag in (*command.flags, *command.ignored_flags):
        parser.add_argument(flag, dest=flag, action="store_true")
    values = {option: value for option, value in vars(parser.parse_args(arguments)).items() if value}
    names = values.pop("names", [])

    translated: list[str] = []
    for option, value in values.items():
        translation = command.options.get(option, "")
        if option in command.flags:
            translated.append(command.flags[option])
        elif translation.startswith("-"):
            translated += [translation, value]
        elif translation == "model":
            names = [value]
    if name == "vf-eval" and not {"--save", "--resume"} & set(translated):
        translated.append("--no-save")
    if name == "vf-install":
        folder = Path(values.get("--path") or values.get("-p") or _ENVIRONMENTS_FOLDER)
        names = [str(folder / environment.replace("-", "_")) for environment in names]
        translated.append("--into-current")
    ignored = [option for option in values if option in (*command.ignored_options, *command.ignored_flags)]
    return [command.rove, *names, *translated], ignored


def run(name: str, arguments: Sequence[str]) -> int:
    """Run rove's command for a command of v0, and return its exit status."""
    translated, ignored = translate(name, arguments)
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
