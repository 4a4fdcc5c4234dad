"""Check that local models, which read only text, can read the messages of a prompt, and give them the form that templates read.

See docs/decisions/images.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from rove.core.errors import ConfigError, short_repr
from rove.core.plain import JsonMapping, is_mapping

_QUESTION = "question of the probe"

TextForm = Literal["text", "parts", "none"]
"""`parts`: the text of a message is a list of parts, as in the templates of Idefics 3 and SmolVLM. `none`: it is left out."""


def detect_text_form(render: Callable[[Sequence[JsonMapping]], str]) -> TextForm:
    """Return the form in which a chat template reads the text of a message."""
    message = {"role": "user", "content": _QUESTION}
    try:
        text = render([message])
    except Exception:  # templates can raise any error, and may not take a single question
        text = None
    if text is not None and _QUESTION in text:
        return "text"
    try:
        text_of_parts = render([with_text_part(message)])
    except Exception:  # templates can raise any error
        text_of_parts = ""
    if _QUESTION in text_of_parts:
        return "parts"
    return "text" if text is None else "none"


def with_text_part(message: JsonMapping) -> JsonMapping:
    """Return a message with its text as a list of one part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def check_text_parts(content: Sequence[Any]) -> None:
    """Raise a `ConfigError` if a message has an image or another part that is not text."""
    for part in content:
        if not isinstance(part, str) and not is_mapping(part):
            raise ConfigError(f"a message has the part {short_repr(part)}; expected a text, or an object with a type")
        kind = "text" if isinstance(part, str) else part.get("type", "text")
        if kind != "text":
            raise ConfigError(
                f"a message has a part of type '{kind}'; expected 'text': this model supports text only. Use a model at an "
                "endpoint for images and sound"
            )


def check_first_prompt(env: Any, train: bool = False) -> list[JsonMapping]:
    """Return the messages of the first prompt of an environment; [] if it is a raw text.

    Raises:
        ConfigError: The prompt has parts that local models cannot read.
    """
    messages: list[JsonMapping] = []
    for example in env.examples(1, train):
        prompt = example.get("prompt")
        for message in prompt if isinstance(prompt, list) else ():
            if not is_mapping(message) or not isinstance(message.get("role"), str):
                raise ConfigError(
                    f"the first prompt has the message {short_repr(message)}; expected an object with a role and a content"
                )
            if isinstance(message.get("content"), list):
                check_text_parts(message["content"])
            messages.append(message)
    return messages
