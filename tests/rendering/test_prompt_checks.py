"""Prompts that local models cannot read are refused before the first rollout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes import tiny_model

from rove.core.errors import ConfigError
from rove.rendering.prompt_checks import check_first_prompt
from rove.rendering.renderer import Renderer


def check(prompt: Any) -> None:
    check_first_prompt(SimpleNamespace(examples=lambda number, train: [{"prompt": prompt}]))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["hi"], "first prompt has the message 'hi'; expected an object with a role and a content"),
        ([{"role": "user", "content": [1]}], "a message has the part 1; expected a text, or an object with a type"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of type 'image_url'; expected 'text'"),
    ],
)
def test_a_first_prompt_that_no_local_model_reads_is_an_error(prompt: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        check(prompt)


def test_prompts_of_texts_are_accepted():
    check("hi")
    check(
        [{"role": "user", "content": ["hi", {"type": "text", "text": "there"}]}, {"role": "assistant", "content": None}]
    )


PARTS_ONLY = (
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}{{ part.text }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_a_template_that_reads_only_parts_gets_texts_as_parts():
    tokenizer: Any = tiny_model().tokenizer
    tokenizer.chat_template = PARTS_ONLY
    renderer = Renderer(tokenizer)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert renderer.text(messages[:1]) == "user: hi<|end|>\nassistant: "
    [(ids, mask)] = renderer.training_branches(messages)
    assert renderer.decode(ids[mask.index(True) :]) == "hello<|end|>"


def test_a_template_that_leaves_out_texts_is_refused():
    tokenizer: Any = tiny_model().tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.text }}{% endfor %}"
    with pytest.raises(ConfigError, match="leaves out the text of messages"):
        Renderer(tokenizer).text([{"role": "user", "content": "hi"}])
