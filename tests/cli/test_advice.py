"""The options and settings that findings recommend exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from settings_page import TABLES

from rove.cli.main import cli
from rove.core.findings import findings_by_area, registry
from rove.stages.models import ModelConfig
from rove.stages.recipe import RecipeFile
from rove.train.config import RLConfig, SFTConfig

ROVE = Path(__file__).resolve().parents[2] / "rove"
STAGES: dict[str, Any] = {"rl": RLConfig, "sft": SFTConfig, "model": ModelConfig}
"""Tables of a recipe of `rove train` → their settings."""
NOT_SETTINGS = {
    "top_p",
    "top_k",
    "load_environment",
    "env_response",
    "eval_dataset",
    "ast.literal_eval",
    "num_examples",
    "held_out",
}
"""Functions, and arguments of environments, that advice names."""
NAME = re.compile(r"(?<![\w./-])[a-z]+(?:[_.][a-z0-9_]+)+(?![\w/-])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z.-]*[a-z]")


def literal_texts(node: ast.expr) -> Iterator[str]:
    """Yield the constant parts of an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def advice() -> dict[str, str]:
    """Return all texts of advice in rove by where they are."""
    texts = {name: info.remedy for name, info in registry().items()}
    for path in sorted(ROVE.rglob("*.py")):
        source = path.read_text("utf-8")
        if "remedy" not in source.lower():  # parsing every module takes seconds
            continue
        for node in ast.walk(ast.parse(source)):
            named = isinstance(node, ast.Assign) and "remedy" in ast.unparse(node.targets[0]).lower()
            if (isinstance(node, ast.keyword) and node.arg == "remedy") or named:
                texts[f"{path.name}:{node.value.lineno}"] = " ".join(literal_texts(node.value))
    return texts


def commands() -> dict[str, click.Command]:
    """Return all commands by their names, such as "rove hub publish"."""
    context = click.Context(cli, info_name="rove")
    commands_by_path: dict[str, click.Command] = {}
    waiting = {f"rove {name}": cli.get_command(context, name) for name in cli.list_commands(context)}
    while waiting:
        path, command = waiting.popitem()
        assert command is not None
        commands_by_path[path] = command
        if isinstance(command, click.Group):
            waiting |= {f"{path} {name}": child for name, child in command.commands.items()}
    return commands_by_path


def setting_names(struct: type[msgspec.Struct]) -> set[str]:
    """Return the names of settings, those in tables with the name of the table."""
    names: set[str] = set()
    for field in msgspec.structs.fields(struct):
        names.add(field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            names |= {f"{field.name}.{name}" for name in setting_names(field.type)}
    return names


@pytest.fixture(scope="module")
def settings() -> set[str]:
    names = set().union(*map(setting_names, [*TABLES.values(), RecipeFile]))
    for stage, struct in STAGES.items():
        names |= {f"{stage}.{name}" for name in setting_names(struct)}
    return names


@pytest.fixture(scope="module")
def options(settings: set[str]) -> set[str]:
    """Return the options of all commands; every setting is an option of its command, too."""
    declared: set[str] = {f"--{name.replace('_', '-')}" for name in settings} | {"--help"}
    for command in commands().values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                declared |= {*parameter.opts, *parameter.secondary_opts}
    return declared


def test_advice_names_settings_and_options_that_exist(settings: set[str], options: set[str]):
    of_vllm = {"--tool-call-parser", "--enable-auto-tool-choice"}
    existing = settings | options | NOT_SETTINGS | of_vllm | registry().keys()
    wrong = {
        f"{origin}: {name}"
        for origin, text in advice().items()
        for name in {*NAME.findall(text), *OPTION.findall(text)}
        if name not in existing
    }
    assert not wrong


def test_advice_of_rove_train_names_no_option_that_only_other_commands_have():
    declared = {option for parameter in commands()["rove train"].params for option in parameter.opts}
    for name, info in {**findings_by_area()["stages"], **findings_by_area()["training"]}.items():
        if "rove audit" not in info.remedy:
            assert set(OPTION.findall(info.remedy)) <= declared, name
