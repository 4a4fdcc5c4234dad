"""Print 100 random sentences for review: `python tests/support/prose_sample.py [SEED] [COUNT]`.

A quarter each is from the documentation, docstrings, command help, and the texts that models read: prompts, descriptions and
errors of tools. benchmarks/reports/prose.md has the verdicts of a sample.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_PAGES = ("example_runs", "decisions/prose.md")
ENVIRONMENT_FOLDERS = ("environments", "examples", "rove/hub/package/templates")
"""Folders of environments: docstrings of their functions may describe tools, and their exceptions are tool errors."""
TOOL_FILES = ("rove/envs/rlm.py", "rove/envs/sandbox.py", "rove/envs/tool.py", "rove/tools/tool.py")
"""Modules whose exceptions models read."""
PROMPT_NAME = re.compile(r"(PROMPT|INSTRUCTIONS|FOLLOW_UP|REQUEST|TAGGED)$", re.IGNORECASE)
HELP_KEYWORDS = {"help", "short_help", "epilog"}
MIN_WORDS = 6

Sentence = tuple[str, str]
"""File, and text."""


def sentences_of_page(text: str) -> list[str]:
    """Return the sentences of a page: of paragraphs, lists and table cells, without headings, code blocks and figures."""
    sentences: list[str] = []
    in_heading = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("heading_open", "heading_close"):
            in_heading = token.type == "heading_open"
        elif token.type == "inline" and not in_heading:
            sentences += split_sentences(token.content)
    return sentences


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text that have at least `MIN_WORDS` words and an end."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.lstrip().startswith(("Example:", ">>>")):  # code
            content = re.sub(r"^\s*(Args|Raises|Returns):\s*(\w+:)?", "", paragraph)
            parts += re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", " ".join(content.split()))
    long_parts = [part for part in parts if len(part.split()) >= MIN_WORDS]
    return [part for part in long_parts if part.rstrip("*)`")[-1:] in tuple(".!?:")]


def text_of(node: ast.AST) -> str:
    """Return the text of a string or of an f-string, with names in place of its values; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part)
            for part in node.values
        ]
        return "".join(parts)
    return ""


def python_files(*folders: str) -> list[Path]:
    """Return the Python files in folders, or the files themselves."""
    files: list[Path] = []
    for folder in folders:
        path = ROOT / folder
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return files


def docstrings() -> Iterator[Sentence]:
    """Yield the sentences of rove's docstrings, also of those below fields and constants."""
    for file in python_files("rove"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr):
                for sentence in split_sentences(text_of(node.value)):
                    yield _name(file), sentence


def command_help() -> Iterator[Sentence]:
    """Yield the help of options and commands, including texts that are not full sentences."""
    for file in python_files("rove/cli"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = [
            text_of(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg in HELP_KEYWORDS
        ]
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_command(function):
                texts.append(ast.get_docstring(function) or "")
        for text in filter(None, texts):
            for sentence in split_sentences(text) or [" ".join(text.split())]:
                yield _name(file), sentence


def texts_for_models() -> Iterator[Sentence]:
    """Yield the sentences of prompts, and of descriptions and errors of tools."""
    for file in python_files("rove", *ENVIRONMENT_FOLDERS):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        is_environment = _name(file).startswith(ENVIRONMENT_FOLDERS)
        reads_errors = is_environment or _name(file) in TOOL_FILES
        for node in ast.walk(tree):
            for text in _texts_for_models(node, is_environment, reads_errors):
                for sentence in split_sentences(text) or [" ".join(text.split())]:
                    yield _name(file), sentence


def _texts_for_models(node: ast.AST, is_environment: bool, reads_errors: bool) -> list[str]:
    texts: list[str] = []
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if any(map(PROMPT_NAME.search, names)):
            texts += map(text_of, ast.walk(node.value))
    elif isinstance(node, ast.keyword) and node.arg == "system_prompt":
        texts.append(text_of(node.value))
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        docstring = ast.get_docstring(node) or ""
        if (
            "Args:" in docstring
            and (is_environment or node.name in ("bash", "python"))
            and node.name != "load_environment"
        ):
            texts.append(docstring)
    elif isinstance(node, ast.Raise) and reads_errors:
        call = node.exc
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("ValueError", "TypeError", "ToolParseError"):
            texts += map(text_of, call.args)
    return [text for text in texts if len(text.split()) > 2]


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("command" in ast.unparse(decorator) for decorator in function.decorator_list)


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def documentation() -> Iterator[Sentence]:
    """Yield the sentences of README and of the pages in docs."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if not any(skipped in page.as_posix() for skipped in SKIPPED_PAGES):
            for sentence in sentences_of_page(page.read_text(encoding="utf-8")):
                yield _name(page), sentence


def main(seed: int = 26, count: int = 100) -> None:
    """Print a sample."""
    kinds = (documentation, docstrings, command_help, texts_for_models)
    rng = random.Random(seed)
    sample: list[Sentence] = []
    for number, kind in enumerate(kinds):
        share = count // len(kinds) + (number < count % len(kinds))
        available = sorted(set(kind()))
        sample += rng.sample(available, min(share, len(available)))
    for number, (file, sentence) in enumerate(sample, 1):
        print(f"{number}. ({file}) {sentence}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
