"""`rove init`: create an environment package that works at once."""

from __future__ import annotations

import keyword
import shlex
from pathlib import Path

import click

from rove.cli.common import hint
from rove.cli.options import examples
from rove.core.errors import ConfigError
from rove.hub.package.scaffold import scaffold
from rove.utils.console import SafeConsole

KINDS = {
    "multi_turn": "Create a game of several turns instead of a single question.",
    "tools": "Create an environment with Python functions as tools.",
    "mcp": "Create an environment with an MCP server in the package.",
}


@click.command(
    epilog=examples("rove init my-task", "rove init my-game --multi-turn", "rove init my-agent --tools --dir work")
)
@click.argument("name")
@click.option("--multi-turn", is_flag=True, help=KINDS["multi_turn"])
@click.option("--tools", is_flag=True, help=KINDS["tools"])
@click.option("--mcp", is_flag=True, help=KINDS["mcp"])
@click.option(
    "--dir",
    "folder",
    type=click.Path(),
    default="environments",
    show_default=True,
    help="Parent folder of the package.",
)
def command(name: str, folder: str, **flags: bool) -> None:
    """Create an environment package NAME that works and passes its own tests without changes."""
    kinds = [kind for kind in KINDS if flags[kind]]
    if len(kinds) > 1:
        exclusive = " and ".join("--" + kind.replace("_", "-") for kind in kinds)
        raise ConfigError(f"{exclusive} exclude each other; choose one")
    if keyword.iskeyword(name.replace("-", "_")):
        raise ConfigError(f"'{name}' is a keyword of Python, so that no module can have this name; choose another name")
    console = SafeConsole()
    target = scaffold(name, Path(folder), *kinds)
    for file in sorted(target.rglob("*.*")):
        if file.is_file():
            console.print(f"  {file}")
    env_dir_option = "" if folder == "environments" else f" --env-dir {shlex.quote(folder)}"
    quoted = shlex.quote(str(target))
    [module] = [path for path in (target / f"{target.name}.py", target / target.name / "__init__.py") if path.is_file()]
    hint(
        console,
        f"try it: rove eval {target.name} -m scripted:oracle{env_dir_option}",
        f"train a small model in it: rove train {target.name}{env_dir_option}",
        f"test it: pip install pytest; python -m pytest {quoted}; rove check {quoted}; rove audit {quoted}",
        f"edit it: {module}",
        f"package it: rove build {quoted}",
    )
