"""My task: find a person's room, which only an MCP server knows. Describe your own task here."""

from __future__ import annotations

import itertools
import random
from typing import Any

import rove as vf

from .server import ROOMS, make_server, room_of


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last message is the right room."""
    last = completion[-1]  # a tool message if the rollout ended at max_turns
    return float(last.role == "assistant" and str(last.content).strip() == answer)


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """A scripted policy that asks the server, then answers: rove eval my_task -m scripted:oracle."""
    if state["trajectory"]:
        return messages[-1].content
    return vf.tool_call("find", name=state["info"]["name"])


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A weak policy, which answers with a random room. `rove train` needs a good and a weak policy."""
    return rng.choice(ROOMS)


# Training and evaluation questions are disjoint.
SYLLABLES = ["ba", "da", "ka", "la", "ma", "na", "ra", "ta"]
NAMES = ["".join(syllables).capitalize() for syllables in itertools.product(SYLLABLES, repeat=3)]
random.Random("split").shuffle(NAMES)
HELD_OUT, TRAINED = NAMES[:100], NAMES[100:]


def _rows(names: list[str], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(names, min(count, len(names)))
    return [{"question": f"Where is {name}?", "answer": room_of(name), "info": {"name": name}} for name in chosen]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 4) -> vf.Environment:
    """Return an environment with questions for an MCP server: at most 412 for training, and 100 others for evaluation.

    Args:
        num_examples: Number of questions.
        seed: Random seed that chooses them.
        max_turns: Maximum model turns.
    """
    return vf.MCPEnv(
        mcp_servers=[{"name": "house", "server": make_server}],
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt=(
            "Use the tool to find the room of the person named in the question. Answer only with the name of the room, for "
            "example: kitchen"
        ),
        rubric=vf.Rubric([correct]),
        policies={"oracle": oracle, "guesser": guesser},
        max_turns=max_turns,
    )
