"""Phone menu: press the keys that lead through two menus to the right person."""

import json
import random
import zlib

import rove as vf

TOPICS = ["billing", "repairs", "sales", "visas", "parking", "taxes", "water", "waste", "sports", "music"]
PEOPLE = ["Anna", "Boris", "Clara", "David", "Emma", "Felix", "Grete", "Henry", "Irene", "Jonas"]


def menu(entries):
    return ", ".join(f"{key} {entry}" for key, entry in entries.items())


def numbered(rng, entries):
    keys = sorted(rng.sample(range(1, 10), len(entries)))
    return {str(key): entry for key, entry in zip(keys, entries)}


def make(rng):
    first = numbered(rng, rng.sample(TOPICS, 4))
    people = rng.sample(PEOPLE, 4)
    second = {key: numbered(rng, rng.sample(people, 3)) for key in first}
    key = rng.choice(sorted(first))
    person = rng.choice(sorted(second[key].values()))
    question = f"Ask for {first[key]}, then for {person}.\n{menu(first)}"
    return {"question": question, "info": {"menus": second, "first": key, "person": person}}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all menus is only for evaluation."""
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


class PhoneEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.press, args_to_skip=["state"])

    async def setup_state(self, state, **kwargs):
        state["topic"] = state["reached"] = None

    def press(self, key: int, state: vf.State) -> str:
        """Press a key of the phone."""
        menus, key = state["info"]["menus"], str(key)
        if state["reached"] is not None:
            return "You are connected already."
        if state["topic"] is None:
            if key not in menus:
                return "This key has no meaning."
            state["topic"] = key
            return menu(menus[key])
        if key not in menus[state["topic"]]:
            return "This key has no meaning."
        state["reached"] = menus[state["topic"]][key]
        return f"{state['reached']} speaking"

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}


def connected(state):
    """1 for the right person in the right department; 0.3 for the right department only."""
    if state["topic"] != state["info"]["first"]:
        return 0.0
    return 1.0 if state["reached"] == state["info"]["person"] else 0.3


def call(key, number):
    function = {"name": "press", "arguments": json.dumps({"key": int(key)})}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def caller(messages, state, rng):
    """Press the key of the topic, then that of the person, then say hello."""
    number = len(state["trajectory"])
    if number == 2:
        return "hello"
    wish, first = messages[1].content.split("\n")
    topic, person = wish.removeprefix("Ask for ").removesuffix(".").split(", then for ")
    text, wanted = (first, topic) if number == 0 else (messages[-1].content, person)
    return call(next(entry.split()[0] for entry in text.split(", ") if entry.split()[1] == wanted), number)


def masher(messages, state, rng):
    """Random keys of the present menu; hangs up at random."""
    number = len(state["trajectory"])
    text = messages[1].content.split("\n")[1] if number == 0 else messages[-1].content
    keys = [entry.split()[0] for entry in text.split(", ") if entry[0].isdecimal()]
    return call(rng.choice(keys), number) if keys and rng.random() < 0.8 else "hello"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with menus of four topics and three people."""
    return PhoneEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Press keys to reach the person. Then say hello.",
        rubric=vf.Rubric([connected]),
        policies={"caller": caller, "masher": masher},
        max_turns=4,
    )
