"""Words that docs/glossary.md retires appear neither in the documentation nor in strings and names of rove."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers import each_row

ROOT = Path(__file__).parents[2]
RETIRED = re.compile(
    r"--fresh\b|--seat\b|\brove data\b|\bscripted players?\b|\bseats?\b|\bseat_\w+|\bsiblings?\b|\balarms?\b|\bdead groups?\b"
    r"|\bdraw_board\b|\bnormalisation\b|\bskip_at_(?:most|least)\b|\bskip_memory\b|\bcorrection_cap\b|\bupdates_per_batch\b"
    r"|\bresample_zero_spread\b|\bevery_line\b|\blines of play\b|\bpublic record\b|\b(?:desk|shelf|keeper|doorkeeper|twin)s?\b"
    r"|\bput_in_place\b|\bwrite_whole\b|\bswitch_off\b",
    re.IGNORECASE,
)
ALLOWED = {
    "docs/glossary.md": "the list itself",
    "rove/integrations/environments/text_arena.py": "a key of dataset rows, on which the identity of examples depends",
    "rove/sandbox/inside/supervisor.py": "signal.alarm",
}
PAGES = [
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "example_runs" not in path.parts
]
MODULES = sorted((ROOT / "rove").rglob("*.py"))


def strings(module: Path) -> Iterator[tuple[int, str]]:
    """Yield all string constants of a module and the names that it defines, with their lines."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


def retired_words(path: Path, texts: Iterator[tuple[int, str]]) -> list[str]:
    if path.relative_to(ROOT).as_posix() in ALLOWED:
        return []
    return [f"{path.relative_to(ROOT)}:{line}: {word[0]}" for line, text in texts for word in RETIRED.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_use_the_words_of_the_glossary(page: Path):
    assert retired_words(page, enumerate(page.read_text().splitlines(), start=1)) == []


@pytest.mark.slow  # parsing all modules takes seconds; `make check` runs this test for every change
def test_modules_use_the_words_of_the_glossary():
    assert [word for module in MODULES for word in retired_words(module, strings(module))] == []


def test_module_names_use_the_words_of_the_glossary():
    assert [path for path in MODULES if RETIRED.search(path.stem)] == []


@each_row("text", ["the model's seat", "--fresh", "an alarm", "Scripted players", "`skip_at_most`"])
def test_a_retired_word_is_found(text: str):
    assert RETIRED.search(text)
