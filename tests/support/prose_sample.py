"""100 sentences drawn at random from README and docs, for fresh eyes: `python tests/support/prose_sample.py [SEED] [COUNT]`.

docs/decisions/prose.md has the verdicts of a sample.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]


def sentences(text: str) -> list[str]:
    """Return the sentences of a page: of paragraphs, lists and table cells, without headings, code blocks and figures."""
    tokens, found, heading = MarkdownIt("commonmark").enable("table").parse(text), [], False
    for token in tokens:
        heading = {"heading_open": True, "heading_close": False}.get(token.type, heading)
        if token.type == "inline" and not heading:
            words = " ".join(token.content.split())
            found += [
                one
                for one in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", words)
                if len(one.split()) >= 6 and one.rstrip("*)`")[-1:] in ".!?:"
            ]
    return found


def main(seed: int = 26, count: int = 100) -> None:
    """Print a sample."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    skipped = ("example_runs", "decisions/prose.md")
    drawn = [
        (page.relative_to(ROOT).as_posix(), one)
        for page in pages
        if not any(name in page.as_posix() for name in skipped)
        for one in sentences(page.read_text(encoding="utf-8"))
    ]
    for number, (page, one) in enumerate(random.Random(seed).sample(drawn, count), 1):
        print(f"{number}. ({page}) {one}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
