"""Market notes: pick out the goods that a trader's note offers for sale."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "The note of a market trader names goods for sale, and other things that are not for sale. List the goods for sale, "
    "separated by commas: <goods>figs, honey</goods>"
)
GOODS = """
    almonds apples apricots barley beans bread butter carrots cheese cherries chestnuts cloves cream dates eggs figs flour
    garlic ginger grapes hazelnuts honey kale leeks lemons lentils mint mustard oats olives onions oranges parsley peaches
    pears peas pepper plums potatoes quinces radishes raisins rice rosemary saffron sage spinach thyme tomatoes turnips
    walnuts wheat yoghurt
""".split()
OFFERS = [
    "I have fresh {0} and {1} today",
    "plenty of {0}, and some {1}",
    "{0} at half price, {1} too",
    "new: {0} and {1}",
]
SOLD = ["the {0} are gone", "no more {0} until Monday", "sorry, somebody took all the {0}", "my brother keeps the {0}"]
CHATTER = ["mind the step", "the rain stopped at last", "we close at four", "cash only please", "ask for Marta"]


def items(text: str) -> set[str]:
    """Return the items of a list that is separated by commas."""
    return {item.strip().lower() for item in text.replace("\n", ",").split(",") if item.strip()}


def found(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return the share of the goods for sale that the reply lists."""
    listed = items(parser.parse_answer(completion) or "")
    wanted = set(info["goods"])
    return len(wanted & listed) / len(wanted)


def complete(completion: vf.Messages, info: dict[str, Any], parser: vf.XMLParser) -> float:
    """Return 1 if no good for sale is missing."""
    return float(found(completion, info, parser) == 1)


def trader(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List exactly the goods for sale."""
    return f"<goods>{', '.join(state['info']['goods'])}</goods>"


def hasty(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """List only the good that the note names first."""
    words = [word.strip(".,:") for word in messages[-1].content.lower().split()]
    return f"<goods>{next(word for word in words if word in GOODS)}</goods>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        names = rng.sample(GOODS, 7)
        parts = [rng.choice(OFFERS).format(*names[0:2]), rng.choice(OFFERS).format(*names[2:4])]
        goods = names[:4]
        if rng.random() < 0.5:
            parts.append(f"last but not least {names[4]}")
            goods = names[:5]
        parts += [rng.choice(SOLD).format(name) for name in names[5 : 5 + rng.randint(1, 2)]]
        parts.append(rng.choice(CHATTER))
        rng.shuffle(parts)
        text = ". ".join(part[0].upper() + part[1:] for part in parts) + "."
        rows.append({"question": text, "answer": ", ".join(goods), "info": {"goods": goods}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model reads notes of market traders.

    Args:
        num_examples: Number of notes for training, and for evaluation.
        seed: Random seed of the notes.
    """
    parser = vf.XMLParser(["goods"], answer_field="goods")
    rubric = vf.Rubric([found], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    rubric.add_metric(complete)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"trader": trader, "hasty": hasty},
    )
