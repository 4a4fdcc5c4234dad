"""Water tank: pump until the tank holds a given number of buckets. Some pumps lose one bucket each time."""

import json
import random
import zlib

import rove as vf

COLOURS = ["red", "blue", "green", "grey", "white", "black", "brown", "pink"]
PLACES = ["barn", "mill", "yard", "farm", "roof", "stable", "shed", "field"]


def make(rng):
    start, target = rng.randint(0, 5), rng.randint(6, 12)
    info = {"start": start, "target": target, "leak": int(rng.random() < 0.4)}
    return {"question": f"Fill the {rng.choice(COLOURS)} {rng.choice(PLACES)} tank to {target}.", "info": info}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all tanks is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = f"{row['question']} {row['info']}"
        if key not in seen and (zlib.crc32(row["question"].encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class TankEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.gauge, args_to_skip=["state"])
        self.add_tool(self.pump, args_to_skip=["state"])

    async def setup_state(self, state, **kwargs):
        state["level"], state["calls"] = state["info"]["start"], 0

    def gauge(self, state: vf.State) -> str:
        """Return how many buckets are in the tank."""
        state["calls"] += 1
        return f"level {state['level']}"

    def pump(self, buckets: int, state: vf.State) -> str:
        """Pump 1 to 6 buckets into the tank."""
        state["calls"] += 1
        if not 1 <= buckets <= 6:
            return "1 to 6 buckets only"
        state["level"] += max(0, buckets - state["info"]["leak"]) if buckets > 1 else 1
        return "done"

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}


def filled(state):
    """1 for the right level, 0.4 for one bucket too few or too many."""
    return {0: 1.0, 1: 0.4}.get(abs(state["level"] - state["info"]["target"]), 0.0)


def effort(state):
    """Calls."""
    return float(state["calls"])


def call(tool, number, **arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def hasty(messages, state, rng):
    """Read the gauge once and pump what is missing; does not look whether the pump leaks."""
    number = len(state["trajectory"])
    if number == 0:
        return call("gauge", number)
    target = int(messages[1].content.removesuffix(".").split()[-1])
    level = int(next(message.content for message in messages if message.role == "tool").split()[1])
    missing = target - level - 6 * (number - 1)
    return call("pump", number, buckets=min(6, missing)) if missing > 0 else "ready"


def child(messages, state, rng):
    """Pump and look at random, stop at random."""
    number = len(state["trajectory"])
    kind = rng.choice(["gauge", "pump", "pump", "stop"])
    if kind == "pump":
        return call("pump", number, buckets=rng.randint(1, 6))
    return call("gauge", number) if kind == "gauge" else "ready"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with tanks of 6 to 12 buckets, two fifths of them with a leaking pump."""
    return TankEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Read the gauge and pump. Some pumps lose a bucket. Answer ready at the end.",
        rubric=vf.Rubric([filled, effort], [1.0, -0.02]),
        policies={"hasty": hasty, "child": child},
        max_turns=8,
    )
