"""What a hub does not do, in words."""

from __future__ import annotations

from rove.core.errors import Error


class Refused(Error):
    """A request that a hub refuses; the message says what was given, what is expected and how to fix it.

    Args:
        status: what HTTP calls it: 404 not there, 409 there already, 403 not allowed, 413 too large ...
        message: for whoever asked.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
