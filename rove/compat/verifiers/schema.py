"""Tools as v0 told models of them: the strict JSON schema of a signature, in pydantic's words."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from rove.compat.verifiers.clients import wire_tool
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.types import Tool
from rove.utils.docstrings import read_docstring
from rove.utils.functions import function_name

_PLAIN = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    bytes: {"format": "binary", "type": "string"},
}
_JSON_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}
_LISTS = (list, set, frozenset, tuple)

Definitions = dict[str, dict[str, Any]]


def convert_func_to_tool_def(func: Callable[..., Any]) -> Tool:
    """A function as a tool. Every argument is required, those with a default too: the schema is strict."""
    described, notes = read_docstring(inspect.getdoc(func))
    definitions: Definitions = {}
    hints = _hints(func)
    properties: dict[str, Any] = {}
    for name, parameter in inspect.signature(func).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        hint = hints.get(name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = list[hint]
        note = notes.get(name) or _annotated(hint, parameter.default)
        properties[name] = _property(name, parameter, note, _schema(hint, definitions), definitions)
    parameters = {
        **({"$defs": definitions} if definitions else {}),
        "properties": properties,
        "required": list(properties),
        "title": f"{function_name(func)}_args",
        "type": "object",
        "additionalProperties": False,
    }
    return Tool(name=function_name(func), description=described, parameters=parameters, strict=True)


def convert_func_to_oai_tool(func: Callable[..., Any]) -> dict[str, Any]:
    """A function as a tool in OpenAI's form, as until 0.1.10."""
    outdated("convert_func_to_oai_tool", "call convert_func_to_tool_def")
    return wire_tool(convert_func_to_tool_def(func))


def _annotated(hint: Any, default: Any) -> str | None:
    """The description in an annotation or a default: a text of `Annotated`, or that of a pydantic `Field`."""
    for one in getattr(hint, "__metadata__", ()):
        if isinstance(one, str):
            return one
    fields = [one for one in (*getattr(hint, "__metadata__", ()), default) if _is_field(one)]
    return next((one.description for one in fields if one.description), None)


def _is_field(value: Any) -> bool:
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    target = func if inspect.isroutine(func) or inspect.isclass(func) else type(func).__call__
    own = getattr(func, "__annotations__", None)
    try:
        return get_type_hints(target if own is None or inspect.isroutine(func) else func, include_extras=True)
    except Exception:  # an annotation is an expression: what cannot be read is no hint
        return {}


def _property(
    name: str, parameter: inspect.Parameter, note: str | None, schema: dict[str, Any], definitions: Definitions
) -> dict[str, Any]:
    more: dict[str, Any] = {"description": note} if note else {}
    default = parameter.default
    if _is_field(default):
        default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
    if default is not parameter.empty and default is not None:
        more["default"] = _json_value(default)
    if "$ref" not in schema:
        return {**schema, **more, "title": name.replace("_", " ").title()}
    # A reference stands alone: with words beside it, what it refers to is in its place.
    return {**definitions[schema["$ref"].rpartition("/")[2]], **more} if more else schema


def _json_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, _LISTS) else value


def _schema(hint: Any, definitions: Definitions) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and any(map(_is_field, args[1:])):
        made = importlib.import_module("pydantic").TypeAdapter(hint).json_schema()
        definitions.update(made.pop("$defs", {}))
        return made
    if origin is Annotated:
        return _schema(args[0], definitions)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in args]}
    if origin is Literal:
        return _choice(args)
    if hint in _LISTS or origin in _LISTS:
        return _array(origin or hint, args, definitions)
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object"}
    if isinstance(hint, type):
        return _named(hint, definitions)
    return {}


def _choice(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {_JSON_NAMES.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    said = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    return {**said, "type": kind} if kind else said


def _array(kind: Any, args: tuple[Any, ...], definitions: Definitions) -> dict[str, Any]:
    if kind is tuple and args and args[-1] is not Ellipsis:
        items = [_schema(one, definitions) for one in args]
        return {"maxItems": len(items), "minItems": len(items), "prefixItems": items, "type": "array"}
    made: dict[str, Any] = {"items": _schema(args[0], definitions) if args else {}, "type": "array"}
    return {**made, "uniqueItems": True} if kind in (set, frozenset) else made


def _named(hint: type, definitions: Definitions) -> dict[str, Any]:
    """A class with a name of its own, defined once and referred to."""
    if issubclass(hint, enum.Enum):
        definitions[hint.__name__] = {**_choice(tuple(one.value for one in hint)), "title": hint.__name__}
    elif hasattr(hint, "model_json_schema"):  # of pydantic
        made = hint.model_json_schema()  # pyright: ignore[reportAttributeAccessIssue]
        definitions.update(made.pop("$defs", {}))
        definitions[hint.__name__] = {
            **made,
            "additionalProperties": False,
            "required": list(made.get("properties", {})),
        }
    elif dataclasses.is_dataclass(hint) or is_typeddict(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # it may be in itself
            fields = {
                name: _field(name, one, hint, definitions)
                for name, one in get_type_hints(hint, include_extras=True).items()
            }
            definitions[hint.__name__] = {
                "properties": fields,
                "required": list(fields),
                "title": hint.__name__,
                "type": "object",
                "additionalProperties": False,
            }
    else:
        return {}
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _field(name: str, hint: Any, owner: Any, definitions: Definitions) -> dict[str, Any]:
    made = _schema(hint, definitions)
    default = getattr(owner, name, None)
    if default is not None and dataclasses.is_dataclass(owner):
        made["default"] = _json_value(default)
    return made if "$ref" in made else {**made, "title": name.replace("_", " ").title()}


VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


def is_valid_tool_content_parts(value: Any) -> bool:
    """Whether what a tool returned is a list of content parts: texts and images."""
    return isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES for part in value
    )
