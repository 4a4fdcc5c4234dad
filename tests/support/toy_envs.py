"""Toy environments, scripted clients and helpers that several test files share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

import rove as vf
from rove.core.records import Timing


def rows(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Return rows with the questions "q0", "q1", … and the answers "0", "1", …"""
    return [{"question": f"q{i}", "answer": str(i), **columns} for i in range(count)]


def correct(completion: vf.Messages, answer: str) -> float:
    """Return 1 if the last message is the answer, otherwise 0."""
    return float(completion[-1].content == answer)


class Quiz(vf.SingleTurnEnv):
    """A single-turn environment with the reward 1 for the row's answer."""

    def __init__(self, count: int = 3, **kwargs: Any):
        super().__init__(**{"dataset": rows(count), "rubric": vf.Rubric([correct]), **kwargs})


class Talk(vf.MultiTurnEnv):
    """Responds "go on" until `turns` turns are over (if given), and logs the calls of its hooks in `state["log"]`."""

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
    def log_check(self, state: vf.State) -> bool:
        state["log"].append("stop?")
        return False

    @vf.cleanup
    def tidy(self, state: vf.State) -> None:
        state["log"].append("cleanup")


def scripted_client(
    answer: str | Callable[[vf.Messages, vf.State, random.Random], Any], **options: Any
) -> vf.ScriptedClient:
    """Return a client that always gives the same response, or the responses of a policy."""
    policy = answer if callable(answer) else lambda messages, state, rng: answer
    return vf.ScriptedClient(policy, **options)


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Return the row's answer; a policy."""
    return state["answer"]


def generate_sync(env: vf.Environment, client: vf.Client, **options: Any) -> list[vf.RolloutRecord]:
    """Call `rove.generate` from synchronous code."""
    return asyncio.run(vf.generate(env, client, **options))


def without_times(record: vf.RolloutRecord) -> vf.RolloutRecord:
    """Return the record without its measured times, the only part that may differ between equal runs."""
    steps = [msgspec.structs.replace(step, seconds=0.0) for step in record.steps]
    return msgspec.structs.replace(record, steps=steps, timing=Timing())
