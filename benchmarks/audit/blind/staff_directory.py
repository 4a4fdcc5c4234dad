"""Staff directory: answer questions about the staff of a company with a directory tool."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about the staff. The tool get_person returns the directory entry of a person. Reply with "
    "<answer>value</answer>, exactly as in the directory."
)
FIRST = "Amir Bea Cora Dan Elif Finn Gita Hal Ida Joel Kira Lars Mona Nico Opal Piet".split()
LAST = "Ames Bohr Crane Doyle Eads Frost Glass Hyde Irons Jute Kemp Lowe".split()
OFFICES = ["Utrecht", "Utrecht", "Utrecht", "Gdansk", "Porto", "Turin", "Graz", "Cork", "Lille"]
TEAMS = ["payroll", "logistics", "legal", "research", "press", "facilities", "purchasing"]


def get_person(name: str, state: vf.State) -> dict[str, Any]:
    """Return the directory entry of a person.

    Args:
        name: first name and surname
    """
    directory = state["info"]["directory"]
    if name not in directory:
        raise ValueError(f"nobody is called {name}")
    state["read"].append(name)
    return directory[name]


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right value."""
    return float(parser.parse_answer(completion) == answer)


def looked_up(state: vf.State) -> float:
    """Return the number of entries that the model read."""
    return float(len(state["read"]))


def _call(tool: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def receptionist(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the entry, and the entry of the manager if the question is about the manager."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return _call("get_person", name=info["person"])
    if turn == 1 and info["hops"] == 2:
        return _call("get_person", name=json.loads(messages[-1].content)["manager"])
    return f"<answer>{json.loads(messages[-1].content)[info['field']]}</answer>"


def one_look(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read only the entry of the person in the question."""
    info = state["info"]
    if not state["trajectory"]:
        return _call("get_person", name=info["person"])
    return f"<answer>{json.loads(messages[-1].content)[info['field']]}</answer>"


class DirectoryEnv(vf.StatefulToolEnv):
    """An environment with another directory in every example."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(get_person, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["read"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str, part: int) -> list[dict[str, Any]]:
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    asked = [(name, field, hops) for name in names for field in ("office", "team", "extension") for hops in (1, 2)]
    random.Random("directory").shuffle(asked)
    asked = asked[part::2]
    random.Random(seed).shuffle(asked)
    rows = []
    for index, (name, field, hops) in enumerate(asked[:count]):
        rng = random.Random(f"{seed}:{index}")
        people = [name, *rng.sample([other for other in names if other != name], 7)]
        directory = {
            person: {
                "office": rng.choice(OFFICES),
                "team": rng.choice(TEAMS),
                "extension": str(rng.randint(100, 999)),
                "manager": rng.choice([other for other in people if other != person]),
            }
            for person in people
        }
        whose = name if hops == 1 else f"the manager of {name}"
        text = {
            "office": f"In which office does {whose} work?",
            "team": f"In which team is {whose}?",
            "extension": f"What is the extension of {whose}?",
        }[field]
        person = name if hops == 1 else directory[name]["manager"]
        info = {"person": name, "field": field, "hops": hops, "directory": directory}
        rows.append({"question": text, "answer": directory[person][field], "info": info})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment with questions about people and their managers.

    Args:
        num_examples: Number of questions for training, and for evaluation; at most 576.
        seed: Random seed of the directories.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([correct], parser=parser)
    rubric.add_metric(looked_up)
    return DirectoryEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"receptionist": receptionist, "one_look": one_look},
        max_turns=max_turns,
    )
