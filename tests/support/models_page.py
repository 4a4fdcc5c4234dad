"""The table of model families in docs/models.md, from the results of the tests in tests/models_matrix.

make models-page          # runs the tests, then: python tests/support/models_page.py build/models_matrix.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/models.md"
BEGIN, END = "<!-- families: begin (make models-page) -->\n", "<!-- families: end -->\n"
COLUMNS = {
    "Evaluate": "rollouts of three turns; the log-probabilities of all sampled tokens are those of a plain forward pass in "
    "transformers",
    "SFT": "training that is killed and resumed ends with exactly the weights of an uninterrupted run; transformers alone loads "
    "the result without missing or unknown weights, and computes the same",
    "RL": "the same, for two steps with `keep_best`",
    "LoRA": "the same, for SFT with the default adapter, which PEFT alone loads on the base model",
    "Tools": "forced calls in three turns through a chat template of the family's publisher; the cell names the format",
    "Thinking": "a block of reasoning is read, scored, and trained as such a template writes it",
    "vLLM weights": "weights for vLLM servers have the names and shapes of the published weights; whether vLLM supports the "
    "family was not checked, and no server was started ([scale.md](scale.md#vllm-as-the-sampler) lists what was tested with "
    "a server)",
}
"""Column → what its tests check."""
PASSED, FAILED, UNTESTED = "✓", "✗", ""
INTRODUCTION = """
rove's tests train and evaluate a tiny random model of each family (transformers {transformers}, PEFT {peft}). {full} of {count}
families pass in every column that was tested. Empty cells, and families that are not in the table, were not tested.
"""


def table_of(results: Mapping[str, Any], is_complete: bool = True) -> str:
    """Return the section of the page for results of the tests; those of an incomplete run leave cells empty.

    Raises:
        SystemExit: The tests of a family did not all run, or a test failed that the tables of the tests do not expect to fail.
    """
    cells: dict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)
    for cell in results["cells"]:
        cells[cell["family"]][cell["column"]] = cell
    incomplete = [family for family, columns in cells.items() if columns.keys() != set(COLUMNS)]
    if (incomplete and is_complete) or not cells:
        raise SystemExit(
            f"the results of {incomplete or 'all families'} are incomplete; run all tests with make models-page, or leave the "
            "cells empty with --incomplete"
        )
    failed: list[str] = []
    for family, columns in cells.items():
        failed += [f"{family}: {column}" for column, cell in columns.items() if cell["outcome"] == "failed"]
    if failed:
        raise SystemExit(f"failed tests: {failed}; repair them, or expect the failure with its reason")
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    rows: list[str] = []
    for family in sorted(cells):
        marks: list[str] = []
        for column in COLUMNS:
            cell = cells[family].get(column, {"outcome": "skipped"})
            marks.append(_mark(cell))
            if marks[-1] == FAILED:
                reasons[column, cell["reason"]].append(family)
        rows.append(f"| `{family}` | {' | '.join(marks)} |")
    full = sum(FAILED not in row for row in rows)
    lines = [INTRODUCTION.format(**results["versions"], full=full, count=len(rows))]
    lines += ["| column | what is checked |", "|---|---|"]
    lines += [f"| {column} | {meaning} |" for column, meaning in COLUMNS.items()]
    lines += ["", f"| family (`model_type`) | {' | '.join(COLUMNS)} |", "|" + "---|" * (1 + len(COLUMNS)), *rows, ""]
    if reasons:
        lines += ["What does not work, and why:", "", "| column | families | reason |", "|---|---|---|"]
        for (column, reason), families in sorted(reasons.items(), key=lambda item: list(COLUMNS).index(item[0][0])):
            lines.append(f"| {column} | {', '.join(f'`{family}`' for family in families)} | {reason} |")
        lines.append("")
    return "\n".join(lines)


def _mark(cell: Mapping[str, str]) -> str:
    if cell["outcome"] == "passed":
        return PASSED if cell["value"] == "yes" else cell["value"]
    return FAILED if cell["outcome"] == "expected failure" else UNTESTED


def with_table(page: str, table: str) -> str:
    """Return the page with another table between its markers."""
    start, remainder = page.split(BEGIN)
    return start + BEGIN + table + END + remainder.split(END)[1]


if __name__ == "__main__":
    # Several files hold the results of several runs, for example of some families each.
    files = [argument for argument in sys.argv[1:] if argument != "--incomplete"]
    parts = [json.loads(Path(file).read_bytes()) for file in files]
    results = {"versions": parts[-1]["versions"], "cells": [cell for part in parts for cell in part["cells"]]}
    PAGE.write_text(
        with_table(PAGE.read_text(encoding="utf-8"), table_of(results, len(files) == len(sys.argv) - 1)),
        encoding="utf-8",
    )
