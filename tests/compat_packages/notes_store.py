"""Stateful tools: a store per rollout, hidden from the model."""

import verifiers as vf
from datasets import Dataset


class NotesEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.closed = []
        self.add_tool(self.write, args_to_skip=["store"])
        self.add_tool(self.read, args_to_skip=["store", "owner"])

    async def write(self, key: str, text: str, store: dict) -> str:
        """Write a note.

        Args:
            key: name of the note
            text: what it says
            store: where it is kept
        """
        store[key] = text
        return f"wrote {key}"

    def read(self, key: str, store: dict, owner: str = "") -> str:
        """Read a note."""
        return f"{owner}: {store[key]}"

    async def setup_state(self, state: vf.State, **kwargs):
        state["store"] = {}
        await super().setup_state(state)

    def update_tool_args(
        self, tool_name: str, tool_args: dict, messages: vf.Messages, state: vf.State, **kwargs
    ) -> dict:
        tool_args["store"] = state["store"]
        if tool_name == "read":
            tool_args["owner"] = state["info"]["owner"]
        return tool_args

    @vf.cleanup
    async def close(self, state: vf.State):
        state["notes_left"] = sorted(state["store"])


def load_environment(**kwargs):
    def kept(state, answer):
        return 1.0 if answer in state["notes_left"] else 0.0

    rows = [
        {"question": "Write milk and read it.", "answer": "milk", "info": {"owner": "Ann"}},
        {"question": "Read what is not there.", "answer": "eggs", "info": {"owner": "Bob"}},
        {"question": "Give a list as arguments.", "answer": "none", "info": {"owner": "Cy"}},
    ]
    return NotesEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[kept]), max_turns=5, **kwargs)
