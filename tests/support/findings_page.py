"""Update docs/findings.md: the first lines of each section come from the registry of findings, the rest is written by hand.

`python tests/support/findings_page.py` updates the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from rove.core.findings import FindingInfo, registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
SECTION = re.compile(r"^### (\S+)\n\n.*\n\n.*\n((?s:.*?))(?=^##|\Z)", re.MULTILINE)
"""A section: its id, two generated lines, and the text that was written by hand."""


def section(name: str, info: FindingInfo, details: str) -> str:
    """Return a section of the page."""
    title = info.title[0].upper() + info.title[1:]
    return (
        f"### {name}\n\n{title}.\n\n"
        f"**Usual severity:** {info.severity.value}. **Likely cause:** {info.cause}. **To try:** {info.remedy}.\n{details}"
    )


def update_page(page: str) -> str:
    """Return the page with the current texts of the registry."""
    return SECTION.sub(lambda match: section(match[1], registry()[match[1]], match[2]), page)


def ids(page: str) -> list[str]:
    """Return the ids of the page's sections."""
    return [match[1] for match in SECTION.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text("utf-8")), "utf-8")
