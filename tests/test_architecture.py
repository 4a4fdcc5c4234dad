"""Rules of this repository that no linter checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rove

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "rove").rglob("*.py"))
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 100
WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in ["gguf", "llguidance", "matplotlib", "numpy", "peft", "safetensors", "tokenizers", "torch", "transformers"]:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import rove.cli
for module in pkgutil.iter_modules(rove.cli.__path__, "rove.cli."):
    importlib.import_module(module.name)
"""
EXAMPLES = sorted(p for p in (ROOT / "environments").rglob("*.py") if "tests" not in p.parts)


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in the statements below a node; expressions contain none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            yield from functions(child)


@pytest.mark.broad
def test_no_file_or_function_is_far_too_long() -> None:
    """These limits only stop accidents. Reviews decide what is readable: a limit that binds shapes code at that limit."""
    too_long = []
    for file in MODULES:
        text, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT)
        if text.count("\n") > MAX_FILE_LINES:
            too_long.append(f"{name}: {text.count(chr(10))} lines, expected at most {MAX_FILE_LINES}")
        for node in functions(ast.parse(text)):
            if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES:
                too_long.append(f"{name}:{node.lineno}: {node.name} has {MAX_FUNCTION_LINES} lines or more")
    assert too_long == []


def test_example_environments_are_a_page_or_two() -> None:
    lines = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in EXAMPLES}
    assert lines and {name: n for name, n in lines.items() if n >= 250} == {}


def test_public_names_are_sorted_and_exist() -> None:
    assert sorted(rove.__all__) == rove.__all__
    for name in rove.__all__:
        assert getattr(rove, name) is not None


PRINTING = {"rove/stages/reporter.py", "rove/compat/commands.py"}
"""Modules outside the command line that print: the reporters, and the commands of `verifiers`."""
COMMAND_TESTS = {
    "benchmarks/campaign",
    "tests/cli",
    "tests/support",
    "tests/real",
    "tests/models/test_remote_code.py",
    "tests/test_settings.py",
}
"""Tests and benchmarks that run commands in this process."""


def test_only_commands_and_reporters_print() -> None:
    for file in MODULES:
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("rove/cli/") or name in PRINTING or "/templates/" in name:
            continue
        text = file.read_text(encoding="utf-8")
        if "print" not in text and "click" not in text:  # parsing every module takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func).split(".")[-2:] not in (["print"], ["console", "print"]), name
            if isinstance(node, ast.Import):
                assert "click" not in [alias.name for alias in node.names], name


def test_only_tests_of_commands_import_the_command_line() -> None:
    for file in [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")]:
        name = file.relative_to(ROOT).as_posix()
        if not any(name.startswith(allowed) for allowed in COMMAND_TESTS):
            imports = [
                line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("from rove.cli")
            ]
            assert [line for line in imports if not line.startswith("from rove.clients")] == [], name


def test_all_commands_can_be_imported_without_the_extra_train() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
