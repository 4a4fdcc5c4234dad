"""Python functions as tools: what a model is told of them, and its calls as arguments that fit.

Types are msgspec's: texts, numbers, lists, dicts, Literal, Enum, unions, dataclasses, TypedDicts, `Annotated[int, Meta(ge=0)]`.
Nothing is coerced: "3" is no int. (An int is a float all the same, and a text in ISO form a datetime.)
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

from rove.core.digest import digest_code, fingerprint
from rove.core.errors import ConfigError, ToolParseError, nearest
from rove.utils.docstrings import read_docstring
from rove.utils.functions import function_name, unwrapped

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that the APIs take."""
QUOTED = 120
"""Characters of what a model wrote that an error quotes."""
PART_TYPES = frozenset({"text", "image_url", "input_audio", "file", "refusal"})
"""Types of content parts in the OpenAI wire form."""

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A function that a model may call. Made by `make_tool`, or by hand for a schema that comes from elsewhere."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of its arguments, an object."""
    func: Callable[..., Any]
    """Takes the arguments by name; may be async."""
    type: Any = None
    """The TypedDict that arguments are converted to; None: they are passed on as they come."""
    required: frozenset[str] = frozenset()
    """Arguments without a default, hidden ones included."""
    hidden: frozenset[str] = frozenset()
    """Arguments that the model is not told of, and cannot give."""

    @property
    def definition(self) -> dict[str, Any]:
        """What a model is told, in the OpenAI wire form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: Mapping[str, Any]) -> Arguments:
        """The arguments of a call, checked and converted; those left out stay so.

        Raises:
            ToolParseError: one is unknown, missing or of another type.
        """
        if self.type is None:
            return dict(arguments)
        known = self.parameters["properties"]
        for name in arguments:
            if name not in known:
                raise ToolParseError(f"{self.name} has no argument '{_cut(name)}'; {nearest(_cut(name), known)}")
        needed = self.parameters["required"]
        for name in needed:
            if name not in arguments:
                raise ToolParseError(f"{self.name} needs the argument '{name}'; expected at least {', '.join(needed)}")
        try:
            return dict(msgspec.convert(arguments, self.type, str_keys=True))
        except msgspec.ValidationError as error:
            raise ToolParseError(f"{self.name}: {self._complaint(str(error))}") from error
        except RecursionError as error:
            raise ToolParseError(f"{self.name}: the arguments are nested too deeply") from error

    def check_call(self, arguments: Mapping[str, Any]) -> None:
        """Whether the function can be called with these, hidden ones included.

        Raises:
            ConfigError: one is unknown or missing.
        """
        if self.type is None:
            return
        known = self.hidden.union(self.parameters["properties"])
        for name in arguments:
            if name not in known:
                raise ConfigError(f"tool '{self.name}' has no argument '{name}'; {nearest(str(name), known)}")
        missing = sorted(self.required - arguments.keys())
        if missing:
            raise ConfigError(f"tool '{self.name}' needs the argument '{missing[0]}', which nobody gave")

    def _complaint(self, said: str) -> str:
        """A validation error, with the argument's name first, and what it may be where that is a choice."""
        text, _, place = said.partition(" - at `$.")
        place = place.rstrip("`")
        if not text.startswith("Invalid enum value"):
            return f"argument '{place}': {_cut(text)}"
        schema = self.parameters["properties"].get(place, {})
        options = [one for part in (schema, *schema.get("anyOf", ())) for one in part.get("enum", ())]
        expected = f"; expected one of {', '.join(map(repr, options))}" if options else ""
        return f"argument '{place}': {_cut(text)}{expected}"


def make_tool(
    func: Callable[..., Any] | Tool,
    *,
    name: str | None = None,
    description: str | None = None,
    hidden: Iterable[str] = (),
) -> Tool:
    """A typed function as a tool: its schema is that of its signature, in the words of its docstring.

    A parameter without annotation takes any JSON value; one whose default is None may be null. What the docstring says of a
    parameter (in Google's, NumPy's or reST style) describes it, unless it is `Annotated[int, "what it is"]` or has a `Meta`
    with a description.

    Args:
        func: a function, method, functools.partial or object with `__call__`, sync or async.
        name: Default: the function's own.
        description: Default: the docstring, as far as its first section.
        hidden: parameters that the model is not told of.

    Raises:
        ConfigError: it has no usable name, takes *args, **kwargs or positional-only parameters, a parameter's type has no
            JSON form, or a hidden one does not exist.
    """
    if isinstance(func, Tool):
        if name or description is not None or hidden:
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
    for one in sorted(hidden - parameters.keys()):
        raise ConfigError(f"tool '{name}' has no argument '{one}' to hide; {nearest(one, parameters)}")
    told, described = read_docstring(inspect.getdoc(unwrapped(func)))
    shown = {key: parameter for key, parameter in parameters.items() if key not in hidden}
    hints = _hints(func, shown, name)
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    fields = {key: Required[hint] if key in required else NotRequired[hint] for key, hint in hints.items()}
    arguments: Any = TypedDict("arguments", fields)  # pyright: ignore[reportArgumentType]  whose fields only we know
    schema = _schema(arguments, hints, name)
    schema["properties"] = {
        key: _explained(schema["properties"][key], parameter, described.get(key), hints[key])
        for key, parameter in shown.items()
    }
    schema["required"] = [key for key in required if key in shown]
    return Tool(
        name=name,
        description=told if description is None else description,
        parameters=schema,
        func=func,
        type=arguments,
        required=frozenset(required),
        hidden=hidden,
    )


def tool_identity(tool: Tool) -> str:
    """A tool in one line: name and hashes of its code, and of what the model is told, what is hidden and what is bound."""
    func = tool.func
    bound = {**dict(enumerate(func.args)), **func.keywords} if isinstance(func, functools.partial) else {}
    words = {str(name): _in_words(value) for name, value in bound.items()}
    seen = {"told": tool.definition, "hidden": sorted(tool.hidden), "bound": words}
    return f"{tool.name} #{digest_code(unwrapped(func))} #{fingerprint(seen)}"


def _in_words(value: Any) -> str:
    """JSON of what is plain; of all else only the type, which is the same in every process."""
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return type(value).__qualname__


def _parameters(func: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(func).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool '{name}' hides its arguments ({error}); wrap it in a def") from error
    bound = func.keywords if isinstance(func, functools.partial) else {}
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(
                f"tool '{name}' takes {parameter}, of which no model can be told; expected named parameters: write them "
                "out, or take a list or a dict"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"argument '{key}' of tool '{name}' is positional-only, but arguments are given by name; remove the '/'"
            )
    return {key: parameter for key, parameter in parameters.items() if key not in bound}


def _hints(func: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], name: str) -> dict[str, Any]:
    inner = unwrapped(func)
    target = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner).__call__
    try:
        known = typing.get_type_hints(_only(target, parameters), include_extras=True)
    except Exception as error:  # an annotation is an expression: it may raise anything
        raise ConfigError(
            f"an annotation of tool '{name}' cannot be read ({type(error).__name__}: {error}); expected types that can be "
            "found in its module"
        ) from error
    for key in (key for key in parameters if key not in known):
        warnings.warn(
            f"argument '{key}' of tool '{name}' has no annotation, so that any JSON value is taken for it; annotate it, "
            "with Any if that is meant",
            stacklevel=2,
        )
    hints = {key: known.get(key, Any) for key in parameters}
    return {key: Optional[hint] if parameters[key].default is None else hint for key, hint in hints.items()}  # noqa: UP045  of anything


def _only(target: Any, names: Iterable[str]) -> Any:
    """A function with the annotations of some of its parameters, as far as typing looks: others need not be found."""
    if inspect.isclass(target):
        return target
    inner = inspect.unwrap(target)
    annotations = getattr(target, "__annotations__", {})
    return types.SimpleNamespace(
        __annotations__={name: annotations[name] for name in names if name in annotations},
        __globals__=getattr(inner, "__globals__", {}),
        __type_params__=getattr(inner, "__type_params__", ()),
    )


def _schema(arguments: Any, hints: Mapping[str, Any], name: str) -> dict[str, Any]:
    for key, hint in hints.items():
        try:
            msgspec.json.schema(hint)
            msgspec.json.Decoder(hint)
        except Exception as error:
            said = str(error).strip().splitlines()[-1]
            raise ConfigError(
                f"argument '{key}' of tool '{name}' is annotated {_type_name(hint)}, which has no JSON form ({said}); expected "
                "texts, numbers, bool, lists, dicts, Literal, Enum, dataclasses or unions of these. What the environment "
                "gives, not the model, is hidden with add_tool(…, args_to_skip=[…]) of a StatefulToolEnv"
            ) from error
    whole = msgspec.json.schema(arguments)
    definitions = whole["$defs"]
    root = definitions.pop(whole["$ref"].rpartition("/")[2])
    root.pop("title", None)
    try:
        root = _inlined(root, definitions, ())
    except _Recursive:
        root["$defs"] = definitions
    return {"type": "object", "properties": {}, **root, "additionalProperties": False}


class _Recursive(Exception):
    """A type has itself inside."""


def _inlined(node: Any, definitions: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    """A schema with its definitions in their places: not every server and model follows references."""
    if isinstance(node, list):
        return [_inlined(item, definitions, within) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    rest = {key: _inlined(item, definitions, within) for key, item in node.items() if key != "$ref"}
    if not isinstance(reference, str):
        return rest
    name = reference.rpartition("/")[2]
    if name in within:
        raise _Recursive
    return {**_inlined(definitions[name], definitions, (*within, name)), **rest}


def _explained(schema: dict[str, Any], parameter: inspect.Parameter, said: str | None, hint: Any) -> dict[str, Any]:
    """The schema of a parameter with its description and default."""
    annotations = (note for part in (hint, *typing.get_args(hint)) for note in getattr(part, "__metadata__", ()))
    own = next((note for note in annotations if isinstance(note, str)), None)
    more: dict[str, Any] = {}
    if (own or said) and "description" not in schema:
        more["description"] = own or said
    if parameter.default is not parameter.empty:
        try:
            more["default"] = msgspec.to_builtins(parameter.default, order="deterministic")
            msgspec.json.encode(more["default"])
        except (TypeError, ValueError):  # no JSON: a sentinel, say
            more.pop("default", None)
    return {**schema, **more}


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) else str(hint)


def call_id(call: Any) -> str:
    """The id of a call, "" where it has none that is a text."""
    given = call.get("id") if isinstance(call, Mapping) else None
    return given if isinstance(given, str) else ""


def call_name(call: Any) -> str | None:
    """The name of the function that is called; None where there is none."""
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) and name else None


def call_arguments(call: Any) -> Arguments:
    """The arguments of a call: a JSON object as text, or a dict; nothing and "" are {}.

    Raises:
        ToolParseError: they are something else; the message says what.
    """
    name, given = call_name(call), call["function"].get("arguments")
    arguments = given
    if given is None or (isinstance(given, str) and not given.strip()):
        arguments = {}
    elif isinstance(given, str):
        try:
            arguments = msgspec.json.decode(given)
        except (ValueError, RecursionError) as error:
            raise ToolParseError(
                f"the arguments of {name} are no JSON ({_cut(str(error))}): {_cut(given)}; expected a JSON object"
            ) from error
    if not isinstance(arguments, dict):
        kind = {list: "a list", str: "a text", bool: "a bool", int: "a number", float: "a number"}.get(type(arguments))
        raise ToolParseError(
            f'the arguments of {name} are {kind or "null"}; expected a JSON object like {{"name": value}}'
        )
    return arguments


def as_content(value: Any) -> str | list[Any]:
    """What a tool returned as the content of a message: a text, a list of content parts, or the JSON of anything else."""
    if isinstance(value, str):
        return value
    if _are_parts(value):
        return list(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)

    def plain(part: Any) -> Any:
        if hasattr(part, "tolist"):  # numpy, torch
            return part.tolist()
        if part is value:
            raise TypeError
        return str(part)

    try:
        return msgspec.json.encode(value, enc_hook=plain).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return str(value)


def _are_parts(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(part, Mapping) and _is_part(part) for part in value)
    )


def _is_part(part: Mapping[Any, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in PART_TYPES and kind in part  # other things are "file" and "text", too


def _cut(text: str) -> str:
    """What a model wrote, short enough to quote."""
    return text if len(text) <= QUOTED else text[:QUOTED] + "…"
