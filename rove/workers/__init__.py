"""Worker processes: run Python code in separate processes with time and memory limits, optionally with another interpreter."""

from rove.workers.fork_server import Workers
from rove.workers.worker import Worker

__all__ = ["Worker", "Workers"]
