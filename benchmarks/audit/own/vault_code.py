"""Vault code: read four notes with arithmetic clues, then open a vault."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Open the vault. Its code has four digits; the tool `read_note` shows a clue for each of them. You have three tries with the "
    "tool `open_vault`."
)
MAX_TRIES = 3


def expect_equal(given: str, expected: str) -> None:
    """Raise an error unless two texts are equal."""
    if given != expected:
        raise ValueError(f"expected {expected!r}, got {given!r}")


def read_note(position: int, state: vf.State) -> str:
    """Show the clue for the digit at a position from 1 to 4."""
    if not 1 <= position <= 4:
        raise ValueError("the position is a number from 1 to 4")
    a, b = state["info"]["clues"][position - 1]
    return f"Digit {position} is the last digit of {a} * {b}."


def open_vault(code: str, state: vf.State) -> str:
    """Try a code of four digits."""
    if state["tries"] >= MAX_TRIES:
        raise ValueError("the vault is blocked")
    state["tries"] += 1
    expect_equal(code, state["answer"])
    state["opened"] = True
    return "The vault is open."


def _call(turn: int, name: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": f"call_{turn}", "type": "function", "function": function}])


def locksmith(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read all notes, then try the code."""
    turn = len(state["trajectory"])
    if turn < 4:
        return _call(turn, "read_note", position=turn + 1)
    results = [message.content for message in messages if message.role == "tool"][:4]
    digits = [int(a) * int(b) % 10 for a, b in (re.findall(r"\d+", text)[1:] for text in results)]
    return _call(turn, "open_vault", code="".join(map(str, digits)))


class VaultCodeEnv(vf.StatefulToolEnv):
    """An environment whose tools read and change the state of the rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(read_note, args_to_skip=["state"])
        self.add_tool(open_vault, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(tries=0, opened=False)

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        return {**tool_args, "state": state}

    @vf.stop
    def is_open(self, state: vf.State) -> bool:
        """Stop once the vault is open."""
        return state["opened"]


def opened(state: vf.State) -> float:
    """Return 1 if the vault was opened."""
    return float(state["opened"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        clues = [[rng.randint(13, 99), rng.randint(13, 99)] for _ in range(4)]
        code = "".join(str(a * b % 10) for a, b in clues)
        question = f"Vault {rng.randint(10**6, 10**7)} of the {seed.split(':')[1]} bank."
        rows.append({"question": question, "answer": code, "info": {"clues": clues}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one vault per example; evaluation vaults differ from training vaults."""
    datasets = {"dataset": lambda: _rows(num_examples, f"{seed}:northern")}
    datasets["eval_dataset"] = lambda: _rows(num_examples, f"{seed}:southern")
    options = {"system_prompt": SYSTEM_PROMPT, "rubric": vf.Rubric([opened]), "policies": {"locksmith": locksmith}}
    return VaultCodeEnv(**datasets, **options, max_turns=8)
