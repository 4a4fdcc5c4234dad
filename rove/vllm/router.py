"""Which of several servers is asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from rove.vllm.server import Server

REMEMBERED = 100_000
"""Answers whose server is remembered, for the turn that comes after."""


class Spread:
    """Requests over servers: a rollout's next turn goes where the last one was answered, everything else to the least busy.

    Args:
        servers: one or more. `under_way` and `is_failing` of each say what is to be had of it.
    """

    def __init__(self, servers: Sequence[Server]):
        self.servers = servers
        self._homes: OrderedDict[int, Server] = OrderedDict()

    def best(self) -> Server:
        """One that answers, with least to do."""
        return min(self.servers, key=lambda server: (server.is_failing, server.under_way))

    def choose(self, ids: Sequence[int]) -> tuple[Server, int]:
        """The server for a prompt, that which has answered the longest beginning of it or else the best; and the prompt's key."""
        if len(self.servers) == 1:
            return self.servers[0], 0
        key, home = 0, None
        for token in ids:
            key = hash((key, token))
            home = self._homes.get(key, home)
        return self.best() if home is None or home.is_failing else home, key

    def remember(self, key: int, ids: Sequence[int], server: Server) -> None:
        """What a server has answered to the prompt with a key."""
        for token in ids:
            key = hash((key, token))
        self._homes[key] = server
        if len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
