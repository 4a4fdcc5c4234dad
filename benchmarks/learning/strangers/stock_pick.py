"""Stock pick: count two goods with a tool and name the one with fewer pieces."""

import json
import random
import zlib

import rove as vf

GOODS = ["plums", "pears", "nuts", "eggs", "figs", "limes", "beans", "dates", "rolls", "cakes"]


def make(rng):
    goods = rng.sample(GOODS, 2)
    counts = rng.sample(range(10, 100), 2)
    stock = dict(zip(goods, counts))
    return {"question": f"{goods[0]} or {goods[1]}?", "answer": min(goods, key=stock.get), "info": {"stock": stock}}


def rows(count, seed, held_out):
    """Return different rows; a quarter of all stocks is only for evaluation."""
    rng, made, seen = random.Random(f"{seed}:{held_out}"), [], set()
    for _ in range(30 * count):
        row = make(rng)
        key = str(row)
        if key not in seen and (zlib.crc32(key.encode()) % 4 == 0) == held_out:
            seen.add(key)
            made.append(row)
        if len(made) == count:
            break
    return made


class StockEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.count, args_to_skip=["stock"])

    def count(self, goods: str, stock: dict) -> str:
        """Count the pieces of one kind of goods."""
        return str(stock.get(goods, "none"))

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "stock": state["info"]["stock"]}


def correct(completion, answer):
    """1 if the last message names the right goods and nothing else."""
    last = completion[-1]
    return float(last.role == "assistant" and (last.content or "").strip() == answer)


def call(goods, number):
    function = {"name": "count", "arguments": json.dumps({"goods": goods})}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{number}", "type": "function", "function": function}])


def names(messages):
    return messages[1].content.removesuffix("?").split(" or ")


def counter(messages, state, rng):
    """Count both, then name the one with fewer pieces."""
    step = len(state["trajectory"])
    goods = names(messages)
    if step < 2:
        return call(goods[step], step)
    first, second = (int(message.content) for message in messages if message.role == "tool")
    return goods[0] if first < second else goods[1]


def idler(messages, state, rng):
    """Count at random, stop at random and name one of the two."""
    goods = rng.choice(names(messages))
    return goods if rng.random() < 0.4 else call(goods, len(state["trajectory"]))


def load_environment(num_examples: int = 1000, seed: int = 0) -> vf.Environment:
    """Return an environment with two kinds of goods and 10 to 99 pieces of each."""
    return StockEnv(
        dataset=lambda: rows(num_examples, seed, False),
        eval_dataset=lambda: rows(num_examples, seed, True),
        system_prompt="Of which goods are there fewer? Count both with the tool. Answer with the name only.",
        rubric=vf.Rubric([correct]),
        policies={"counter": counter, "idler": idler},
        max_turns=4,
    )
