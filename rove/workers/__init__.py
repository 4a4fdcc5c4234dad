"""Worker processes: run Python code in processes of its own, with time and memory limits, also with another interpreter."""

from rove.workers.fork_server import Workers
from rove.workers.worker import Worker

__all__ = ["Worker", "Workers"]
