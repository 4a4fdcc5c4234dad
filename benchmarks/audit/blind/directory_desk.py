"""Directory desk: look up telephone extensions in a company's directory."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about a company's telephone directory. Use the tool `find_person` to look people up; it returns the entry "
    "of a person. Reply without a call with the extension in <answer></answer>, for example <answer>4711</answer>. If a person "
    "has no entry or an entry has no extension, answer <answer>none</answer>."
)
FIRST = "Ada Boris Chloe Dario Elif Felix Greta Hamid Iris Jonas Kaja Luca Mina Noel Oda Pavel Rosa Stefan Tilda Yusuf".split()
LAST = (
    "Abel Brandt Cruz Diaz Ek Falk Grant Holm Ito Juhl Keller Lund Marsh Nagy Olsen Prado Roth Silva Toth Weiss".split()
)
TEAMS = ["sales", "legal", "logistics", "research", "payroll"]


def make_row(index: int, part: str, seed: int) -> dict[str, Any]:
    rng = random.Random(f"{seed}:{part}:{index}")
    names = [f"{first} {last}" for first, last in zip(rng.sample(FIRST, 12), rng.sample(LAST, 12), strict=True)]
    *people, stranger = names
    extensions = rng.sample(range(1000, 10000), len(people))
    directory = {}
    for name, extension in zip(people, extensions, strict=True):
        manager = rng.choice([other for other in people if other != name])
        directory[name] = {"name": name, "team": rng.choice(TEAMS), "manager": manager, "extension": str(extension)}
    silent = rng.choice(people)
    directory[silent]["extension"] = ""
    company = f"branch {part[0].upper()}{index + 1:03}"
    kind = rng.choices(["direct", "manager", "stranger", "silent"], [45, 42, 7, 6])[0]
    if kind == "manager":
        name = rng.choice(people)
        question = f"At {company}: which extension does the manager of {name} have?"
        answer = directory[directory[name]["manager"]]["extension"]
    else:
        name = {"stranger": stranger, "silent": silent}.get(kind) or rng.choice(
            [other for other in people if other != silent]
        )
        question = f"At {company}: which extension does {name} have?"
        answer = directory.get(name, {}).get("extension", "")
    return {"question": question, "answer": answer or "none", "info": {"directory": directory}}


class DirectoryEnv(vf.StatefulToolEnv):
    """An environment in which each example has a directory of its own."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(self.find_person, args_to_skip=["directory"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "directory": state["info"]["directory"]}

    def find_person(self, name: str, directory: dict[str, dict[str, str]]) -> dict[str, str] | str:
        """Return the entry of a person.

        Args:
            name: first and last name
        """
        wanted = " ".join(name.split()).casefold()
        for entry in directory.values():
            if entry["name"].casefold() == wanted:
                return dict(entry)
        return "no entry"


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """1 if the final reply has the right extension."""
    last = completion[-1]
    if last.role != "assistant" or last.tool_calls:
        return 0.0
    return float((parser.parse_answer([last]) or "").strip().lower() == answer)


def load_environment(
    num_examples: int = 250, num_eval_examples: int = 90, seed: int = 0, max_turns: int = 5
) -> vf.Environment:
    """Return an environment with questions about telephone directories.

    Args:
        num_examples: Questions for training.
        num_eval_examples: Questions for evaluation.
        seed: Random seed of the directories.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    env = DirectoryEnv(
        dataset=lambda: [make_row(index, "training", seed) for index in range(num_examples)],
        eval_dataset=lambda: [make_row(index, "evaluation", seed) for index in range(num_eval_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        max_turns=max_turns,
    )
    env.rubric.add_reward_func(correct)
    return env
