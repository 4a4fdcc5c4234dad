"""Other people's code in processes of its own: another interpreter if need be, time limits that kill, crashes that stay there."""

from rove.workers.host import Workers
from rove.workers.worker import Worker

__all__ = ["Worker", "Workers"]
