"""Chat templates render with limits of steps, sizes and time, and otherwise as transformers renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import bpe_tokenizer

from rove.core.errors import ConfigError
from rove.models import chat_templates, load
from rove.models.chat_templates import limit_chat_templates
from rove.rendering.renderer import Renderer

MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Zwei Straßen?\n"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Why?"},
]
DOUBLING = "{% set ns = namespace(x='ab', y=[1]) %}{% for i in range(60) %}"
HOSTILE = {
    "a product": '{{ "a" * 10 ** 10 }}',
    "a product from the right": '{% set n = 10000000000 %}{{ n * "a" }}',
    "a list": "{{ ([0] * 10000000000) | length }}",
    "a power": "{{ 9 ** 999999999 }}",
    "a growing number": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop with output": "{% for a in range(99999) %}{% for b in range(99999) %}abc{% endfor %}{% endfor %}",
    "a loop over a generator": "{% for a in range(99999)|select %}{% for b in range(99999)|select %}{% endfor %}{% endfor %}",
    "a doubled text": DOUBLING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a doubled sum": DOUBLING + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a doubled block": DOUBLING + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "a doubled list": DOUBLING + "{% set ns.y = ns.y + ns.y %}{% endfor %}",
    "a nested list": DOUBLING + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y }}",
    "a nested list as JSON": DOUBLING + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y | tojson }}",
    "a nested list as text": DOUBLING + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ 'a' ~ ns.y }}",
    "a nested list in a format": DOUBLING + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ '%s' % ns.y }}",
    "recursion": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a recursion without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "padding": '{{ "a".ljust(10000000000) }}',
    "centered": '{{ "a" | center(10000000000) }}',
    "zeros": '{{ "1".zfill(width) if width else "1".zfill(9999999999) }}',
    "an indent": '{{ "a\nb" | indent(10000000000) }}',
    "an indent of JSON": "{{ [1] | tojson(indent=10000000000) }}",
    "tabs": '{{ "\t\t".expandtabs(10000000000) }}',
    "an old format": '{{ "%10000000000d" % 3 }}',
    "an old format with an argument": '{{ "%*d" % (10000000000, 3) }}',
    "a format filter": '{{ "%10000000000d" | format(3) }}',
    "a new format": '{{ "{:>10000000000}".format(3) }}',
    "a new format with an argument": '{{ "{:>{}}".format(3, 10000000000) }}',
    "replacing": '{% set x = "a" * 1000000 %}{{ x.replace("a", x) }}',
    "a replace filter": '{% set x = "a" * 1000000 %}{{ x | replace("a", x) }}',
    "joining": '{% set x = "a" * 1000000 %}{{ x.join(x) }}',
    "a join filter": '{% set x = "a" * 1000000 %}{{ x | list | join(x) }}',
    "a batch": "{{ [1] | batch(10000000000, 0) | list }}",
    "a slice": "{{ [1] | slice(10000000000, 0) | list }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


EXPENSIVE = {"a nested list as JSON", "a nested list as text", "a nested list in a format", "recursion"}
"""Templates that take more than half a second of computing before they are refused."""
HOSTILE_CASES = [
    pytest.param(template, marks=[pytest.mark.broad] if name in EXPENSIVE else [], id=name)
    for name, template in HOSTILE.items()
]


def renderer(template: str) -> Renderer:
    limit_chat_templates()
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer)


@pytest.mark.parametrize("template", HOSTILE_CASES)
def test_a_hostile_template_is_an_error(template: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_templates, "MAX_STEPS", 200_000)
    monkeypatch.setattr(chat_templates, "MAX_CHARACTERS", 2_000_000)
    with pytest.raises(
        ConfigError, match=r"chat template rejects .*: (SecurityError: the chat template \w+|RecursionError|.*nested)"
    ):
        renderer(template).text(MESSAGES)


def test_the_time_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_templates, "MAX_CPU_S", 0.01)
    with pytest.raises(ConfigError, match=r"takes more than 0\.01 s"):
        renderer("{% for a in range(99999) %}{% for b in range(99) %}{{ a + b }}{% endfor %}{% endfor %}").text(
            MESSAGES
        )


def test_a_rendering_starts_with_a_full_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_templates, "MAX_STEPS", 1500)
    usual = renderer("{% for a in range(1000) %}.{% endfor %}{{ messages[0].content }}")
    texts = [usual.text([{"role": "user", "content": str(i)}]) for i in range(3)]
    assert texts == ["." * 1000 + str(i) for i in range(3)]


USUAL = {
    "variables": "{{ messages[-1]['content'] | trim }}{{ eos_token }}{{ add_generation_prompt }}",
    "loops": "{% for m in messages %}{{ loop.index0 }}/{{ loop.length }} {{ loop.last }} {{ m.role }}\n{% endfor %}",
    "loops over a generator": "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.first }}{{ loop.last }}{{ m.content }}{% endfor %}",  # noqa: E501
    "loops with a condition": "{% for m in messages if m.role != 'system' %}{{ m.content }}{% else %}none{% endfor %}",
    "loops over items": "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}",  # noqa: E501
    "macros": "{% macro f(a, b='x') %}<{{ a }}|{{ b }}>{% endmacro %}{{ f(1) }}{{ f(2, b='y') ~ 'z' }}",
    "concatenation": "{{ 'a' ~ 1 ~ none ~ true ~ [1] ~ {'b': 2} }}{{ 'a' + 'b' * 3 }}{{ '%s-%03d' % ('x', 7) }}",
    "JSON": "{{ messages | tojson(indent=2) }}{{ messages[1] | tojson }}",
    "text methods": "{{ messages[1].content.split('S')[0].strip().upper().replace('Z', 'zz').ljust(9) }}{{ '{:>5}'.format(3) }}",
    "filters": "{{ messages | map(attribute='role') | join(', ') }}{{ 'a\nb' | indent(2) }}{{ [3, 1] | sort | first }}{{ 'abc' | replace('b', 'xx') }}",  # noqa: E501
    "numbers": "{{ 7 // 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ 7 / 2 }}{{ -3 }}{{ range(3) | list }}{{ 1.5 * 2 }}",
    "blocks": "{% set x %}a{{ 1 + 1 }}{% endset %}{{ x }}{% if x is defined and x is string %}!{% endif %}",
    "whitespace": "a\n  {%- if true %}\n  b\n  {%- endif %}\n{{ 'c' }}\n",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
}


@pytest.mark.parametrize("template", USUAL.values(), ids=USUAL)
def test_a_usual_template_renders_as_in_transformers(template: str):
    limit_chat_templates()
    from transformers.utils import chat_template_utils

    original = chat_template_utils._cached_compile_jinja_template(template)
    variables: dict[str, Any] = {"eos_token": "</s>", "add_generation_prompt": True, "tools": None}
    limited = chat_template_utils._compile_jinja_template(template)
    assert limited.environment is not original.environment
    assert limited.render(messages=MESSAGES, **variables) == original.render(messages=MESSAGES, **variables)


def test_the_templates_of_rove_render_as_in_transformers():
    limit_chat_templates()
    from transformers.utils import chat_template_utils

    templates = sorted(Path(load.__file__).parent.glob("*.jinja"))
    assert templates
    for file in templates:
        source = file.read_text(encoding="utf-8")
        original = chat_template_utils._cached_compile_jinja_template(source)
        limited = chat_template_utils._compile_jinja_template(source)
        variables: dict[str, Any] = {"messages": json.loads(json.dumps(MESSAGES)), "add_generation_prompt": True}
        assert limited.render(**variables) == original.render(**variables)
