"""Answer questions of a workshop from a parts catalogue that only tools can read."""

import difflib
import random

import rove as vf

NOUNS = ["bearing", "gasket", "hinge", "valve", "pulley", "bracket", "filter", "spring", "clamp", "washer"]
MATERIALS = ["steel", "brass", "nylon", "rubber", "copper"]
BINS = [f"{shelf}{number}" for shelf in "ABCDEFGH" for number in range(1, 13)]
FIELDS = {
    "price": "What does {} cost (EUR)?",
    "bin": "In which bin is {}?",
    "stock": "How many pieces of {} are in stock?",
}


def catalogue(seed):
    rng = random.Random(f"catalogue:{seed}")
    codes = rng.sample(range(1000, 9999), 30)
    return {
        f"P-{code}": {
            "name": f"{rng.choice(MATERIALS)} {rng.choice(NOUNS)}",
            "price": f"{rng.randint(40, 9900) / 100:.2f}",
            "bin": rng.choice(BINS),
            "stock": str(rng.randint(0, 400)),
        }
        for code in codes
    }


class Catalogue(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        for tool in (self.find, self.details):
            self.add_tool(tool, args_to_skip=["parts"])

    async def setup_state(self, state, **kwargs):
        state["parts"] = catalogue(state["info"]["catalogue"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "parts": state["parts"]}

    async def find(self, name: str, parts: dict) -> list:
        """List the codes of all parts with a name, such as 'brass valve'."""
        return [code for code, part in parts.items() if part["name"] == name.strip().lower()]

    async def details(self, code: str, parts: dict) -> dict:
        """Show the name, price, bin and stock of the part with a code, such as P-1234."""
        if code not in parts:
            near = difflib.get_close_matches(code, parts, n=3, cutoff=0.5)
            raise KeyError(f"no part {code}" + (f"; similar codes: {', '.join(near)}" if near else ""))
        return parts[code]


def value(text):
    """What follows the last 'Answer:' on a line of its own."""
    found = [line.split(":", 1)[1].strip() for line in (text or "").splitlines() if line.startswith("Answer:")]
    return found[-1] if found else None


def right(completion, answer):
    last = completion[-1]
    said = value(last.content) if last.role == "assistant" else None
    if said is None:
        return 0.0
    said = said.removeprefix("EUR").removesuffix("EUR").removesuffix("pieces").strip()
    if said == answer:
        return 1.0
    try:
        return float(float(said) == float(answer))
    except ValueError:
        return 0.0


def brief(completion):
    """1 if the answer took at most two calls, less for each further call."""
    calls = sum(message.role == "tool" for message in completion)
    return min(1.0, 2 / max(calls, 1))


def quick(completion, answer):
    return right(completion, answer) * brief(completion)


def rows(count, split):
    out, rng = [], random.Random(f"parts {split}")
    while len(out) < count:
        key = f"{split}-{rng.randrange(10**6)}"
        parts = catalogue(key)
        names = [part["name"] for part in parts.values()]
        code = rng.choice(list(parts))
        field = rng.choice(list(FIELDS))
        by_name = names.count(parts[code]["name"]) == 1 and rng.random() < 0.6
        what = f"the {parts[code]['name']}" if by_name else f"part {code}"
        out.append({"question": FIELDS[field].format(what), "answer": parts[code][field], "info": {"catalogue": key}})
    return out


def load_environment(num_train=300, num_eval=100):
    return Catalogue(
        dataset=lambda: rows(num_train, "train"),
        eval_dataset=lambda: rows(num_eval, "eval"),
        system_prompt="Look it up in the catalogue. End with a line of the form 'Answer: value', for example 'Answer: 12.50'.",
        rubric=vf.Rubric([right, quick], [0.8, 0.2]),
        max_turns=6,
    )
