"""What the worker of `facts.play` does: everything is found out while it starts, no worker is ever forked from it."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rove import compat
from rove.clients.scripted import ScriptedClient
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.rollouts.evaluate import generate

LOCAL = ("localhost", "127.0.0.1", "::1", "", None)


def setup(folder: str, module: str, examples: int, seed: int) -> dict[str, Any]:
    """Load, play, tell."""
    asked: list[str] = []
    sys.addaudithook(lambda event, args: _watch(asked, event, args))
    compat.install_fallback()
    env = load_environment(module, folder)
    players = asyncio.run(_play(env, examples, seed))
    parts = env.components
    return {
        "metrics": env.rubric.names,
        "tools": sorted({tool["function"]["name"] for part in parts for tool in getattr(part, "tool_defs", [])}),
        "policies": players,
        "network": bool(asked),
        "sandbox": any(kind.__name__ == "SandboxEnv" for part in parts for kind in type(part).__mro__),
    }


async def _play(env: Environment, examples: int, seed: int) -> dict[str, Any]:
    """How every player does, one after the other."""
    players: dict[str, Any] = {}
    for name, player in sorted(env.policies.items()):
        records = await generate(env, ScriptedClient(player), name, num_examples=examples, seed=seed)
        errors = [record.error for record in records if record.error is not None]
        players[name] = {
            "rewards": [record.reward for record in records if record.reward is not None],
            "failed": len(errors),
            "error": f"{errors[-1].type}: {errors[-1].message}" if errors else "",
        }
    if not players:
        for part in env.components:
            if hasattr(part, "connect"):  # an MCP server tells its tools only when it runs
                await part.connect()
        await env.tear_down()
    return players


def _watch(asked: list[str], event: str, args: tuple[Any, ...]) -> None:
    """Note what is asked of other machines."""
    if event == "socket.getaddrinfo" and args[0] not in LOCAL:
        asked.append(str(args[0]))
    elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in LOCAL:
        asked.append(str(args[1][0]))
