"""Which of several servers of vLLM is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rove.vllm import router as spread
from rove.vllm.router import Spread
from rove.vllm.server import DEFAULT_CONFIG, Server


def three(path: Path) -> list[Server]:
    return [Server(f"http://node{number}", DEFAULT_CONFIG, number, path) for number in range(3)]


def test_the_least_busy_is_asked_and_none_that_fails(tmp_path: Path):
    servers = three(tmp_path)
    some = Spread(servers)
    servers[0].under_way, servers[1].under_way, servers[2].under_way = 3, 0, 5
    assert some.best() is servers[1]
    servers[1].is_failing = True
    assert some.best() is servers[0]
    servers[0].is_failing = servers[2].is_failing = True
    assert some.best() is servers[1]


def test_a_next_turn_goes_where_the_last_one_was_answered(tmp_path: Path):
    servers = three(tmp_path)
    some = Spread(servers)
    _, key = some.choose([1, 2, 3])
    some.remember(key, [4, 5], servers[2])
    assert some.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[2]
    assert some.choose([1, 2, 3, 4])[0] is servers[0]
    servers[2].is_failing = True
    assert some.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[0]


def test_what_is_remembered_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spread, "REMEMBERED", 2)
    servers = three(tmp_path)
    some = Spread(servers)
    for first in (1, 2, 3):
        some.remember(some.choose([first])[1], [9], servers[2])
    assert [some.choose([first, 9])[0] for first in (1, 2, 3)] == [servers[0], servers[2], servers[2]]
