"""Parse and write tool calls in the formats of common chat templates."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.rendering.python_calls import Call, MalformedCall, read_call, read_call_list, write_call_list

Parsed = tuple[str, list[Call]]
"""The text outside the calls, and the calls."""


class Format(NamedTuple):
    """A tool-call format."""

    name: str
    parse: Callable[[str], Parsed]
    """Parse a text that contains the start of a call; raises `MalformedCall` if any part of a call is invalid."""
    write: Callable[[Sequence[Call]], str]
    """Write calls as the model does."""
    mark: re.Pattern[str]
    """Pattern that identifies the format in a chat template."""
    starts: re.Pattern[str]
    """Pattern that matches the start of a call in a response."""
    marks: tuple[str, ...]
    """The start markers as plain text, without those of bare calls."""
    bare: bool = False
    """Whether a call is plain JSON, which counts as a call only if it names an available tool."""
    call_end: str = "}"
    """What ends each call."""
    list_end: str = ""
    """What ends a list of calls, if the format has lists."""


_XML_CALL = re.compile(r"<(?:function|parameter|invoke|arg_key|arg_value)(?:=|>| name=)")
_NAME_FIRST = re.compile(r"<tool_call>(?:\\n|[\s'\"+~}-])*(?:\{\{-?\s*)?\w+(?:\.\w+)*(?:\.name\b|\[['\"]name['\"]\])")
"""The name of the function directly after the marker, where Hermes has a JSON object."""
_TAGGED_SPAN = re.compile(r"<tool_call>((?:(?!</?tool_call>).)*)</tool_call>", re.DOTALL)


def format_of(template: str) -> Format | None:
    """Return the tool-call format of a chat template; None if it has no known format.

    A template whose calls are XML, begin with the name alone, or are Python in a code block has no known format, although its
    markers are those of Hermes or LFM2: such calls would be read as text.
    """
    how = next((one for one in FORMATS if one.mark.search(template)), None)
    if how is None or (how.name == "hermes" and _has_other_calls(template)):
        return None
    return None if how.name == "lfm2" and "```python" in template else how


def _has_other_calls(template: str) -> bool:
    """Return whether there are further tags or a name alone in <tool_call>, or tags for the name or arguments of a call."""
    spans = [match[1] for match in _TAGGED_SPAN.finditer(template)]
    if _XML_CALL.search(template) or _NAME_FIRST.search(template):
        return True
    return any(re.search(r"</\w", span) for span in spans)


def read_calls(
    text: str, how: Format, names: Collection[str] = (), before: int = 0, is_cut: bool = False
) -> tuple[str, list[JsonObject]]:
    """Return the text of a response outside its calls, and the calls in chat form.

    If any call is malformed, the whole response is returned as text. Text inside <think></think> is never parsed as a call.

    Args:
        is_cut: Whether the response was cut at its length limit. Its complete calls are then returned, and what follows them,
            the beginning of another call, is dropped.
    """
    if is_cut:
        ends = [match.end() for match in re.finditer(re.escape(how.call_end), text)]
        attempts = 1 + MAX_CUT_CHARS // max(1, len(text))
        for end in reversed(ends[-attempts:]):
            content, calls = _read_calls(text[:end] + how.list_end, how, names, before)
            if calls:
                return content, calls
    return _read_calls(text, how, names, before)


MAX_CUT_CHARS = 1_000_000
"""Characters of a cut response that are parsed in all: up to each position at which its last complete call may end, from the end
on."""


def _read_calls(text: str, how: Format, names: Collection[str], before: int) -> tuple[str, list[dict[str, object]]]:
    for end in _thought_ends(text):
        try:
            content, calls = how.parse(text[end:]) if how.starts.search(text[end:]) else ("", [])
            if not calls or "</think>" in content or (how.bare and any(call.name not in names for call in calls)):
                continue
            converted = [_chat_form(call, f"{before} {i} {text}") for i, call in enumerate(calls)]
        except (MalformedCall, RecursionError):
            continue
        return (text[:end] + content).strip(), converted
    return text, []


def unparsed_call_format(text: str) -> Format | None:
    """Return the format of a call that starts in a response and that `read_calls` could not parse; None if none starts."""
    rest = text.rpartition("</think>")[2]
    begun = ((rest.find(mark), -i) for i, how in enumerate(FORMATS) for mark in how.marks if mark in rest)
    _, place = min(begun, default=(0, None))
    return None if place is None else FORMATS[-place]


def _thought_ends(text: str) -> list[int]:
    """Return the positions at which the reasoning may end: a call may quote the last </think>, or all of them."""
    closed = (text.find("</think>"), text.rfind("</think>"))
    return sorted({0, *(at + len("</think>") for at in closed if at >= 0)})


def sure_of(text: str, how: Format) -> int:
    """Return how many leading characters of a response stay text in `read_calls`, however the response continues."""
    found = [at for mark in how.marks if (at := text.find(mark)) >= 0]
    partial = (n for mark in how.marks for n in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-n:]))
    sure = min([*found, len(text) - max(partial, default=0)])
    if text[:1].isspace():  # read_calls strips it if calls follow
        return 0
    if how.bare:
        opened = (end for end in _thought_ends(text) if text[end:].lstrip()[:1] in ("", "{"))
        sure = min(sure, next(opened, sure))
    return len(text[:sure].rstrip())


def calls_of(message: JsonMapping) -> list[Call] | None:
    """Return the calls of a message in chat form; None if the arguments of one are not a JSON object."""
    try:
        functions = [call["function"] for call in message.get("tool_calls") or []]
        return [Call(function["name"], _arguments(function["arguments"])) for function in functions]
    except (MalformedCall, KeyError, TypeError):
        return None


def _chat_form(call: Call, salt: str) -> dict[str, object]:
    try:
        arguments = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise MalformedCall from error
    # Mistral's templates require nine letters or digits. A hash gives equal responses equal ids.
    id = hashlib.sha1(salt.encode(errors="replace"), usedforsecurity=False).hexdigest()[:9]
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _no_constant(name: str) -> object:
    raise MalformedCall(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # models put raw line breaks into strings


def _json(text: str, start: int = 0) -> tuple[JsonValue, int]:
    """Return the JSON value that starts at `start`, and the position after it."""
    while text[start : start + 1].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(str(error)) from error


def _whole_json(text: str) -> JsonValue:
    value, end = _json(text)
    if text[end:].strip():
        raise MalformedCall("unexpected text after the JSON")
    return value


def _arguments(value: object) -> JsonObject:
    """Return arguments that are an object or its JSON; null, as a value or as text, and an empty text are no arguments."""
    if isinstance(value, str):
        value = _whole_json(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedCall("the arguments are not a JSON object")
    return value


ARGUMENT_KEYS = ("arguments", "parameters")
_METADATA = frozenset({"name", "id", "type", "index", *ARGUMENT_KEYS})
"""Keys of a call that hold no arguments of the tool."""


def _call(value: object, needs_arguments: bool = False) -> Call:
    """Return the call in a JSON object; its arguments are under one of `ARGUMENT_KEYS`.

    Null is no arguments. An object without arguments is a call only if no other key might hold them, because arguments must not
    be lost silently.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCall("not a call")
    given = [value[key] for key in ARGUMENT_KEYS if value.get(key) is not None]
    if len(given) > 1:
        raise MalformedCall("two keys hold arguments")
    if needs_arguments and not value.keys() & set(ARGUMENT_KEYS):
        raise MalformedCall("no arguments")
    arguments = _arguments(given[0]) if given else {}
    if not arguments and value.keys() - _METADATA:
        raise MalformedCall("the arguments have another key")
    return Call(value["name"], arguments)


def _dumped(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


# Hermes, Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>


def _parse_tagged(text: str) -> Parsed:
    calls, content, at = [], "", 0
    while (start := text.find("<tool_call>", at)) >= 0:
        content += text[at:start]
        value, end = _json(text, start + len("<tool_call>"))  # the JSON may contain the closing tag
        close = re.compile(r"\s*</tool_call>").match(text, end)
        if close is None:
            raise MalformedCall("not closed")
        calls += [_call(item) for item in (value if isinstance(value, list) else [value])]
        at = close.end()
    return content + text[at:], calls


def _write_tagged(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_dumped(call)}\n</tool_call>" for call in calls)


# Llama 3: {"name": …, "parameters": {…}}, separated by "; ", optionally after <|python_tag|>


def _parse_llama(text: str) -> Parsed:
    content, _, body = text.partition("<|python_tag|>")
    if text.lstrip().startswith("{"):  # a bare call, whose arguments may contain the marker
        content, body = "", text
    elif not body.lstrip().startswith("{"):
        call, end = read_call(body)
        if body[end:].strip():
            raise MalformedCall("unexpected text after the call")
        return content, [Call(call.name.removesuffix(".call"), call.arguments)]
    calls, at = [], 0
    while True:
        value, at = _json(body, at)
        calls.append(_call(value, needs_arguments=True))
        more = re.compile(r"\s*;?\s*").match(body, at)
        at = more.end() if more else at
        if at == len(body):
            return content, calls


def _write_llama(calls: Sequence[Call]) -> str:
    return "; ".join(_dumped(call, "parameters") for call in calls)


# LFM2: <|tool_call_start|>[f(a=1), g(b='x')]<|tool_call_end|>


def _parse_pythonic(text: str) -> Parsed:
    calls, content, at = [], "", 0
    while (start := text.find("<|tool_call_start|>", at)) >= 0:
        content += text[at:start]
        listed, end = read_call_list(text, start + len("<|tool_call_start|>"))  # strings may contain the end marker
        close = re.compile(r"\s*<\|tool_call_end\|>").match(text, end)
        if close is None:
            raise MalformedCall("not closed")
        calls += listed
        at = close.end()
    return content + text[at:], calls


def _write_pythonic(calls: Sequence[Call]) -> str:
    return f"<|tool_call_start|>{write_call_list(calls)}<|tool_call_end|>"


# Mistral: [TOOL_CALLS][{"name": …, "arguments": {…}}], in newer models [TOOL_CALLS]f[ARGS]{…}, also with the id of the call or
# without the second marker: [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{…}, [TOOL_CALLS]f{…}

_MISTRAL_HEAD = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\])?\s*(?=\{)")


def _parse_mistral(text: str) -> Parsed:
    content, _, body = text.partition("[TOOL_CALLS]")
    if body.lstrip().startswith("["):
        values = _whole_json(body)
        if not values:
            raise MalformedCall("no calls")
        return content, [_call(value) for value in values]
    calls, at = [], 0
    while True:
        head = _MISTRAL_HEAD.match(body, at)
        if head is None:
            raise MalformedCall("not a call")
        value, at = _json(body, head.end())
        calls.append(Call(head["name"], _arguments(value)))
        rest = body[at:].lstrip()
        if not rest:
            return content, calls
        if not rest.startswith("[TOOL_CALLS]"):
            raise MalformedCall("unexpected text after the call")
        at = len(body) - len(rest) + len("[TOOL_CALLS]")


def _write_mistral(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS][{', '.join(_dumped(call) for call in calls)}]"


def _write_mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls)


_TAG, _MARKER, _MISTRAL = map(re.compile, (r"<tool_call>", r"<\|tool_call_start\|>", r"\[TOOL_CALLS\]"))
FORMATS = (
    Format("hermes", _parse_tagged, _write_tagged, _TAG, _TAG, ("<tool_call>",), call_end="</tool_call>"),
    Format(
        "lfm2",
        _parse_pythonic,
        _write_pythonic,
        re.compile(r"<\|tool_(call|list)_start\|>"),
        _MARKER,
        ("<|tool_call_start|>",),
        call_end=")",
        list_end="]<|tool_call_end|>",
    ),
    Format("mistral_named", _parse_mistral, _write_mistral_named, re.compile(r"\[ARGS\]"), _MISTRAL, ("[TOOL_CALLS]",)),
    Format("mistral", _parse_mistral, _write_mistral, _MISTRAL, _MISTRAL, ("[TOOL_CALLS]",), list_end="]"),
    Format(
        "llama3",
        _parse_llama,
        _write_llama,
        re.compile(r'<\|python_tag\|>|<\|start_header_id\|>[^\0]*"parameters": '),
        re.compile(r"<\|python_tag\|>|\A\s*\{"),
        ("<|python_tag|>",),
        bare=True,
    ),
)
"""Known formats, in the order in which `format_of` tries them."""
