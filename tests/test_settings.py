"""All settings, found by reflection: every number has a range, and wrong values are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import msgspec.inspect
import pytest

from rove.audit.auditor import AuditOptions
from rove.audit.learning import LearnOptions
from rove.check.rollouts import CheckLimits
from rove.cli.main import cli
from rove.clients.endpoints_file import Address
from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.core.protocols import Limits, SamplingParams
from rove.hub.server.uploads import UploadLimits
from rove.remote.isolation import Isolation, IsolationConfig, RayConfig
from rove.rollouts.evaluate import Options
from rove.rollouts.exhaustive import Goals
from rove.sandbox.backend import SandboxLimits
from rove.stages.evaluation import EvalConfig
from rove.stages.models import ModelConfig
from rove.stages.recipe import BaselineRow, Column, ExhaustiveConfig, RecipeFile
from rove.stages.serving import OpenEnvConfig, ServeConfig
from rove.statistics import Price
from rove.train.alerts import AlertLimits
from rove.train.config import (
    CurriculumConfig,
    EvaluationConfig,
    FilterConfig,
    LoRAConfig,
    LossConfig,
    RLConfig,
    SFTConfig,
)
from rove.vllm.server import VLLMConfig

KINDS: list[type[msgspec.Struct]] = [
    Address,
    AlertLimits,
    AuditOptions,
    CheckLimits,
    CurriculumConfig,
    EvalConfig,
    EvaluationConfig,
    ExhaustiveConfig,
    FilterConfig,
    Goals,
    Isolation,
    IsolationConfig,
    LearnOptions,
    Limits,
    LoRAConfig,
    LossConfig,
    ModelConfig,
    OpenEnvConfig,
    Options,
    Price,
    RLConfig,
    RayConfig,
    RecipeFile,
    Column,
    BaselineRow,
    SFTConfig,
    SamplingParams,
    SandboxLimits,
    ServeConfig,
    UploadLimits,
    VLLMConfig,
]
REQUIRED: dict[str, Any] = {
    "cells": [],
    "columns": [],
    "data": "runs/data",
    "endpoint_id": "name",
    "env": "tictactoe",
    "evaluation": {},
    "folder": Path("runs/audit"),
    "input": 1.0,
    "model": "models/tiny",
    "name": "published",
    "openenv": "tictactoe",
    "output": 1.0,
    "rl": [],
    "title": "reward",
    "values": [],
}
"""Values of required settings."""


NUMBER_TYPES = (msgspec.inspect.IntType, msgspec.inspect.FloatType)


class Leaf(NamedTuple):
    """One setting that is not a table."""

    kind: type[msgspec.Struct]
    path: tuple[str, ...]
    """Names of the tables and of the setting; "key" for the values of a table with any keys, "[0]" for items of a list."""
    info: msgspec.inspect.Type

    @property
    def name(self) -> str:
        """The name in the form of error messages."""
        return ".".join(self.path).replace(".[0]", "[0]")

    def table(self, value: Any) -> dict[str, Any]:
        """Return nested settings with this value."""
        for name in reversed(self.path):
            value = [value] if name == "[0]" else {name: value}
        return {**required(self.kind), **value}


def required(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: REQUIRED[field.name] for field in msgspec.structs.fields(kind) if field.required}


def bare(info: Any) -> Any:
    """Return a type without its metadata."""
    return info.type if isinstance(info, msgspec.inspect.Metadata) else info


def options(info: Any) -> list[Any]:
    """Return the types of a union except None, without metadata."""
    info = bare(info)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else [info]
    return [bare(kind) for kind in types if not isinstance(kind, msgspec.inspect.NoneType)]


def leaves(kind: type[msgspec.Struct], info: Any = None, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for option in options(info or msgspec.inspect.type_info(kind)):
        if isinstance(option, msgspec.inspect.StructType):
            for field in option.fields:
                yield from leaves(kind, field.type, (*path, field.encode_name))
        elif isinstance(option, msgspec.inspect.DictType) and not isinstance(
            option.value_type, msgspec.inspect.AnyType
        ):
            yield from leaves(kind, option.value_type, (*path, "3" if is_int(option.key_type) else "key"))
        elif isinstance(option, msgspec.inspect.ListType) and isinstance(option.item_type, msgspec.inspect.StructType):
            continue  # its own kind
        else:
            yield Leaf(kind, path, option)


def is_int(info: Any) -> bool:
    return isinstance(options(info)[0], msgspec.inspect.IntType)


def numbers(kind: type[msgspec.Struct]) -> list[Leaf]:
    return [leaf for leaf in leaves(kind) if isinstance(leaf.info, NUMBER_TYPES)]


def values_out_of_range(info: Any) -> list[Any]:
    """Return values that a number type must refuse: not finite, below or above its range, or of another type."""
    step = 1 if isinstance(info, msgspec.inspect.IntType) else 0.5
    values: list[Any] = [math.nan, math.inf, -math.inf, "many", True, [1], {"a": 1}, 10**400]
    low, high = bounds(info)
    if low is not None and abs(low) < 2**53:
        values.append(low if info.ge is None else low - step)
    if high is not None and abs(high) < 2**53:
        values.append(high if info.le is None else high + step)
    return values


def bounds(info: Any) -> tuple[float | None, float | None]:
    """Return the lower and the upper bound of a number type."""
    return (info.gt if info.ge is None else info.ge), (info.lt if info.le is None else info.le)


def bound_text(bound: float) -> str:
    """Return a bound in the form of error messages; "" for bounds of 64-bit integers, which are not shown."""
    return "" if abs(bound) >= 2**63 - 1 else "1e9" if bound == 1e9 else f"{bound:.10g}"


each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@each_kind
def test_every_number_has_a_range(kind: type[msgspec.Struct]):
    for leaf in numbers(kind):
        low, high = bounds(leaf.info)
        assert low is not None, f"{leaf.name} has no lower bound: use a type of rove.core.ranges"
        assert high is not None, (
            f"{leaf.name} has no upper bound: use a type of rove.core.ranges, which also refuses infinity"
        )


@each_kind
def test_a_number_outside_its_range_is_refused_by_name_with_the_value_and_the_range(kind: type[msgspec.Struct]):
    for leaf in numbers(kind):
        for value in values_out_of_range(leaf.info):
            with pytest.raises(ConfigError) as caught:
                convert(leaf.kind, leaf.table(value))
            message = str(caught.value)
            assert message.startswith(f"{leaf.name} is {value!r}; expected a"), message
            low, high = bounds(leaf.info)
            assert low == -1 or bound_text(low) in message.partition("; expected ")[2], message
            assert bound_text(high) in message.partition("; expected ")[2], message


@each_kind
def test_python_code_gets_the_same_errors(kind: type[msgspec.Struct]):
    for leaf in numbers(kind):
        if len(leaf.path) > 1:
            continue
        for value in values_out_of_range(leaf.info):
            with pytest.raises(ConfigError, match=re.escape(f"{leaf.name} is {value!r}; expected a")):
                kind(**leaf.table(value))


@pytest.mark.parametrize("name", ["num_examples", "max_examples"])
def test_minus_one_means_all_and_zero_means_nothing(name: str):
    kinds = [kind for kind in (EvalConfig, SFTConfig, EvaluationConfig, Options) if name in kind.__struct_fields__]
    for kind in kinds:
        assert getattr(convert(kind, {**required(kind), name: -1}), name) == -1
        for value in (0, -2):
            with pytest.raises(ConfigError, match=f"{name} is {value}; expected an integer, 1 or more, or -1 for all"):
                convert(kind, {**required(kind), name: value})
            with pytest.raises(ConfigError, match=f"{name} is {value}; expected an integer, 1 or more, or -1 for all"):
                kind(**{**required(kind), name: value})


def wrong_value(info: Any) -> Any:
    """Return a value of another type; None for numbers, which another test covers, and for types that accept all values."""
    if isinstance(info, (msgspec.inspect.AnyType, msgspec.inspect.CustomType, *NUMBER_TYPES)):
        return None
    if isinstance(info, (msgspec.inspect.StrType, msgspec.inspect.LiteralType)):
        return {"a": 1}
    return 1.5


@each_kind
def test_a_value_of_another_type_is_refused_by_name(kind: type[msgspec.Struct]):
    for leaf in leaves(kind):
        value = wrong_value(leaf.info)
        if value is None:
            continue
        with pytest.raises(ConfigError, match=re.escape(leaf.name) + r" is .*expected"):
            convert(leaf.kind, leaf.table(value))


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words that call it."""
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, (*path, name))


COMMANDS = {" ".join(path): command for path, command in commands(cli)}
STRUCTS = {"eval": EvalConfig, "rl": RLConfig, "sft": SFTConfig, "serve": ServeConfig, "audit": AuditOptions}
STRUCTS |= {"doctor": RLConfig, "check": CheckLimits, "model new": ModelConfig}


@pytest.mark.parametrize("name", COMMANDS)
def test_number_options_have_the_range_of_their_setting_and_refuse_other_values(name: str):
    from rove.cli.options import in_range

    command = COMMANDS[name]
    settings = STRUCTS.get(name)
    for option in command.params:
        if not isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
            continue
        context = click.Context(command)
        for text in ("nan", "inf", "-inf", "many", "1e999", ""):
            with pytest.raises(click.BadParameter, match="expected an? "):
                option.type.convert(text, option, context)
        if option.name in getattr(settings, "__struct_fields__", ()):
            [leaf] = [leaf for leaf in numbers(settings) if leaf.path == (option.name,)]
            allowed = in_range(next(f.type for f in msgspec.structs.fields(settings) if f.name == option.name))
            assert vars(option.type) == vars(allowed), (
                f"{option.name} of `rove {name}` has another range than {leaf.name}"
            )


def test_every_struct_of_settings_is_tried():
    from rove.core.checks import Settings

    def all_subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
        for subclass in kind.__subclasses__():
            yield subclass
            yield from all_subclasses(subclass)

    settings_types = {kind for kind in all_subclasses(Settings) if kind.__module__.startswith("rove.")}
    without_numbers = {"ServerSettings", "TrainingConfig"}
    assert {kind.__name__ for kind in settings_types} - {kind.__name__ for kind in KINDS} <= without_numbers
