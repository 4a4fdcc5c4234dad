"""Haggle: sell a thing to a buyer whose limit depends on who it is, before the buyer loses patience."""

import random
import zlib

import rove as vf

BUYERS = {"student": (-3, 0), "tourist": (0, 4), "collector": (2, 8)}
ITEMS = ["lamp", "clock", "vase", "chair", "map", "ring", "coat", "flute", "mirror", "rug", "globe", "sword", "doll"]
ITEMS += ["stamp", "bell"]


def make(rng):
    buyer, worth, patience = rng.choice(sorted(BUYERS)), rng.randint(5, 20), rng.randint(2, 4)
    low, high = BUYERS[buyer]
    info = {"worth": worth, "limit": worth + rng.randint(low, high), "patience": patience}
    return {"question": f"{rng.choice(ITEMS)} worth {worth}; {buyer}; {patience} offers", "info": info}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all prompts is only for evaluation."""
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


class HaggleEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["left"], state["price"] = state["info"]["patience"], 0

    async def env_response(self, messages, state, **kwargs):
        price, limit = self.parser.parse_answer(messages), state["info"]["limit"]
        if not (price or "").isdecimal() or not 0 < int(price) < 100:
            state["final_env_response"] = "That is no price. The buyer leaves."
            return
        price = int(price)
        if price <= limit:
            state["price"] = price
            state["final_env_response"] = "Sold."
            return
        state["left"] -= 1
        if state["left"] == 0:
            state["final_env_response"] = "The buyer leaves."
            return
        return f"{'far too much' if price > limit + 3 else 'too much'}; {state['left']} offers"


def profit(state):
    """The price as a share of the buyer's limit."""
    return state["price"] / state["info"]["limit"]


def trader(messages, state, rng):
    """Ask for much, then for less; the last offer is the lowest limit of such a buyer."""
    first, buyer, offers = messages[1].content.split("; ")
    worth, (low, high) = int(first.split()[-1]), BUYERS[buyer]
    if len(messages) == 2:
        return f"<price>{worth + (low + high + 1) // 2}</price>"
    last = int(messages[-2].content.removeprefix("<price>").removesuffix("</price>"))
    answer, offers = messages[-1].content.split("; ")
    if offers == "1 offers":
        return f"<price>{worth + low}</price>"
    return f"<price>{max(worth + low, last - (4 if answer == 'far too much' else 1))}</price>"


def dreamer(messages, state, rng):
    """Random prices."""
    return f"<price>{rng.randint(1, 30)}</price>"


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with three kinds of buyers."""
    parser = vf.XMLParser(["price"], answer_field="price")
    return HaggleEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Sell for a high price. A student pays less than the worth, a tourist or collector more. "
        "Answer <price>number</price>",
        parser=parser,
        rubric=vf.Rubric([profit], parser=parser),
        policies={"trader": trader, "dreamer": dreamer},
        max_turns=4,
    )
