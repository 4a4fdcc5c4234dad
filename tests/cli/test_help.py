"""Help texts: groups of commands, an Examples section everywhere, and examples whose options exist."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from rove.cli.main import COMMANDS, GROUPS, cli


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(cli))


def examples_of(command: click.Command) -> list[str]:
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return [line.strip().partition("   #")[0] for line in lines if line.strip().startswith("rove ")]


def test_commands_are_listed_in_groups():
    shown_output = CliRunner().invoke(cli, ["--help"]).output
    assert list(GROUPS) == ["Start", "Evaluate", "Train", "Inspect", "Share"]
    assert [line[:-1] for line in shown_output.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert sorted(COMMANDS) == sorted(path[0] for path in ALL if len(path) == 1)


@pytest.mark.parametrize("path", [(), *ALL], ids=" ".join)
def test_every_help_ends_with_examples(path: tuple[str, ...]):
    shown_output = CliRunner().invoke(cli, [*path, "--help"]).output
    _, section, lines = shown_output.rpartition("Examples:\n")
    assert section, shown_output
    assert all(line.strip().startswith(("rove ", "torchrun ")) for line in lines.splitlines() if line.strip())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_flags_in_examples_exist(path: tuple[str, ...]):
    for line in examples_of(ALL[path]):
        words = shlex.split(line)[1:]
        named = next(tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in ALL)
        command = ALL[named]
        command_flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        for word in words[len(named) :]:
            if (
                word.startswith("-")
                and not word[1:].isdigit()
                and not command.context_settings.get("ignore_unknown_options")
            ):
                assert word.split("=")[0] in command_flags, line
