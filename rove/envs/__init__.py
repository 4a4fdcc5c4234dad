"""Interaction protocols, and how an environment is found."""

from rove.envs.environment import Environment, cleanup, stop, teardown
from rove.envs.group import EnvGroup
from rove.envs.mcp import MCPEnv
from rove.envs.multi_turn import MultiTurnCompletionEnv, MultiTurnEnv
from rove.envs.single_turn import SingleTurnEnv
from rove.envs.stateful_tool import StatefulToolEnv
from rove.envs.tool import ToolEnv

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
