"""Prompts that local models cannot read are refused before the first rollout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rove.core.errors import ConfigError
from rove.rendering.prompt_checks import check_first_prompt


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
