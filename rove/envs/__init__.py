"""Interaction protocols, and how an environment is found."""

from rove.envs.environment import Environment, cleanup, stop, teardown
from rove.envs.group import EnvGroup
from rove.envs.multi_turn import MultiTurnCompletionEnv, MultiTurnEnv
from rove.envs.single_turn import SingleTurnEnv

__all__ = [
    "EnvGroup",
    "Environment",
    "MultiTurnCompletionEnv",
    "MultiTurnEnv",
    "SingleTurnEnv",
    "cleanup",
    "stop",
    "teardown",
]
