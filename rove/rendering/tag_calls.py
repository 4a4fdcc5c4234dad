"""Parse and write tool calls with a tag for each argument, without types.

Qwen3-Coder, Qwen3.5, Nemotron 3 and Seed-OSS write `<function=NAME>` and `<parameter=KEY>`; GLM 4.5 writes `<arg_key>` and
`<arg_value>`; MiniMax M2 and DeepSeek V3.2 write `<invoke name="NAME">`.
A value is plain text: `1` may be the number or the string, and only the tool's JSON schema says which. `typed_arguments` decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rove.core.plain import Arguments, JsonMapping, JsonObject, JsonValue
from rove.rendering.json_calls import JSON_DECODER, whole_json
from rove.rendering.python_calls import CONSTANTS, Call, MalformedCall, read_literal


class TagForm(NamedTuple):
    """The tags of calls, in the order in which they occur."""

    begin: re.Pattern[str]
    """Pattern of the tag before one or several calls."""
    head: re.Pattern[str]
    """Pattern of the beginning of a call, with the group `name`."""
    argument: re.Pattern[str]
    """Pattern of an argument, with the groups `key` and `value`. The tags that may follow are part of the pattern, because a
    value may quote its closing tag. The optional group `is_string` says whether the value is text or JSON."""
    call_end: re.Pattern[str]
    """Pattern of the end of a call."""
    end: re.Pattern[str]
    """Pattern of the tag after the calls."""


def _tag_form(begin: str, head: str, argument: str, next_argument: str, call_end: str, end: str) -> TagForm:
    """Return a form in which an argument extends to the next argument or to the end of the call."""
    whole_argument = rf"{argument}\s*(?={next_argument}|{call_end or end})"
    return TagForm(
        re.compile(begin + r"\s*"),
        re.compile(head + r"\s*"),
        re.compile(whole_argument, re.DOTALL),
        re.compile(call_end + r"\s*"),
        re.compile(end),
    )


_QWEN_HEAD = r"<function=(?P<name>[^<>\n]+)>"
_QWEN_ARGUMENT = r"<parameter=(?P<key>[^<>\n]+)>\n?(?P<value>.*?)\n?</parameter>"
QWEN_FORM = _tag_form(
    "(?:<tool_call>|(?=<function=))", _QWEN_HEAD, _QWEN_ARGUMENT, "<parameter=", "</function>", "</tool_call>"
)
SEED_FORM = _tag_form(
    "<seed:tool_call>",
    _QWEN_HEAD,
    r"<parameter=(?P<key>[^<>\n]+)>(?P<value>.*?)</parameter>",
    "<parameter=",
    "</function>",
    "</seed:tool_call>",
)
GLM_FORM = _tag_form(
    "<tool_call>",
    r"(?P<name>[^\s<>{}\[\]\"]+)\s*(?=<arg_key>|</tool_call>)",
    r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
    "<arg_key>",
    "",
    "</tool_call>",
)
MINIMAX_FORM = _tag_form(
    "<minimax:tool_call>",
    '<invoke name="(?P<name>[^"]+)">',
    '<parameter name="(?P<key>[^"]+)">(?P<value>.*?)</parameter>',
    "<parameter name=",
    "</invoke>",
    "</minimax:tool_call>",
)
DSML_FORM = _tag_form(
    "<｜DSML｜ ?(?:function_|tool_)?calls>",
    '<｜DSML｜ ?invoke name="(?P<name>[^"]+)">',
    '<｜DSML｜ ?parameter name="(?P<key>[^"]+)" string="(?P<is_string>true|false)">(?P<value>.*?)</｜DSML｜ ?parameter>',
    "<｜DSML｜ ?parameter name=",
    "</｜DSML｜ ?invoke>",
    "</｜DSML｜ ?(?:function_|tool_)?calls>",
)
"""The form of DeepSeek. The tag around calls is `function_calls` in V3.2, `tool_calls` in V4, and `calls` after a space in
V4.1."""


def parse_tags(text: str, form: TagForm) -> tuple[str, list[Call]]:
    """Return the text outside the calls, and the calls; a value is a string unless its tag says otherwise."""
    calls: list[Call] = []
    content, position = "", 0
    while begin := form.begin.search(text, position):
        content += text[position : begin.start()]
        listed, position = _calls_at(text, begin.end(), form)
        calls += listed
    return content + text[position:], calls


def _calls_at(text: str, start: int, form: TagForm) -> tuple[list[Call], int]:
    calls: list[Call] = []
    position = start
    while head := form.head.match(text, position):
        arguments, position = _arguments_at(text, head.end(), form)
        call_end = form.call_end.match(text, position)
        if call_end is None:
            raise MalformedCall("not closed")
        calls.append(Call(head["name"].strip(), arguments))
        position = call_end.end()
    if not calls:
        raise MalformedCall("no name of a tool")
    end = form.end.match(text, position)
    if end is None:
        raise MalformedCall("not closed")
    return calls, end.end()


def _arguments_at(text: str, start: int, form: TagForm) -> tuple[Arguments, int]:
    arguments: Arguments = {}
    position = start
    while argument := form.argument.match(text, position):
        key = argument["key"].strip()
        if key in arguments:
            raise MalformedCall(f"the argument {key} is given twice")
        is_string = argument.groupdict().get("is_string") != "false"
        arguments[key] = argument["value"] if is_string else whole_json(argument["value"])
        position = argument.end()
    return arguments, position


class TagTexts(NamedTuple):
    """The texts that a model family writes around names, keys and values, which `{name}`, `{key}` and `{is_string}` stand for."""

    begin: str
    head: str
    argument: str
    argument_end: str
    tail: str
    separator: str
    end: str


TAG_TEXTS = {
    "qwen_xml": TagTexts(
        "",
        "<tool_call>\n<function={name}>\n",
        "<parameter={key}>\n",
        "\n</parameter>\n",
        "</function>\n</tool_call>",
        "\n",
        "",
    ),
    "glm": TagTexts(
        "",
        "<tool_call>{name}\n",
        "<arg_key>{key}</arg_key>\n<arg_value>",
        "</arg_value>\n",
        "</tool_call>",
        "\n",
        "",
    ),
    "seed": TagTexts(
        "",
        "<seed:tool_call>\n<function={name}>\n",
        "<parameter={key}>",
        "</parameter>\n",
        "</function>\n</seed:tool_call>",
        "\n",
        "",
    ),
    "minimax": TagTexts(
        "<minimax:tool_call>\n",
        '<invoke name="{name}">\n',
        '<parameter name="{key}">',
        "</parameter>\n",
        "</invoke>",
        "\n",
        "\n</minimax:tool_call>",
    ),
    "deepseek_v32": TagTexts(
        "<｜DSML｜function_calls>\n",
        '<｜DSML｜invoke name="{name}">\n',
        '<｜DSML｜parameter name="{key}" string="{is_string}">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>",
        "\n",
        "\n</｜DSML｜function_calls>",
    ),
}


def write_tags(calls: Sequence[Call], texts: TagTexts) -> str:
    """Return calls with a tag for each argument."""
    written = [_call_text(call, texts) for call in calls]
    return texts.begin + texts.separator.join(written) + texts.end


def _call_text(call: Call, texts: TagTexts) -> str:
    text = texts.head.replace("{name}", call.name)
    for key, value in call.arguments.items():
        text += argument_head(texts, key, isinstance(value, str)) + value_text(value) + texts.argument_end
    return text + texts.tail


def argument_head(texts: TagTexts, key: str, is_string: bool) -> str:
    """Return the text before the value of an argument."""
    return texts.argument.replace("{key}", key).replace("{is_string}", json.dumps(is_string))


def value_text(value: JsonValue) -> str:
    """Return the text of a value: a string as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def typed_arguments(arguments: Arguments, parameters: JsonMapping | None) -> Arguments:
    """Convert arguments from texts to the types in the tool's schema; `parameters` is None for an unknown tool."""
    schema = parameters or {}
    properties = schema.get("properties")
    definitions = _definitions(schema)
    typed = dict(arguments)
    for key, value in arguments.items():
        # Tools of other programs may have invalid schemas; their arguments have unknown types.
        argument = properties.get(key) if isinstance(properties, Mapping) else None
        argument_schema = argument if isinstance(argument, Mapping) else {}
        if isinstance(value, str):
            typed[key] = _typed(value, json_types({**argument_schema, **definitions}))
    return typed


_DEFINITIONS = ("$defs", "definitions")
"""Keys under which a schema holds the definitions that its references name."""


def _definitions(schema: JsonMapping) -> JsonObject:
    return {key: schema[key] for key in _DEFINITIONS if key in schema}


def _reference(schema: object) -> str | None:
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    return reference if isinstance(reference, str) else None


def _definition(definitions: JsonMapping, reference: str) -> object:
    root, _, name = reference.removeprefix("#/").partition("/")
    named = definitions.get(root)
    return named.get(name) if isinstance(named, Mapping) else None


def resolved_schema(schema: JsonMapping) -> JsonMapping:
    """Return the schema that a schema refers to in its own definitions, together with these definitions."""
    definitions = _definitions(schema)
    resolved: object = schema
    references: set[str] = set()
    while (reference := _reference(resolved)) is not None and reference not in references:
        references.add(reference)
        resolved = _definition(definitions, reference)
    return {**resolved, **definitions} if isinstance(resolved, Mapping) else definitions


def json_types(schema: JsonMapping) -> frozenset[str]:
    """Return the JSON types that a schema allows; an empty set if the schema states none."""
    definitions = _definitions(schema)
    types: set[str] = set()
    options: list[object] = [schema]
    # Each reference is followed once: definitions may name themselves, and a chain of definitions that name the next one twice
    # took exponential time.
    references: set[str] = set()
    while options:
        option = options.pop()
        reference = _reference(option)
        if reference is not None:
            if reference not in references:
                references.add(reference)
                options.append(_definition(definitions, reference))
            continue
        own_types = _own_types(option)
        further_options = _options(option) if own_types is None else []
        if not own_types and not further_options:
            return frozenset()
        types |= own_types or set()
        options += further_options
    return frozenset(types)


def _own_types(schema: object) -> set[str] | None:
    """Return the types that a schema states directly; None if it states none."""
    if not isinstance(schema, Mapping):
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {kind for kind in declared if isinstance(kind, str)}
    if isinstance(schema.get("enum"), list):
        return {_json_type(value) for value in schema["enum"]}
    return {_json_type(schema["const"])} if "const" in schema else None


def _options(schema: object) -> list[object]:
    """Return the alternatives of a schema (such as in `anyOf`), each of which is allowed."""
    options = (schema.get("anyOf") or schema.get("oneOf")) if isinstance(schema, Mapping) else None
    return options if isinstance(options, list) else []


def _json_type(value: JsonValue) -> str:
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _decoded(text: str) -> JsonValue:
    """Return the value of a JSON text, or of a list or dict in Python's syntax, which Seed-OSS writes."""
    try:
        return JSON_DECODER.decode(text)  # "NaN" is a word here
    except ValueError:
        if not text.startswith(("[", "{")):
            raise
        return read_literal(text)


def _typed(text: str, types: frozenset[str]) -> JsonValue:
    """Return the value of an allowed type that a text represents; the text itself if there is no such value."""
    if types == {"string"}:
        return text
    # Templates write Python's True and None here, and the JSON of lists and objects.
    if text in CONSTANTS:
        value = CONSTANTS[text]
    else:
        try:
            value = _decoded(text)
        except (ValueError, RecursionError, MalformedCall):
            return text
    kind = _json_type(value)
    is_allowed = not types or kind in types or (kind == "integer" and "number" in types)
    return text if "string" in types and not is_allowed else value
