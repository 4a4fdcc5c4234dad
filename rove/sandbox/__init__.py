"""Sandboxes for untrusted code, such as programs that a model writes."""

from rove.sandbox.backend import Backend, Description, Functions, Result, SandboxLimits, Session
from rove.sandbox.docker import DockerBackend
from rove.sandbox.local import LocalBackend

__all__ = ["Backend", "Description", "DockerBackend", "Functions", "LocalBackend", "Result", "SandboxLimits", "Session"]
