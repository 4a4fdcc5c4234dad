"""One question, one answer."""

from __future__ import annotations

from typing import Any

from rove.core.messages import Messages, as_messages
from rove.core.state import State
from rove.envs.environment import Turn
from rove.envs.multi_turn import MultiTurnEnv


class SingleTurnEnv(MultiTurnEnv):
    """The model answers the prompt once; the rubric scores the answer. Arguments: see `Environment`.

    With `message_type="completion"` the prompt is a text, and so is what the model adds to it.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(max_turns=1, **kwargs)

    async def run(self, state: State, turn: Turn) -> None:
        """Set the state up and ask once."""
        await self._set_up(state)
        prompt: Messages = as_messages(state["prompt"])
        state["completion"] = self._shown([await turn(state, prompt)])
        if not await self.check_stops(state):
            state["stop_condition"] = "answered"

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Never called: a single-turn environment has nothing to answer."""
        return []
