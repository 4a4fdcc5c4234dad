"""What a worker knows of a rollout that it plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rove.core.records import TrajectoryStep
from rove.core.state import State


@dataclass(eq=False, slots=True)
class Played:
    """A rollout, its conversations, and who has answered in them."""

    number: int
    state: State
    conversations: list[State]
    """Its own and those of sub-models, by the number that its owner knows them by."""
    answers: list[tuple[TrajectoryStep, int]] = field(default_factory=list)
    """Steps that its owner has asked for, and by which number it knows them."""

    def conversation(self, state: State) -> int:
        """The number of a conversation."""
        number = next((i for i, one in enumerate(self.conversations) if one is state), None)
        if number is None:
            number = len(self.conversations)
            self.conversations.append(state)
        return number

    def seen(self) -> dict[str, Any]:
        """What of a rollout its owner keeps; of a step that it has asked for, the number."""
        state, numbers = self.state, {id(step): number for step, number in self.answers}

        def known(steps: Sequence[TrajectoryStep]) -> list[Any]:
            return [numbers[id(step)] if id(step) in numbers else msgspec.to_builtins(step) for step in steps]

        return {
            "prompt": state["prompt"],
            "completion": state["completion"],
            "stop_condition": None if state["stop_condition"] is None else str(state["stop_condition"]),
            "is_truncated": bool(state["is_truncated"]),
            "tools": state.get("tools"),
            "model_roles": {role: known(steps) for role, steps in (state.get("model_roles") or {}).items()},
            "trajectory": known(state["trajectory"]),
            "renderings": msgspec.to_builtins(state.get("drawn_boards") or {}, str_keys=True),
            "step_rewards": [step.reward for step in state["trajectory"]],
            "env_id": state.get("env_id", ""),
        }
