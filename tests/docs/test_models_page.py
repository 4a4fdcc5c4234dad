"""The table of model families in docs/models.md."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import pytest
from models_page import BEGIN, COLUMNS, END, PAGE, table_of, with_table
from tiny_families import FAMILIES


def cell(family: str, column: str, outcome: str = "passed", value: str = "yes", reason: str = "") -> dict[str, str]:
    return {"family": family, "column": column, "outcome": outcome, "value": value, "reason": reason}


def results(*changed: dict[str, str]) -> dict[str, Any]:
    cells = [cell(family, column) for family in ("llama", "mamba") for column in COLUMNS]
    return {"versions": {"transformers": "5.1", "peft": "0.1"}, "cells": [*cells, *changed]}


def test_the_page_has_a_row_for_each_family_of_the_suite():
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(FAMILIES)
    assert f"transformers {version('transformers')}" in table


def test_a_cell_says_what_was_tested():
    table = table_of(
        results(
            cell("llama", "Tools", value="llama3"),
            cell("llama", "Thinking", "skipped", reason="no template"),
            cell("mamba", "LoRA", "expected failure", reason="PEFT refuses it"),
        )
    )
    assert "transformers 5.1, PEFT 0.1). 1 of 2\nfamilies pass" in table
    assert "| `llama` | ✓ | ✓ | ✓ | ✓ | llama3 |  | ✓ |" in table
    assert "| `mamba` | ✓ | ✓ | ✓ | ✗ | ✓ | ✓ | ✓ |" in table
    assert "| LoRA | `mamba` | PEFT refuses it |" in table
    page = f"before\n{BEGIN}old\n{END}after\n"
    assert with_table(page, table) == f"before\n{BEGIN}{table}{END}after\n"


def test_an_incomplete_run_leaves_cells_empty():
    table = table_of(results(cell("gpt2", "SFT")), is_complete=False)
    assert "| `gpt2` |  | ✓ |  |  |  |  |  |" in table


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (results(cell("gpt2", "SFT")), r"the results of \['gpt2'\] are incomplete"),
        (results(cell("llama", "SFT", "failed")), r"failed tests: \['llama: SFT'\]"),
        ({"cells": []}, "the results of all families are incomplete"),
    ],
)
def test_a_page_is_not_written_from_incomplete_or_red_results(changed: dict[str, Any], message: str):
    with pytest.raises(SystemExit, match=message):
        table_of(changed)
