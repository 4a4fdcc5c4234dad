"""Parse and write tool calls whose arguments are in tags of their own, without types.

Qwen3-Coder, Qwen3.5 and Nemotron 3 write `<function=NAME>` and `<parameter=KEY>`; GLM 4.5 writes `<arg_key>` and `<arg_value>`.
A value is plain text: `1` may be the number or the string, and only the tool's JSON schema says which. `typed_arguments` decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rove.core.plain import Arguments, JsonMapping, JsonValue
from rove.rendering.python_calls import CONSTANTS, Call, MalformedCall


class TagForm(NamedTuple):
    """The tags of a call, in the order in which they occur."""

    head: re.Pattern[str]
    """Pattern of the beginning, with the group `name`."""
    argument: re.Pattern[str]
    """Pattern of an argument, with the groups `key` and `value`. The tags that may follow are part of the pattern, because a
    value may quote its closing tag."""
    end: re.Pattern[str]
    """Pattern of the end."""


QWEN_FORM = TagForm(
    re.compile(r"<tool_call>\s*<function=(?P<name>[^<>\n]+)>\s*"),
    re.compile(
        r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>.*?)\n?</parameter>\s*(?=<parameter=|</function>)", re.DOTALL
    ),
    re.compile(r"</function>\s*</tool_call>"),
)
GLM_FORM = TagForm(
    re.compile(r"<tool_call>\s*(?P<name>[^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)"),
    re.compile(
        r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*(?=<arg_key>|</tool_call>)",
        re.DOTALL,
    ),
    re.compile(r"</tool_call>"),
)


def parse_tags(text: str, form: TagForm) -> tuple[str, list[Call]]:
    """Return the text outside the calls, and the calls; every value is a string."""
    calls: list[Call] = []
    content, position = "", 0
    while (start := text.find("<tool_call>", position)) >= 0:
        content += text[position:start]
        call, position = _call_at(text, start, form)
        calls.append(call)
    return content + text[position:], calls


def _call_at(text: str, start: int, form: TagForm) -> tuple[Call, int]:
    head = form.head.match(text, start)
    if head is None:
        raise MalformedCall("no name of a tool")
    arguments: Arguments = {}
    position = head.end()
    while argument := form.argument.match(text, position):
        key = argument["key"].strip()
        if key in arguments:
            raise MalformedCall(f"the argument {key} is given twice")
        arguments[key] = argument["value"]
        position = argument.end()
    end = form.end.match(text, position)
    if end is None:
        raise MalformedCall("not closed")
    return Call(head["name"].strip(), arguments), end.end()


def write_qwen(calls: Sequence[Call]) -> str:
    """Return calls as Qwen3-Coder writes them."""
    return "\n".join(_qwen_call(call) for call in calls)


def _qwen_call(call: Call) -> str:
    parameters = [f"<parameter={key}>\n{value_text(value)}\n</parameter>" for key, value in call.arguments.items()]
    return "\n".join(["<tool_call>", f"<function={call.name}>", *parameters, "</function>", "</tool_call>"])


def write_glm(calls: Sequence[Call]) -> str:
    """Return calls as GLM 4.5 writes them."""
    return "\n".join(_glm_call(call) for call in calls)


def _glm_call(call: Call) -> str:
    lines = [f"<tool_call>{call.name}"]
    for key, value in call.arguments.items():
        lines += [f"<arg_key>{key}</arg_key>", f"<arg_value>{value_text(value)}</arg_value>"]
    return "\n".join([*lines, "</tool_call>"])


def value_text(value: JsonValue) -> str:
    """Return the text of a value: a string as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def typed_arguments(arguments: Arguments, parameters: JsonMapping | None) -> Arguments:
    """Return arguments with the types of the tool's schema; None is the schema of an unknown tool."""
    schema = parameters or {}
    properties = schema.get("properties") or {}
    return {
        key: _typed(text, json_types(argument_schema(schema, properties.get(key)))) for key, text in arguments.items()
    }


MAX_REFERENCES = 10
"""References that are followed one after the other: a schema may refer to itself."""


def argument_schema(parameters: JsonMapping, schema: object) -> JsonMapping:
    """Return the schema of an argument with the definitions of its tool; a reference to one of them is followed."""
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    resolved = schema
    for _ in range(MAX_REFERENCES):
        if not isinstance(resolved, Mapping) or not isinstance(resolved.get("$ref"), str):
            break
        root, _, name = resolved["$ref"].removeprefix("#/").partition("/")
        resolved = (definitions.get(root) or {}).get(name)
    return {**resolved, **definitions} if isinstance(resolved, Mapping) else definitions


def json_types(schema: JsonMapping) -> frozenset[str]:
    """Return the JSON types that a schema allows; an empty set if it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset([declared])
    if isinstance(declared, list):
        return frozenset(declared)
    if isinstance(schema.get("enum"), list):
        return frozenset(_json_type(value) for value in schema["enum"])
    if "const" in schema:
        return frozenset([_json_type(schema["const"])])
    options = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(options, list):
        return frozenset()
    types = [json_types(argument_schema(schema, option)) for option in options]
    return frozenset().union(*types) if all(types) else frozenset()


def _json_type(value: JsonValue) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _no_constant(name: str) -> object:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # "NaN" is a word here


def _typed(text: str, types: frozenset[str]) -> JsonValue:
    """Return the value of a text; the text itself if no other value of an allowed type has it."""
    if types == {"string"}:
        return text
    # Templates write Python's True and None here, and the JSON of lists and objects.
    if text in CONSTANTS:
        value = CONSTANTS[text]
    else:
        try:
            value = _DECODER.decode(text)
        except (ValueError, RecursionError):
            return text
    kind = _json_type(value)
    is_allowed = not types or kind in types or (kind == "integer" and "number" in types)
    return text if "string" in types and not is_allowed else value
