"""Archive box: read the records of a shelf, add up their page counts, and submit the sum."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work in an archive. Read the records of the box with read_record, add up the pages of all records with the status "
    "that the question names, and submit the sum with submit_total."
)
TOPICS = "harbor census railway school theater mill hospital court customs library fire weather".split()
STATUSES = ["public", "sealed", "damaged"]


class Mismatch(ValueError):
    """A value that is not the expected one."""


def check_equal(field: str, value: Any, expected: Any) -> None:
    """Raise an error if a value is not the expected one."""
    if value != expected:
        raise Mismatch(f"{field} is {value!r}, expected {expected!r}")


def read_record(number: int, state: vf.State) -> dict[str, Any]:
    """Read one record of the box.

    Args:
        number: number of the record, starting at 1
    """
    records = state["info"]["records"]
    if not 1 <= number <= len(records):
        raise ValueError(f"the box has the records 1 to {len(records)}")
    return records[number - 1]


def submit_total(total: int, state: vf.State) -> str:
    """Submit the sum of the pages.

    Args:
        total: the sum
    """
    state["submitted"] = total
    check_equal("total", total, state["info"]["total"])
    state["solved"] = True
    return "Thank you, the total is entered in the catalog."


def solved(state: vf.State) -> float:
    """Return 1 if the right sum was submitted."""
    return float(state["solved"])


def submitted(state: vf.State) -> float:
    """Return 1 if any sum was submitted."""
    return float("submitted" in state)


def _call(tool: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Read all records one by one, then submit the sum."""
    records, turn = state["info"]["records"], len(state["trajectory"])
    if turn < len(records):
        return _call("read_record", number=turn + 1)
    wanted = state["info"]["status"]
    read = [json.loads(message.content) for message in messages if message.role == "tool"]
    return _call("submit_total", total=sum(record["pages"] for record in read if record["status"] == wanted))


def skimmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the first record and submit its pages."""
    turn = len(state["trajectory"])
    if turn == 0:
        return _call("read_record", number=1)
    if turn == 1:
        return _call("submit_total", total=json.loads(messages[-1].content)["pages"])
    return "Done."


class ArchiveEnv(vf.StatefulToolEnv):
    """An environment with one box of records per rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(read_record, args_to_skip=["state"])
        self.add_tool(submit_total, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["solved"] = False

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def entered(self, state: vf.State) -> bool:
        """Stop when the right sum is in the catalog."""
        return state["solved"]


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        records = [
            {
                "topic": rng.choice(TOPICS),
                "year": rng.randint(1820, 1960),
                "status": rng.choice(STATUSES),
                "pages": rng.randint(3, 240),
            }
            for _ in range(rng.randint(3, 6))
        ]
        status = rng.choice(records)["status"]
        total = sum(record["pages"] for record in records if record["status"] == status)
        question = (
            f"Box {rng.randint(100, 999)}-{index} has {len(records)} records. How many pages do the {status} ones have?"
        )
        rows.append({"question": question, "info": {"records": records, "status": status, "total": total}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 10) -> vf.Environment:
    """Return an environment in which the model adds up pages of archive records.

    Args:
        num_examples: Number of boxes for training, and for evaluation.
        seed: Random seed of the boxes.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([solved])
    rubric.add_metric(submitted)
    return ArchiveEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"clerk": clerk, "skimmer": skimmer},
        max_turns=max_turns,
    )
