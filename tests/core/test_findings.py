"""Findings: defaults from the registry, order of severities, files with earlier keys, and the page with a section per id."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest
from findings_page import PAGE, ids, update_page

from rove.core.findings import Finding, Severity, registry

ROVE = Path(__file__).resolve().parents[2] / "rove"


def called_name(call: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_a_finding_has_the_texts_of_its_id():
    info = registry()["hedging"]
    finding = Finding("hedging", "two answers earn 1.000")
    assert (finding.severity, finding.cause, finding.remedy) == (info.severity, info.cause, info.remedy)
    custom = Finding("hedging", "two answers earn 0.200", Severity.LOW, "nothing", "partial credit")
    assert (custom.severity, custom.remedy, custom.cause) == (Severity.LOW, "nothing", "partial credit")
    assert str(custom) == "hedging: two answers earn 0.200. To try: nothing"


def test_checks_that_passed_have_no_remedy():
    assert str(Finding("hedging", "none of 9 replies is paid", Severity.OK)) == "hedging: none of 9 replies is paid"


def test_unknown_ids_are_refused():
    with pytest.raises(KeyError):
        Finding("hedge", "x")


def test_severities_are_ordered():
    assert sorted(Severity, reverse=True)[0] is Severity.HIGH
    assert Severity.SKIPPED < Severity.INFO < Severity.MEDIUM <= Severity.MEDIUM


def test_findings_are_read_from_json_again():
    finding = Finding("length", "longer answers earn more", rate=(0.5, 0.4, 0.6), floor=0.1, step=3)
    content = msgspec.json.encode(finding)
    assert b'"severity":"medium"' in content and b"prompt" not in content
    assert msgspec.json.decode(content, type=Finding) == finding


def test_every_id_has_a_section_and_every_section_an_id():
    page = PAGE.read_text("utf-8")
    assert ids(page) == re.findall(r"^### (.+)$", page, re.MULTILINE) == list(registry())
    assert update_page(page) == page, "run `python tests/support/findings_page.py`"


def test_every_id_in_the_code_is_registered_and_every_registered_id_is_in_the_code():
    texts = [path.read_text("utf-8") for path in ROVE.rglob("*.py")]
    ids_of_findings: set[str] = set()
    for text in texts:
        if "inding(" not in text:  # parsing every module takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and called_name(node) in ("Finding", "finding"):
                arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "id")]
                ids_of_findings |= {
                    argument.value
                    for argument in arguments
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                }
    assert ids_of_findings <= set(registry())
    strings = set(re.findall(r'"([^"\n]*)"', "\n".join(texts)))
    assert set(registry()) <= ids_of_findings | strings
