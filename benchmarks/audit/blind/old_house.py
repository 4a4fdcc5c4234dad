"""Old house: a small text adventure. Find the key and the lamp, then open the chest."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are in an old house. The chest can be opened with the key, and only by the light of the lamp. You can carry two "
    "things. Commands: go ROOM, take THING, drop THING, open chest. Reply with one command."
)
ROOMS = ["hall", "kitchen", "library", "attic", "cellar", "pantry", "studio", "veranda"]
QUEST = ["key", "lamp"]
CLUTTER = ["vase", "broom", "clock", "cup", "umbrella", "map", "mirror", "candlestick"]
CAPACITY = 2


def describe(state: vf.State) -> str:
    """Return what the model sees in its room."""
    room = state["room"]
    things = [thing for thing, place in sorted(state["places"].items()) if place == room]
    carried = [thing for thing, place in sorted(state["places"].items()) if place == "bag"]
    return (
        f"You are in the {room}. Doors: {', '.join(state['info']['doors'][room])}. "
        f"Here: {', '.join(things) or 'nothing'}. You carry: {', '.join(carried) or 'nothing'}."
    )


def _path(doors: dict[str, list[str]], start: str, goal: str) -> list[str]:
    """Return the rooms on the way from one room to another."""
    paths, seen = [[start]], {start}
    for path in paths:
        if path[-1] == goal:
            return path[1:]
        for room in doors[path[-1]]:
            if room not in seen:
                seen.add(room)
                paths.append([*path, room])
    return []


def hero(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Fetch the key and the lamp on the shortest way, then open the chest."""
    for thing in QUEST:
        place = state["places"][thing]
        if place == state["room"]:
            return f"take {thing}"
        if place != "bag":
            return f"go {_path(state['info']['doors'], state['room'], place)[0]}"
    if state["room"] == state["places"]["chest"]:
        return "open chest"
    return f"go {_path(state['info']['doors'], state['room'], state['places']['chest'])[0]}"


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Walk around, and sometimes try the chest."""
    if state["places"]["chest"] == state["room"] and rng.random() < 0.5:
        return "open chest"
    return f"go {rng.choice(state['info']['doors'][state['room']])}"


class HouseEnv(vf.MultiTurnEnv):
    """An environment in which every example is another house."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(room=info["start"], places=dict(info["places"]), opened=False, finds=0)
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(describe(state))]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        verb, _, noun = str(messages[-1].content or "").strip().lower().rstrip(".").partition(" ")
        places = state["places"]
        carried = [thing for thing in places if places[thing] == "bag"]
        if verb == "go" and noun in state["info"]["doors"][state["room"]]:
            state["room"] = noun
        elif verb == "take" and places.get(noun) == state["room"] and noun != "chest":
            if len(carried) == CAPACITY:
                return f"Your hands are full. {describe(state)}"
            places[noun] = "bag"
            if noun in QUEST:
                state["finds"] += 1
        elif verb == "drop" and noun in carried:
            places[noun] = state["room"]
        elif verb == "open" and noun == "chest" and places["chest"] == state["room"]:
            if not all(thing in carried for thing in QUEST):
                return f"You cannot open it yet. {describe(state)}"
            state["opened"] = True
            state["final_env_response"] = "The chest opens. Well done!"
            return None
        else:
            return f"That does not work. {describe(state)}"
        return describe(state)


def opened(state: vf.State) -> float:
    """Return 1 if the chest was opened."""
    return float(state["opened"])


def finds(state: vf.State) -> float:
    """Return how often the model found a thing that it needs."""
    return float(state["finds"])


def steps(state: vf.State) -> float:
    """Return the number of commands."""
    return float(len(state["trajectory"]))


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        rooms = rng.sample(ROOMS, rng.randint(5, 7))
        doors: dict[str, list[str]] = {room: [] for room in rooms}
        for number, room in enumerate(rooms[1:], start=1):
            other = rng.choice(rooms[:number])
            doors[room].append(other)
            doors[other].append(room)
        places = {thing: rng.choice(rooms[1:]) for thing in [*QUEST, "chest", *rng.sample(CLUTTER, 3)]}
        info = {"start": rooms[0], "doors": {room: sorted(doors[room]) for room in rooms}, "places": places}
        rows.append({"question": f"House {seed} {index}", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 30) -> vf.Environment:
    """Return an environment with houses of five to seven rooms.

    Args:
        num_examples: Number of houses for training, and for evaluation.
        seed: Random seed of the houses.
        max_turns: Maximum commands.
    """
    rubric = vf.Rubric([opened, finds], [1.0, 0.2])
    rubric.add_metric(steps)
    return HouseEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"hero": hero, "wanderer": wanderer},
        max_turns=max_turns,
    )
