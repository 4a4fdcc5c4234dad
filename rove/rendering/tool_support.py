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
from rove.rendering.tool_calls import ALL_FORMATS, Format, calls_of, format_of, read_calls

Render = Callable[[Sequence[JsonMapping], JsonMapping], str]
"""Render messages with variables of the template; may raise any error."""


class ToolSupport(NamedTuple):
    """What a chat template does with tools."""

    format: Format | None
    """Format of the calls; None if tools cannot be used."""
    problem: str = ""
    """Why tools cannot be used."""
    variable: str = "tools"
    """Variable of the template that takes the tools."""
    keeps_text: bool = True
    """Whether a message with calls can be rendered from the text that the model sampled, and a tool's result after it."""


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
_CALLING = {
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
    ("Gemma 4", re.compile(r"<\|tool_call>\s*call:")),
    ("Cohere", re.compile(r"<\|START_ACTION\|>|\bAction:\s*```json")),
    ("DeepSeek", re.compile(r"<｜tool▁calls?▁begin｜>|<｜DSML｜")),
    ("Kimi", re.compile(r"<\|tool_calls_section_begin\|>")),
    ("MiniMax", re.compile(r"<minimax:tool_call>")),
    ("Granite or Phi-4", re.compile(r"<\|tool_call\|>|functools\[")),
    ("Nemotron 2", re.compile(r"<TOOLCALL>")),
    ("Llama 4", re.compile(rf"\[{NAME}\(|<\|python_start\|>")),
    ("Seed-OSS", re.compile(r"<seed:tool_call>")),
)
"""Formats that rove does not read, and what identifies a call in them."""
READ_FORMATS = "Hermes/Qwen3, Qwen3-Coder/Qwen3.5/Nemotron 3, GLM 4.5, Llama 3, LFM2, Mistral"


def detect_tool_support(render: Render, template: str) -> ToolSupport:
    """Return what a template does with tools.

    Args:
        render: Renders with the template.
        template: Source of the template.
    """
    problem = "it ignores tools, so the model would not see them"
    variable = None
    for name in TOOL_VARIABLES:
        try:
            text = render([_USER], {name: [_TOOL], "add_generation_prompt": True})
        except Exception as error:  # templates can raise any error
            problem = f"it rejects tools: {type(error).__name__}: {error}"
            break
        if NAME in text:
            variable = name
            break
    if variable is None:
        return ToolSupport(None, problem)
    variables: JsonObject = {variable: [_TOOL], "add_generation_prompt": False}
    if "tool_calls" not in template:
        return _support_of_text(render, template, variables, variable)
    try:
        call_text = _text_of_call(render, variables)
    except Exception as error:  # templates can raise any error
        return ToolSupport(None, f"it rejects a message with a tool call: {type(error).__name__}: {error}")
    tool_format = next((one for one in ALL_FORMATS if _reads_back(one, call_text)), None)
    if tool_format is None:
        return ToolSupport(None, _unread(call_text))
    if _shows_result(render, {"role": "assistant", "content": tool_format.write([CALL])}, variables, is_text=True):
        return ToolSupport(tool_format, "", variable)
    if _shows_result(render, _CALLING, variables):
        return ToolSupport(tool_format, "", variable, keeps_text=False)
    return ToolSupport(None, f"it writes calls ({tool_format.name}), but not the results of tools")


def _support_of_text(render: Render, template: str, variables: JsonMapping, variable: str) -> ToolSupport:
    """Return the support of a template that shows tools and leaves the calls to the text of a message, as LFM2's first one.

    Its source is the only hint of the format, which has to round-trip like any other.
    """
    tool_format = format_of(template)
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
    """Return whether a format reads the probe call in a text, which may go on after the call with the end of the turn."""
    if tool_format.written is not None and not tool_format.written.search(text):
        return False
    _, calls = read_calls(text, tool_format, [NAME], is_cut=True, schemas={NAME: _PARAMETERS})
    return calls_of({"tool_calls": calls}) == [CALL]


def _shows_result(render: Render, message: JsonMapping, variables: JsonMapping, is_text: bool = False) -> bool:
    """Return whether a template renders two turns with a call and its result.

    Two, because Mistral's templates count messages without `tool_calls`, and reject the second one after a tool's result.
    """
    try:
        text = render([_USER, *[message, _ANSWER] * 2], {**variables, "add_generation_prompt": True})
    except Exception:  # templates can raise any error
        return False
    is_message_whole = not is_text or str(message["content"]) in text
    return is_message_whole and RESULT in text


def _unread(call_text: str) -> str:
    for name, pattern in UNREAD_FORMATS:
        if pattern.search(call_text):
            return f"its calls are in the format of {name}, which rove does not read"
    return f"its calls are in a format that rove does not read: {call_text.strip()[:120]!r}"
