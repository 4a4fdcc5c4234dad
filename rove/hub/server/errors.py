"""Errors of the hub server."""

from __future__ import annotations

from rove.core.errors import Error


class Refused(Error):
    """A request that the hub rejects.

    Args:
        status: HTTP status.
        message: Message for the client: what was given, what was expected and how to fix it.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
