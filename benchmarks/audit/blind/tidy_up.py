"""Tidy up: a small household world in which every thing has its place."""

from __future__ import annotations

import enum
import random
import re

import rove as vf

PLACES = {
    "bookshelf": ["novel", "atlas", "dictionary"],
    "fridge": ["milk", "cheese", "lettuce"],
    "wardrobe": ["scarf", "jacket", "jumper"],
    "toolbox": ["hammer", "wrench", "pliers"],
    "cupboard": ["plate", "mug", "saucepan"],
}
HOME = {thing: place for place, things in PLACES.items() for thing in things}
HELP = (
    "You are in a room where things lie in the wrong places. Put every thing where it belongs: books on the bookshelf, "
    "food in the fridge, clothes in the wardrobe, tools in the toolbox, dishes in the cupboard. You can hold one thing. "
    "Give one command per turn: take THING, or put PLACE."
)
COMMAND = re.compile(r"\b(take|put) (\w+)", re.I)


class Hands(enum.Enum):
    EMPTY = "empty"
    FULL = "full"


class World:
    def __init__(self, where: dict[str, str]):
        self.where = dict(where)
        self.held: str | None = None
        self.points = 0

    @property
    def hands(self) -> Hands:
        return Hands.FULL if self.held else Hands.EMPTY

    @property
    def tidy(self) -> bool:
        return self.held is None and all(HOME[thing] == place for thing, place in self.where.items())

    def describe(self) -> str:
        lines = [f"- {thing}: {place}" for thing, place in self.where.items()]
        return "\n".join([f"You hold: {self.held or 'nothing'}", *lines])

    def step(self, verb: str, noun: str) -> str:
        match verb, self.hands:
            case "take", Hands.EMPTY if noun in self.where:
                self.held = noun
                del self.where[noun]
                return f"You take the {noun}."
            case "put", Hands.FULL if noun in PLACES or noun == "floor":
                thing, self.held = self.held, None
                self.where[thing] = noun
                if HOME[thing] == noun:
                    self.points += 1
                    return f"You put the {thing} away. Well done."
                return f"You put the {thing} there."
            case "take", Hands.FULL:
                return "Your hands are full."
        return "That is not possible."


class TidyEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["world"] = World(state["info"]["where"])

    async def env_response(self, messages, state, **kwargs):
        world = state["world"]
        found = COMMAND.findall(str(messages[-1].content or ""))
        if not found:
            return "Say: take THING, or put PLACE."
        verb, noun = found[-1]
        said = world.step(verb.lower(), noun.lower())
        if world.tidy:
            state["final_env_response"] = f"{said} Everything is tidy."
            return None
        return f"{said}\n{world.describe()}"


def progress(state):
    """Points for things put away, as a share of the things that lay in the wrong place."""
    return state["world"].points / state["info"]["untidy"]


def finished(state):
    return float(state["world"].tidy)


def rows(count, seed):
    found = []
    for index in range(count):
        rng = random.Random(f"{seed}#{index}")
        things = rng.sample(sorted(HOME), rng.randint(4, 7))
        where = {}
        for thing in things:
            where[thing] = rng.choice([place for place in [*PLACES, "floor"] if place != HOME[thing]])
        if rng.random() < 0.5:
            where[things[0]] = HOME[things[0]]
        untidy = sum(HOME[thing] != place for thing, place in where.items())
        found.append({"question": World(where).describe(), "info": {"where": where, "untidy": untidy}})
    return found


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 24) -> vf.Environment:
    rubric = vf.Rubric([progress, finished], [0.5, 0.5])
    return TidyEnv(
        dataset=lambda: rows(num_examples, f"tidy{seed}train"),
        eval_dataset=lambda: rows(num_examples, f"tidy{seed}eval"),
        system_prompt=HELP,
        rubric=rubric,
        max_turns=max_turns,
    )
