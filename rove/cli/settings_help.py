"""The names and meanings of settings as their source documents them, read without importing it: torch takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def documented_fields(module: str, struct: str) -> dict[str, str]:
    """The fields of a settings struct and the first paragraph of the string below each; "" where there is none.

    Args:
        module: like "rove.train.config".
        struct: name of a class in it.
    """
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return {name: " ".join(text.split()) for name, text in _fields(classes, struct).items()}


def _fields(classes: Mapping[str, ast.ClassDef], struct: str) -> dict[str, str]:
    """The fields of a class and of its bases in the same module, in the order in which msgspec has them."""
    fields: dict[str, str] = {}
    for base in classes[struct].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            fields |= _fields(classes, base.id)
    body = classes[struct].body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = _string(below).split("\n\n")[0]
    return fields


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def all_settings(module: str, struct: str) -> str:
    """The last lines of a command's help: the names of all settings."""
    return "All settings: " + ", ".join(documented_fields(module, struct)) + "."
