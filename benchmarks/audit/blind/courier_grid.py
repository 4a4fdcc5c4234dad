"""Courier grid: steer a courier through a city of blocks to the address of a parcel."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SIZE = 8
MIN_DISTANCE = 4
SYSTEM_PROMPT = (
    f"You steer a courier in a city of {SIZE} by {SIZE} blocks. Columns go from west to east and rows from north to south, "
    f"both from 1 to {SIZE}. Bring the parcel to its address. Reply with one step: <go>north</go>, <go>south</go>, "
    "<go>west</go> or <go>east</go>."
)
STEPS = {"north": (0, -1), "south": (0, 1), "west": (-1, 0), "east": (1, 0)}


def distance(a: tuple[int, int], b: tuple[int, int]) -> int:
    """Return the number of blocks between two corners."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def show(place: tuple[int, int], address: tuple[int, int]) -> str:
    """Return where the courier and the address are."""
    return f"You are in column {place[0]}, row {place[1]}. The address is in column {address[0]}, row {address[1]}."


class CourierEnv(vf.MultiTurnEnv):
    """An environment in which a courier walks one block per turn."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(place=tuple(info["start"]), address=tuple(info["address"]), closer=0, delivered=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        step = STEPS.get((self.parser.parse_answer(messages) or "").lower())
        if step is None:
            return f"Reply with one step. {show(state['place'], state['address'])}"
        place = (state["place"][0] + step[0], state["place"][1] + step[1])
        if not (1 <= place[0] <= SIZE and 1 <= place[1] <= SIZE):
            return f"The city ends here. {show(state['place'], state['address'])}"
        if distance(place, state["address"]) < distance(state["place"], state["address"]):
            state["closer"] += 1
        state["place"] = place
        if place == state["address"]:
            state["delivered"] = True
            state["final_env_response"] = "The parcel is delivered."
            return None
        return show(place, state["address"])


def delivered(state: vf.State) -> float:
    """Return 1 if the parcel is delivered."""
    return float(state["delivered"])


def progress(state: vf.State) -> float:
    """Return the number of steps toward the address."""
    return float(state["closer"])


def walker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Walk toward the address."""
    (x, y), (to_x, to_y) = state["place"], state["address"]
    steps = ["west"] * (to_x < x) + ["east"] * (to_x > x) + ["north"] * (to_y < y) + ["south"] * (to_y > y)
    return f"<go>{rng.choice(steps)}</go>"


def tourist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Walk in random directions."""
    return f"<go>{rng.choice(sorted(STEPS))}</go>"


def routes(seed: int) -> list[dict[str, Any]]:
    """Return all routes of at least `MIN_DISTANCE` blocks in random order."""
    corners = [(x, y) for x in range(1, SIZE + 1) for y in range(1, SIZE + 1)]
    pairs = [(a, b) for a in corners for b in corners if distance(a, b) >= MIN_DISTANCE]
    random.Random(f"{seed}:routes").shuffle(pairs)
    return [{"question": show(a, b), "info": {"start": list(a), "address": list(b)}} for a, b in pairs]


def load_environment(num_examples: int = 400, num_eval_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment of parcels to deliver.

    Args:
        num_examples: Number of training routes, at most 2,000.
        num_eval_examples: Number of evaluation routes, at most 500; none of them is a training route.
        seed: Random seed that chooses the routes.
    """
    made = routes(seed)
    parser = vf.XMLParser(["go"], answer_field="go")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(delivered, weight=1.0)
    rubric.add_reward_func(progress, weight=0.1)
    return CourierEnv(
        dataset=made[500 : 500 + min(num_examples, 2000)],
        eval_dataset=made[: min(num_eval_examples, 500)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"walker": walker, "tourist": tourist},
        max_turns=24,
    )
