"""Run rove environments in verifiers 0.4 and compare its traces with rove's records; see `test_verifiers_v1.py`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

import rove as vf
from rove.core.messages import text_of
from rove.rendering.tool_calls import calls_of
from rove.server.app import make_app

DRIVER = Path(__file__).with_name("verifiers_v1_driver.py")
ROOT = Path(__file__).parents[2]
DRIVER_TIMEOUT_S = 7200
"""Time limit of a driver; all environments took more than half an hour on two busy cores."""
UNKNOWN_REPLY = "I do not know."
"""The reply to a conversation that was not recorded."""

MODULE = """
from rove.integrations.verifiers_v1 import RoveEnv, RoveHarness, RoveTaskset


class Taskset(RoveTaskset):
    environment = {name!r}


__all__ = ["RoveEnv", "RoveHarness", "Taskset"]
"""
"""The module that `rove build --verifiers-v1` writes, for environments that are not built."""


class ReplayModel:
    """A model that repeats the replies of scripted policies; it finds them by the messages of the conversation alone."""

    def __init__(self) -> None:
        self.replies: dict[str, vf.Message] = {}
        self.num_unknown = 0

    async def record_policies(self, env: vf.Environment, policies: Sequence[str], num_examples: int) -> None:
        """Record the replies of the policies, which alternate by row."""

        def answer(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
            return env.policies[policies[state["example_id"] % len(policies)]](messages, state, rng)

        for record in await vf.generate(env, vf.ScriptedClient(answer), num_examples=num_examples):
            assert record.error is None, record.error
            for step in (*record.steps, *(step for steps in record.model_roles.values() for step in steps)):
                self.replies.setdefault(conversation_key(step.prompt), step.completion[0])

    def answer(self, messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        """Return the reply to a conversation."""
        reply = self.replies.get(conversation_key(messages))
        if reply is None:
            self.num_unknown += 1
        return UNKNOWN_REPLY if reply is None else reply

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve the model; yield its base URL."""
        app = make_app(vf.ScriptedClient(self.answer), "scripted")
        async with TestServer(app) as server:
            yield f"{server.make_url('/v1')}"


def conversation_key(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the roles, texts and calls of a conversation as JSON."""
    turns = [
        [message["role"], text_of(message), [[call.name, call.arguments] for call in calls_of(message)]]
        for message in messages
    ]
    return json.dumps(turns, sort_keys=True)


async def run_in_verifiers(
    python: str, url: str, runs: Sequence[Mapping[str, Any]], folder: Path, modules: Mapping[str, str]
) -> list[dict[str, list[dict[str, Any]]]]:
    """Return the traces of each run by the way of running them: "vf-eval" or "server".

    Args:
        modules: Module of a taskset, which is written into `folder` → its environment.
    """
    for module, name in modules.items():
        (folder / f"{module}.py").write_text(MODULE.format(name=name), encoding="utf-8")
    job = {"url": url, "output": str(folder / "outputs"), "runs": list(runs)}
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": ""}
    process = await asyncio.create_subprocess_exec(
        python,
        str(DRIVER),
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 30,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(json.dumps(job).encode()), DRIVER_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
    text = errors.decode(errors="replace")
    assert process.returncode == 0, text[-8000:]
    sys.stderr.write(text[-2000:])
    return [json.loads(line) for line in out.decode().splitlines()]


def traces_by_row(traces: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the comparable parts of verifiers' traces by row."""
    by_row: dict[int, dict[str, Any]] = {}
    for trace in traces:
        rewards = {name: [reward["score"], reward["weight"]] for name, reward in trace["rewards"].items() if reward}
        by_row[trace["task"]["data"]["row"]["example_id"]] = {
            "ok": trace["ok"],
            "rewards": rewards,
            "metrics": reproducible_metrics(trace["metrics"]),
            "turns": sum(node["sampled"] for node in trace["nodes"]),
            "stop": trace["stop_condition"],
            "errors": [error["type"] for error in trace["errors"]],
        }
    return by_row


def records_by_row(records: Sequence[vf.RolloutRecord]) -> dict[int, dict[str, Any]]:
    """Return the same parts of rove's records by row."""
    by_row: dict[int, dict[str, Any]] = {}
    for record in records:
        scores = record.scores
        by_row[record.example_id] = {
            "ok": record.error is None,
            "rewards": {name: [value, scores.weights[name]] for name, value in scores.rewards.items()}
            if scores
            else {},
            "metrics": reproducible_metrics(scores.metrics) if scores else {},
            "turns": len(record.steps),
            "stop": record.stop_condition,
            "errors": [record.error.type] if record.error else [],
        }
    return by_row


def reproducible_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that are equal in two runs, without measured times such as `sandbox_ready_wait_time`."""
    return {name: value for name, value in metrics.items() if value is not None and not name.endswith("_time")}
