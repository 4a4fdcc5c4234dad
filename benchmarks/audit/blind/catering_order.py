"""Catering order: ask a customer for the details of an order, then place it."""

import random
import re
import zlib
from typing import Any

import rove as vf

MENU = {
    "main": ["lasagna", "curry", "quiche", "chili", "paella", "risotto"],
    "drink": ["water", "juice", "coffee", "tea", "lemonade", "cider"],
    "dessert": ["cake", "fruit", "pudding", "sorbet", "cookies", "tiramisu"],
    "guests": ["10", "15", "20", "25", "30", "40"],
}
SYSTEM_PROMPT = (
    "You take catering orders. Ask for one detail per message with <ask>detail</ask>; the details are "
    f"{', '.join(MENU)}. Then place the order with <order>main=..., drink=..., dessert=..., guests=...</order>, which ends "
    "the call. Each right detail earns a quarter. Every message costs a little."
)
PHRASES = ["{value}, please.", "We would like {value}.", "Let me see ... {value}.", "{value} would be great."]
CALLERS = "Mr Bauer,Ms Clarke,Mrs Duval,Mr Esposito,Ms Fischer,Mrs Garcia,Mr Horvat,Ms Ito".split(",")


def read_order(text):
    return {key.lower(): value.strip().lower() for key, value in re.findall(r"(\w+)\s*=\s*([^,;\n]+)", text)}


class CateringEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(order={}, placed=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        fields = self.parser.parse(messages[-1].content or "")
        if fields.order is not None:
            state.update(order=read_order(fields.order), placed=True)
            state["final_env_response"] = "Thank you, goodbye."
            return None
        detail = (fields.ask or "").strip().lower()
        if detail not in MENU:
            return "Sorry, what would you like to know?"
        rng = random.Random(f"{state['info']['seed']}:{detail}")
        return rng.choice(PHRASES).format(value=state["info"]["wish"][detail])


def right_details(state, info) -> float:
    """The share of the details that are right in the order."""
    return sum(state["order"].get(detail) == value for detail, value in info["wish"].items()) / len(MENU)


def messages_sent(state) -> float:
    """The number of messages, of which each costs 0.01."""
    return float(len(state["trajectory"]))


def make_rows(count, seed, evaluation):
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        wish = {detail: rng.choice(options) for detail, options in MENU.items()}
        if (zlib.crc32(str(wish).encode()) % 4 == 0) != evaluation:
            continue
        caller = rng.choice(CALLERS)
        text = (
            f"{caller} is on the phone, order {rng.randint(100000, 999999)}: 'Hello, I would like to order catering.'"
        )
        rows.append({"question": text, "info": {"wish": wish, "seed": rng.getrandbits(32)}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    parser = vf.XMLParser(["ask", "order"], answer_field="order")
    return CateringEnv(
        dataset=lambda: make_rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: make_rows(num_examples // 2, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_details, messages_sent], [1.0, -0.01], parser=parser),
        max_turns=8,
    )
