"""My task: a shop whose prices only a tool knows. Describe your own task here."""

from __future__ import annotations

import itertools
import random
from typing import Any

import rove as vf

CENTS = {"apple": 40, "cherry": 5, "lemon": 65, "melon": 250, "pear": 75, "plum": 30}


def price(fruit: str) -> int:
    """Return the price of one piece of fruit in cents.

    Args:
        fruit: The name of the fruit in the singular, such as "apple".
    """
    if fruit not in CENTS:
        raise ValueError(
            f"the shop does not sell '{fruit}'; it sells {', '.join(CENTS)}"
        )  # the model sees this message
    return CENTS[fruit]


def multiply(a: int, b: int) -> int:
    """Return the product of two numbers."""
    return a * b


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last message is the right number."""
    last = completion[-1]  # a tool message if the rollout ended at max_turns
    return float(last.role == "assistant" and str(last.content).strip() == answer)


def looked_up(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if a tool returned the price."""
    return float(any(m.role == "tool" and m.content == str(CENTS[info["fruit"]]) for m in completion))


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """A scripted policy that calls both tools, then answers: rove eval my_task -m scripted:oracle."""
    result = messages[-1].content
    if len(state["trajectory"]) == 0:
        return vf.tool_call("price", fruit=state["info"]["fruit"])
    if len(state["trajectory"]) == 1:
        return vf.tool_call("multiply", a=int(result), b=state["info"]["count"])
    return result


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A weak policy, which answers with a random price. `rove train` needs a good and a weak policy."""
    return str(rng.choice(list(CENTS.values())) * state["info"]["count"])


# Training and evaluation questions are disjoint.
PAIRS = list(itertools.product(CENTS, range(2, 100)))
random.Random("split").shuffle(PAIRS)
HELD_OUT, TRAINED = PAIRS[:100], PAIRS[100:]


def _rows(pairs: list[tuple[str, int]], count: int, seed: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"What do {n} pieces of {fruit} cost?",
            "answer": str(CENTS[fruit] * n),
            "info": {"fruit": fruit, "count": n},
        }
        for fruit, n in random.Random(seed).sample(pairs, min(count, len(pairs)))
    ]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions that need two tools: at most 488 for training, and 100 others for evaluation.

    Args:
        num_examples: Number of questions.
        seed: Random seed that chooses them.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(looked_up)
    return vf.ToolEnv(
        tools=[price, multiply],
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt="Use the tools to find the total price. Answer only with the number of cents, for example: 120",
        rubric=rubric,
        policies={"oracle": oracle, "guesser": guesser},
        max_turns=max_turns,
    )
