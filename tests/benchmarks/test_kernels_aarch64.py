"""The comparison of the C kernels on two processors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks/kernels_aarch64.py"


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location("kernels_aarch64", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_differences_are_relative_to_large_values(program: Any) -> None:
    assert program.largest_difference([0.0, 99.0], [0.5, 100.0]) == pytest.approx(0.5)
    assert program.largest_difference([99.0], [100.0]) == pytest.approx(0.01)


def test_a_value_that_is_not_a_number_is_a_difference(program: Any) -> None:
    assert program.largest_difference([1.0], [float("nan")]) == float("inf")


@pytest.mark.slow
def test_the_driver_calls_every_function_of_each_source(program: Any, tmp_path: Path) -> None:
    for source, functions in program.SIGNATURES.items():
        names = program.results([str(program.program("cc", "native", source, (2, 16), False, tmp_path))])
        text = program.DRIVER.read_text(encoding="utf-8")
        assert names and all(f"{function}(" in text for function in functions)
        assert all(value == value for values in names.values() for value in values)
