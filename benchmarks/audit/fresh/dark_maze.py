"""Dark maze: find the way out of a maze of which only the doors of the current room can be seen."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

STEPS = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}
OPPOSITE = {"north": "south", "south": "north", "west": "east", "east": "west"}
SYSTEM_PROMPT = (
    "You are in a dark maze; x grows to the east, y to the south. In every turn go through one of the doors of your room: "
    "<move>north</move>, <move>south</move>, <move>west</move> or <move>east</move>. Get to the exit before your lamp goes out."
)
Room = tuple[int, int]
Doors = dict[Room, list[str]]


def beyond(room: Room, move: str) -> Room:
    return room[0] + STEPS[move][0], room[1] + STEPS[move][1]


def maze(size: int, seed: str) -> Doors:
    """Return the doors of every room; there is one way between any two rooms."""
    rng = random.Random(seed)
    doors: Doors = {(x, y): [] for x in range(size) for y in range(size)}
    path = [(rng.randrange(size), rng.randrange(size))]
    seen = set(path)
    while path:
        fresh = [move for move in STEPS if beyond(path[-1], move) in doors and beyond(path[-1], move) not in seen]
        if not fresh:
            path.pop()
            continue
        move = rng.choice(fresh)
        doors[path[-1]].append(move)
        path.append(beyond(path[-1], move))
        doors[path[-1]].append(OPPOSITE[move])
        seen.add(path[-1])
    return doors


def distances(doors: Doors, start: Room) -> dict[Room, int]:
    """Return the number of steps from a room to every other."""
    found, queue = {start: 0}, [start]
    for room in queue:
        for following in (beyond(room, move) for move in doors[room]):
            if following not in found:
                found[following] = found[room] + 1
                queue.append(following)
    return found


def view(doors: Doors, room: Room, goal: Room) -> str:
    return f"You are in room {room}. Doors: {', '.join(sorted(doors[room]))}. The exit is in room {goal}."


class MazeEnv(vf.MultiTurnEnv):
    """Moves the player until the exit is reached."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(doors=maze(info["size"], info["seed"]), room=tuple(info["start"]), escaped=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = (self.parser.parse_answer(messages) or "").lower()
        goal = tuple(state["info"]["goal"])
        if move not in state["doors"][state["room"]]:
            return f"There is no such door. {view(state['doors'], state['room'], goal)}"
        state["room"] = beyond(state["room"], move)
        if state["room"] == goal:
            state["escaped"] = True
            state["final_env_response"] = "You are out."
            return None
        return view(state["doors"], state["room"], goal)


def escaped(state: vf.State) -> float:
    """Return 1 if the exit was reached."""
    return float(state["escaped"])


def guide(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know the maze and take the shortest way."""
    away = distances(state["doors"], tuple(state["info"]["goal"]))
    return f"<move>{min(state['doors'][state['room']], key=lambda move: away[beyond(state['room'], move)])}</move>"


def wanderer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take any door."""
    return f"<move>{rng.choice(state['doors'][state['room']])}</move>"


def _rows(count: int, seed: str, parity: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        size, maze_seed = rng.randint(6, 7), f"{seed}:{index}:maze"
        doors = maze(size, maze_seed)
        start = rng.choice([room for room in doors if sum(room) % 2 == parity])
        away = distances(doors, start)
        goal = rng.choice([room for room in doors if away[room] >= 12] or [max(away, key=lambda room: away[room])])
        info = {"size": size, "seed": maze_seed, "start": list(start), "goal": list(goal)}
        rows.append({"question": f"Maze {rng.randint(1000, 9999)}. {view(doors, start, goal)}", "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 100) -> vf.Environment:
    """Return an environment with mazes by a seed; for evaluation, games start in other rooms than for training."""
    parser = vf.XMLParser(["move"], answer_field="move")
    return MazeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([escaped], parser=parser),
        policies={"guide": guide, "wanderer": wanderer},
        max_turns=max_turns,
    )
