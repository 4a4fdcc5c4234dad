"""Phone directory: find the extension of a colleague."""

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You are the operator of a company. Look up people with search(surname) and give the extension as "
    "<extension>number</extension>."
)
FIRST = "Alba Bruno Celia Dario Edda Fabio Gilda Hanno Ilka Jorge Karin Lars".split()
LAST = "Abel Blum Cruz Dorn Eder Frey Gold Haas Ince Jung".split()
TEAMS = ["accounting", "sales", "legal", "logistics", "marketing", "research", "purchasing"]


class DirectoryEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(self.search, args_to_skip=["people"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "people": state["info"]["people"]}

    def search(self, surname: str, people: list) -> list:
        """Return the entries of a surname with name, team and extension.

        Args:
            surname: the family name, as in the question
        """
        found = [person for person in people if person["name"].split()[1].lower() == surname.strip().lower()]
        if not found:
            names = sorted({person["name"].split()[1] for person in people})
            raise ValueError(f"no entry for '{surname}'; the directory has {', '.join(names)}")
        return found


def correct(parser, completion, answer) -> float:
    """1 for the right extension."""
    return float(parser.parse_answer(completion) == answer)


def make_row(rng, first_names):
    surnames = rng.sample(LAST, 4)
    full = [f"{first} {last}" for last in surnames for first in rng.sample(first_names, rng.randint(2, 3))]
    numbers = rng.sample(range(1000, 10000), len(full))
    people = [
        {"name": name, "team": rng.choice(TEAMS), "extension": str(number)}
        for name, number in zip(full, numbers, strict=True)
    ]
    rng.shuffle(people)
    who = rng.choice(people)
    question = f"Please connect me to {who['name']} in {who['team']}."
    return {"question": question, "answer": who["extension"], "info": {"people": people}}


def load_environment(num_examples: int = 500, seed: int = 1) -> vf.Environment:
    """Every call comes with its own directory of eight to twelve people."""
    parser = vf.XMLParser(["extension"], answer_field="extension", extract_fn=str.strip)
    return DirectoryEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}.train.{i}"), FIRST[:8]) for i in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}.eval.{i}"), FIRST[8:]) for i in range(num_examples // 2)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        max_turns=5,
    )
