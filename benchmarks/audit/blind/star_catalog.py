"""Star catalog: questions about a made-up catalog of stars that only tools can read."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about a star catalog. Use the tools to search it and to read entries; nothing in it is known from "
    "elsewhere. When you know the answer, reply with <answer>value</answer>."
)
SYLLABLES = "al be cor dra el fi gan hy is ju kel lo mir nu or pel qua rho sa tau ul ve wex yl zo".split()
CLASSES = ["red dwarf", "white dwarf", "blue giant", "yellow subgiant", "pulsar", "brown dwarf"]
FIELDS = {
    "class": "To which class does {0} belong?",
    "planets": "How many planets does {0} have?",
    "survey": "In which survey was {0} found?",
}


def make_catalog(seed, size=120):
    rng = random.Random(f"catalog:{seed}")
    catalog = {}
    while len(catalog) < size:
        name = "".join(rng.sample(SYLLABLES, 3)).capitalize()
        catalog[name] = {
            "class": rng.choice(CLASSES),
            "planets": str(rng.randint(0, 14)),
            "survey": f"{rng.choice(['Keel', 'Mast', 'Rudder', 'Anchor'])}-{rng.randint(1, 9)}",
        }
    return catalog


def correct(completion, answer, parser):
    """1 for the right value."""
    return float((parser.parse_answer(completion) or "").strip().lower() == answer.lower())


def uses_tools(completion):
    """Number of tool calls, so that the model learns to look things up and does not guess."""
    return float(sum(len(message.tool_calls or []) for message in completion if message.role == "assistant"))


def load_environment(num_examples: int = 150, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Questions about the stars of a random catalog.

    Args:
        num_examples: Number of questions, at most 240 for training and 120 for evaluation.
        seed: Random seed of the catalog and of the questions.
        max_turns: Maximum replies.
    """
    catalog = make_catalog(seed)

    def search(prefix: str) -> list:
        """Find the names of stars.

        Args:
            prefix: first letters of the name
        """
        return sorted(name for name in catalog if name.lower().startswith(prefix.lower()))[:10]

    def read_entry(name: str) -> dict:
        """Read the entry of a star.

        Args:
            name: full name of the star
        """
        if name not in catalog:
            raise ValueError(f"no star is called {name}")
        return catalog[name]

    def rows(names, part):
        questions = [(name, field) for name in names for field in FIELDS]
        random.Random(f"{seed}:{part}").shuffle(questions)
        return [
            {"question": FIELDS[field].format(name), "answer": catalog[name][field]}
            for name, field in questions[:num_examples]
        ]

    names = sorted(catalog)
    random.Random(f"{seed}:split").shuffle(names)
    parser = vf.XMLParser(["answer"])
    return vf.ToolEnv(
        tools=[search, read_entry],
        dataset=lambda: rows(names[:80], "train"),
        eval_dataset=lambda: rows(names[80:], "eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct, uses_tools], [1.0, 0.25], parser=parser),
        max_turns=max_turns,
    )
