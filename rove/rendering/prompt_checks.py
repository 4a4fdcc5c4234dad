"""Check that local models, which read only text, can read the messages of a prompt; see docs/decisions/images.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rove.core.errors import ConfigError, short_repr
from rove.core.plain import is_mapping


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


def check_first_prompt(env: Any, train: bool = False) -> None:
    """Raise a `ConfigError` if the first prompt of an environment has parts that local models cannot read."""
    for example in env.examples(1, train):
        prompt = example.get("prompt")
        for message in prompt if isinstance(prompt, list) else ():
            if not is_mapping(message):
                raise ConfigError(
                    f"the first prompt has the message {short_repr(message)}; expected an object with a role and a content"
                )
            if isinstance(message.get("content"), list):
                check_text_parts(message["content"])
