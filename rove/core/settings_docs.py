"""Meanings, types and defaults of settings, read from their docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

import msgspec

from rove.core.checks import type_below
from rove.core.ranges import form_of, range_of

WORDS = {
    "bool": "true or false",
    "dict[str, Any]": "table",
    "dict[str, str]": "table of texts",
    "list[EvaluationConfig]": "list of tables",
    "list[str]": "list of texts",
    "str": "text",
}
"""Readable names of types."""


class Setting(NamedTuple):
    """One setting of a command."""

    name: str
    """Dotted name, as in `--isolation.on`."""
    type: str
    """The type; for a number, with its range."""
    default: str
    """The default as TOML-like text; "required" if there is none."""
    meaning: str


def documented_fields(module: str, struct: str) -> dict[str, str]:
    """Return the fields of a settings struct, each with the first paragraph of its docstring ("" without a docstring).

    The source is parsed, not imported: importing torch takes seconds.

    Args:
        module: Module name, such as "rove.train.config".
    """
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return {name: " ".join(text.split()) for name, text in _fields(classes, struct).items()}


def _fields(classes: Mapping[str, ast.ClassDef], struct: str) -> dict[str, str]:
    """Return the fields of a class and of its bases in the same module, in msgspec's order."""
    fields: dict[str, str] = {}
    for base in classes[struct].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            fields |= _fields(classes, base.id)
    body = classes[struct].body
    # A field's docstring is the statement after it; Python itself does not keep it.
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = _docstring(following).split("\n\n")[0]
    return fields


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def settings_of(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    """Yield every setting of a struct; settings of nested tables have dotted names."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):  # bases first: a subclass may replace the docstring of a setting
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            meanings |= documented_fields(base.__module__, base.__name__)
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        nested = hints[field.name]
        if isinstance(nested, type) and issubclass(nested, msgspec.Struct):
            yield from settings_of(nested, f"{prefix}{field.name}.")
        else:
            text = type_text(field.type)
            yield Setting(prefix + field.name, text, _default(field), meanings.get(field.name, ""))


def type_text(annotation: Any) -> str:
    """Return a type in words: for a number, with its range; for a table of numbers, with the range of its values."""
    allowed = range_of(annotation)
    if allowed is not None:
        return allowed.description
    if form := form_of(annotation):
        return form
    values = range_of(type_below(annotation, "")) if get_origin(annotation) is dict else None
    if values is not None:
        return f"table; each value: {values.description}"
    is_class = isinstance(annotation, type) and not get_origin(annotation)
    text = annotation.__name__ if is_class else str(annotation)
    text = re.sub(r"\b(?:\w+\.)+", "", text).removesuffix(" | None")  # without the names of modules
    return WORDS.get(text, text)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator]
    if value is None:
        return "not set"
    return msgspec.json.encode(value).decode()
