"""Cellar quest: a small text adventure. Collect the treasures of an old house and bring them to the chest."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play a text adventure. Find the three treasures and put them into the chest in the hall; each treasure in the chest is "
    "worth 10 points. You can carry one thing at a time. Reply with one command per turn: go north, go south, go east, go west, "
    "take THING, put THING, look. Nothing else is understood."
)
ROOMS = ["kitchen", "library", "cellar", "attic", "pantry", "workshop", "garden", "stable"]
TREASURES = ["crown", "goblet", "necklace", "coin", "ring", "statue", "dagger", "pearl"]
DIRECTIONS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
POINTS, NUM_TREASURES = 10, 3


def build_house(seed: str) -> dict[str, Any]:
    """Return exits of every room and the place of every treasure."""
    rng = random.Random(seed)
    places = {(0, 0): "hall"}
    exits: dict[str, dict[str, str]] = {"hall": {}}
    for room in rng.sample(ROOMS, 5):
        while True:
            (x, y), base = rng.choice(sorted(places.items()))
            direction = rng.choice(sorted(DIRECTIONS))
            dx, dy = DIRECTIONS[direction]
            if (x + dx, y + dy) not in places:
                break
        places[x + dx, y + dy] = room
        exits[room] = {OPPOSITE[direction]: base}
        exits[base][direction] = room
    rooms = rng.sample([room for room in exits if room != "hall"], NUM_TREASURES)
    treasures = dict(zip(rng.sample(TREASURES, NUM_TREASURES), rooms, strict=True))
    return {"exits": exits, "treasures": treasures}


def route(exits: dict[str, dict[str, str]], start: str, goal: str) -> list[str]:
    """Return the directions from one room to another."""
    queue, seen = deque([(start, [])]), {start}
    while queue:
        room, path = queue.popleft()
        if room == goal:
            return path
        for direction, other in sorted(exits[room].items()):
            if other not in seen:
                seen.add(other)
                queue.append((other, [*path, direction]))
    return []


def walkthrough(house: dict[str, Any]) -> list[str]:
    """Return the commands that bring all treasures to the chest."""
    commands = []
    for thing, room in house["treasures"].items():
        there = route(house["exits"], "hall", room)
        commands += [f"go {direction}" for direction in there] + [f"take {thing}"]
        commands += [f"go {OPPOSITE[direction]}" for direction in reversed(there)] + [f"put {thing}"]
    return commands


class CellarEnv(vf.MultiTurnEnv):
    """An environment with one text adventure per example."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        house = build_house(state["info"]["seed"])
        things = {thing: room for thing, room in house["treasures"].items()}
        state.update(exits=house["exits"], things=things, room="hall", points=0)

    def describe(self, state: vf.State) -> str:
        here = [thing for thing, place in state["things"].items() if place == state["room"]]
        lines = [f"You are in the {state['room']}. Exits: {', '.join(sorted(state['exits'][state['room']]))}."]
        if state["room"] == "hall":
            inside = [thing for thing, place in state["things"].items() if place == "chest"]
            lines.append(f"There is a chest here. It contains: {', '.join(inside) or 'nothing'}.")
        if here:
            lines.append(f"You see: {', '.join(here)}.")
        carried = [thing for thing, place in state["things"].items() if place == "hand"]
        lines.append(f"You carry: {', '.join(carried) or 'nothing'}. Points: {state['points']}.")
        return "\n".join(lines)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        words = (messages[-1]["content"] or "").strip().lower().rstrip(".!").split()
        verb, noun = (words + ["", ""])[:2] if len(words) <= 2 else ("", "")
        things, room = state["things"], state["room"]
        if verb == "go" and noun in state["exits"][room]:
            state["room"] = state["exits"][room][noun]
        elif verb == "take" and "hand" in things.values():
            return "Your hands are full.\n" + self.describe(state)
        elif verb == "take" and (things.get(noun) == room or (room == "hall" and things.get(noun) == "chest")):
            things[noun] = "hand"
        elif verb == "put" and things.get(noun) == "hand" and room == "hall":
            things[noun] = "chest"
            state["points"] += POINTS
        elif verb != "look":
            return "That does not work.\n" + self.describe(state)
        if state["points"] >= POINTS * NUM_TREASURES:
            state["final_env_response"] = f"Well done! You have {state['points']} points."
            return None
        return self.describe(state)


def score(state: vf.State) -> float:
    """Points, as a share of the maximum."""
    return min(1.0, state["points"] / (POINTS * NUM_TREASURES))


def explorer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Knows the way."""
    commands = walkthrough(build_house(state["info"]["seed"]))
    return commands[min(len(state["trajectory"]), len(commands) - 1)]


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Walks around, takes what it sees, and puts it into the chest when it happens to pass by."""
    here = [thing for thing, place in state["things"].items() if place == state["room"]]
    carried = [thing for thing, place in state["things"].items() if place == "hand"]
    if carried and state["room"] == "hall":
        return f"put {carried[0]}"
    if here and not carried:
        return f"take {here[0]}"
    return f"go {rng.choice(sorted(state['exits'][state['room']]))}"


def load_environment(
    num_examples: int = 200, num_eval_examples: int = 80, seed: int = 0, max_turns: int = 30
) -> vf.Environment:
    """Return an environment with text adventures.

    Args:
        num_examples: Adventures for training.
        num_eval_examples: Adventures for evaluation.
        seed: Random seed of the houses.
        max_turns: Maximum commands per adventure.
    """

    def rows(count: int, part: str) -> list[dict[str, Any]]:
        made = []
        for index in range(count):
            name = f"{seed}:{part}:{index}"
            exits = ", ".join(sorted(build_house(name)["exits"]["hall"]))
            question = f"This is house {part[0]}{index + 1}. You are in the hall. Exits: {exits}.\nThere is a chest here. It contains: nothing.\nYou carry: nothing. Points: 0."
            made.append({"question": question, "info": {"seed": name}})
        return made

    return CellarEnv(
        dataset=lambda: rows(num_examples, "train"),
        eval_dataset=lambda: rows(num_eval_examples, "eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([score]),
        policies={"explorer": explorer, "wanderer": wanderer},
        max_turns=max_turns,
    )
