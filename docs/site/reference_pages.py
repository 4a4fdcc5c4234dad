"""Reference pages made from the code: the Python API, the commands and the format of records."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import msgspec

import rove
from rove.cli.main import GROUPS, cli
from rove.core import records
from rove.core.settings_docs import documented_fields

PACKAGES = (
    "rove.audit",
    "rove.compat",
    "rove.compat.verifiers",
    "rove.doctor",
    "rove.envs",
    "rove.mcp",
    "rove.remote",
    "rove.rubrics",
    "rove.sandbox",
    "rove.server",
    "rove.statistics",
    "rove.tools",
    "rove.workers",
)
"""Packages other than `rove` that export names with `__all__`."""
TITLES = {
    "core": "Messages, requests, records and errors",
    "clients": "Clients",
    "envs": "Environments",
    "rollouts": "Evaluate and generate",
    "rubrics": "Rubrics and parsers",
    "runs": "Run folders",
    "statistics": "Statistics",
    "engine": "Embedded inference",
    "models": "Models",
    "integrations": "Environments of other libraries",
    "remote": "Isolated environments",
    "stages": "Train and show progress",
    "train": "Training sequences",
}
"""Package of `rove` → title of the page with its public names."""


class Name(NamedTuple):
    """A public name: the module that exports it, and where its definition is."""

    module: str
    name: str
    value: Any
    home: str


def public_names(module: str) -> list[Name]:
    """Return the public names of a module."""
    exporter = importlib.import_module(module)
    names = []
    for name in sorted(exporter.__all__):
        value = getattr(exporter, name)
        home = getattr(value, "__module__", None)
        names.append(Name(module, name, value, home if isinstance(home, str) else module))
    return names


def _package(name: Name) -> str:
    lazy = rove._LAZY.get(name.name, "")
    parts = (lazy or name.home).split(".")
    return parts[1] if parts[0] == "rove" and len(parts) > 1 and parts[1] in TITLES else "core"


def _directive(name: Name) -> str:
    full = f"{name.module}.{name.name}"
    if inspect.isclass(name.value):
        return f".. autoclass:: {full}\n"
    return f".. autofunction:: {full}\n"


def _rst(names: list[Name]) -> str:
    return "```{eval-rst}\n" + "\n".join(_directive(name) for name in names) + "```\n"


def _first_line(value: Any) -> str:
    """Return the first sentence of a docstring; "" for a value without a docstring."""
    text = "" if isinstance(value, (str, int, tuple, list, dict)) else inspect.getdoc(value) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("|", r"\|")


def _table(names: list[Name]) -> str:
    rows = [f"| `{name.name}` | {_first_line(name.value)} |" for name in names]
    return "| name | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of the pages of the Python API."""
    names = public_names("rove")
    described = {(name.home, name.name) for name in names}
    by_package: dict[str, list[Name]] = {}
    for name in names:
        by_package.setdefault(_package(name), []).append(name)
    index = "# Python API\n\nThis page lists every public name. The names on the first pages are available after `import rove`.\n"
    toctree = "\n```{toctree}\n:maxdepth: 1\n\n"
    for package, title in TITLES.items():
        listed = by_package[package]
        links = ", ".join(f"`{name.name}`" for name in listed)
        index += f"\n**[{title}]({package}.md)**: {links}\n"
        toctree += f"{package}\n"
        yield f"{package}.md", f"# {title}\n\n{_rst(listed)}"
    for module in PACKAGES:
        exported = public_names(module)
        documented = [name for name in exported if inspect.isclass(name.value) or inspect.isroutine(name.value)]
        undescribed = [name for name in documented if (name.home, name.name) not in described]
        doc = (inspect.getdoc(importlib.import_module(module)) or "").replace("\n\n", "\n")
        text = f"# {module}\n\n{doc}\n\n## Names\n\n{_table(exported)}"
        if undescribed and module != "rove.compat.verifiers":  # the v0 API is that of verifiers; compat.md explains it
            text += f"\n## Details\n\n{_rst(undescribed)}"
        index += f"\n**[{module}]({module}.md)**: {_first_line(importlib.import_module(module))}\n"
        toctree += f"{module}\n"
        yield f"{module}.md", text
    yield "index.md", index + toctree + "```\n"


def _help(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            subcommand = command.get_command(context, child)
            if subcommand is not None and not subcommand.hidden:
                yield from _help(subcommand, child, context)


def commands() -> list[tuple[str, str]]:
    """Return (command, help text) of every command and subcommand."""
    context = click.Context(cli, info_name="rove")
    help_texts = []
    for entries in GROUPS.values():
        for name in entries:
            command = cli.get_command(context, name)
            assert command is not None
            help_texts += _help(command, name, context)
    return help_texts


def commands_page() -> str:
    """Return the page of all commands, from their own help."""
    text = (
        "# Commands\n\nThis page shows the help text of every command, as `rove COMMAND --help` prints it. "
        "You can write options with hyphens or underscores. For settings that are not options, see [settings](../settings.md) "
        "or run `rove rl --help-all`.\n"
    )
    top = click.Context(cli, info_name="rove", terminal_width=100, max_content_width=100)
    text += f"\n## rove\n\n```text\n{cli.get_help(top)}\n```\n"
    return text + "".join(f"\n## {path}\n\n```text\n{help_text}\n```\n" for path, help_text in commands())


RECORDS = ("RolloutRecord", "TrajectoryStep", "StepTokens", "Scores", "Usage", "Timing", "ErrorInfo")


def records_page() -> str:
    """Return the page of the fields of `rollouts.jsonl`."""
    text = (
        f"# Fields of rollouts.jsonl\n\nThis page describes the content of a line in `rollouts.jsonl` (schema version "
        f"{records.SCHEMA_VERSION}). Each line is one `RolloutRecord` in JSON; fields with their default value are left out. "
        "For the other files, see [the run folder](../run_folder.md).\n"
    )
    for name in RECORDS:
        struct = getattr(records, name)
        meanings = documented_fields("rove.core.records", name)
        text += f"\n## {name}\n\n{_first_line(struct)}\n\n| field | type | meaning |\n|---|---|---|\n"
        types = {
            field.name: str(struct.__annotations__.get(field.name, "")) for field in msgspec.structs.fields(struct)
        }
        text += "".join(
            f"| `{field}` | `{type.replace('|', 'or')}` | {meanings.get(field, '')} |\n"
            for field, type in types.items()
        )
    return text
