"""The parts of `make mutation` without cosmic-ray: the lines and tests of a mutant, which changes count, and the table."""

from __future__ import annotations

import ast

from mutation import AREAS, ROOT, LineTable, Mutant, choose_tests, is_real_change, report, statement_lines
from tiers import each_row

SOURCE = """\
LIMITS = {
    "low": 1,
}


@cached
def scale(value: int | None = 2) -> int | None:
    if (
        value
    ):
        return value * 3
    return None
"""


def test_the_modules_and_the_tests_of_every_area_exist():
    for area in AREAS.values():
        assert all((ROOT / "rove" / f"{name}.py").is_file() for name in area.modules)
        assert all((ROOT / "tests" / folder).is_dir() for folder in area.tests)


@each_row(
    ("line", "first", "last"), [(2, 1, 3), (6, 6, 6), (7, 7, 7), (8, 8, 10), (9, 8, 10), (11, 11, 11), (12, 12, 12)]
)
def test_the_lines_of_a_mutant_are_those_of_its_statement_without_the_body(line: int, first: int, last: int):
    statements = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.stmt)]
    assert statement_lines(statements, line) == range(first, last + 1)


@each_row(
    ("old", "new", "expected"),
    [
        ("int | None", "int & None", False),
        ("value * 3", "value / 3", True),
        ("return None", "return None  # end", False),
        ("if (", "if not (", True),
        ("return None", "return None)", False),
    ],
)
def test_a_mutant_is_valid_code_that_differs_in_more_than_annotations(old: str, new: str, expected: bool):
    assert is_real_change(SOURCE, SOURCE.replace(old, new)) == expected


def mutant(first: int, last: int) -> Mutant:
    return Mutant("area", "rove/a/b.py", "operator", 0, (first, 0), (first, 1), range(first, last + 1), "key")


def test_a_line_has_the_tests_that_run_it_its_own_file_and_the_quick_ones_first():
    lines = {
        1: {""},
        3: {"tests/a/test_b.py::slow", "tests/c/test_c.py::quick", "tests/c/test_c.py::long"},
        4: {"tests/c/test_d.py"},
        5: {"", "tests/a/test_b.py::slow"},
    }
    own_file = {"tests/a/test_b.py::slow": 9.0, "tests/a/test_b.py::other": 0.1}
    other_files = {
        "tests/c/test_c.py::quick": 0.1,
        "tests/c/test_c.py::long": 99.0,
        "tests/c/test_d.py::by_fixture": 1.0,
    }
    table = LineTable({**own_file, **other_files}, {"rove/a/b.py": lines})
    assert choose_tests(mutant(3, 3), table) == ["tests/a/test_b.py::slow", "tests/c/test_c.py::quick"]
    assert choose_tests(mutant(4, 4), table) == ["tests/c/test_d.py::by_fixture"]
    of_module = ["tests/a/test_b.py::slow", "tests/c/test_c.py::quick", "tests/c/test_d.py::by_fixture"]
    assert choose_tests(mutant(1, 1), table) == choose_tests(mutant(2, 2), table) == of_module
    assert choose_tests(mutant(5, 5), table) == of_module


def test_the_report_counts_by_area_and_lists_the_survivors():
    row = {"place": "rove/a/b.py:3", "before": "x + 1", "after": "x - 1", "tests": 2}
    outcomes = [("a", "killed"), ("a", "killed"), ("a", "survived"), ("b", "timeout")]
    lines = report([{**row, "area": area, "outcome": outcome} for area, outcome in outcomes]).splitlines()
    cells = [line.split() for line in lines]
    assert cells[1][:6] == ["a", "3", "2", "0", "1", "66.7%"]
    assert cells[2][:6] == ["b", "1", "0", "1", "0", "100.0%"]
    assert cells[3][:6] == ["all", "4", "2", "1", "1", "75.0%"]
    assert lines[-3:] == ["rove/a/b.py:3 (2 tests)", "  - x + 1", "  + x - 1"]
