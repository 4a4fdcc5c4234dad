"""My task: who is where? Only an MCP server knows; say here what yours is."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

from .server import make_server, room_of


def correct(completion: vf.Messages, answer: str) -> float:
    """1 when the last message is the right room."""
    last = completion[-1]  # a tool's, where the rollout ended at max_turns
    return float(last.role == "assistant" and str(last.content).strip() == answer)


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """A player that asks the server, then answers: rove eval my_task -m scripted:oracle."""
    if state["trajectory"]:
        return messages[-1].content
    function = {"name": "find", "arguments": json.dumps({"name": state["info"]["name"]})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call_find", "type": "function", "function": function}])


# Nobody is in both: what is measured must not have been trained on.
SYLLABLES = ["ba", "da", "ka", "la", "ma", "na", "ra", "ta"]
NAMES = [f"{a}{b}{c}".capitalize() for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES]
random.Random("split").shuffle(NAMES)
HELD_OUT, TRAINED = NAMES[:100], NAMES[100:]


def _rows(names: list[str], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(names, min(count, len(names)))
    return [{"question": f"Where is {name}?", "answer": room_of(name), "info": {"name": name}} for name in chosen]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 4) -> vf.Environment:
    """Questions that an MCP server can answer: at most 412 to train on, and 100 others to evaluate on.

    Args:
        num_examples: questions in the dataset.
        seed: which of them.
        max_turns: most model turns.
    """
    return vf.MCPEnv(
        mcp_servers=[{"name": "house", "server": make_server}],
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt="Find out where the one who is named is, then answer with the room alone.",
        rubric=vf.Rubric([correct]),
        policies={"oracle": oracle},
        max_turns=max_turns,
    )
