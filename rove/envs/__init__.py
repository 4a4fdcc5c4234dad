"""Interaction protocols, and how an environment is found."""

from rove.envs.environment import Environment, cleanup, stop, teardown
from rove.envs.multi_turn import MultiTurnEnv
from rove.envs.single_turn import SingleTurnEnv

__all__ = ["Environment", "MultiTurnEnv", "SingleTurnEnv", "cleanup", "stop", "teardown"]
