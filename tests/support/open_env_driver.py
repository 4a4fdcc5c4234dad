"""Run episodes with OpenEnv's client; `test_open_env_consumers.py` starts this file with the Python of a virtual environment.

The job on stdin is a list of episodes: the URL of a server, the arguments of `reset`, and the actions. The results on stdout, a
JSON list, are the observations, the reward, and the state of each episode.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openenv.core import GenericEnvClient  # pyright: ignore[reportMissingImports]

CONCURRENT = 16


async def run_episode(gate: asyncio.Semaphore, episode: dict[str, Any]) -> dict[str, Any]:
    """Take the actions until the episode ends."""
    async with gate, GenericEnvClient(base_url=episode["url"]) as client:
        result = await client.reset(**episode["reset"])
        observations = [result.observation]
        for action in episode["actions"]:
            if result.done:
                break
            result = await client.step(action)
            observations.append(result.observation)
        state = await client.state()
        return {
            "observations": observations,
            "reward": result.reward,
            "done": result.done,
            "metadata": result.observation["metadata"],
            "steps": state["step_count"],
        }


async def run_episodes(episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run all episodes with limited concurrency."""
    gate = asyncio.Semaphore(CONCURRENT)
    return list(await asyncio.gather(*(run_episode(gate, episode) for episode in episodes)))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_episodes(json.load(sys.stdin)))))
