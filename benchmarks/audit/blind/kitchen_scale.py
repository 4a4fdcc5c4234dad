"""Kitchen scale: convert the amounts of a recipe with tools."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = (
    "Work out how many grams of an ingredient are needed. read_recipe shows the amounts for four people, and grams converts "
    "an amount. Reply with <grams>number</grams>, rounded to a whole number."
)
GRAMS = {
    "flour": {"cup": 120, "tablespoon": 8, "ounce": 28},
    "sugar": {"cup": 200, "tablespoon": 13, "ounce": 28},
    "butter": {"cup": 227, "tablespoon": 14, "ounce": 28},
    "oats": {"cup": 90, "tablespoon": 6, "ounce": 28},
    "rice": {"cup": 185, "tablespoon": 12, "ounce": 28},
    "cocoa": {"cup": 85, "tablespoon": 5, "ounce": 28},
}
DISHES = ["biscuits", "crumble", "pancakes", "pudding", "flapjacks", "porridge", "shortbread", "muffins"]
Unit = Literal["cup", "tablespoon", "ounce"]


def right_amount(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number of grams."""
    return float(parser.parse_answer(completion) == answer)


def valid_calls(state: vf.State) -> float:
    """Return the share of tool calls that succeeded."""
    return sum(state["outcomes"]) / len(state["outcomes"])


def _call(tool: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def cook(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the recipe, convert the amount, scale it."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return _call("read_recipe", dish=info["dish"])
    if turn == 1:
        amount, unit = json.loads(messages[-1].content)[info["ingredient"]]
        return _call("grams", ingredient=info["ingredient"], amount=amount, unit=unit)
    return f"<grams>{round(float(messages[-1].content) * info['people'] / 4)}</grams>"


def four_people(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Forget to scale the amount."""
    reply = cook(messages, state, rng)
    return f"<grams>{round(float(messages[-1].content))}</grams>" if isinstance(reply, str) else reply


class KitchenEnv(vf.StatefulToolEnv):
    """An environment with one recipe per rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.read_recipe, args_to_skip=["state"])
        self.add_tool(self.grams, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["outcomes"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    def read_recipe(self, dish: str, state: vf.State) -> dict[str, tuple[float, str]]:
        """Show the ingredients of a dish for four people.

        Args:
            dish: name of the dish
        """
        state["outcomes"].append(dish == state["info"]["dish"])
        if dish != state["info"]["dish"]:
            raise ValueError(f"there is no recipe for {dish}")
        return state["info"]["recipe"]

    def grams(self, ingredient: str, amount: float, unit: Unit, state: vf.State) -> float:
        """Convert an amount to grams.

        Args:
            ingredient: name of the ingredient
            amount: how many units
            unit: unit of the amount
        """
        state["outcomes"].append(ingredient in GRAMS)
        if ingredient not in GRAMS:
            raise ValueError(f"the weight of {ingredient} is unknown")
        return amount * GRAMS[ingredient][unit]


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        names = rng.sample(sorted(GRAMS), 4)
        recipe = {name: (float(rng.randint(1, 9)), rng.choice(["cup", "tablespoon", "ounce"])) for name in names}
        dish, people, ingredient = (
            f"{rng.choice(DISHES)} no. {rng.randint(10, 99)}{index:03}",
            rng.randint(2, 15),
            names[0],
        )
        amount, unit = recipe[ingredient]
        while people == 4 or amount * GRAMS[ingredient][unit] * people % 4 == 2:
            people = rng.randint(2, 15)
        rows.append(
            {
                "question": f"How many grams of {ingredient} do I need to make {dish} for {people} people?",
                "answer": str(round(amount * GRAMS[ingredient][unit] * people / 4)),
                "info": {"dish": dish, "people": people, "ingredient": ingredient, "recipe": recipe},
            }
        )
    return rows


def load_environment(num_examples: int = 240, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with made-up recipes.

    Args:
        num_examples: Number of questions for training, and for evaluation.
        seed: Random seed of the recipes.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["grams"], answer_field="grams")
    return KitchenEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([right_amount, valid_calls], [1.0, 0.3], parser=parser),
        policies={"cook": cook, "four_people": four_people},
        max_turns=max_turns,
    )
