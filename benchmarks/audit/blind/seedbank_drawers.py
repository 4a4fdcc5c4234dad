"""Seedbank drawers: the model looks up accessions of a seed bank, whose drawers are labelled by species code."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Answer questions about a seed bank. First find the drawer of the species, then open it. Give the value as "
    "<answer>...</answer>: a number as it is in the record, or none if the drawer has no such accession."
)
SPECIES = (
    "einkorn emmer spelt teff fonio quinoa amaranth lentil chickpea cowpea sorghum millet flax hemp rye oat".split()
)
FIELDS = {"germination": "germination rate in percent", "moisture": "moisture in percent", "grams": "weight in grams"}


def find_drawer(species: str, state: vf.State) -> str:
    """Return the code of the drawer of a species.

    Args:
        species: common name, such as "teff"
    """
    codes = state["info"]["codes"]
    if species not in codes:
        raise ValueError("the bank has no seeds of this species")
    return codes[species]


def open_drawer(code: str, state: vf.State) -> list[dict[str, Any]]:
    """Return the records of all accessions in a drawer.

    Args:
        code: code of the drawer
    """
    drawers = state["info"]["drawers"]
    if code not in drawers:
        raise ValueError("there is no drawer with this code")
    return drawers[code]


def exact(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right value."""
    reply = (parser.parse_answer(completion) or "").strip().lower().removesuffix("%").removesuffix("g").strip()
    if answer == "none":
        return float(reply == "none")
    try:
        return float(round(float(reply), 1) == float(answer))
    except (ValueError, OverflowError):
        return 0.0


def opened(completion: vf.Messages) -> float:
    """Return 1 if a tool was used."""
    return float(any(message.role == "tool" for message in completion))


def curator(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Find the drawer, open it, and read the record."""
    turn = len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("find_drawer", species=state["info"]["species"])
    if turn == 1:
        return vf.tool_call("open_drawer", code=messages[-1].content)
    records = json.loads(messages[-1].content)
    found = [record for record in records if record["accession"] == state["info"]["accession"]]
    return f"<answer>{found[0][state['info']['field']] if found else 'none'}</answer>"


def intern(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the first record of the right drawer, whichever accession it is."""
    turn = len(state["trajectory"])
    if turn < 2:
        return curator(messages, state, rng)
    return f"<answer>{json.loads(messages[-1].content)[0][state['info']['field']]}</answer>"


class SeedbankEnv(vf.StatefulToolEnv):
    """An environment in which every question has its own seed bank."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(find_drawer, args_to_skip=["state"])
        self.add_tool(open_drawer, args_to_skip=["state"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _record(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "accession": number,
        "germination": rng.randrange(200, 990) / 10,
        "moisture": rng.randrange(30, 140) / 10,
        "grams": rng.randrange(50, 9000) / 10,
    }


def _rows(count: int, seed: str, accessions: range) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        stocked = rng.sample(SPECIES, 5)
        codes = dict(
            zip(stocked, (f"{rng.choice('KLMNPR')}{code}" for code in rng.sample(range(100, 999), 5)), strict=True)
        )
        numbers = rng.sample(accessions, 21)
        missing = numbers.pop()
        drawers = {code: [_record(numbers.pop(), rng) for _ in range(4)] for code in codes.values()}
        species, field = rng.choice(stocked), rng.choice(list(FIELDS))
        record = rng.choice(drawers[codes[species]])
        absent = rng.random() < 0.2
        accession = missing if absent else record["accession"]
        question = f"What is the {FIELDS[field]} of accession {accession} of {species}?"
        info = {"codes": codes, "drawers": drawers, "species": species, "accession": accession, "field": field}
        rows.append({"question": question, "answer": "none" if absent else str(record[field]), "info": info})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with questions about the records of a seed bank.

    Args:
        num_examples: Number of questions in each dataset; training and evaluation use different accession numbers.
        seed: Random seed of the seed banks.
        max_turns: Maximum model turns.
    """
    parser = vf.XMLParser(["answer"])
    rubric = vf.Rubric([exact], parser=parser)
    rubric.add_metric(opened)
    return SeedbankEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", range(1000, 5000)),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", range(5000, 9000)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"curator": curator, "intern": intern},
        max_turns=max_turns,
    )
