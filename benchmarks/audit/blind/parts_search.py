"""Parts catalog: answer questions about spare parts from a catalog that only tools can read."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about spare parts. find_parts gives the numbers of all parts of a kind, get_part the data of a part. Answer "
    "with the value alone, for example <answer>12.40</answer>. Two calls are free; each further call costs 0.05 of the reward."
)
KINDS = ["gasket", "bearing", "fuse", "hose", "spring", "valve", "belt", "switch"]
COLORS = ["red", "black", "white", "yellow"]
FIELDS = {
    "stock": "How many {} are in stock?",
    "price": "What is the price of one of the {}?",
    "grams": "How many grams does one of the {} weigh?",
}
FREE_CALLS, CALL_COST, LEAST = 2, 0.05, 0.5


def find_parts(kind: str, state: vf.State) -> dict[str, str]:
    """List the parts of a kind: the color of each part number.

    Args:
        kind: Kind of part in the singular, such as valve.
    """
    state["calls"] += 1
    found = {number: part["color"] for number, part in state["info"]["catalog"].items() if part["kind"] == kind}
    if not found:
        raise ValueError(f"the catalog has no {kind}; it has {', '.join(KINDS)}")
    return found


def get_part(number: str, state: vf.State) -> dict[str, Any]:
    """Show the data of a part.

    Args:
        number: The part's number.
    """
    state["calls"] += 1
    catalog = state["info"]["catalog"]
    if number not in catalog:
        raise ValueError(f"there is no part {number}; part numbers look like {next(iter(catalog))}")
    return catalog[number]


def right(completion: vf.Messages, answer: str, parser: vf.XMLParser, state: vf.State) -> float:
    """Return 1 for the right value, less for calls beyond the free ones, 0 for another value."""
    last = completion[-1]
    if last["role"] != "assistant":
        return 0.0
    try:
        is_right = float(parser.parse_answer(completion) or "nan") == float(answer)
    except ValueError:
        return 0.0
    return float(is_right) * max(LEAST, 1 - CALL_COST * max(0, state["calls"] - FREE_CALLS))


def finder(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Find the part, read its data, answer."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("find_parts", kind=info["kind"])
    if turn == 1:
        found = json.loads(messages[-1].content)
        return vf.tool_call(
            "get_part", number=next(number for number, color in found.items() if color == info["color"])
        )
    return f"<answer>{json.loads(messages[-1].content)[info['field']]}</answer>"


def first_part(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the data of the first part of the kind, whatever its color."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("find_parts", kind=info["kind"])
    if turn == 1:
        return vf.tool_call("get_part", number=next(iter(json.loads(messages[-1].content))))
    return f"<answer>{json.loads(messages[-1].content)[info['field']]}</answer>"


class CatalogEnv(vf.StatefulToolEnv):
    """An environment with one catalog per question."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(find_parts, args_to_skip=["state"])
        self.add_tool(get_part, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["calls"] = 0

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _row(shop: str, rng: random.Random) -> dict[str, Any]:
    numbers = iter(rng.sample(range(10000, 100000), len(KINDS) * len(COLORS)))
    parts = []
    for kind in KINDS:
        for color in rng.sample(COLORS, rng.randint(2, 4)):
            part = {
                "kind": kind,
                "color": color,
                "stock": rng.randint(3, 900),
                "price": f"{rng.randint(120, 9900) / 100:.2f}",
                "grams": rng.randint(4, 950),
            }
            parts.append((f"P{next(numbers)}", part))
    rng.shuffle(parts)
    catalog = dict(parts)
    number = rng.choice(list(catalog))
    part, field = catalog[number], rng.choice(list(FIELDS))
    question = f"{shop}: {FIELDS[field].format(part['color'] + ' ' + part['kind'] + ('es' if part['kind'] == 'switch' else 's'))}"
    info = {"catalog": catalog, "kind": part["kind"], "color": part["color"], "field": field}
    return {"question": question, "answer": str(part[field]), "info": info}


def _rows(count: int, seed: str, first_shop: int) -> list[dict[str, Any]]:
    return [_row(f"Shop {first_shop + index}", random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with questions about parts.

    Args:
        num_examples: Number of questions for training and for evaluation; each has its own catalog.
        seed: Random seed of the catalogs.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    return CatalogEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 1),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 10001),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right], parser=parser),
        policies={"finder": finder, "first_part": first_part},
        max_turns=max_turns,
    )
