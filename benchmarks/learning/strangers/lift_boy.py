"""Lift boy: drive two guests to their floors and do not waste power."""

import random
import zlib

import rove as vf

FLOORS = 8


def text(state):
    waiting = ", ".join(f"{start} to {end}" for start, end in state["waiting"]) or "none"
    inside = ", ".join(f"to {end}" for end in state["inside"]) or "none"
    return f"at {state['at']}; waiting {waiting}; inside {inside}"


def make(rng):
    guests = [rng.sample(range(1, FLOORS + 1), 2) for _ in range(2)]
    start = {"at": rng.randint(1, FLOORS), "waiting": guests, "inside": []}
    return {"question": text(start), "info": start}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all starts is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = row["question"]
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class LiftEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        info = state["info"]
        state["at"], state["waiting"], state["inside"] = info["at"], [list(g) for g in info["waiting"]], []
        state["done"] = state["driven"] = 0

    async def env_response(self, messages, state, **kwargs):
        floor = self.parser.parse_answer(messages)
        if floor not in [str(n) for n in range(1, FLOORS + 1)]:
            state["final_env_response"] = "No such floor."
            return
        floor = int(floor)
        state["driven"] += abs(floor - state["at"])
        state["at"] = floor
        state["done"] += state["inside"].count(floor)
        state["inside"] = [end for end in state["inside"] if end != floor]
        state["inside"] += [end for start, end in state["waiting"] if start == floor]
        state["waiting"] = [guest for guest in state["waiting"] if guest[0] != floor]
        if state["done"] == 2:
            state["final_env_response"] = "All guests are there."
            return
        return text(state)


def served(state):
    """The share of the guests that have arrived."""
    return state["done"] / 2


def power(state):
    """Floors driven."""
    return float(state["driven"])


def read(message):
    at, waiting, inside = message.split("; ")
    starts = [int(pair.split(" to ")[0]) for pair in waiting.removeprefix("waiting ").split(", ") if pair != "none"]
    ends = [int(end.removeprefix("to ")) for end in inside.removeprefix("inside ").split(", ") if end != "none"]
    return int(at.removeprefix("at ")), starts, ends


def nearest(messages, state, rng):
    """Drive to the nearest floor where somebody gets in or out: good, but not always the shortest way."""
    at, starts, ends = read(messages[-1].content)
    return f"<go>{min(starts + ends, key=lambda floor: (abs(floor - at), floor))}</go>"


def joyride(messages, state, rng):
    """A random floor."""
    return f"<go>{rng.randint(1, FLOORS)}</go>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with a lift and two guests; at most six stops."""
    parser = vf.XMLParser(["go"], answer_field="go")
    return LiftEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Bring all guests to their floors on a short way. Answer <go>floor</go>",
        parser=parser,
        rubric=vf.Rubric([served, power], [1.0, -0.02], parser=parser),
        policies={"nearest": nearest, "joyride": joyride},
        max_turns=6,
    )
