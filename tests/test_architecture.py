"""The house rules that a linter does not know."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rove

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "rove").rglob("*.py"))
EXAMPLES = sorted(p for p in (ROOT / "environments").rglob("*.py") if "tests" not in p.parts)


@pytest.mark.parametrize("file", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_readable(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 65, node.name


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda p: p.stem)
def test_example_environments_are_a_page_or_two(file: Path) -> None:
    assert file.read_text(encoding="utf-8").count("\n") < 250


def test_public_names_are_sorted_and_there() -> None:
    assert sorted(rove.__all__) == rove.__all__
    for name in rove.__all__:
        assert getattr(rove, name) is not None


def test_every_module_has_a_test_file() -> None:
    tested = {p.stem.removeprefix("test_") for p in (ROOT / "tests").glob("test_*.py")}
    for file in MODULES:
        parts = file.relative_to(ROOT / "rove").with_suffix("").parts
        if parts[-1] == "__init__" or parts[0] in ("cli", "protocols"):
            continue
        names = {parts[-1], "_".join(parts), parts[0]}
        assert names & tested, f"no test file for {file}"
