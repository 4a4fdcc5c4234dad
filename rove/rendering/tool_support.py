"""Detect the tool-call format of a chat template: render a call with the template, and read it back.

Markers in a template's source do not tell its format: `<tool_call>` stands around JSON (Hermes), XML (Qwen3-Coder, Nemotron 3)
and GLM's tags, and a template may mention a marker that it never writes. See docs/decisions/tools.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rove.core.plain import JsonMapping, JsonObject
from rove.rendering.python_calls import Call
from rove.rendering.reasoning import OPENED, detect_reasoning_form, in_form
from rove.rendering.tool_calls import ALL_FORMATS, MARKED_FORMATS, Format, calls_of, format_of, read_calls

Render = Callable[[Sequence[JsonMapping], JsonMapping], str]
"""A function that renders messages with variables of the template; it may raise any error."""


class ToolSupport(NamedTuple):
    """What a chat template does with tools."""

    format: Format | None
    """Format of the calls; None if tools cannot be used."""
    problem: str = ""
    """Reason why tools cannot be used; "" if they can."""
    variable: str = "tools"
    """Variable of the template that takes the tools."""
    keeps_text: bool = True
    """Whether a message with calls can be rendered from the text that the model sampled, followed by a tool's result."""
    short_ids: bool = False
    """Whether the ids of calls must be nine letters or digits, as in Mistral's templates."""
    writes_ids: bool = False
    """Whether the template writes the ids of calls."""
    writes_space: bool = False
    """Whether the template writes a space before a list of calls, as that of Mistral 7B v0.3."""


TOOL_VARIABLES = ("tools", "xml_tools")
"""Variables that take tools; SmolLM3's template ignores `tools`."""
NAME = "probe_tool"
CALL = Call(NAME, {"text": "two words\nand a line", "count": 2, "items": [1, "x"]})
RESULT = "result of the probe"
_QUESTION = "question of the probe"
_CALL_ID = "abcdefghi"  # Mistral's templates require nine letters or digits
_PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "Text."},
        "count": {"type": "integer", "description": "Number."},
        "items": {"type": "array", "items": {}, "description": "List."},
    },
    "required": ["text"],
}
_TOOL = {"type": "function", "function": {"name": NAME, "description": "Do it.", "parameters": _PARAMETERS}}
_USER = {"role": "user", "content": _QUESTION}
_CALLING: JsonObject = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": _CALL_ID, "type": "function", "function": {"name": CALL.name, "arguments": CALL.arguments}},
    ],
}
_ANSWER = {"role": "tool", "tool_call_id": _CALL_ID, "content": RESULT}

UNREAD_FORMATS = (
    ("gpt-oss (harmony)", re.compile(r"<\|channel\|>|to=functions\.")),
    ("Muse Glimmer", re.compile(r"<atem:")),
    ("Command R", re.compile(r"\bAction:\s*```json")),
    ("Kimi K3", re.compile(r"<\|open\|>call tool=")),
    ("MiniMax M3", re.compile(r"\]<\]minimax\[>\[")),
    ("Functionary", re.compile(rf"<function={NAME}>\{{|>>>{NAME}\n")),
    ("Apertus", re.compile(r"<\|tools_prefix\|>")),
    ("GigaChat", re.compile(r"function call<\|role_sep\|>|<\|function_call\|>")),
    ("Hunyuan", re.compile(r"<tool_calls?:opensource>")),
    ("MiniCPM", re.compile(r"<function name=")),
    ("Solar", re.compile(r"<\|tool_call:begin\|>")),
)
"""Formats that rove does not read, each with a pattern that identifies its calls."""
READ_FORMATS = (
    "Hermes/Qwen3, Qwen3-Coder/Qwen3.5/Nemotron 3, GLM 4.5, Llama 3 and 4, LFM2, Mistral, DeepSeek V3/V3.1/V3.2, Kimi K2, "
    "Gemma 4, MiniMax M1/M2, Seed-OSS, Cohere Command R7B/A, Granite, Nemotron 2, Apriel"
)


def detect_tool_support(render: Render, template: str) -> ToolSupport:
    """Return what a template, given as a function that renders with it and as its source, does with tools."""
    variable, problem = _tools_variable(render)
    if variable is None:
        return ToolSupport(None, problem)
    variables: JsonObject = {variable: [_TOOL], "add_generation_prompt": False}
    if "tool_calls" not in template:
        return _support_of_text(render, template, variables, variable)
    try:
        call_text = _text_of_call(render, variables)
    except Exception as error:  # templates can raise any error
        return ToolSupport(None, f"it rejects a message with a tool call: {type(error).__name__}: {error}")
    tool_format = next((candidate for candidate in ALL_FORMATS if _reads_back(candidate, call_text)), None)
    if tool_format is None:
        return ToolSupport(None, _unread(call_text))
    shows_result = _shows_result(render, _CALLING, _ANSWER, variables)
    takes_any_id = _shows_result(render, *_with_id("call_1"), variables)
    as_text = {"role": "assistant", "content": tool_format.write([CALL])}
    shows_text = _shows_result(render, as_text, _ANSWER, variables, is_text=True)
    keeps_text = shows_text and not _is_changed_as_text(render, variables, tool_format)
    if not keeps_text and not shows_result:
        return ToolSupport(None, f"it writes calls ({tool_format.name}), but not the results of tools")
    return ToolSupport(
        tool_format,
        variable=variable,
        keeps_text=keeps_text,
        short_ids=shows_result and not takes_any_id,
        writes_ids=_CALL_ID in call_text,
        writes_space="[TOOL_CALLS] [" in call_text,
    )


def _tools_variable(render: Render) -> tuple[str | None, str]:
    """Return the variable of a template that takes tools, and the reason if there is none (None)."""
    for name in TOOL_VARIABLES:
        try:
            text = render([_USER], {name: [_TOOL], "add_generation_prompt": True})
        except Exception as error:  # templates can raise any error
            return None, f"it rejects tools: {type(error).__name__}: {error}"
        if NAME in text:
            return name, ""
    return None, "it ignores tools, so the model would not see them"


def _support_of_text(render: Render, template: str, variables: JsonMapping, variable: str) -> ToolSupport:
    """Return the tool support of a template that shows tools but takes calls from the message text, like LFM2's first template.

    Only the template's source hints at the format. The format must round-trip like any other format.
    """
    marked = [tool_format for tool_format in MARKED_FORMATS if tool_format.mark.search(template)]
    tool_format = format_of(template) or next(iter(marked), None)
    if tool_format is None:
        return ToolSupport(None, "it writes no calls, and nothing in it names their format")
    message = {"role": "assistant", "content": tool_format.write([CALL])}
    try:
        text = _after_question(render([_USER, message], variables))
    except Exception as error:  # templates can raise any error
        return ToolSupport(None, f"it rejects a message with a tool call: {type(error).__name__}: {error}")
    start = tool_format.starts.search(text)
    position = start.start() if start else 0
    if tool_format.bare or _reads_back(tool_format, text[position:]):
        return ToolSupport(tool_format, "", variable)
    return ToolSupport(None, _unread(text))


def _text_of_call(render: Render, variables: JsonMapping) -> str:
    """Return what a template writes for the probe call, up to the end of the conversation."""
    whole = render([_USER, _CALLING], variables)
    prompt = render([_USER], {**variables, "add_generation_prompt": True})
    if whole.startswith(prompt):  # the only way to see where a call without a marker begins
        return whole[len(prompt) :]
    return _after_question(whole)


def _after_question(text: str) -> str:
    return text.rpartition(_QUESTION)[2]


def _reads_back(tool_format: Format, text: str) -> bool:
    """Return whether a format reads the probe call in a text. The end of the turn may follow the call in the text."""
    if tool_format.written is not None and not tool_format.written.search(text):
        return False
    _, calls = read_calls(text, tool_format, [NAME], is_cut=True, schemas={NAME: _PARAMETERS})
    return calls_of({"tool_calls": calls}) == [CALL]


def _with_id(id: str) -> tuple[JsonMapping, JsonMapping]:
    """Return the probe call and its result with an id."""
    call = {**_CALLING["tool_calls"][0], "id": id}
    return {**_CALLING, "tool_calls": [call]}, {**_ANSWER, "tool_call_id": id}


def _is_changed_as_text(render: Render, variables: JsonMapping, tool_format: Format) -> bool:
    """Return whether a template writes something other than the probe call if the call is given as text.

    Cohere's templates put the text of a message between their own markers, and Gemma 4's hide the tool's result.
    """
    prompt_variables = {**variables, "add_generation_prompt": True}
    form = detect_reasoning_form(render)

    def render_text(text: str) -> str:
        message = in_form({"role": "assistant", "content": text}, form)
        return render([_USER, message, _ANSWER], prompt_variables)

    try:
        prompt = render([_USER], prompt_variables)
        called = render([_USER, _CALLING, _ANSWER], prompt_variables)
        if called.startswith(prompt):
            reply = _up_to_call_end(called[len(prompt) :], tool_format)
            return not render_text(reply).startswith(prompt + reply)
        # A call without reasoning is no example of what follows a prompt that opens it.
        return OPENED.search(prompt) is None and render_text(tool_format.write([CALL])) != called
    except Exception:  # templates can raise any error, and a call may have another end
        return False


def _up_to_call_end(text: str, tool_format: Format) -> str:
    """Return a text up to the end of the last call before the result."""
    end = (tool_format.list_end or tool_format.call_end).strip()
    before_result = text[: text.rindex(RESULT)]
    return before_result[: before_result.rindex(end) + len(end)]


def _shows_result(
    render: Render, message: JsonMapping, result: JsonMapping, variables: JsonMapping, is_text: bool = False
) -> bool:
    """Return whether a template renders two turns with a call and its result.

    A single turn is not enough: Mistral's templates count messages without `tool_calls` and reject the second such message
    after a tool's result.
    """
    try:
        text = render([_USER, *[message, result] * 2], {**variables, "add_generation_prompt": True})
    except Exception:  # templates can raise any error
        return False
    is_message_whole = not is_text or str(message["content"]) in text
    return is_message_whole and RESULT in text


def _unread(call_text: str) -> str:
    for name, pattern in UNREAD_FORMATS:
        if pattern.search(call_text):
            return f"its calls are in the format of {name}, which rove does not read"
    return f"its calls are in a format that rove does not read: {call_text.strip()[:120]!r}"
