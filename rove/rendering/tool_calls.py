"""Parse and write tool calls in the formats of common chat templates."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from rove.core.plain import JsonMapping, JsonObject
from rove.rendering.json_calls import (
    LIST_FORMS,
    MARKED_FORMS,
    JsonForm,
    call_in,
    json_arguments,
    parse_listed,
    parse_marked,
    read_json,
    whole_json,
    write_form,
)
from rove.rendering.python_calls import (
    Call,
    MalformedCall,
    read_call,
    read_call_list,
    read_gemma_call,
    with_id,
    write_call_list,
    write_gemma_call,
)
from rove.rendering.tag_calls import (
    DSML_FORM,
    GLM_FORM,
    MINIMAX_FORM,
    QWEN_FORM,
    SEED_FORM,
    TAG_TEXTS,
    TagForm,
    parse_tags,
    typed_arguments,
    write_tags,
)

Parsed = tuple[str, list[Call]]
"""The text outside the calls, and the calls."""


class Format(NamedTuple):
    """A tool-call format."""

    name: str
    parse: Callable[[str], Parsed]
    """Function that parses a text containing the start of a call; it raises `MalformedCall` if any part of a call is invalid."""
    write: Callable[[Sequence[Call]], str]
    """Function that writes calls as the model does."""
    mark: re.Pattern[str]
    """Pattern that identifies the format in a chat template."""
    starts: re.Pattern[str]
    """Pattern that matches the start of a call in a response."""
    marks: tuple[str, ...]
    """The markers that start calls, as plain text; bare calls have none."""
    bare: bool = False
    """Whether a call is plain JSON, which counts as a call only if it names an available tool."""
    call_end: str = "}"
    """Text that ends each call."""
    list_end: str = ""
    """Text that ends a list of calls; "" if the format has no lists."""
    written: re.Pattern[str] | None = None
    """Pattern of a call as the model's template writes it, for a format whose parser also reads calls of other formats."""
    bare_start: str = "{"
    """First character of a bare call."""
    thought_ends: tuple[str, ...] = ("</think>",)
    """Texts that end the reasoning of a model with this format."""
    is_untyped: bool = False
    """Whether `parse` returns values as text, because only the tool's schema tells numbers from strings of digits."""


Schemas = Mapping[str, JsonMapping]
"""The schema of the arguments of each tool, by the tool's name."""
NO_SCHEMAS: Schemas = MappingProxyType({})

_XML_CALL = re.compile(r"<(?:function|parameter|invoke|arg_key|arg_value)(?:=|>| name=)")
_NAME_FIRST = re.compile(r"<tool_call>(?:\\n|[\s'\"+~}-])*(?:\{\{-?\s*)?\w+(?:\.\w+)*(?:\.name\b|\[['\"]name['\"]\])")
"""Pattern of templates that write the function's name directly after the marker, where Hermes has a JSON object."""
_TAGGED_SPAN = re.compile(r"<tool_call>((?:(?!</?tool_call>).)*)</tool_call>", re.DOTALL)


def format_of(template: str) -> Format | None:
    """Return the tool-call format of a chat template; None if it has no known format.

    If the template's calls are XML, begin with the name alone, or are Python in a code block, its format is unknown, although its
    markers equal the markers of Hermes or LFM2: such calls would be read as text.
    """
    for tool_format in FORMATS:
        if tool_format.mark.search(template):
            is_hermes_only_by_marker = tool_format.name == "hermes" and _has_other_calls(template)
            is_lfm2_only_by_marker = tool_format.name == "lfm2" and "```python" in template
            return None if is_hermes_only_by_marker or is_lfm2_only_by_marker else tool_format
    return None


def _has_other_calls(template: str) -> bool:
    """Return whether a template writes more tags or a name alone in <tool_call>, or tags for a call's name or arguments."""
    spans = [match[1] for match in _TAGGED_SPAN.finditer(template)]
    if _XML_CALL.search(template) or _NAME_FIRST.search(template):
        return True
    return any(re.search(r"</\w", span) for span in spans)


def read_calls(
    text: str,
    tool_format: Format,
    names: Collection[str] = (),
    prompt_length: int = 0,
    is_cut: bool = False,
    schemas: Schemas = NO_SCHEMAS,
) -> tuple[str, list[JsonObject]]:
    """Return the text of a response outside its calls, and the calls in chat form.

    If any call is malformed, the whole response is returned as text. Text inside <think></think> is never parsed as a call.

    Args:
        is_cut: Whether the response was cut at its length limit. Its complete calls are then returned, and the incomplete call
            after them is dropped.
        schemas: Schemas of the tools' arguments, for formats whose values have no types.
    """
    if is_cut:
        ends = [match.end() for match in re.finditer(re.escape(tool_format.call_end), text)]
        attempts = 1 + MAX_CUT_CHARS // max(1, len(text))
        for end in reversed(ends[-attempts:]):
            content, calls = _read_calls(text[:end] + tool_format.list_end, tool_format, names, prompt_length, schemas)
            if calls:
                return content, calls
    return _read_calls(text, tool_format, names, prompt_length, schemas)


MAX_CUT_CHARS = 1_000_000
"""Maximum characters that are parsed in total to find the end of the last complete call in a cut response.

Each possible end is tried, starting with the last, and every attempt parses the response up to that position."""


def _read_calls(
    text: str, tool_format: Format, names: Collection[str], prompt_length: int, schemas: Schemas
) -> tuple[str, list[dict[str, object]]]:
    for end in _thought_ends(text, tool_format.thought_ends):
        if not tool_format.starts.search(text[end:]):
            continue
        try:
            content, calls = tool_format.parse(text[end:])
            if not calls or any(thought_end in content for thought_end in tool_format.thought_ends):
                continue
            if tool_format.bare and any(call.name not in names for call in calls):  # JSON that is an answer, not a call
                continue
            if tool_format.is_untyped:
                calls = [Call(call.name, typed_arguments(call.arguments, schemas.get(call.name))) for call in calls]
            ids = [call.id for call in calls]
            if len(set(ids)) < len(ids):  # results could not be told apart
                calls = [Call(*call) for call in calls]
            converted = [_chat_form(call, f"{prompt_length} {i} {text}") for i, call in enumerate(calls)]
        except (MalformedCall, RecursionError):
            continue
        return (text[:end] + content).strip(), converted
    return text, []


def unparsed_call_format(text: str) -> Format | None:
    """Return the format of a call that starts in a response but that `read_calls` could not parse; None if no call starts."""
    answer = text.rpartition("</think>")[2]
    first_format, first_start = None, len(answer)
    # Of the formats that start at the same position the last one counts: Mistral's older one, whose calls are JSON, and a format
    # with tags, whose start is longer than that of Hermes.
    for tool_format in (*MARKED_FORMATS, *FORMATS, *TAG_FORMATS):
        # A bare call also starts with a bracket, as JSON that is an answer does.
        pattern = re.compile(re.escape(tool_format.marks[0])) if tool_format.bare else tool_format.starts
        start = pattern.search(answer)
        if start is not None and start.start() <= first_start:
            first_format, first_start = tool_format, start.start()
    return first_format


def _thought_ends(text: str, markers: Sequence[str]) -> list[int]:
    """Return the positions at which the reasoning may end. There are several because a call may quote the end marker."""
    ends = {0}
    for marker in markers:
        closed = (text.find(marker), text.rfind(marker))
        ends.update(start + len(marker) for start in closed if start >= 0)
    return sorted(ends)


def settled_characters(text: str, tool_format: Format) -> int:
    """Return the number of leading characters that `read_calls` will return as text, however the response continues."""
    if text[:1].isspace():  # read_calls strips it if calls follow
        return 0
    settled = len(text)
    for mark in tool_format.marks:
        start = text.find(mark)
        if start >= 0:
            settled = min(settled, start)
        for length in range(min(len(mark), len(text)), 0, -1):
            if mark.startswith(text[-length:]):  # the marker may have begun
                settled = min(settled, len(text) - length)
                break
    if tool_format.bare:
        for end in _thought_ends(text, tool_format.thought_ends):
            if text[end:].lstrip()[:1] in ("", tool_format.bare_start):
                settled = min(settled, end)
                break
    return len(text[:settled].rstrip())


_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""The escape of half a character of UTF-16, which is a whole one only with its other half, or the half itself."""


def calls_of(message: JsonMapping) -> list[Call] | None:
    """Return the calls of a message in chat form; None if the arguments of one are not a JSON object of texts in UTF-8."""
    try:
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls = [Call(function["name"], json_arguments(function["arguments"])) for function in functions]
        if any(_HALF_CHARACTER.search(str(function["arguments"])) for function in functions):
            json.dumps([call.arguments for call in calls], ensure_ascii=False).encode()
        return calls
    except (MalformedCall, KeyError, TypeError, UnicodeEncodeError):
        return None


def short_id(salt: str) -> str:
    """Return an id of nine characters, as Mistral's templates require; a hash gives equal responses equal ids."""
    return hashlib.sha1(salt.encode(errors="replace"), usedforsecurity=False).hexdigest()[:9]


def accepted_id(id: object) -> str:
    """Return an id that Mistral's templates accept: `id` itself, or a shorter id computed from it."""
    return id if isinstance(id, str) and SHORT_ID.fullmatch(id) else short_id(str(id))


def _chat_form(call: Call, salt: str) -> dict[str, object]:
    try:
        arguments = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
        # The escape of half a character ("\ud800") is valid JSON, but no text: it cannot be written as UTF-8. Another character
        # in its place would change the call silently.
        f"{call.name}{call.id}{arguments}".encode()
    except (ValueError, RecursionError) as error:
        raise MalformedCall from error
    return {
        "id": call.id or short_id(salt),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _dumped(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


# Hermes, Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>


def _parse_tagged(text: str) -> Parsed:
    calls, content, position = [], "", 0
    while (start := text.find("<tool_call>", position)) >= 0:
        content += text[position:start]
        value, end = read_json(text, start + len("<tool_call>"))  # the JSON may contain the closing tag
        close = re.compile(r"\s*</tool_call>").match(text, end)
        if close is None:
            raise MalformedCall("not closed")
        items = value if isinstance(value, list) else [value]
        calls += [call_in(item) for item in items]
        position = close.end()
    return content + text[position:], calls


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
    calls, position = [], 0
    while True:
        value, position = read_json(body, position)
        # Without a marker, JSON with a name may be an answer: only its arguments show that it is a call.
        calls.append(call_in(value, needs_arguments=True))
        separator = re.compile(r"\s*;?\s*").match(body, position)
        if separator:
            position = separator.end()
        if position == len(body):
            return content, calls


def _write_llama(calls: Sequence[Call]) -> str:
    return "; ".join(_dumped(call, "parameters") for call in calls)


# LFM2: <|tool_call_start|>[f(a=1), g(b='x')]<|tool_call_end|>


def _parse_pythonic(text: str) -> Parsed:
    calls, content, position = [], "", 0
    while (start := text.find("<|tool_call_start|>", position)) >= 0:
        content += text[position:start]
        listed, end = _listed_calls(text, start + len("<|tool_call_start|>"))
        close = re.compile(r"\s*<\|tool_call_end\|>").match(text, end)
        if close is None:
            raise MalformedCall("not closed")
        calls += listed
        position = close.end()
    return content + text[position:], calls


def _listed_calls(text: str, start: int) -> tuple[list[Call], int]:
    try:
        return read_call_list(text, start)  # strings may contain the end marker
    except MalformedCall:
        return read_call_list(text, start, has_raw_strings=True)


def _write_pythonic(calls: Sequence[Call]) -> str:
    return f"<|tool_call_start|>{write_call_list(calls)}<|tool_call_end|>"


# Mistral: [TOOL_CALLS][{"name": …, "arguments": {…}}], in newer models [TOOL_CALLS]f[ARGS]{…}, also with the id of the call or
# without the second marker: [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{…}, [TOOL_CALLS]f{…}

SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""Pattern of the call ids that Mistral's templates accept."""
# Possessive, because trying two spaces in a row at each of their splits takes quadratic time.
_MISTRAL_HEAD = re.compile(r"\s*+(?P<name>[\w.-]++)\s*+(?:\[CALL_ID\]\s*+(?P<id>[\w-]*+)\s*+)?(?:\[ARGS\])?\s*+(?=\{)")


def kept_id(id: object) -> str:
    """Return the id that a model wrote into a call if Mistral's templates accept it, so that the template writes the same id."""
    return id if isinstance(id, str) and SHORT_ID.fullmatch(id) else ""


def _parse_mistral(text: str) -> Parsed:
    content, _, body = text.partition("[TOOL_CALLS]")
    if body.lstrip().startswith("["):
        values = whole_json(body)
        if not values:
            raise MalformedCall("no calls")
        return content, [with_id(call_in(value), kept_id(value.get("id"))) for value in values]
    calls, position = [], 0
    while True:
        head = _MISTRAL_HEAD.match(body, position)
        if head is None:
            raise MalformedCall("not a call")
        value, position = read_json(body, head.end())
        calls.append(with_id(Call(head["name"], json_arguments(value)), kept_id(head["id"])))
        remaining = body[position:].lstrip()
        if not remaining:
            return content, calls
        if not remaining.startswith("[TOOL_CALLS]"):
            raise MalformedCall("unexpected text after the call")
        position = len(body) - len(remaining) + len("[TOOL_CALLS]")


def _write_mistral(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS][{', '.join(_dumped(call) for call in calls)}]"


def _write_mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls)


_MISTRAL_THOUGHT_ENDS = ("</think>", "[/THINK]")
_TAG, _MARKER, _MISTRAL = map(re.compile, (r"<tool_call>", r"<\|tool_call_start\|>", r"\[TOOL_CALLS\]"))
FORMATS = (
    Format("hermes", _parse_tagged, _write_tagged, _TAG, _TAG, ("<tool_call>",), call_end="</tool_call>"),
    Format(
        "lfm2",
        _parse_pythonic,
        _write_pythonic,
        re.compile(r"<\|tool_(call|list)_start\|>|List of tools: \["),
        _MARKER,
        ("<|tool_call_start|>",),
        call_end=")",
        list_end="]<|tool_call_end|>",
    ),
    Format(
        "mistral_named",
        _parse_mistral,
        _write_mistral_named,
        re.compile(r"\[ARGS\]"),
        _MISTRAL,
        ("[TOOL_CALLS]",),
        thought_ends=_MISTRAL_THOUGHT_ENDS,
        written=re.compile(r"\[TOOL_CALLS\]\s*[^\s\[].*\[ARGS\]", re.DOTALL),
    ),
    Format(
        "mistral",
        _parse_mistral,
        _write_mistral,
        _MISTRAL,
        _MISTRAL,
        ("[TOOL_CALLS]",),
        thought_ends=_MISTRAL_THOUGHT_ENDS,
        list_end="]",
        written=re.compile(r"\[TOOL_CALLS\]\s*\["),
    ),
    Format(
        "llama3",
        _parse_llama,
        _write_llama,
        re.compile(r'<\|python_tag\|>|<\|start_header_id\|>[^\0]*"parameters": '),
        re.compile(r"<\|python_tag\|>|\A\s*\{"),
        ("<|python_tag|>",),
        bare=True,
        written=re.compile(r'"parameters"'),
    ),
)
"""Known formats, in the order in which `format_of` tries them."""

_NO_TEMPLATE = re.compile(r"(?!)")


def _tag_format(name: str, form: TagForm, marks: tuple[str, ...], call_end: str, starts: str = "") -> Format:
    texts = TAG_TEXTS[name]
    return Format(
        name,
        partial(parse_tags, form=form),
        partial(write_tags, texts=texts),
        _NO_TEMPLATE,
        re.compile(starts or "|".join(marks)),
        marks,
        call_end=call_end,
        list_end=texts.end,
        is_untyped=form is not DSML_FORM,
    )


_QWEN_START = r"(?:<tool_call>\s*)?<function="  # some models leave out the first tag, as llama.cpp and Ollama saw
_GLM_START = r"<tool_call>\s*[^\s<>{}\[\]\"]+\s*(?:<arg_key>|</tool_call>)"
_DSML_TAGS = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜ calls>")
TAG_FORMATS = (
    _tag_format("qwen_xml", QWEN_FORM, ("<tool_call>", "<function="), "</tool_call>", _QWEN_START),
    _tag_format("glm", GLM_FORM, ("<tool_call>",), "</tool_call>", _GLM_START),
    _tag_format("seed", SEED_FORM, ("<seed:tool_call>",), "</seed:tool_call>"),
    _tag_format("minimax", MINIMAX_FORM, ("<minimax:tool_call>",), "</invoke>"),
    _tag_format("deepseek_v32", DSML_FORM, _DSML_TAGS, "invoke>"),
)
"""Formats with tags for each argument. `format_of` does not know them: `rove.rendering.tool_support` detects them."""

_GEMMA_MARKER = "<|tool_call>"


def _parse_gemma(text: str) -> Parsed:
    calls, content, position = [], "", 0
    while (start := text.find(_GEMMA_MARKER, position)) >= 0:
        content += text[position:start]
        call, end = read_gemma_call(text, start + len(_GEMMA_MARKER))
        close = re.compile(r"\s*<tool_call\|>").match(text, end)
        if close is None:
            raise MalformedCall("not closed")
        calls.append(call)
        position = close.end()
    return content + text[position:].removesuffix("<|tool_response>"), calls


# Llama 4: [f(a=1), g(b="x")], also between <|python_start|> and <|python_end|>


def _parse_llama4(text: str) -> Parsed:
    start = text.index("[")
    calls, end = _listed_calls(text, start)
    content = text[:start].replace("<|python_start|>", "") + text[end:].replace("<|python_end|>", "")
    if content.strip():
        raise MalformedCall("unexpected text around the calls")
    return "", calls


def _write_gemma(calls: Sequence[Call]) -> str:
    return "".join(f"{_GEMMA_MARKER}{write_gemma_call(call)}<tool_call|>" for call in calls)


def _json_formats() -> Iterator[Format]:
    """Return the formats with JSON between markers."""
    for forms, parse in ((MARKED_FORMS, parse_marked), (LIST_FORMS, parse_listed)):
        for name, form in forms.items():
            yield Format(
                name,
                partial(parse, form=form),
                partial(write_form, form=form),
                re.compile(re.escape(form.tag)) if name in ("granite", "phi4") else _NO_TEMPLATE,
                form.start,
                (form.marker,),
                call_end=form.tail,
                list_end=form.end,
                written=re.compile(_list_start(form)) if forms is LIST_FORMS else None,
            )


def _list_start(form: JsonForm) -> str:
    """Return the pattern that starts a list of calls; it distinguishes Apriel and MiniMax M1, which use the same marker."""
    return re.escape(form.tag) + (r"\s*\[" if "[" in form.begin else r"\s*\{")


MARKED_FORMATS = (
    *_json_formats(),
    Format(
        "gemma4",
        _parse_gemma,
        _write_gemma,
        _NO_TEMPLATE,
        re.compile(r"<\|tool_call>"),
        (_GEMMA_MARKER,),
        call_end="<tool_call|>",
    ),
    Format(
        "llama4",
        _parse_llama4,
        write_call_list,
        _NO_TEMPLATE,
        re.compile(r"\A\s*(?:<\|python_start\|>\s*)?\[[\w.-]+\("),
        ("<|python_start|>",),
        bare=True,
        call_end=")",
        list_end="]",
        bare_start="[",
        is_untyped=True,
    ),
)
"""Formats with their own markers; `format_of` knows only the formats whose templates take calls from the message text."""
ALL_FORMATS = (*FORMATS, *TAG_FORMATS, *MARKED_FORMATS)


def schemas_of(tools: object) -> Schemas:
    """Return the schemas of the arguments of tools in chat form."""
    schemas: dict[str, JsonMapping] = {}
    for tool in tools if isinstance(tools, Sequence) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            schemas[function["name"]] = parameters if isinstance(parameters, Mapping) else {}
    return schemas
