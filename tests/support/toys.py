"""Small real environments, answerers and helpers that several test files share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

import rove as vf
from rove.core.records import Timing


def rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Questions "q0", "q1", … with answers "0", "1", …"""
    return [{"question": f"q{i}", "answer": str(i), **columns} for i in range(count)]


def correct(completion: vf.Messages, answer: str) -> float:
    """1 when the last message is the answer."""
    return float(completion[-1].content == answer)


class Quiz(vf.SingleTurnEnv):
    """Asks; scores 1 for the row's answer."""

    def __init__(self, count: int = 3, **kwargs: Any):
        super().__init__(**{"dataset": rows(count), "rubric": vf.Rubric([correct]), **kwargs})


class Talk(vf.MultiTurnEnv):
    """Says "go on" after every turn until `turns` are over (if given); writes its life down in `state["log"]`."""

    def __init__(self, turns: int | None = None, count: int = 1, **kwargs: Any):
        super().__init__(**{"dataset": rows(count), **kwargs})
        self.turns = turns

    async def setup_state(self, state: vf.State, **kwargs: Any) -> Any:
        state["log"] = ["setup"]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        state["log"].append("env")
        if len(state["trajectory"]) == self.turns:
            state["final_env_response"] = "bye"
        return "go on"

    @vf.stop
    def looked(self, state: vf.State) -> bool:
        state["log"].append("stop?")
        return False

    @vf.cleanup
    def tidy(self, state: vf.State) -> None:
        state["log"].append("cleanup")


def says(answer: str | Callable[[vf.Messages, vf.State, random.Random], Any], **options: Any) -> vf.ScriptedClient:
    """A client that says the same whatever it is asked, or what a player says."""
    player = answer if callable(answer) else lambda messages, state, rng: answer
    return vf.ScriptedClient(player, **options)


def right(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A player that knows the row's answer."""
    return state["answer"]


def roll(env: vf.Environment, client: vf.Client, **options: Any) -> list[vf.RolloutRecord]:
    """`rove.generate` outside of async code."""
    return asyncio.run(vf.generate(env, client, **options))


def timeless(record: vf.RolloutRecord) -> vf.RolloutRecord:
    """The record without its wall-clock times, the only part that may differ between equal runs."""
    steps = [msgspec.structs.replace(step, seconds=0.0) for step in record.steps]
    return msgspec.structs.replace(record, steps=steps, timing=Timing())
