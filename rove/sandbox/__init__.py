"""Rooms for code that nobody trusts: what a model writes runs here, and harms nothing."""

from rove.sandbox.backend import Backend, Description, Functions, Result, SandboxLimits, Session
from rove.sandbox.docker import DockerBackend
from rove.sandbox.local import LocalBackend

__all__ = ["Backend", "Description", "DockerBackend", "Functions", "LocalBackend", "Result", "SandboxLimits", "Session"]
