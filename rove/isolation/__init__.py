"""An environment in a worker process: with its own interpreter if need be, and nothing that happens in it hurts the run."""

from rove.isolation.environment import IsolatedEnv

__all__ = ["IsolatedEnv"]
