"""Chat templates with limits: a template is a program that comes with a model folder.

transformers renders it in Jinja's sandbox, which protects files and attributes, but limits neither loops nor sizes:
`{{ "a" * 10 ** 10 }}` takes ten gigabytes, and two nested loops over `range` take hours. `limit_chat_templates` makes
transformers compile templates for an environment that counts steps and characters.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from transformers.utils import chat_template_utils

MAX_STEPS = 5_000_000
"""Maximum number of loop passes, calls and list items in a rendering; a conversation of a thousand messages takes about 50,000.
"""
MAX_CHARACTERS = 50_000_000
"""Maximum characters of a single text, and of the rendered conversation."""
MAX_CPU_S = 20.0
"""Maximum CPU time of one rendering, in seconds."""
MAX_BITS = 100_000
"""Maximum size of an integer, in bits."""
MAX_WIDTH = 1_000_000
"""Maximum width to which a text is padded."""
CHARACTERS_PER_STEP = 100
SIZED = (list, tuple, set, frozenset, dict)
PADDING_FILTERS = {"center", "indent", "batch", "slice", "tojson", "xmlattr"}
ITEM_FILTERS = (
    {"attr", "count", "d", "default", "first", "last", "length", "random"}
    | {"batch", "dictsort", "groupby", "items", "list", "map", "reverse", "slice"}
    | {"reject", "rejectattr", "select", "selectattr"}
)
"""Filters that do not read the items of a list. Templates apply them to the whole conversation, once for every message."""
_WIDE = re.compile(r"\d{7,}|\*")


class _Budget(threading.local):
    """The steps, characters and time that the rendering in this thread has used."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.steps = 0
        self.until = time.thread_time() + MAX_CPU_S

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise SecurityError(f"the chat template takes more than {MAX_STEPS:,} steps")
        if time.thread_time() > self.until:
            raise SecurityError(f"the chat template takes more than {MAX_CPU_S:g} s")

    def spend_value(self, value: object) -> Any:
        """Count the characters or items of a value; return the value."""
        if isinstance(value, str):
            check_characters(len(value))
            self.spend(1 + len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, SIZED):
            self.spend(1 + len(value))
        return value

    def spend_deep(self, value: object) -> Any:
        """Count a value with all nested values, because an operation on its text reads them all; return the value."""
        self.spend_value(value)
        if isinstance(value, SIZED):
            for item in value:
                self.spend_deep(item)
        if isinstance(value, dict):
            for item in value.values():
                self.spend_deep(item)
        return value

    def spend_loop(self, iterable: Any) -> Any:
        """Count the passes of a loop."""
        if hasattr(iterable, "__len__"):
            self.spend(1 + len(iterable))
            return iterable
        return self._counted(iterable)

    def _counted(self, iterable: Iterable[object]) -> Iterator[object]:
        for item in iterable:
            self.spend()
            yield item


budget = _Budget()


def check_characters(count: int) -> None:
    """Raise `SecurityError` if a text would be too long."""
    if count > MAX_CHARACTERS:
        raise SecurityError(f"the chat template makes a text of more than {MAX_CHARACTERS:,} characters")


def check_widths(values: Iterable[object]) -> None:
    """Raise `SecurityError` if a number could be a padding width beyond the limit."""
    if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
        raise SecurityError(f"the chat template pads a text to more than {MAX_WIDTH:,} characters")


def check_format(text: object) -> None:
    """Raise `SecurityError` if a format has a width beyond the limit."""
    if isinstance(text, str) and _WIDE.search(text):
        raise SecurityError(f"the chat template formats a text to more than {MAX_WIDTH:,} characters")


def check_replaced(text: str, old: str, new: str) -> None:
    """Raise `SecurityError` if replacing makes a text too long."""
    check_characters(len(text) + text.count(old) * len(new))


def check_joined(separator: str, items: Iterable[object]) -> None:
    """Raise `SecurityError` if joining makes a text too long."""
    texts = [item for item in items if isinstance(item, str)]
    check_characters(len(separator) * len(texts) + sum(map(len, texts)))


class _Counting(NodeTransformer):
    """Adds calls that count a template's loops, concatenations and comparisons: Jinja compiles them to Python that calls no
    method.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_loop", node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concat", node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_deep", node)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.args:  # a comparison
            node.node = _filtered(node.node, "_deep", node)
        return node


def _filtered(expression: Any, name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None, lineno=node.lineno)


class _LimitedTemplate(Template):
    def new_context(self, *args: Any, **kwargs: Any) -> Context:
        budget.start()
        return super().new_context(*args, **kwargs)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for chat templates that limits steps, sizes and time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    template_class = _LimitedTemplate

    @classmethod
    def like(cls, unlimited: Environment) -> LimitedEnvironment:
        """Return an environment with the options, filters and variables of an unlimited environment."""
        option_names = ("trim_blocks", "lstrip_blocks", "keep_trailing_newline")
        options = {name: getattr(unlimited, name) for name in option_names}
        extensions = [type(extension) for extension in unlimited.extensions.values()]
        # Not optimized: Jinja would compute constant expressions, of any size, while it compiles.
        env = cls(extensions=extensions, finalize=budget.spend_deep, optimized=False, **options)
        env.globals.update(unlimited.globals)
        env.globals.pop("lipsum", None)  # makes text of any length
        for name, function in unlimited.filters.items():
            env.filters[name] = _limited_filter(name, function)
        env.filters |= {"_loop": budget.spend_loop, "_concat": _concat, "_deep": budget.spend_deep}
        return env

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counting().visit(super()._parse(source, name, filename))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Join the parts of an output."""
        texts, count = [], 0
        for part in parts:
            count += len(part)
            check_characters(count)
            texts.append(part)
        budget.spend(1 + count // CHARACTERS_PER_STEP)
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        """Check an operation before it is computed."""
        budget.spend()
        if operator == "+" and isinstance(left, (str, *SIZED)) and hasattr(right, "__len__"):
            check_characters(len(left) + len(right))
        elif operator == "%":
            check_format(left)
            budget.spend_deep(right)
            if isinstance(left, str):
                check_widths(right if isinstance(right, tuple) else [right])
        elif operator in ("*", "**"):
            _check_product(operator, left, right)
        return budget.spend_value(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Check a call of a method, and count every call."""
        budget.spend()
        if getattr(function, "__name__", "") == "raise_exception":
            budget.spend_deep(args)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            values = [*args, *kwargs.values()]
            check_widths(values)
            if function.__name__ == "replace" and len(args) > 1:
                check_replaced(owner, str(args[0]), str(args[1]))
            elif function.__name__ == "join" and args:
                items = list(budget.spend_loop(args[0]))  # an iterator can be read only once
                args = (items,)
                check_joined(owner, items)
            elif function.__name__ == "expandtabs":
                tab_size = int(values[0]) if values else 8
                check_characters(owner.count("\t") * tab_size)
        return budget.spend_value(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `str.format` with checks of the widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def limited(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__)
            values = args[0].values() if value.__name__ == "format_map" else (*args, *kwargs.values())
            check_widths(values)
            budget.spend_deep([*values])
            return wrapped(*args, **kwargs)

        return limited


def _check_product(operator: str, left: object, right: object) -> None:
    if isinstance(left, int) and not isinstance(right, int):  # 3 * "ab" is "ab" * 3
        left, right = right, left
    if not isinstance(right, int):
        return
    if isinstance(left, (str, *SIZED)):
        check_characters(len(left) * max(right, 0))
    elif isinstance(left, int):
        bits = left.bit_length()
        bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
        if bits > MAX_BITS:
            raise SecurityError(f"the chat template makes a number of more than {MAX_BITS:,} bits")


def _concat(parts: list[object]) -> str:
    texts = [str(budget.spend_deep(part)) for part in parts]
    check_joined("", texts)
    return "".join(texts)


def _limited_filter(name: str, function: Callable[..., object]) -> Callable[..., Any]:
    """Return a filter that checks its arguments and counts its result."""

    @functools.wraps(function)  # with the mark of a filter that takes the context
    def limited(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        spend = budget.spend_value if name in ITEM_FILTERS else budget.spend_deep
        for value in values:
            spend(value)
        texts = [value for value in values if isinstance(value, str)]
        if name in PADDING_FILTERS:
            check_widths(values)
        elif name == "format":
            check_format(texts[0] if texts else "")
            check_widths(values)
        elif name == "replace" and len(texts) > 2:
            text, old, new = texts[:3]  # replace(text, old, new)
            check_replaced(text, old, new)
        elif name == "join":
            # join(items, separator); a filter with Jinja's mark takes the context before them.
            position = 1 if hasattr(function, "jinja_pass_arg") else 0
            joined = args[position]
            items = list(budget.spend_loop(joined))
            args = (*args[:position], items, *args[position + 1 :])
            # Without a separator, the only text is the one whose characters are joined.
            has_separator = bool(texts) and not isinstance(joined, str)
            check_joined(texts[-1] if has_separator else "", items)
        return budget.spend_value(function(*args, **kwargs))

    return limited


def limit_chat_templates() -> None:
    """Make transformers compile chat templates for `LimitedEnvironment`."""
    compile_template = chat_template_utils._compile_jinja_template
    if getattr(compile_template, "is_limited", False):
        return

    @functools.lru_cache
    def compile_limited(chat_template: str) -> Template:
        # Not the original function: Jinja would compute "a" * 10 ** 10 while it compiles.
        return LimitedEnvironment.like(compile_template("").environment).from_string(chat_template)

    compile_limited.is_limited = True  # pyright: ignore[reportAttributeAccessIssue]
    chat_template_utils._compile_jinja_template = compile_limited
