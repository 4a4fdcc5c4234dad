"""Field notes: answer a question from files of notes, which tools list and read."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Read the notes with the tools, then answer <count>number</count>"
BIRDS = "bittern buzzard cormorant crane curlew dunlin falcon godwit grebe heron kestrel lapwing osprey plover ruff teal".split()
PLACES = "bay brook canyon cliff delta dune forest heath lagoon marsh meadow moor pond reef ridge shore".split()
FILES, SEEN = 5, 3


def list_notes(folder: Path) -> list[str]:
    """List the names of all notes."""
    return sorted(path.stem for path in folder.glob("*.txt"))


def read_note(name: str, folder: Path) -> str:
    """Read the note of a name."""
    if name not in list_notes(folder):
        raise ValueError("there is no note of that name")
    return (folder / f"{name}.txt").read_text()


def ranger(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Read the note of the place, and look for the bird."""
    bird, place = state["info"]["bird"], state["info"]["place"]
    if state["trajectory"]:
        line = next(line for line in messages[-1].content.split("\n") if line.startswith(bird))
        return f"<count>{line.split(': ')[1]}</count>"
    function = {"name": "read_note", "arguments": json.dumps({"name": place})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call_1", "type": "function", "function": function}])


class FieldNotesEnv(vf.StatefulToolEnv):
    """An environment that writes the notes of every rollout to a folder for its tools."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, **kwargs)
        self.add_tool(list_notes, args_to_skip=["folder"])
        self.add_tool(read_note, args_to_skip=["folder"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["folder"] = Path(tempfile.mkdtemp(prefix="field_notes_"))
        for name, text in state["info"]["notes"].items():
            (state["folder"] / f"{name}.txt").write_text(text)

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        return {**tool_args, "folder": state["folder"]}


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right number in the last message."""
    return float(completion[-1]["role"] == "assistant" and parser.parse_answer(completion) == answer)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng, rows = random.Random(seed), []
    for day in rng.sample(range(1 + evaluation, 10_000, 2), count):
        places = rng.sample(PLACES, FILES)
        seen = {place: {bird: str(rng.randint(10, 99)) for bird in rng.sample(BIRDS, SEEN)} for place in places}
        place = rng.choice(places)
        bird = rng.choice(list(seen[place]))
        notes = {place: "\n".join(f"{bird}: {count}" for bird, count in birds.items()) for place, birds in seen.items()}
        info = {"notes": notes, "bird": bird, "place": place}
        question = f"Day {day}: how many times was the {bird} seen at the {place}?"
        rows.append({"question": question, "answer": seen[place][bird], "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with five notes and one question per example; evaluation days differ from training days."""
    parser = vf.XMLParser(["count"], answer_field="count")
    return FieldNotesEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"ranger": ranger},
        max_turns=8,
    )
