"""v0's tool environments: Python functions, called one after another with the model's arguments, and their schemas."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import types
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from rove.compat.verifiers.decorators import call_user, stop
from rove.compat.verifiers.errors import ToolCallError, ToolParseError
from rove.compat.verifiers.legacy import as_tool_defs, call_update_tool_args
from rove.compat.verifiers.messages import Messages, ToolMessage
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.release import outdated
from rove.compat.verifiers.rubrics import Rubric, RubricGroup
from rove.compat.verifiers.types import State, Tool, wire_tool
from rove.core.errors import LimitReachedError
from rove.utils.functions import function_name, read_docstring


class ToolMonitorRubric(Rubric):
    """Metrics of tool calls: `total_tool_calls`, and `NAME_calls` for every tool."""

    def __init__(self, tool_names: Sequence[str] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.tool_names: list[str] = []
        self.add_metric(self.total_tool_calls)
        for name in tool_names or ():
            self.add_tool_metric(name)

    def add_tool_metric(self, tool_name: str) -> None:
        """Count the calls of a tool."""
        if tool_name not in self.tool_names:
            self.tool_names.append(tool_name)
            self.add_metric(self.get_tool_call_count_func(tool_name))

    def remove_tool_metric(self, tool_name: str) -> None:
        """Stop counting the calls of a tool."""
        if tool_name in self.tool_names:
            self.tool_names.remove(tool_name)
            index = self._get_reward_func_names().index(f"{tool_name}_calls")
            del self.funcs[index], self.weights[index]

    async def total_tool_calls(self, completion: Messages) -> float:
        """Number of calls in the rollout."""
        return float(len(_called_tools(completion)))

    def get_tool_call_count_func(self, tool_name: str) -> Callable[..., Any]:
        """Return a metric that counts the calls of one tool."""

        async def tool_calls(completion: Messages) -> int:
            return _called_tools(completion).count(tool_name)

        tool_calls.__name__ = f"{tool_name}_calls"
        return tool_calls


def _called_tools(completion: Messages) -> list[str]:
    names: list[str] = []
    for message in completion:
        if message["role"] == "assistant":
            names += [call["name"] for call in message.get("tool_calls") or []]
    return names


def _name(tool: Any) -> str:
    return getattr(tool, "__name__", type(tool).__name__)


class ToolEnv(MultiTurnEnv):
    """The model calls functions until it responds without a call.

    Args:
        tools: the functions.
        error_formatter: exception → text for the model.
        stop_errors: exception classes that end the rollout instead.
        Everything else: see `MultiTurnEnv`.
    """

    def __init__(
        self,
        tools: list[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: Sequence[type[Exception]] | None = None,
        **kwargs: Any,
    ):
        if "max_steps" in kwargs:
            outdated("ToolEnv(max_steps=…)", "call it max_turns")
            max_turns = kwargs.pop("max_steps")
        self.tools: list[Callable[..., Any]] = tools or []
        self.error_formatter = error_formatter
        self.stop_errors = list(stop_errors or [])
        self.tool_map: dict[str, Callable[..., Any]] = {_name(tool): tool for tool in self.tools}
        definitions = [convert_func_to_tool_def(tool) for tool in self.tools]
        super().__init__(tool_defs=definitions, max_turns=max_turns, **kwargs)
        rubrics = self.rubric.rubrics if isinstance(self.rubric, RubricGroup) else [self.rubric]
        # A package may have its own rubric that counts calls, such as a `ToolRubric`; a second one would count them twice.
        monitors = [rubric for rubric in rubrics if isinstance(rubric, ToolMonitorRubric)]
        self.tool_monitor_rubric = monitors[0] if monitors else ToolMonitorRubric()
        for name in self.tool_map:
            self.tool_monitor_rubric.add_tool_metric(name)
        if not monitors:
            self.add_rubric(self.tool_monitor_rubric)

    def _should_stop_for_error(self, err: Exception) -> bool:
        return isinstance(err, tuple(self.stop_errors))

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Add a tool."""
        self._register(tool, convert_func_to_tool_def(tool))

    def _register(self, tool: Callable[..., Any], definition: Any) -> None:
        self.tools.append(tool)
        self.tool_defs = [*(self.tool_defs or []), definition]
        self.tool_map[_name(tool)] = tool
        self.tool_monitor_rubric.add_tool_metric(_name(tool))

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Remove a tool."""
        self.tools.remove(tool)
        definitions = as_tool_defs(self.tool_defs) or []
        self.tool_defs = [definition for definition in definitions if definition.name != _name(tool)]
        self.tool_map.pop(_name(tool))
        self.tool_monitor_rubric.remove_tool_metric(_name(tool))

    @stop
    async def no_tools_called(self, state: State) -> bool:
        """Stop when the model responds without a call."""
        if not state["trajectory"]:
            return False
        message = state["trajectory"][-1]["completion"][-1]
        return message["role"] == "assistant" and not message.get("tool_calls")

    async def call_tool(self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any) -> Any:
        """Call a tool; its exceptions propagate."""
        result = await call_user(self.tool_map[tool_name], **tool_args)
        content = result if is_valid_tool_content_parts(result) else str(result)
        return ToolMessage(role="tool", content=content, tool_call_id=tool_call_id)

    def _parse_args(self, call: Any) -> Any:
        return json.loads(call["arguments"])

    def _prepare_args(self, name: str, args: Any, messages: Messages, state: State, **kwargs: Any) -> Any:
        return args

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Return one tool message per call, in order.

        Raises:
            ToolParseError: the arguments cannot be parsed, and `stop_errors` includes the error.
            ToolCallError: a tool failed with one of `stop_errors`.
        """
        calls = messages[-1].get("tool_calls")
        assert calls is not None
        replies: list[Any] = []
        for call in calls:
            try:
                args = self._parse_args(call)
            except Exception as error:
                replies.append(self._error_message(error, ToolParseError, call["id"]))
                continue
            # Outside of the `try`, as in v0: an error of `update_tool_args` is the environment's, not the model's.
            args = self._prepare_args(call["name"], args, messages, state, **kwargs)
            args = await args if inspect.isawaitable(args) else args
            try:
                replies.append(await self.call_tool(call["name"], args, call["id"]))
            except LimitReachedError:
                raise
            except Exception as error:
                replies.append(self._error_message(error, ToolCallError, call["id"]))
        return replies

    def _error_message(self, error: Exception, kind: type[Exception], call_id: str) -> ToolMessage:
        if self._should_stop_for_error(error):
            raise kind from error
        return ToolMessage(role="tool", content=self.error_formatter(error), tool_call_id=call_id)


class StatefulToolEnv(ToolEnv):
    """A `ToolEnv` whose `update_tool_args` adds arguments to calls; the model does not see these arguments.

    Arguments: see `ToolEnv`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.skipped_args: dict[str, list[str]] = {}

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Add a tool, hiding some arguments from the model."""
        self._register(tool, convert_func_to_tool_def(filter_signature(tool, args_to_skip)))
        self.skipped_args[_name(tool)] = list(args_to_skip)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Remove a tool."""
        super().remove_tool(tool)
        self.skipped_args.pop(_name(tool), None)

    @abstractmethod
    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments for a call."""

    def _parse_args(self, call: Any) -> Any:
        args = super()._parse_args(call)
        if not isinstance(args, dict):
            raise ValueError(f"Expected tool arguments to be a dict, got {type(args).__name__}: {args}")
        return args

    def _prepare_args(self, name: str, args: Any, messages: Messages, state: State, **kwargs: Any) -> Any:
        return call_update_tool_args(self, name, args, messages, state, **kwargs)


def filter_signature(func: Callable[..., Any], args_to_skip: Sequence[str]) -> Callable[..., Any]:
    """Return a function whose signature lacks some arguments."""
    if not args_to_skip:
        return func

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    hidden = {*args_to_skip, "self"}
    signature = inspect.signature(func)
    visible = [parameter for name, parameter in signature.parameters.items() if name not in hidden]
    annotations = getattr(func, "__annotations__", {})
    wrapper.__name__ = function_name(func)
    wrapper.__doc__ = func.__doc__
    wrapper.__signature__ = signature.replace(parameters=visible)  # pyright: ignore[reportFunctionMemberAccess]
    wrapper.__annotations__ = {name: hint for name, hint in annotations.items() if name not in args_to_skip}
    # `get_type_hints` evaluates annotations that are strings in this module.
    wrapper.__module__ = func.__module__
    return wrapper


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
    """Return a function as a tool. All arguments are required, even those with defaults, because the schema is strict."""
    tool_name = function_name(func)
    description, notes = read_docstring(inspect.getdoc(func))
    definitions: Definitions = {}
    hints = _hints(func)
    properties: dict[str, Any] = {}
    for name, parameter in inspect.signature(func).parameters.items():
        # An object without fixed fields is not possible in a strict schema.
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        hint = hints.get(name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            hint = list[hint]
        note = notes.get(name) or _annotated(hint, parameter.default)
        properties[name] = _property(name, parameter, note, _schema(hint, definitions), definitions)
    parameters = _object(f"{tool_name}_args", properties)
    if definitions:
        parameters = {"$defs": definitions, **parameters}
    return Tool(name=tool_name, description=description, parameters=parameters, strict=True)


def _object(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    fields = {"properties": properties, "required": list(properties), "title": title}
    return {**fields, "type": "object", "additionalProperties": False}


def convert_func_to_oai_tool(func: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool in OpenAI's form, as until 0.1.10."""
    outdated("convert_func_to_oai_tool", "call convert_func_to_tool_def")
    return wire_tool(convert_func_to_tool_def(func))


def _annotated(hint: Any, default: Any) -> str | None:
    """Return the description in an annotation or default: a string in `Annotated`, or the description of a pydantic `Field`."""
    metadata = getattr(hint, "__metadata__", ())
    for annotation in metadata:
        if isinstance(annotation, str):
            return annotation
    for field in (*metadata, default):
        if _is_field(field) and field.description:
            return field.description
    return None


def _is_field(value: Any) -> bool:
    # By the names of the class, because pydantic is optional and slow to import.
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    target = func if inspect.isroutine(func) or inspect.isclass(func) else type(func).__call__
    existing = getattr(func, "__annotations__", None)
    try:
        return get_type_hints(target if existing is None or inspect.isroutine(func) else func, include_extras=True)
    except Exception:  # annotations are expressions and may not evaluate
        return {}


def _property(
    name: str, parameter: inspect.Parameter, note: str | None, schema: dict[str, Any], definitions: Definitions
) -> dict[str, Any]:
    annotations: dict[str, Any] = {"description": note} if note else {}
    default = parameter.default
    if _is_field(default):
        default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
    if default is not parameter.empty and default is not None:
        annotations["default"] = _json_value(default)
    if "$ref" not in schema:
        return {**schema, **annotations, "title": name.replace("_", " ").title()}
    if not annotations:
        return schema
    # OpenAI's strict schemas allow no other key next to `$ref`, so v0 inlines the definition if there is a description.
    return {**definitions[schema["$ref"].rpartition("/")[2]], **annotations}


def _json_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, _LISTS) else value


def _schema(hint: Any, definitions: Definitions) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and any(map(_is_field, args[1:])):
        # A Field may have limits, such as ge=0, which only pydantic converts.
        schema = importlib.import_module("pydantic").TypeAdapter(hint).json_schema()
        definitions.update(schema.pop("$defs", {}))
        return schema
    if origin is Annotated:
        return _schema(args[0], definitions)
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(member, definitions) for member in args]}
    if origin is Literal:
        return _choice(args)
    if hint in _LISTS or origin in _LISTS:
        return _array(origin or hint, args, definitions)
    if hint is dict or origin in (dict, Mapping):
        return {"type": "object"}
    if isinstance(hint, type):
        return _definition_of(hint, definitions)
    return {}


def _choice(values: tuple[Any, ...]) -> dict[str, Any]:
    choice: dict[str, Any] = {"enum": list(values)}
    if len(values) == 1:
        choice = {"const": values[0]}
    kinds = {_JSON_NAMES.get(type(value)) for value in values}
    # Values of several kinds have no common type; None is not among the kinds with a name.
    if len(kinds) == 1 and None not in kinds:
        choice["type"] = kinds.pop()
    return choice


def _array(kind: Any, args: tuple[Any, ...], definitions: Definitions) -> dict[str, Any]:
    if kind is tuple and args and args[-1] is not Ellipsis:
        items = [_schema(item, definitions) for item in args]
        return {"maxItems": len(items), "minItems": len(items), "prefixItems": items, "type": "array"}
    items_schema = _schema(args[0], definitions) if args else {}
    schema: dict[str, Any] = {"items": items_schema, "type": "array"}
    if kind in (set, frozenset):
        schema["uniqueItems"] = True
    return schema


def _definition_of(hint: type, definitions: Definitions) -> dict[str, Any]:
    """Return a reference to a class; add its definition if it is missing."""
    if issubclass(hint, enum.Enum):
        definitions[hint.__name__] = {**_choice(tuple(member.value for member in hint)), "title": hint.__name__}
    elif hasattr(hint, "model_json_schema"):  # pydantic
        schema = hint.model_json_schema()  # pyright: ignore[reportAttributeAccessIssue]
        definitions.update(schema.pop("$defs", {}))
        # A strict schema requires every field, also those with a default.
        required = list(schema.get("properties", {}))
        definitions[hint.__name__] = {**schema, "additionalProperties": False, "required": required}
    elif dataclasses.is_dataclass(hint) or is_typeddict(hint):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # it may refer to itself
            fields: dict[str, Any] = {}
            for name, field_hint in get_type_hints(hint, include_extras=True).items():
                fields[name] = _field(name, field_hint, hint, definitions)
            definitions[hint.__name__] = _object(hint.__name__, fields)
    else:
        return {}
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _field(name: str, hint: Any, owner: Any, definitions: Definitions) -> dict[str, Any]:
    schema = _schema(hint, definitions)
    default = getattr(owner, name, None)
    if default is not None and dataclasses.is_dataclass(owner):
        schema["default"] = _json_value(default)
    if "$ref" not in schema:
        schema["title"] = name.replace("_", " ").title()
    return schema


VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


def is_valid_tool_content_parts(value: Any) -> bool:
    """Return whether a tool returned a list of content parts: texts and images."""
    if not isinstance(value, list):
        return False
    return all(isinstance(part, dict) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES for part in value)
