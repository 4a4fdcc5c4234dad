"""Find tool calls that a server left in the text of a reply, in the formats of published models.

A server with the right parser moves each call from the text to `tool_calls`. Without one, the text still holds the call, the
environment runs nothing, and the model would get no reward because of a fault of the server. `call_left_in` must therefore know
every format, and it must not take an ordinary answer for a call. A text holds a call only if all of these conditions are true:

- The call names one of the environment's own tools. A text about tools, or about other functions, holds no call.
- The name and the arguments are in a published format: after its marker, in its tags, or alone. JSON and Python
  without a marker count only if they are the whole reply (because servers remove markers that are special tokens) or the end of
  the reply: a code block, or JSON that begins a line.
- The arguments are complete: a JSON object, named Python arguments, or tags that are closed.

Reasoning is no part of the reply, and a reply whose reasoning is not closed holds no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from rove.core.plain import JsonMapping
from rove.rendering.python_calls import Call, MalformedCall, read_call, read_call_list, read_calls_until

MAX_STARTS = 100
"""Maximum number of positions in a text at which a call of one form is tried."""

_REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
_FENCE = r"(?:```(?:json|tool_call|tool_code|python)?\s*)?"
_TAG = r"[\w:▁｜|-]{0,30}"
_NO_CALL = rf"(?!{_TAG}(?:response|result|output|list|tools>|functions>))"
# The word is in a lookahead: a tag that could match in several ways would take exponential time when it is repeated.
_HAS_WORD = rf"(?={_TAG}?(?:tool|function|call|action|plugin|python))"
_MARKER = rf"(?:<{_NO_CALL}{_HAS_WORD}[\w:▁｜|-]{{1,60}}>\s*)"
"""A tag or special token that announces a call, such as <tool_call>, <TOOLCALL>, <|action_start|>, <|python_tag|>.

It does not announce the result of a call or the list of the tools."""

JSON_FORMS = (
    rf"{_MARKER}(?:functions\.)?NAME(?::\w+)?\s*(?:<{_TAG}(?:sep|argument){_TAG}>)?\s*{_FENCE}",  # Kimi K2, DeepSeek V3.1
    r"\bfunctions\.NAME:\d+\s*(?:<\|tool_call_argument_begin\|>\s*)?",  # Kimi K2 without its first special tokens
    rf"<｜tool[▁_]call[▁_]begin｜>function<｜tool[▁_]sep｜>NAME\s*{_FENCE}",  # DeepSeek V3 and R1
    r"\[TOOL_CALLS\]\s*NAME\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\])?\s*",  # Mistral
    r"\bto=functions\.NAME[^{\n]{0,100}",  # gpt-oss
    r"(?:\A|\n)>>>\s*NAME\s*\n\s*",  # Functionary 3.2
    r"<\|recipient\|>\s*NAME\s*<\|content\|>\s*",  # Functionary 2
    r"<function=NAME>\s*",  # Functionary 3.1, Llama 3.1
    r"✿FUNCTION✿\s*:?\s*NAME\s*\n\s*✿ARGS✿\s*:?\s*",  # Qwen-Agent
    rf"(?:\A|\n)Action\s*:\s*NAME\s*\n\s*Action Input\s*:\s*{_FENCE}",  # ReAct
)
"""Regular expressions for the text before a JSON object with arguments. NAME stands for the name of a tool."""
WHOLE_FORMS = (
    r"\A(?:call:)?NAME\s*(?=\{)",  # GLM-4, and Mistral without its special tokens
    r"\Afunction\s*NAME\s*```(?:json)?\s*",  # DeepSeek V3 without its special tokens
)
"""Like `JSON_FORMS`, but for a reply that holds nothing but the call."""
TAG_FORMS = (
    (r"<function=NAME>", "</function>"),  # Qwen3-Coder, Nemotron 3, Seed-OSS
    (
        r"<(?:longcat_)?tool_call>\s*NAME\s*(?=<(?:longcat_)?arg_key>|</(?:longcat_)?tool_call>)",
        "tool_call>",
    ),  # GLM-4.5, LongCat
    (r"\ANAME\s*(?=<arg_key>)", "</arg_value>"),  # GLM-4.5 without its special tokens
    (rf"<{_TAG}invoke\s+name=[\"']?NAME[\"']?\s*>", "invoke>"),  # Anthropic, MiniMax, DeepSeek V3.2
    (r"<(?:tool|function)_call\s+name=[\"']?NAME[\"']?\s*>", "_call>"),
    (r"<(?:tool|function)_calls?>\s*<function\s+name=[\"']?NAME[\"']?\s*>", "</function>"),
    (rf"<{_TAG}name>\s*NAME\s*</{_TAG}name>\s*(?=<(?:arguments|parameters|input)>)", "</"),  # Anthropic's older models
    (r"<(?:tool_calls?|tool_use|function_calls?)>\s*<NAME>", "</"),
    (r"(?:<start_function_call>|<\|tool_call>|\A)\s*call:NAME\s*\{", "}"),  # Gemma
    (r"\ANAME\s*```(?:python)?\s*tool_call\(", ")"),  # ChatGLM3
)
"""Regular expressions for the beginning of a call, each with the text that closes the call."""

_JSON_START = re.compile(
    rf"(?:{_MARKER}{{1,3}}|\[TOOL_CALLS\]|\bfunctools|(?:\A|\n)function call|(?:\A|\n)Action:)\s*{_FENCE}(?=[\[{{])",
    re.IGNORECASE,
)
_PYTHON_START = re.compile(rf"(?:{_MARKER}{{1,3}}{_FENCE}|```tool_code\s*)(?=[\[\w])", re.IGNORECASE)
_TOOLS_START = re.compile(r"<tools>\s*(?=[\[{])")
"""The tag that Qwen2.5-Coder writes in place of <tool_call>. The descriptions of the tools have the same tag."""
_LINE_OF_JSON = re.compile(r"^(?=[\[{])", re.MULTILINE)
_END_TOKEN = re.compile(r"(?:<[|｜][^<>|｜\s]{1,40}[|｜]>|<end_of_turn>|</tool_call>|</s>)\Z")
MAX_END_TOKENS = 3
"""Maximum number of special tokens that are removed from the end of a reply, such as <|eom_id|>, or </tool_call> without its
beginning."""


def call_left_in(text: str, tools: Collection[str]) -> str | None:
    """Return the name of the tool that a complete call in the text of a reply names; None if the text holds no call."""
    reply = _without_reasoning(text)
    mentioned = {tool for tool in tools if tool in reply}
    if not mentioned:
        return None
    for names in _names_in_calls(reply, tuple(sorted(mentioned, key=len, reverse=True))):
        called = [name for name in names if name in mentioned]
        if called:
            return called[0]
    return None


def _without_reasoning(text: str) -> str:
    """Return what follows the reasoning of a reply; "" if the reasoning is not closed."""
    for start, end in _REASONING:
        _, closed, answer = text.rpartition(end)
        if closed:  # and possibly opened again
            return "" if start in answer else answer.strip()
        if text.lstrip().startswith(start):
            return ""
    return text.strip()


def _names_in_calls(reply: str, tools: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """Yield the names in each complete call or list of calls; names in calls without a marker may be of other tools."""
    for pattern in _compiled(JSON_FORMS, tools):
        for match in _starts(pattern, reply):
            if isinstance(_json_at(reply, match.end())[0], dict):
                yield [match["name"]]
    patterns = _compiled(tuple(start for start, _ in TAG_FORMS), tools)
    for pattern, (_, end) in zip(patterns, TAG_FORMS, strict=True):
        for match in _starts(pattern, reply):
            if end in reply[match.end() :]:
                yield [match["name"]]
    for match in _starts(_JSON_START, reply):
        yield _json_names(_json_at(reply, match.end())[0], is_marked=True)
    for match in _starts(_TOOLS_START, reply):
        yield _json_names(_json_at(reply, match.end())[0], is_marked=False)
    for match in _starts(_PYTHON_START, reply):
        yield from _python_names(reply, match.end())
    yield from _names_in_whole_reply(reply, tools)


def _names_in_whole_reply(reply: str, tools: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """Yield the names in a reply that holds nothing but calls, or that ends with calls as a code block or lines of JSON."""
    for _ in range(MAX_END_TOKENS):
        reply = _END_TOKEN.sub("", reply).rstrip()
    if reply.endswith("```"):
        yield _names_in_json_texts(_last_block(reply))
    for line in _starts(_LINE_OF_JSON, reply):
        yield _names_in_json_texts(reply[line.start() :])
    for pattern in _compiled(WHOLE_FORMS, tools):
        match = pattern.match(reply)
        if match is None:
            continue
        value, end = _json_at(reply, match.end())
        if isinstance(value, dict) and reply[end:].strip(" \n`") == "":
            yield [match["name"]]
    for read in (_whole_list, _whole_builtin_call):
        try:
            yield read(reply)
        except (MalformedCall, RecursionError):
            continue


def _last_block(reply: str) -> str:
    """Return the content of the code block with which a reply ends; "" if it is of another language than JSON."""
    block = reply[: -len("```")].rpartition("```")[2]
    label, _, content = block.partition("\n")
    return content.strip() if label.strip() in ("", "json", "tool_call", "tool_code") else ""


def _names_in_json_texts(text: str) -> list[str]:
    """Return the names in JSON calls that fill a text, one after the other or separated by semicolons."""
    names: list[str] = []
    position = 0
    while position < len(text):
        value, position = _json_at(text, position)
        called = _json_names(value, is_marked=False)
        if not called:
            return []
        names += called
        while position < len(text) and (text[position].isspace() or text[position] == ";"):
            position += 1
    return names


def _json_names(value: object, is_marked: bool) -> list[str]:
    """Return the names in a JSON value that is a call, a list of calls only, or an object that holds them; else []."""
    if isinstance(value, list):
        listed = [_json_names(item, is_marked) for item in value]
        return list(chain.from_iterable(listed)) if all(listed) else []
    if not isinstance(value, dict):
        return []
    if len(value) == 1:
        key, content = next(iter(value.items()))
        if key in ("tool_calls", "tool_call", "function_call"):
            return _json_names(content, is_marked)
        if is_marked and isinstance(content, dict):  # Apertus: {"name of the tool": {…}}
            return [key]
    name = _called_name(value, is_marked)
    return [name] if name else []


_NAME_KEYS = ("name", "tool_name", "function_name", "function", "tool", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input", "action_input", "kwargs")
_METADATA = frozenset({"id", "type", "index", "call_id", "tool_call_id"})
"""Keys that a call may have in addition to its name and arguments."""


def _called_name(call: JsonMapping, is_marked: bool) -> str:
    """Return the name of the function that an object calls; "" if the object is not a call.

    The description of a tool is not a call, although it has a name and `parameters`. Without a marker, an object with any
    additional key is data, such as the answer to a question.
    """
    if isinstance(call.get("function"), Mapping):
        return _called_name(call["function"], is_marked)
    names = [call[key] for key in _NAME_KEYS if isinstance(call.get(key), str)]
    arguments = [call[key] for key in _ARGUMENT_KEYS if key in call]
    if len(names) != 1 or "description" in call or any(map(_is_schema, arguments)):
        return ""
    if not is_marked:
        other_keys = call.keys() - {*_NAME_KEYS, *_ARGUMENT_KEYS} - _METADATA
        if other_keys or len(arguments) != 1 or not _is_object(arguments[0]):
            return ""
    return names[0]


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("properties"), Mapping)


def _is_object(value: object) -> bool:
    """Return whether arguments are an object, the JSON text of an object, or null (no arguments)."""
    if isinstance(value, str):
        return isinstance(_json_at(value, 0)[0], dict)
    return value is None or isinstance(value, dict)


def _whole_list(reply: str) -> Sequence[str]:
    """Return the names in a reply that is a Python list of calls, as Llama 4 writes it."""
    calls, end = read_call_list(reply)
    if reply[end:].strip():
        raise MalformedCall("unexpected text after the calls")
    return [call.name for call in calls]


def _whole_builtin_call(reply: str) -> Sequence[str]:
    """Return the name in a reply such as f.call(a=1), Llama 3's form without its special tokens."""
    call, end = read_call(reply)
    if reply[end:].strip() or not call.name.endswith(".call"):
        raise MalformedCall("not a call alone")
    return [call.name.removesuffix(".call")]


def _python_names(reply: str, start: int) -> Iterator[Sequence[str]]:
    """Yield the names in Python calls after a marker: in a list, alone, or one a line up to the end of the block."""
    readers: list[Callable[[], list[Call]]] = [
        lambda: read_call_list(reply, start)[0],
        lambda: [read_call(reply, start)[0]],
    ]
    for end in ("</", "<|", "```"):
        if end in reply[start:]:
            readers.append(lambda end=end: read_calls_until(reply, start, end)[0])
    for read in readers:
        try:
            yield [call.name.removesuffix(".call") for call in read()]
        except (MalformedCall, RecursionError):
            continue


@lru_cache(maxsize=64)
def _compiled(forms: tuple[str, ...], names: tuple[str, ...]) -> list[re.Pattern[str]]:
    name = rf"(?P<name>{'|'.join(map(re.escape, names))})(?![\w-])"
    return [re.compile(form.replace("NAME", name)) for form in forms]


def _starts(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for number, match in enumerate(pattern.finditer(text)):
        if number == MAX_STARTS:
            return
        yield match


_DECODER = json.JSONDecoder(strict=False)  # models put raw line breaks into strings


def _json_at(text: str, position: int) -> tuple[object, int]:
    """Return the JSON value at a position and the position after it; None and the end of the text if there is none."""
    try:
        return _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, len(text)
