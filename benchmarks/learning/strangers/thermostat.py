"""Thermostat: keep a room near the goal for six turns; the weather outside pulls on it."""

import random
import zlib

import rove as vf

EFFECT = {"cool": -3, "off": 0, "low": 2, "high": 4}
TURNS = 6


def drift(room, outside):
    gap = outside - room
    return -2 if gap < -10 else -1 if gap < -3 else 1 if gap > 3 else 0


def after(room, outside, action):
    return room + EFFECT[action] + drift(room, outside)


def text(room, outside, goal):
    return f"room {room} outside {outside} goal {goal}"


def make(rng):
    goal = rng.randint(18, 22)
    room, outside = goal + rng.choice([-5, -4, -3, -2, 2, 3, 4]), rng.randint(0, 35)
    variant = rng.randint(1, 4)  # every variant has other small gusts of wind
    info = {"room": room, "outside": outside, "goal": goal, "variant": variant}
    return {"question": text(room, outside, goal), "info": info}


def rows(count, seed, held_out):
    """Return different rows; two fifths of all starts are only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = str(row["info"])
        if key not in seen and (zlib.crc32(row["question"].encode()) % 5 < 2) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class ThermostatEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["room"], state["good"], state["turn"] = state["info"]["room"], 0, 0

    async def env_response(self, messages, state, **kwargs):
        info = state["info"]
        action = self.parser.parse_answer(messages)
        state["turn"] += 1
        if action not in EFFECT:
            state["final_env_response"] = "The thermostat is broken."
            return
        gust = random.Random(f"{info}:{state['turn']}:{state['room']}").choice([-1, 0, 0, 0, 0, 1])
        state["room"] = after(state["room"], info["outside"], action) + gust
        state["good"] += abs(state["room"] - info["goal"]) <= 1
        if state["turn"] == TURNS:
            state["final_env_response"] = f"The room was fine {state['good']} times."
            return
        return text(state["room"], info["outside"], info["goal"])


def comfort(state):
    """The share of the turns that end at most 1 degree from the goal."""
    return state["good"] / TURNS


def engineer(messages, state, rng):
    """The action that ends nearest to the goal."""
    words = messages[-1].content.split()
    room, outside, goal = int(words[1]), int(words[3]), int(words[5])
    best = min(EFFECT, key=lambda action: abs(after(room, outside, action) - goal))
    return f"<set>{best}</set>"


def fiddler(messages, state, rng):
    """A random action."""
    return f"<set>{rng.choice(sorted(EFFECT))}</set>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment in which a room must stay near its goal."""
    parser = vf.XMLParser(["set"], answer_field="set")
    return ThermostatEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Keep the room near the goal. Answer <set>cool</set>, off, low or high.",
        parser=parser,
        rubric=vf.Rubric([comfort], parser=parser),
        policies={"engineer": engineer, "fiddler": fiddler},
        max_turns=TURNS,
    )
