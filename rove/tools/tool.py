"""Python functions as tools: their JSON schemas, and argument checks for calls.

Arguments may have the types that msgspec supports: str, numbers, lists, dicts, Literal, Enum, unions, dataclasses, TypedDicts,
`Annotated[int, Meta(ge=0)]`. Values are not coerced: "3" is not an int. (An int is a valid float, and an ISO string a
valid datetime.)
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, Optional, Required, TypedDict

import msgspec

from rove.core.code_digest import digest_code
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, ToolParseError, nearest
from rove.core.messages import cut_quotation
from rove.core.plain import Arguments, JsonObject, JsonValue, is_mapping
from rove.utils.functions import function_name, read_docstring, unwrapped

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Tool names that the APIs accept."""
PART_TYPES = frozenset({"text", "image_url", "input_audio", "file", "refusal"})
"""Types of content parts in the OpenAI wire format."""
ToolFunction = Callable[..., Any]
"""A function that a model may call; it may be async."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function that a model may call. Create it with `make_tool`, or directly if the schema comes from elsewhere.

    Example:
        def add(a: int, b: int) -> int:
            return a + b

        tool = make_tool(add)
        tool.definition  # the JSON schema for the model
    """

    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments, an object."""
    func: ToolFunction
    """Called with keyword arguments; may be async."""
    type: object = None
    """TypedDict to which arguments are converted; None passes the arguments on unchecked."""
    required: frozenset[str] = frozenset()
    """Arguments without a default, including hidden ones."""
    hidden: frozenset[str] = frozenset()
    """Arguments that the model neither sees nor can set."""

    @property
    def definition(self) -> JsonObject:
        """The tool definition for the model, in the OpenAI wire format."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, object]) -> Arguments:
        """Check and convert the arguments of a call.

        Raises:
            ToolParseError: an argument is unknown, missing or of the wrong type.
        """
        if self.type is None:
            return dict(arguments)
        properties = self.parameters["properties"]
        for name in arguments:
            if name not in properties:
                raise ToolParseError(
                    f"{self.name} has no argument '{cut_quotation(name)}'; {nearest(cut_quotation(name), properties)}"
                )
        needed = self.parameters["required"]
        for name in needed:
            if name not in arguments:
                raise ToolParseError(f"{self.name} needs the argument '{name}'; expected at least {', '.join(needed)}")
        try:
            return dict(msgspec.convert(arguments, self.type, str_keys=True))
        except msgspec.ValidationError as error:
            raise ToolParseError(f"{self.name}: {self._describe(str(error))}") from error
        except RecursionError as error:
            raise ToolParseError(f"{self.name}: the arguments are nested too deeply") from error

    def check_call(self, arguments: Mapping[str, object]) -> None:
        """Check the names of the arguments for a call, including hidden ones.

        Raises:
            ConfigError: an argument is unknown or missing.
        """
        if self.type is None:
            return
        accepted = self.hidden.union(self.parameters["properties"])
        for name in arguments:
            if name not in accepted:
                raise ConfigError(f"tool '{self.name}' has no argument '{name}'; {nearest(str(name), accepted)}")
        missing = sorted(self.required - arguments.keys())
        if missing:
            raise ConfigError(
                f"tool '{self.name}' needs the argument '{missing[0]}'; expected it from update_tool_args"
            )

    def _describe(self, message: str) -> str:
        """Return a validation error with the name of the argument first, and the options of an enum."""
        # "… - at `$.center.x`", or "… - at `key` in `$.sizes`" for a key of a dict.
        located = re.fullmatch(r"(.*)(?: - at| in) `\$\.(.*)`", message, re.DOTALL)
        text, name = located.groups() if located else (message, "")
        description = f"argument '{name}': {cut_quotation(text)}"
        if not text.startswith("Invalid enum value"):
            return description
        # msgspec does not name the options; without them, models repeat the same wrong value.
        schema = self.parameters["properties"].get(name, {})
        options: list[object] = []
        for part in (schema, *schema.get("anyOf", ())):
            options += part.get("enum", ())
        if not options:
            return description
        return f"{description}; expected one of {', '.join(map(repr, options))}"


def make_tool(
    func: ToolFunction | Tool,
    *,
    name: str | None = None,
    description: str | None = None,
    hidden: Iterable[str] = (),
) -> Tool:
    """Convert a typed function to a tool with a schema from its signature and docstring.

    A parameter without an annotation accepts any JSON value; a parameter with the default None may be null. Descriptions of
    parameters come from the docstring (Google, NumPy or reST style), or from `Annotated[int, "description"]` or a
    `Meta` with a description.

    Args:
        func: a function, method, functools.partial or object with `__call__`, sync or async.
        name: Default: the name of the function.
        description: Default: the docstring up to its first section.
        hidden: parameters that are not shown to the model.

    Raises:
        ConfigError: invalid name; *args, **kwargs or positional-only parameters; a type without a JSON form; or an
            unknown hidden parameter.

    Example:
        def add(a: int, b: int) -> int: ...

        env = rove.ToolEnv(tools=[make_tool(add, description="Add two numbers.")], dataset=dataset)
    """
    if isinstance(func, Tool):
        has_options = bool(name or hidden) or description is not None
        if has_options:
            raise ConfigError(f"'{func.name}' is a Tool already; expected its function: make_tool({func.name}.func, …)")
        return func
    if not callable(func):
        raise ConfigError(f"{func!r} is not a tool; expected a function")
    name = name or function_name(func)
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a tool cannot be named '{name}'; expected 1 to 64 letters, digits, '_' and '-': use a def, or "
            "make_tool(func, name=…)"
        )
    parameters = _parameters(func, name)
    hidden = frozenset([hidden] if isinstance(hidden, str) else hidden)
    unknown = sorted(hidden - parameters.keys())
    if unknown:
        raise ConfigError(f"tool '{name}' has no argument '{unknown[0]}' to hide; {nearest(unknown[0], parameters)}")
    summary, described = read_docstring(inspect.getdoc(unwrapped(func)))
    visible = {key: parameter for key, parameter in parameters.items() if key not in hidden}
    hints = _hints(func, visible, name)
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    fields: dict[str, object] = {}
    for key, hint in hints.items():
        fields[key] = Required[hint] if key in required else NotRequired[hint]
    arguments: Any = TypedDict("arguments", fields)  # pyright: ignore[reportArgumentType]  fields known only at run time
    schema = _schema(arguments, hints, name)
    properties = schema["properties"]
    # In the order of the signature: msgspec sorts properties by name.
    schema["properties"] = {
        key: _annotated(properties[key], parameter, described.get(key), hints[key])
        for key, parameter in visible.items()
    }
    schema["required"] = [key for key in required if key in visible]
    return Tool(
        name=name,
        description=summary if description is None else description,
        parameters=schema,
        func=func,
        type=arguments,
        required=frozenset(required),
        hidden=hidden,
    )


def tool_identity(tool: Tool) -> str:
    """Return the name of a tool with a hash of its code and a hash of its definition, its hidden and its bound arguments."""
    func = tool.func
    bound: dict[object, object] = {}
    if isinstance(func, functools.partial):
        bound = {**dict(enumerate(func.args)), **func.keywords}
    values = {str(name): _as_json(value) for name, value in bound.items()}
    # The key "told" is part of the hash, and thus of the identity of every recorded run.
    content = {"told": tool.definition, "hidden": sorted(tool.hidden), "bound": values}
    return f"{tool.name} #{digest_code(unwrapped(func))} #{fingerprint(content)}"


def _as_json(value: object) -> str:
    """Return a plain value as JSON; for any other value, return the name of its type, which is the same in every process."""
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return type(value).__qualname__


def _parameters(func: ToolFunction, name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(func).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool '{name}' hides its arguments ({error}); wrap it in a def") from error
    bound = func.keywords if isinstance(func, functools.partial) else {}
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(
                f"tool '{name}' takes {parameter}, which a tool schema cannot describe; expected named parameters: write "
                "them out, or take a list or a dict"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"argument '{key}' of tool '{name}' is positional-only, but arguments are given by name; remove the '/'"
            )
    return {key: parameter for key, parameter in parameters.items() if key not in bound}


def _hints(func: Callable[..., object], parameters: Mapping[str, inspect.Parameter], name: str) -> dict[str, object]:
    inner = unwrapped(func)
    target = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__
    try:
        resolved = typing.get_type_hints(_only(target, parameters), include_extras=True)
    except Exception as error:  # an annotation is an expression: it may raise anything
        raise ConfigError(
            f"an annotation of tool '{name}' cannot be read ({type(error).__name__}: {error}); expected types that can be "
            "found in its module"
        ) from error
    hints: dict[str, object] = {}
    for key, parameter in parameters.items():
        if key not in resolved:
            warnings.warn(
                f"argument '{key}' of tool '{name}' has no annotation, so it accepts any JSON value; annotate it "
                "(with Any if that is intended)",
                stacklevel=2,
            )
        hint = resolved.get(key, Any)
        hints[key] = Optional[hint] if parameter.default is None else hint  # noqa: UP045  `hint` may be any object
    return hints


def _only(target: Callable[..., object], names: Iterable[str]) -> object:
    """Return a stand-in for a function with only some of its annotations: the other annotations need not be resolvable."""
    if inspect.isclass(target):
        return target
    inner = inspect.unwrap(target)
    annotations = getattr(target, "__annotations__", {})
    selected = {name: annotations[name] for name in names if name in annotations}
    return types.SimpleNamespace(
        __annotations__=selected,
        __globals__=getattr(inner, "__globals__", {}),
        __type_params__=getattr(inner, "__type_params__", ()),
    )


def _schema(arguments: object, hints: Mapping[str, object], name: str) -> JsonObject:
    for key, hint in hints.items():
        try:
            msgspec.json.schema(hint)
            msgspec.json.Decoder(hint)
        except Exception as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigError(
                f"argument '{key}' of tool '{name}' is annotated {_type_name(hint)}, which has no JSON form ({reason}); expected "
                "str, numbers, bool, lists, dicts, Literal, Enum, dataclasses or unions of these. Hide arguments that the "
                "environment sets with add_tool(…, args_to_skip=[…]) of a StatefulToolEnv"
            ) from error
    whole = msgspec.json.schema(arguments)
    definitions = whole["$defs"]
    root = definitions.pop(whole["$ref"].rpartition("/")[2])
    root.pop("title", None)
    try:
        root = _inlined(root, definitions, ())
    except _Recursive:  # a type that contains itself cannot be inlined, so its references stay
        root["$defs"] = definitions
    return {"type": "object", "properties": {}, **root, "additionalProperties": False}


class _Recursive(Exception):
    """A type contains itself."""


def _inlined(node: object, definitions: Mapping[str, object], within: tuple[str, ...]) -> JsonValue:
    """Return a schema with its definitions inlined, because some servers and models do not follow references."""
    if isinstance(node, list):
        return [_inlined(item, definitions, within) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    other_keys = {key: _inlined(item, definitions, within) for key, item in node.items() if key != "$ref"}
    if not isinstance(reference, str):
        return other_keys
    name = reference.rpartition("/")[2]
    if name in within:
        raise _Recursive
    return {**_inlined(definitions[name], definitions, (*within, name)), **other_keys}


def _annotated(schema: JsonObject, parameter: inspect.Parameter, description: str | None, hint: object) -> JsonObject:
    notes: list[object] = []
    for part in (hint, *typing.get_args(hint)):  # `Annotated[...] | None` has the note one level deeper
        notes += getattr(part, "__metadata__", ())
    texts = [note for note in notes if isinstance(note, str)]
    if texts:
        description = texts[0] or description
    additions: JsonObject = {}
    if description and "description" not in schema:
        additions["description"] = description
    if parameter.default is not parameter.empty:
        try:
            additions["default"] = msgspec.to_builtins(parameter.default, order="deterministic")
            msgspec.json.encode(additions["default"])
        except (TypeError, ValueError):  # no JSON form: for example a sentinel
            additions.pop("default", None)
    return {**schema, **additions}


def _type_name(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) else str(hint)


def as_content(value: object) -> str | list[JsonValue]:
    """Convert the result of a tool to message content: a text or a list of content parts as it is, any other value as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and value and all(map(_is_part, value)):
        return list(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)

    def plain(part: object) -> object:
        to_list = getattr(part, "tolist", None)  # numpy, torch
        if to_list is not None:
            return to_list()
        if part is value:
            raise TypeError  # `str(value)` below, without the quotation marks of a JSON text
        return str(part)

    try:
        return msgspec.json.encode(value, enc_hook=plain).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return str(value)


def _is_part(part: object) -> bool:
    if not is_mapping(part):
        return False
    kind = part.get("type")
    # Other dicts may have a type "file" or "text", too.
    return isinstance(kind, str) and kind in PART_TYPES and kind in part
