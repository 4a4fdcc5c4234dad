"""Reports of an audit as Markdown, JSON, SARIF and JUnit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import msgspec

from rove.audit.findings import Report, severity_text
from rove.core.findings import Finding, Severity, findings_by_area
from rove.core.plain import JsonObject
from rove.utils.markdown import plain, table_lines

_NO_XML = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SARIF_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note", Severity.INFO: "none"}


def rate_text(finding: Finding) -> str:
    """Return a finding's rate with its interval, and the floor: "0.52 [0.40, 0.64], floor 0.10"."""
    if finding.rate is None:
        return ""
    mean, low, high = finding.rate
    interval = f" [{low:.2f}, {high:.2f}]" if high > low else ""
    floor = f", floor {finding.floor:.2f}" if finding.floor is not None else ""
    return f"{mean:.2f}{interval}{floor}"


def json_report(report: Report) -> JsonObject:
    """Return a report as JSON values."""
    values: JsonObject = msgspec.to_builtins(report)
    values["worst"] = report.worst.value
    values["unchecked"] = report.unchecked
    for value, finding in zip(values["findings"], report.findings, strict=True):
        value["repeat"] = report.command(finding.id)
    return values


def markdown_report(reports: Sequence[Report]) -> str:
    """Return reports as a Markdown page: a table, then the evidence."""
    rows: list[tuple[str, ...]] = []
    for report in reports:
        for finding in report.findings:
            rows.append((report.env, severity_text(finding), finding.id, finding.text, rate_text(finding)))
        if not report.findings:
            rows.append((report.env, "–", "–", report.without_findings, "–"))
    lines = table_lines(("environment", "severity", "check", "finding", "reward or share"), rows)
    for report in reports:
        if report.known_defects:
            lines += ["", *(f"- {text}" for text in report.known_defects)]
        if report.unmatched:
            unmatched = "; ".join(report.unmatched)
            lines += ["", f"Entries of the baseline file that match no finding any more: {unmatched}."]
        lines += ["", f"{report.env}: {report.done}", ""]
        lines += [f"- not done: {plain(text)}" for text in report.not_done]
        lines += [f"- {text}" for text in (report.power, report.clean_checks) if text]
        for finding in report.findings:
            if finding.completion:
                lines += ["", f"### {report.env}: {finding.id}", ""]
                lines += [f"{finding.text}. Usual fix: {finding.remedy}.", ""]
                lines += ["````text", f"prompt: {finding.prompt}", "", f"completion: {finding.completion}", "````"]
                lines += ["", f"Repeat: `{report.command(finding.id)}`"]
    return "\n".join(lines) + "\n"


def sarif_report(reports: Sequence[Report]) -> JsonObject:
    """Return reports in SARIF 2.1.0, which code hosts show next to the code."""
    rules = [
        {"id": name, "shortDescription": {"text": info.title}, "help": {"text": info.remedy}}
        for name, info in findings_by_area()["audit"].items()
    ]
    results: list[JsonObject] = []
    for report in reports:
        for finding in report.findings:
            result: JsonObject = {
                "ruleId": finding.id,
                "level": SARIF_LEVELS[finding.severity],
                "message": {"text": f"{report.env}: {finding.text}"},
                "properties": {"repeat": report.command(finding.id)},
                "locations": [_location(report)],
            }
            if finding.accepted:
                result["suppressions"] = [{"kind": "external", "justification": finding.accepted}]
            results.append(result)
    driver = {"name": "rove audit", "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"version": "2.1.0", "$schema": schema, "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(report: Report) -> JsonObject:
    """Return the location of results in SARIF: `load_environment`, with a path relative to this folder if the file is in it."""
    location: JsonObject = {"logicalLocations": [{"fullyQualifiedName": report.env, "kind": "module"}]}
    if report.file:
        path = Path(report.file).resolve()
        is_inside = path.is_relative_to(Path.cwd())
        uri = quote(path.relative_to(Path.cwd()).as_posix()) if is_inside else path.as_uri()
        location["physicalLocation"] = {"artifactLocation": {"uri": uri}, "region": {"startLine": report.line}}
    return location


def junit_report(reports: Sequence[Report], fail_on: Severity = Severity.MEDIUM) -> bytes:
    """Return reports as JUnit XML: one test case per selected check; it fails if a finding has severity `fail_on` or higher, and
    an error that ended the check is an error of the test case.
    """
    suites = ElementTree.Element("testsuites", name="rove audit")
    for report in reports:
        suite = ElementTree.SubElement(suites, "testsuite", name=report.env, tests=str(len(report.checks)))
        for name in report.checks:
            case = ElementTree.SubElement(suite, "testcase", classname=report.env, name=name)
            findings = [finding for finding in report.findings if finding.id == name]
            for finding in findings:
                evidence = (finding.text, finding.prompt, finding.completion, f"fix: {finding.remedy}")
                text = _xml("\n".join([*evidence, f"repeat: {report.command(name)}"]))
                if finding.severity >= fail_on and not finding.accepted:
                    ElementTree.SubElement(case, "failure", message=_xml(finding.text)).text = text
                else:
                    ElementTree.SubElement(case, "system-out").text = f"{severity_text(finding)}: {text}"
            if name in report.failed:
                ElementTree.SubElement(case, "error", message=_xml(report.failed[name]))
            elif name in report.skipped and not findings:
                ElementTree.SubElement(case, "skipped", message=_xml(report.skipped[name]))
        suite.set("failures", str(len(suite.findall("*[failure]"))))
        suite.set("errors", str(len(suite.findall("*[error]"))))
        suite.set("skipped", str(len(suite.findall("*[skipped]"))))
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _xml(text: str) -> str:
    return _NO_XML.sub("�", text)
