"""Questions of one to three hops, their answers, and the sections that state the required facts."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .articles import Page, as_text
from .world import Thing

LINKS = {
    ("book", "author"): "the author of {x}",
    ("book", "setting"): "the town in which {x} is set",
    ("invention", "inventor"): "the inventor of {x}",
    ("invention", "town"): "the town where {x} was first shown",
    ("building", "architect"): "the architect of {x}",
    ("building", "town"): "the town where {x} stands",
    ("battle", "victor"): "the commander who won {x}",
    ("battle", "loser"): "the commander who lost {x}",
    ("guild", "founder"): "the founder of {x}",
    ("festival", "honours"): "the person honoured by {x}",
    ("person", "teacher"): "the teacher of {x}",
    ("person", "birthplace"): "the birthplace of {x}",
    ("town", "river"): "the river that flows through {x}",
}
"""Facts that link one thing to another, and a phrase that describes the other thing."""
ASKS = {
    ("person", "born"): "In what year was {x} born?",
    ("person", "died"): "In what year did {x} die?",
    ("person", "birthplace"): "In which town was {x} born?",
    ("person", "teacher"): "Who taught {x}?",
    ("town", "founded"): "In what year was {x} founded?",
    ("town", "population"): "How many inhabitants does {x} have?",
    ("town", "region"): "Which region does {x} belong to?",
    ("town", "river"): "Which river flows through {x}?",
    ("river", "length"): "How many kilometres long is {x}?",
    ("river", "mouth"): "Into which river or sea does {x} flow?",
    ("river", "hills"): "In which hills or mountains does {x} rise?",
    ("battle", "year"): "In what year was {x} fought?",
    ("battle", "victor"): "Who won {x}?",
    ("battle", "loser"): "Who commanded the losing side in {x}?",
    ("guild", "year"): "In what year was {x} founded?",
    ("guild", "founder"): "Who founded {x}?",
    ("guild", "emblem"): "Which animal is on the emblem of {x}?",
    ("book", "author"): "Who wrote {x}?",
    ("book", "year"): "In what year was {x} published?",
    ("book", "setting"): "In which town is {x} set?",
    ("invention", "inventor"): "Who invented {x}?",
    ("invention", "year"): "In what year was {x} invented?",
    ("invention", "town"): "In which town was {x} first shown?",
    ("festival", "year"): "In what year was {x} first held?",
    ("festival", "month"): "In which month is {x} held?",
    ("festival", "honours"): "Whom does {x} honour?",
    ("building", "architect"): "Who was the architect of {x}?",
    ("building", "year"): "In what year was {x} completed?",
    ("building", "town"): "In which town does {x} stand?",
}
COUNTS = {
    ("person", "books"): "How many books did {x} write?",
    ("person", "inventions"): "How many devices did {x} invent?",
    ("person", "buildings"): "How many buildings did {x} design?",
    ("person", "victories"): "How many battles did {x} win?",
    ("person", "guilds"): "How many guilds did {x} found?",
    ("river", "towns"): "How many towns does {x} flow through?",
}
COMPARISONS = {
    ("person", "born"): ["Who was born earlier, {x} or {y}?", "Who was born later, {x} or {y}?"],
    ("person", "died"): ["Who died earlier, {x} or {y}?", "Who died later, {x} or {y}?"],
    ("town", "founded"): ["Which town is older, {x} or {y}?", "Which town is younger, {x} or {y}?"],
    ("town", "population"): [
        "Which town has fewer inhabitants, {x} or {y}?",
        "Which town has more inhabitants, {x} or {y}?",
    ],
    ("river", "length"): ["Which river is shorter, {x} or {y}?", "Which river is longer, {x} or {y}?"],
    ("battle", "year"): ["Which was fought first, {x} or {y}?", "Which was fought later, {x} or {y}?"],
    ("guild", "year"): ["Which guild is older, {x} or {y}?", "Which guild is younger, {x} or {y}?"],
    ("book", "year"): ["Which book was published first, {x} or {y}?", "Which book was published later, {x} or {y}?"],
    ("invention", "year"): ["Which was invented first, {x} or {y}?", "Which was invented later, {x} or {y}?"],
    ("building", "year"): ["Which was completed first, {x} or {y}?", "Which was completed later, {x} or {y}?"],
}
"""Two questions for each fact: one for the smaller value and one for the greater value."""
SPANS = {
    ("person", "born"): "How many years lie between the birth of {x} and the birth of {y}?",
    ("town", "founded"): "How many years lie between the founding of {x} and the founding of {y}?",
    ("battle", "year"): "How many years lie between {x} and {y}?",
    ("book", "year"): "How many years lie between the publication of {x} and the publication of {y}?",
    ("festival", "year"): "How many years lie between the first holding of {x} and the first holding of {y}?",
}
AGES = {
    ("book", "author", "born"): "How many years after the birth of its author was {x} published?",
    ("invention", "inventor", "born"): "How many years after the birth of its inventor was {x} invented?",
    ("building", "architect", "born"): "How many years after the birth of its architect was {x} completed?",
    ("guild", "founder", "born"): "How many years after the birth of its founder was {x} founded?",
    ("battle", "victor", "born"): "How many years after the birth of its victor was {x} fought?",
    ("festival", "honours", "died"): "How many years after the death of the person it honours was {x} first held?",
}

Pages = dict[str, Page]


class Question(NamedTuple):
    """A question with its answer and its support: the required facts, as pairs of a section_id and a text in that section."""

    kind: str
    text: str
    answer: str
    support: list[list[str]]

    @property
    def for_evaluation(self) -> bool:
        """Whether the question belongs to the fifth of all questions that is reserved for evaluation."""
        return zlib.crc32(self.text.encode()) % 5 == 0

    def row(self) -> dict[str, Any]:
        """Return the question as a row of a dataset."""
        info = {"kind": self.kind, "hops": len(self.support), "support": self.support}
        return {"question": self.text, "answer": self.answer, "info": info}


def fact(pages: Pages, thing: Thing, name: str) -> list[str]:
    """Return the section_id of a fact and the text that states it there."""
    page, value = pages[thing.page_id], thing.facts[name]
    return [page.section_id(page.section_of[name]), _bare(value)]


def _bare(value: Any) -> str:
    """Return a fact without the words that a sentence adds: a title, not "the" and a title."""
    return value.title if isinstance(value, Thing) else as_text(value)


def _chain(rng: random.Random, pages: Pages, links: int, templates: dict[tuple[str, str], str]) -> Any:
    """Return (thing, fact name, description, support), or None if the first thing has no such chain.

    `links` links lead from a random thing to the returned one. The fact is one that `templates` has a question for.
    """
    kind = rng.choice(sorted({kind for kind, _ in [*LINKS, *templates]}))
    thing = rng.choice([page.thing for page in pages.values() if page.thing.kind == kind])
    description, support = thing.name, []
    for _ in range(links):
        link_names = [name for kind, name in LINKS if kind == thing.kind]
        link_names = [name for name in link_names if thing.facts[name] is not None]
        if not link_names:
            return None
        name = rng.choice(link_names)
        support.append(fact(pages, thing, name))
        description, thing = LINKS[thing.kind, name].format(x=description), thing.facts[name]
    names = [name for kind, name in templates if kind == thing.kind]
    names = [name for name in names if thing.facts.get(name) is not None]
    return (thing, rng.choice(names), description, support) if names else None


def lookup(rng: random.Random, pages: Pages, hops: int) -> Question | None:
    """Return a question about a fact of a thing that is named or, with more hops, described by other facts."""
    chain = _chain(rng, pages, hops - 1, ASKS)
    if chain is None:
        return None
    thing, name, description, support = chain
    text, answer = ASKS[thing.kind, name].format(x=description), _bare(thing.facts[name])
    if answer in text:
        return None
    return Question("bridge" if support else "lookup", text, answer, [*support, fact(pages, thing, name)])


def count(rng: random.Random, pages: Pages, hops: int) -> Question | None:
    """Return a question that counts the things in a fact, such as the books of a person; the count is at least 2."""
    chain = _chain(rng, pages, hops - 1, COUNTS)
    if chain is None or len(chain[0].facts[chain[1]]) < 2:
        return None
    thing, name, description, support = chain
    text = COUNTS[thing.kind, name].format(x=description)
    return Question("count", text, str(len(thing.facts[name])), [*support, fact(pages, thing, name)])


def _pair(rng: random.Random, pages: Pages, templates: Any) -> tuple[Thing, Thing, str]:
    kind, name = rng.choice(sorted(templates))
    x, y = rng.sample([page.thing for page in pages.values() if page.thing.kind == kind], 2)
    return x, y, name


def comparison(rng: random.Random, pages: Pages, hops: int) -> Question | None:
    """Return a question about which of two things has the smaller or the greater value."""
    x, y, name = _pair(rng, pages, COMPARISONS)
    if x.facts[name] == y.facts[name]:
        return None
    greater = rng.randrange(2)
    text = COMPARISONS[x.kind, name][greater].format(x=x.name, y=y.name)
    best = (max if greater else min)(x, y, key=lambda thing: thing.facts[name])
    return Question("comparison", text, best.title, [fact(pages, x, name), fact(pages, y, name)])


def difference(rng: random.Random, pages: Pages, hops: int) -> Question | None:
    """Return a question about the years between two dates; with three hops, one date is that of a linked person."""
    if hops == 2:
        x, y, name = _pair(rng, pages, SPANS)
        support = [fact(pages, x, name), fact(pages, y, name)]
        years = abs(x.facts[name] - y.facts[name])
        text = SPANS[x.kind, name].format(x=x.name, y=y.name)
        return Question("difference", text, str(years), support) if years else None
    kind, link, name = rng.choice(sorted(AGES))
    thing = rng.choice([page.thing for page in pages.values() if page.thing.kind == kind])
    person = thing.facts[link]
    support = [fact(pages, thing, link), fact(pages, person, name), fact(pages, thing, "year")]
    text = AGES[kind, link, name].format(x=thing.name)
    return Question("difference", text, str(thing.facts["year"] - person.facts[name]), support)


GENERATORS: dict[int, list[Callable[[random.Random, Pages, int], Question | None]]] = {
    1: [lookup, lookup, count],
    2: [lookup, lookup, count, comparison, difference],
    3: [lookup, lookup, count, difference],
}
"""Functions that generate questions, by number of hops."""


def questions(pages: Pages, seed: str, hops: range, evaluation: bool) -> Iterator[Question]:
    """Yield questions without end; a question repeats only if no new one is found."""
    rng, used = random.Random(seed), set()
    while True:
        num_hops = rng.choice(hops)
        for _ in range(1000):
            question = rng.choice(GENERATORS[num_hops])(rng, pages, num_hops)
            if question is not None and question.for_evaluation == evaluation and question.text not in used:
                used.add(question.text)
                yield question
                break
        else:
            used.clear()
