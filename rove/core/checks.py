"""Check values against types: the fields of settings, and the arguments of constructors.

msgspec checks types and ranges only when it reads a file. `Settings` and `check_values` apply the same types to values that
Python code passes, with the same messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

import msgspec

from rove.core.errors import ConfigError, SettingError, nearest, short_repr
from rove.core.plain import is_mapping
from rove.core.ranges import form_of, range_of


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of settings: checks types and ranges, even if Python code creates the settings.

    Example:
        class ListenSettings(Settings, frozen=True, kw_only=True):
            port: Port = 8000

    Raises:
        ConfigError: A setting has another type or is out of range.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(settings: msgspec.Struct) -> None:
    """Check every field of a struct against its type; a dict becomes a struct, and an integer becomes a float.

    Call this in `__post_init__` of structs that are not `Settings`.
    """
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        if value is field.default:  # requests are checked, too, and most of their fields are defaults
            continue
        result = checked(field.name, value, field.type)
        if result is not value:
            msgspec.structs.force_setattr(settings, field.name, result)


@cache  # msgspec resolves the annotations again at every call
def fields_of(kind: type) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct type."""
    return msgspec.structs.fields(kind)


def check_values(values: object, **types: Any) -> None:
    """Check attributes of an object, for example after a constructor has set them.

    Example:
        check_values(self, timeout=Seconds, max_retries=NonNegativeInt)
    """
    for name, annotation in types.items():
        checked(name, getattr(values, name), annotation)


def checked(name: str, value: object, annotation: object) -> object:
    """Return a value converted to a type."""
    try:
        result = msgspec.convert(value, annotation)
    except msgspec.ValidationError as error:
        raise_explained(error, value, annotation, name)
    allowed = range_of(annotation)
    # A number inside the bounds, such as 0 where -1 means "no limit": msgspec's types cannot exclude it.
    if allowed is not None and result is not None and result == allowed.excluded:
        raise SettingError(f"{name} is {_shown(value)}; expected {allowed.expected(value)}")
    return result


def raise_explained(
    error: msgspec.ValidationError, value: Any, annotation: Any, name: str = "", strict: bool = True
) -> NoReturn:
    """Raise the ConfigError that explains why a value cannot be converted to a type.

    Args:
        name: Name of the value; "" for the settings as a whole.
    """
    # msgspec reports the position only in its message, such as "Expected `int`, got `str` - at `$.loss.clip[0]`".
    problem, _, path = str(error).partition(" - at `")
    is_key = path.startswith("key` in `")
    path = path.removeprefix("key` in `").removeprefix("$")
    for step in re.findall(r"\.\.\.|[^.\[\]`]+", path):
        annotation = type_below(annotation, step)
        if step == "..." and is_mapping(value):  # msgspec does not name the key of a table
            step = _first_wrong_key(value, annotation, strict)
        if isinstance(value, list | tuple | set | frozenset):
            items: list[Any] = [*value]
            name, value = f"{name}[{step}]", items[int(step)]
        else:
            name, value = f"{name}.{step}".lstrip("."), value[step]
    cause = error.__cause__  # raised in `__post_init__` of a struct
    if isinstance(cause, SettingError):  # it names a field of the nested struct: add the path to it
        raise SettingError(f"{name}.{cause}".lstrip(".")) from None
    if isinstance(cause, ConfigError):
        raise cause from None
    if is_key:
        raise SettingError(f"{name} has the keys {list(value)}: {problem[:1].lower()}{problem[1:]}") from error
    raise SettingError(_explanation(problem, name, value, annotation)) from error


def _first_wrong_key(table: Mapping[str, object], annotation: object, strict: bool) -> str:
    for key, value in table.items():
        try:
            msgspec.convert(value, annotation, strict=strict)
        except msgspec.ValidationError:
            return key
    raise AssertionError("every value of the table can be converted")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except RecursionError:  # tables in tables of a settings file
        return short_repr(value)


def _explanation(problem: str, name: str, value: object, annotation: object) -> str:
    """Return msgspec's message with the name, the value, and the range, or with a suggestion for an unknown name."""
    unknown = re.search(r"unknown field `(.*)`", problem)
    if unknown is not None:
        fields: list[str] = []
        for member in _members(annotation):
            fields += getattr(member, "__struct_fields__", ())
        return f"{name} has the unknown setting '{unknown[1]}'; {nearest(unknown[1], fields)}"
    allowed = None if annotation is None else range_of(annotation)
    if allowed is not None:
        return f"{name} is {_shown(value)}; expected {allowed.expected(value)}"
    if annotation is not None and (form := form_of(annotation)):
        return f"{name} is {_shown(value)}; expected {form}"
    advice = f": write [[{name}]]" if isinstance(value, dict) and "`array`" in problem else ""
    if isinstance(value, str) and is_text_list(annotation):
        advice = f": write {text_list(value)}"
    return f"{name} is {value!r}: {problem[:1].lower()}{problem[1:]}{advice}"


def type_below(annotation: object, step: str) -> object:
    """Return the type of a struct's field `step`, or of the items of a list or dict; None if this type is unknown."""
    for member in _members(annotation):
        arguments = get_args(member)
        if get_origin(member) in (list, tuple):
            return arguments[0]
        if get_origin(member) is dict:
            _, value_type = arguments
            return value_type
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            types = {field.name: field.type for field in fields_of(member)}
            return types.get(step)
    return None


def _members(annotation: object) -> list[object]:
    """Return the types of a union, or the type itself, without ranges."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members: list[object] = []
        for option in get_args(annotation):
            members += _members(option)
        return members
    return [annotation]


def is_text(annotation: object) -> bool:
    """Return whether a type is a text or an optional text."""
    members = [member for member in _members(annotation) if member is not type(None)]
    return members == [str]


def is_text_list(annotation: object) -> bool:
    """Return whether a type is a list of texts, or a union with a list of texts."""
    lists = [member for member in _members(annotation) if get_origin(member) is list]
    return any(str in _members(get_args(member)[0]) for member in lists)


def text_list(text: str) -> str:
    """Return a text as a JSON list in quotation marks."""
    return f"'{msgspec.json.encode([text]).decode()}'"
