"""Config repair: find the setting that does not follow the handbook, and say what it has to be."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = (
    "You look after the settings of a service. Its repository holds the files `settings` and `handbook`; the handbook says "
    "how settings depend on each other. One setting does not follow it. Find out which, and what its value has to be. "
    "Answer <answer>name = value</answer>"
)
DERIVED = {"cache_size": "workers", "queue_limit": "clients", "timeout": "retry_interval", "log_days": "report_days"}
"""Settings, and what each of them is a multiple of."""
OTHER = ("Rename a test", "Update the translations", "Tidy up the build script", "Correct the readme")


def read_file(name: Literal["settings", "handbook"], state: vf.State) -> str:
    """Read a file."""
    if name == "handbook":
        return state["info"]["handbook"]
    return "\n".join(f"{key} = {value}" for key, value in state["settings"].items())


def log(state: vf.State) -> str:
    """List the commits, the latest first, with the settings that each of them changed."""
    lines = []
    for commit in reversed(state["info"]["commits"]):
        changes = "".join(f"\n  {name}: {old} -> {new}" for name, (old, new) in commit["changes"].items())
        lines.append(f"{commit['id']} {commit['message']}{changes}")
    return "\n".join(lines)


def parse(text: str) -> tuple[str, int] | None:
    """Return name and value of `name = value`."""
    found = re.fullmatch(r"\s*`?([a-z_]+)`?\s*[=:]\s*([0-9]{1,9})`?\s*", text)
    return (found[1], int(found[2])) if found else None


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right setting with the right value."""
    return float(parser.parse_answer(completion) == parse(answer))


def engineer(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read both files and compare them."""
    if (turn := len(state["trajectory"])) < 2:
        arguments = json.dumps({"name": ("handbook", "settings")[turn]})
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        return vf.AssistantMessage(None, tool_calls=[call])
    handbook, settings = [message.content for message in messages if message.role == "tool"]
    values = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", settings)}
    for name, factor, base in re.findall(r"`(\w+)` is (\d+) times `(\w+)`", handbook):
        if values[name] != int(factor) * values[base]:
            return f"<answer>{name} = {int(factor) * values[base]}</answer>"
    return "All is well."


class RepositoryEnv(vf.StatefulToolEnv):
    """Tools that look into the repository of a row."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        for tool in (read_file, log):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["settings"] = {}
        for commit in state["info"]["commits"]:
            state["settings"] |= {name: new for name, (_, new) in commit["changes"].items()}
            if commit["id"] == state["info"]["head"]:
                break

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        names = rng.sample(sorted(DERIVED), len(DERIVED))
        factors = {name: rng.randint(2, 12) for name in names}
        values = {DERIVED[name]: rng.randint(3, 40) for name in names}
        values |= {name: factors[name] * values[DERIVED[name]] for name in names}
        broken, base = names[0], DERIVED[names[0]]
        right = factors[broken] * (raised := values[base] + rng.randint(2, 15))
        story = [
            ("Add settings and handbook", {name: [0, value] for name, value in sorted(values.items())}),
            (rng.choice(OTHER), {}),
            (f"Raise {base}", {base: [values[base], raised]}),
            (rng.choice(OTHER), {}),
            (f"Adjust {broken} to the handbook", {broken: [values[broken], right]}),
        ]
        ids = [f"{rng.getrandbits(28):07x}" for _ in story]
        commits = [{"id": i, "message": message, "changes": changes} for i, (message, changes) in zip(ids, story)]
        rules = "\n".join(f"`{name}` is {factors[name]} times `{DERIVED[name]}`." for name in sorted(names))
        question = f"Ticket {rng.randint(10**5, 10**6)}: the service misbehaves. Which setting is wrong?"
        info = {"commits": commits, "head": ids[3], "handbook": rules}
        rows.append({"question": question, "answer": f"{broken} = {right}", "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with one broken setting per row; evaluation rows are drawn apart from training rows."""
    return RepositoryEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=vf.XMLParser(["answer"], extract_fn=parse),
        rubric=vf.Rubric([correct]),
        policies={"engineer": engineer},
        max_turns=max_turns,
    )
