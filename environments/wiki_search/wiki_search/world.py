"""The world model: people, towns and what people made, with every fact stored once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from .names import PARTS, TRADES, in_two_words, names

SHARES = {
    "person": 0.32, "town": 0.14, "river": 0.03, "battle": 0.08, "guild": 0.08, "book": 0.14, "invention": 0.07, "festival": 0.07,
    "building": 0.07,
}  # fmt: skip
"""Fraction of the articles for each kind; people make up the remainder."""
FEWEST, MOST = 500, 3600
"""Minimum and maximum number of articles."""
MAKERS = {"book": "writer", "invention": "inventor", "battle": "general", "building": "architect", "guild": "merchant"}
WORKS = {
    "book": ("book", "The {}", "author", "setting"),
    "invention": ("device", "{}", "inventor", "town"),
    "building": ("building", "{}", "architect", "town"),
}
"""What people make: list of names, format of the title, and names of the facts for the maker and the place."""
OCCUPATIONS = [*MAKERS.values(), "painter", "physician", "composer", "astronomer", "botanist", "navigator"]
WEIGHTS = [8, 5, 5, 5, 5, 2, 2, 2, 2, 2, 2]


@dataclass(eq=False, slots=True)
class Thing:
    """The subject of an article."""

    kind: str
    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers, texts, other things, or lists of things; a list is the inverse of a fact of the listed things."""

    @property
    def name(self) -> str:
        """The name in a sentence, such as "the River Sael"."""
        article = "" if self.kind in ("person", "town") else "the "
        return f"“{self.title}”" if self.kind == "book" else article + self.title

    @property
    def page_id(self) -> str:
        """The title as an ID, such as "river-sael"."""
        return self.title.lower().replace("'", "").replace(" ", "-")


World = dict[str, list[Thing]]
"""The things of each kind."""


def make_world(seed: int, num_articles: int) -> World:
    """Return a world of `num_articles` things; the same seed gives the same world."""
    rng = random.Random(f"world:{seed}")
    counts = {kind: int(num_articles * share) for kind, share in SHARES.items()}
    counts["person"] += num_articles - sum(counts.values())
    world: World = {"river": _rivers(rng, counts["river"])}
    world["town"] = _towns(rng, counts["town"], world["river"])
    world["person"] = _people(rng, counts["person"], world["town"])
    for kind in WORKS:
        world[kind] = _works(rng, counts[kind], world, kind)
    for kind, make in (("battle", _battles), ("guild", _guilds), ("festival", _festivals)):
        world[kind] = make(rng, counts[kind], world)
    _add_inverse_facts(world)
    return world


def _rivers(rng: random.Random, count: int) -> list[Thing]:
    titles = [f"River {name}" for name in names(rng, "river")[:count]]
    rivers: list[Thing] = []
    for title in titles:
        into = rng.choice(rivers).name if rivers and rng.random() < 0.6 else rng.choice(PARTS["seas"])
        facts = {"length": rng.randint(30, 900), "mouth": into, "hills": rng.choice(PARTS["hills"])}
        rivers.append(Thing("river", title, facts))
    return rivers


def _towns(rng: random.Random, count: int, rivers: list[Thing]) -> list[Thing]:
    return [
        Thing(
            "town",
            title,
            {
                "founded": rng.randint(150, 700),
                "population": rng.randint(10_001, 90_000),
                "region": rng.choice(PARTS["regions"]),
                "river": rng.choice(rivers),
                "trade": rng.choice(list(TRADES.values())),
            },
        )
        for title in names(rng, "town")[:count]
    ]


def _people(rng: random.Random, count: int, towns: list[Thing]) -> list[Thing]:
    last = names(rng, "last")[:700]
    people: list[Thing] = []
    taken: set[str] = set()
    while len(people) < count:
        sex = rng.choice(["she", "he"])
        title = f"{rng.choice(PARTS[sex])} {rng.choice(last)}"
        if title in taken:
            continue
        taken.add(title)
        born = rng.randint(720, 1140)
        facts = {"born": born, "died": born + rng.randint(48, 91), "birthplace": rng.choice(towns), "sex": sex}
        people.append(Thing("person", title, {**facts, "occupation": rng.choices(OCCUPATIONS, WEIGHTS)[0]}))
    for person in people:
        born = person.facts["born"]
        older = [teacher for teacher in rng.sample(people, min(40, count)) if 20 <= born - teacher.facts["born"] <= 45]
        person.facts["teacher"] = older[0] if older and older[0].facts["died"] > born + 14 else None
    return people


def _makers(rng: random.Random, kind: str, count: int, world: World) -> list[tuple[Thing, int]]:
    """Return `count` pairs of a maker and a year; a person may occur more than once."""
    candidates = [person for person in world["person"] if person.facts["occupation"] == MAKERS[kind]]
    chosen = [rng.choice(candidates) for _ in range(count)]
    return [
        (maker, rng.randint(maker.facts["born"] + 22, min(maker.facts["died"] - 1, maker.facts["born"] + 70)))
        for maker in chosen
    ]


def _works(rng: random.Random, count: int, world: World, kind: str) -> list[Thing]:
    name_list, title, maker, location = WORKS[kind]
    titles = names(rng, name_list, in_two_words)
    makers = _makers(rng, kind, count, world)
    return [
        Thing(kind, title.format(name), {maker: person, "year": year, location: rng.choice(world["town"])})
        for name, (person, year) in zip(titles, makers)
    ]


def _battles(rng: random.Random, count: int, world: World) -> list[Thing]:
    generals = [person for person in world["person"] if person.facts["occupation"] == "general"]
    towns = rng.sample(world["town"], min(count, len(world["town"])))
    battles: list[Thing] = []
    for (victor, year), town in zip(_makers(rng, "battle", len(towns), world), towns):
        opponents = [general for general in generals if general is not victor]
        alive = [general for general in opponents if general.facts["born"] + 20 < year < general.facts["died"]]
        loser = rng.choice(alive) if alive else None
        battles.append(
            Thing("battle", f"Battle of {town.title}", {"victor": victor, "loser": loser, "year": year, "town": town})
        )
    return battles


def _guilds(rng: random.Random, count: int, world: World) -> list[Thing]:
    pairs = rng.sample(list(product(TRADES, world["town"])), count)
    return [
        Thing(
            "guild",
            f"{trade}' Guild of {town.title}",
            {
                "seat": town,
                "founder": founder,
                "year": year,
                "emblem": rng.choice(PARTS["emblems"]),
                "goods": TRADES[trade],
            },
        )
        for (trade, town), (founder, year) in zip(pairs, _makers(rng, "guild", count, world))
    ]


def _festivals(rng: random.Random, count: int, world: World) -> list[Thing]:
    pairs = rng.sample(list(product(PARTS["fair"], world["town"])), count)
    festivals: list[Thing] = []
    for fair, town in pairs:
        honours = rng.choice(world["person"])
        facts = {
            "town": town,
            "honours": honours,
            "year": honours.facts["died"] + rng.randint(2, 60),
            "month": rng.choice(PARTS["months"]),
        }
        festivals.append(Thing("festival", f"{fair} {rng.choice(PARTS['fair_end'])} of {town.title}", facts))
    return festivals


def _add_inverse_facts(world: World) -> None:
    """Add to each thing the lists of the things whose facts refer to it, oldest first."""
    lists = [
        ("book", "author", "books"), ("invention", "inventor", "inventions"), ("building", "architect", "buildings"),
        ("battle", "victor", "victories"), ("guild", "founder", "guilds"), ("festival", "honours", "festivals"),
        ("person", "teacher", "students"), ("person", "birthplace", "natives"), ("building", "town", "sights"),
        ("guild", "seat", "guilds_here"), ("festival", "town", "festivals_here"), ("town", "river", "towns"),
    ]  # fmt: skip
    for kind, fact, name in lists:
        for thing in sorted(world[kind], key=lambda thing: thing.facts.get("year", thing.facts.get("born", 0))):
            if thing.facts[fact] is not None:
                thing.facts[fact].facts.setdefault(name, []).append(thing)
