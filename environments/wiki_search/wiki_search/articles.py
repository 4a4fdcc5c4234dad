"""Write the articles: pages of sections that state the facts of the world model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .phrases import SECTIONS
from .words import FILL
from .world import Thing, World

PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "his", "him")}
GAP = re.compile(r"{(\w+)}")


@dataclass(slots=True)
class Page:
    """An article."""

    thing: Thing
    headings: list[str]
    texts: list[str]
    """Text of each section."""
    section_of: dict[str, int]
    """Index of the section that states each fact."""

    def section_id(self, section: int) -> str:
        """Return the ID of a section, such as "river-sael:course"."""
        return f"{self.thing.page_id}:{self.headings[section].lower().replace(' ', '-')}"


def as_text(value: Any) -> str:
    """Return a fact as articles state it: 12,437, or "“The Iron Key” (873) and “The Pale Door” (880)"."""
    if isinstance(value, list):
        years = (f" ({thing.facts['year']})" if "year" in thing.facts else "" for thing in value)
        items = [thing.name + year for thing, year in zip(value, years)]
        return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
    if isinstance(value, Thing):
        return value.name
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


def write_pages(world: World, seed: int) -> dict[str, Page]:
    """Return all articles by page_id; the seed and the title determine the wording of an article."""
    forms = {kind: list(_sections(text)) for kind, text in SECTIONS.items()}
    pages: dict[str, Page] = {}
    for kind in sorted(world):
        for thing in world[kind]:
            pages[thing.page_id] = _write(thing, forms[kind], random.Random(f"page:{seed}:{thing.title}"))
    return pages


Form = tuple[list[str], list[list[tuple[str, list[str]]]]]
"""Headings of a section, and its sentences: for each sentence, its wordings with their gaps."""


def _sections(text: str) -> Iterator[Form]:
    for part in text.split("== ")[1:]:
        headings, *sentences = part.strip().split("\n* ")
        wordings = [[(text.strip(), GAP.findall(text)) for text in sentence.split("\n  ")] for sentence in sentences]
        yield headings.split(" | "), wordings


def _words(thing: Thing) -> dict[str, str]:
    """Return the values that can fill gaps in sentences about a thing: its facts, names and pronouns."""
    words = {name: as_text(value) for name, value in thing.facts.items() if value is not None}
    words["name"] = thing.name
    if thing.kind == "person":
        words["they"], words["their"], words["them"] = PRONOUNS[thing.facts["sex"]]
        words["first"] = thing.title.split()[0]
    for name in words.keys() & {"occupation", "emblem"}:
        words[f"a_{name}"] = f"{'an' if words[name][0] in 'aeiou' else 'a'} {words[name]}"
    return words


def _write(thing: Thing, form: list[Form], rng: random.Random) -> Page:
    words = _words(thing)
    page = Page(thing, [], [], {})
    for headings, sentences in form:
        written: list[str] = []
        for wordings in sentences:
            wording, gaps = rng.choice(wordings)
            if not all(gap in words or gap in FILL for gap in gaps):
                continue
            text = wording.format_map({gap: words[gap] if gap in words else rng.choice(FILL[gap]) for gap in gaps})
            written.append(text[0].upper() + text[1:])
            facts = [gap.removeprefix("a_") for gap in gaps]
            page.section_of.update({fact: len(page.texts) for fact in facts if fact in thing.facts})
        if written:
            page.headings.append(rng.choice(headings))
            page.texts.append(" ".join(written))
    return page
