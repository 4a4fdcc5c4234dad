"""Worker program of `facts.measure`; all work happens in `setup`, so no worker is forked from this process."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rove import Environment, ScriptedClient, compat, generate, load_environment
from rove.audit.guard import record_contact
from rove.integrations.verifiers_export import group_rewards_of


def setup(folder: str, module: str, examples: int, seed: int) -> dict[str, Any]:
    """Load the environment, run its policies, and return the observed facts (see `Facts`)."""
    contacted: list[str] = []
    sys.addaudithook(lambda event, args: record_contact(contacted, event, args))
    compat.install_fallback()
    env = load_environment(module, folder)
    scores = asyncio.run(_run_policies(env, examples, seed))
    if not scores:
        asyncio.run(_connect_servers(env))
    tools: set[str] = set()
    base_classes: set[str] = set()
    for part in env.components:
        tools |= {tool["function"]["name"] for tool in getattr(part, "tool_defs", [])}
        base_classes |= {kind.__name__ for kind in type(part).__mro__}
    return {
        "metrics": env.scoring_rubric.names,
        "tools": sorted(tools),
        "policies": scores,
        "network": bool(contacted),
        "sandbox": "SandboxEnv" in base_classes,
        "group_rewards": group_rewards_of(env),
        "message_type": env.message_type,
    }


async def _run_policies(env: Environment, examples: int, seed: int) -> dict[str, object]:
    """Run every policy and return its rewards and errors."""
    scores: dict[str, object] = {}
    for name, policy in sorted(env.policies.items()):
        records = await generate(env, ScriptedClient(policy), name, num_examples=examples, seed=seed)
        errors = [record.error for record in records if record.error is not None]
        scores[name] = {
            "rewards": [record.reward for record in records if record.reward is not None],
            "failed": len(errors),
            "error": f"{errors[-1].type}: {errors[-1].message}" if errors else "",
        }
    return scores


async def _connect_servers(env: Environment) -> None:
    """Start the MCP servers of an environment without policies: their tools are known only once they run."""
    for part in env.components:
        if hasattr(part, "connect"):
            await part.connect()
    await env.tear_down()
