"""Environments: interaction protocols, datasets, and loading by name."""

from rove.envs.environment import Environment, cleanup, stop, teardown
from rove.envs.group import EnvGroup
from rove.envs.mcp import MCPEnv
from rove.envs.multi_turn import MultiTurnCompletionEnv, MultiTurnEnv, SingleTurnEnv
from rove.envs.tool import StatefulToolEnv, ToolEnv

__all__ = [
    "EnvGroup",
    "Environment",
    "MCPEnv",
    "MultiTurnCompletionEnv",
    "MultiTurnEnv",
    "SingleTurnEnv",
    "StatefulToolEnv",
    "ToolEnv",
    "cleanup",
    "stop",
    "teardown",
]
