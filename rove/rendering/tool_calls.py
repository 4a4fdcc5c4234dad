"""Parse and write tool calls in the formats of common chat templates."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import keyword
import re
import tokenize
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A parsed tool call."""

    name: str
    arguments: dict[str, Any]


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


class MalformedCall(Exception):
    """The text is not a valid tool call."""


def format_of(template: str) -> Format | None:
    """Return the tool-call format of a chat template; None if it has no known format."""
    return next((one for one in FORMATS if one.mark.search(template)), None)


def read_calls(
    text: str, how: Format, names: Collection[str] = (), before: int = 0
) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a response outside its calls, and the calls in chat form.

    If any call is malformed, for example cut off, the whole response is returned as text. Text inside <think></think> is
    never parsed as a call.

    Args:
        text: The response.
        how: The format.
        names: Names of the available tools.
        before: Number that differs between the turns of a conversation, so that their calls get different ids.
    """
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


def calls_of(message: Mapping[str, Any]) -> list[Call] | None:
    """Return the calls of a message in chat form; None if the arguments of one are not a JSON object."""
    try:
        functions = [call["function"] for call in message.get("tool_calls") or []]
        return [Call(function["name"], _arguments(function["arguments"])) for function in functions]
    except (MalformedCall, KeyError, TypeError):
        return None


def _chat_form(call: Call, salt: str) -> dict[str, Any]:
    try:
        arguments = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise MalformedCall from error
    # Mistral's templates require nine letters or digits. A hash gives equal responses equal ids.
    id = hashlib.sha1(salt.encode(errors="replace"), usedforsecurity=False).hexdigest()[:9]
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _no_constant(name: str) -> Any:
    raise MalformedCall(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant, strict=False)  # models put raw line breaks into strings


def _json(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that starts at `start`, and the position after it."""
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(str(error)) from error


def _whole_json(text: str) -> Any:
    value, end = _json(text)
    if text[end:].strip():
        raise MalformedCall("unexpected text after the JSON")
    return value


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _whole_json(value) if value.strip() else {}
    if not isinstance(value, dict):
        raise MalformedCall("the arguments are not a JSON object")
    return value


def _call(value: Any, key: str = "arguments") -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCall("not a call")
    return Call(value["name"], _arguments(value.get(key, {})))


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
        calls.append(_call(value))
        at = close.end()
    return content + text[at:], calls


def _write_tagged(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_dumped(call)}\n</tool_call>" for call in calls)


# Llama 3: {"name": …, "parameters": {…}}, separated by "; ", optionally after <|python_tag|>


def _parse_llama(text: str) -> Parsed:
    content, tag, body = text.partition("<|python_tag|>")
    if not tag:
        content, body = "", text
    elif not body.lstrip().startswith("{"):
        return content, [_python_call(_python(body))]
    calls, at = [], 0
    while True:
        value, at = _json(body, at)
        key = "parameters" if isinstance(value, dict) and "parameters" in value else "arguments"
        if not isinstance(value, dict) or key not in value:
            raise MalformedCall("not a call")
        calls.append(_call(value, key))
        more = re.compile(r"\s*;?\s*").match(body, at)
        at = more.end() if more else at
        if at == len(body):
            return content, calls


def _write_llama(calls: Sequence[Call]) -> str:
    return "; ".join(_dumped(call, "parameters") for call in calls)


# LFM2: <|tool_call_start|>[f(a=1), g(b='x')]<|tool_call_end|>


_KEYWORD = "_rove_keyword_"
"""Prefix of a Python keyword that is the name of a tool or of an argument."""


def _python(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # invalid escapes such as "\\d"
            warnings.simplefilter("ignore")
            try:
                return ast.parse(text.strip(), mode="eval").body
            except SyntaxError:
                return ast.parse(_mark_keywords(text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise MalformedCall(str(error)) from error


def _mark_keywords(text: str) -> str:
    """Prefix keywords that are used as names with `_KEYWORD`: Python cannot parse `f(from="a")` or `pass()`."""
    tokens = [(token.type, token.string) for token in tokenize.generate_tokens(io.StringIO(text).readline)]
    following = [string for _, string in tokens[1:]] + [""]
    marked, previous = [], ""
    for (kind, string), after in zip(tokens, following, strict=True):
        is_name = keyword.iskeyword(string) and (previous == "." or after in ("=", "(", "."))
        marked.append((kind, _KEYWORD + string if is_name else string))
        previous = string
    return tokenize.untokenize(marked)


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise MalformedCall("not a call with named arguments")
    arguments = {}
    for argument in node.keywords:
        if argument.arg is None:
            raise MalformedCall("** is not supported")
        arguments[argument.arg.removeprefix(_KEYWORD)] = _python_value(argument.value)
    name = ast.unparse(node.func).replace(_KEYWORD, "")
    if not re.fullmatch(r"[^\W\d]\w*(\.\w+)*", name):
        raise MalformedCall(name)
    return Call(name.removesuffix(".call"), arguments)


_NAMES = {"true": True, "false": False, "null": None}
"""JSON constants that models mix into Python literals."""


def _python_value(node: ast.expr) -> Any:
    """Return the JSON value of a Python literal without evaluating code."""
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _python_value(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise MalformedCall("the keys are not strings")
        return dict(zip(keys, map(_python_value, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _python_value(node.operand)
        if type(value) in (int, float):
            return -value
    elif isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    raise MalformedCall(f"not a literal: {type(node).__name__}")


def _parse_pythonic(text: str) -> Parsed:
    calls, content, at = [], "", 0
    while (start := text.find("<|tool_call_start|>", at)) >= 0:
        end = text.find("<|tool_call_end|>", start)
        if end < 0:
            raise MalformedCall("not closed")
        content += text[at:start]
        node = _python(text[start + len("<|tool_call_start|>") : end])
        if not isinstance(node, ast.List) or not node.elts:
            raise MalformedCall("not a list of calls")
        calls += [_python_call(item) for item in node.elts]
        at = end + len("<|tool_call_end|>")
    return content + text[at:], calls


def _write_pythonic(calls: Sequence[Call]) -> str:
    written = (
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})" for call in calls
    )
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


# Mistral: [TOOL_CALLS][{"name": …, "arguments": {…}}], in newer models [TOOL_CALLS]f[ARGS]{…}


def _parse_mistral(text: str) -> Parsed:
    content, _, body = text.partition("[TOOL_CALLS]")
    if body.lstrip().startswith("["):
        values = _whole_json(body)
        if not values:
            raise MalformedCall("no calls")
        return content, [_call(value) for value in values]
    calls, at = [], 0
    while True:
        name, mark, _ = body[at:].partition("[ARGS]")
        if not mark or not re.fullmatch(r"\s*[\w.-]+\s*", name):
            raise MalformedCall("not a call")
        value, at = _json(body, at + len(name) + len(mark))
        calls.append(Call(name.strip(), _arguments(value)))
        if not body[at:].strip():
            return content, calls
        if not body.startswith("[TOOL_CALLS]", at):
            raise MalformedCall("unexpected text after the call")
        at += len("[TOOL_CALLS]")


def _write_mistral(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS][{', '.join(_dumped(call) for call in calls)}]"


def _write_mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls)


_TAG, _MARKER, _MISTRAL = map(re.compile, (r"<tool_call>", r"<\|tool_call_start\|>", r"\[TOOL_CALLS\]"))
FORMATS = (
    Format("hermes", _parse_tagged, _write_tagged, _TAG, _TAG, ("<tool_call>",)),
    Format(
        "lfm2",
        _parse_pythonic,
        _write_pythonic,
        re.compile(r"<\|tool_(call|list)_start\|>"),
        _MARKER,
        ("<|tool_call_start|>",),
    ),
    Format("mistral_named", _parse_mistral, _write_mistral_named, re.compile(r"\[ARGS\]"), _MISTRAL, ("[TOOL_CALLS]",)),
    Format("mistral", _parse_mistral, _write_mistral, _MISTRAL, _MISTRAL, ("[TOOL_CALLS]",)),
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
