"""Choose the form in which the chat template gets a message whose reasoning was opened by the generation prompt.

The prompt of Qwen3.5, Nemotron 3 and DeepSeek-R1 ends with `<think>`, so that a reply has only the closing tag. Their templates
expect a finished message in different forms. rove finds the form by rendering: the first form whose rendering continues the
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from rove.core.plain import JsonMapping

ReasoningForm = Literal["text", "tagged", "field"]
"""`text`: the reply as it was sampled (Qwen3.5). `tagged`: with the opening tag, as part of the text (Nemotron 3). `field`: the
reasoning as `reasoning_content` (Qwen3.8)."""
Render = Callable[[Sequence[JsonMapping], JsonMapping], str]
OPENED = re.compile(r"<think>\s*\Z")
"""The end of a prompt that opens the reasoning."""
OPENED_REASONING = "opened_reasoning"
"""Key of an assistant message: the opening tag that its prompt ended with, so that parsers see a complete block."""
_USER = {"role": "user", "content": "question of the probe"}
_REPLY = "thought of the probe\n</think>\n\nanswer of the probe"


def detect_reasoning_form(render: Render) -> ReasoningForm:
    """Return the form of a template; `text` if no form continues the prompt because the template omits finished reasoning."""
    forms: tuple[ReasoningForm, ...] = ("text", "tagged", "field")
    try:
        prompt = render([_USER], {"add_generation_prompt": True})
        if not OPENED.search(prompt):
            return "text"
        for form in forms:
            message = in_form({"role": "assistant", "content": _REPLY}, form)
            if render([_USER, message], {"add_generation_prompt": False}).startswith(prompt + _REPLY):
                return form
    except Exception:  # templates can raise any error
        return "text"
    return "text"


def in_form(message: JsonMapping, form: ReasoningForm) -> JsonMapping:
    """Return an assistant message in the form `form`; unchanged if its text has no reasoning or the form is `text`."""
    content = message.get("content")
    if form == "text" or not isinstance(content, str) or "</think>" not in content or message.get("reasoning_content"):
        return message
    reasoning, _, answer = content.partition("</think>")
    if form == "tagged":
        return message if "<think>" in reasoning else {**message, "content": f"<think>\n{content}"}
    # Data for SFT may have both tags; a template that expects a field would write its own tags around them.
    reasoning = reasoning.lstrip().removeprefix("<think>").strip("\n")
    return {**message, "content": answer.lstrip("\n"), "reasoning_content": reasoning}


def sampled_after_opened(content: str, reasoning: object) -> str:
    """Return what a model would sample for a message after a prompt that opens the reasoning.

    Without reasoning, the block is closed immediately; otherwise a model trained on such messages would never close it.
    """
    if isinstance(reasoning, str) and reasoning:
        return f"{reasoning}\n</think>\n\n{content}"
    opened = re.match(r"\s*<think>\n?", content)
    if opened:
        content = content[opened.end() :]
    return content if "</think>" in content else _NO_REASONING + content


_NO_REASONING = "\n</think>\n\n"
_EMPTY = re.compile(r"\s*<think>\s*</think>\s*")


def after_empty_reasoning(rendered: str) -> str | None:
    """Return what a model would sample for a rendered message after the tag that its prompt opened; None if it has reasoning."""
    empty = _EMPTY.match(rendered)
    return None if empty is None else _NO_REASONING + rendered[empty.end() :]
