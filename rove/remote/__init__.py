"""Environments in other processes: a worker on this machine, or actors of a Ray cluster."""

from rove.remote.environment import IsolatedEnv

__all__ = ["IsolatedEnv"]
