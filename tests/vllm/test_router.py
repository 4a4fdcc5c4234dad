"""Which of several servers of vLLM is asked."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from vllm_server import FakeVLLM

from rove.core.errors import InfraError, RunError
from rove.vllm import router as spread
from rove.vllm.router import HealthMonitor, Router
from rove.vllm.server import DEFAULT_CONFIG, Server, VLLMConfig
from tests.vllm.test_engine import FAKE, LOADED, PROMPT, ask, publish, quick, synced


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVLLM]:
    LOADED.save(tmp_path / "model")
    with FakeVLLM(tmp_path / "model") as server:
        yield server


def watched(fake: FakeVLLM, seconds: float, excused: bool = False, waits: float = 2.0) -> str:
    """A request that a server takes some seconds for, watched; its answer, or what is said instead."""
    server = Server(fake.url, VLLMConfig(urls=[fake.url], hang_seconds=seconds), 0, Path())
    watch = HealthMonitor(server, lambda: excused)

    async def answer() -> str:
        await asyncio.sleep(waits)
        return "an answer"

    async def both() -> str:
        async with aiohttp.ClientSession() as session:
            try:
                first, second = await asyncio.gather(watch.run(session, answer()), watch.run(session, answer()))
            except InfraError as error:
                return str(error)
            assert first == second
            return first

    said = asyncio.run(both())
    assert server.is_hung == (said != "an answer")
    return said


@pytest.mark.broad
def test_an_answer_may_take_longer_than_the_limit(fake: FakeVLLM):
    assert watched(fake, 0.5) == "an answer"
    assert len([path for path, _ in fake.asked if path == "/weight_info"]) > 8


def test_whose_engine_says_nothing_hangs(fake: FakeVLLM):
    fake.faults.append("hangs")
    assert watched(fake, 0.5, waits=60).startswith("it hangs: its engine has not responded for 0.5 seconds")


def test_one_that_cannot_be_reached_hangs(fake: FakeVLLM):
    fake.url = "http://127.0.0.1:9"
    assert watched(fake, 0.5, waits=60).startswith("it hangs")


@pytest.mark.broad
def test_one_that_takes_new_weights_may_be_silent(fake: FakeVLLM):
    fake.faults.append("hangs")
    assert watched(fake, 0.5, excused=True) == "an answer"


def test_who_gives_a_request_up_gets_no_error_of_the_server(fake: FakeVLLM):
    async def given_up() -> None:
        async with aiohttp.ClientSession() as session:
            watch = HealthMonitor(Server(fake.url, VLLMConfig(urls=[fake.url]), 0, Path()), lambda: False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(watch.run(session, asyncio.sleep(60)), 0.05)
            assert not watch._waiting

    asyncio.run(given_up())


@pytest.mark.broad
def test_others_are_asked_for_what_one_that_hangs_was_asked(
    tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    with FakeVLLM(tmp_path / "model") as other:
        engine = synced(tmp_path, fake.url, other.url, hang_seconds=1.0)
        fake.faults.append("hangs")
        assert all(made.ids for made in ask(engine, *[[*PROMPT, n] for n in range(10, 20)]))
        with pytest.raises(RunError, match=r"weights of version 2 were not loaded: .* does not answer POST /pause"):
            publish(engine, LOADED, 2)
        fake.faults.clear()
        publish(engine, LOADED, 3)
        assert not engine.fleet.servers[0].is_hung


def test_one_that_hangs_and_is_alone_is_named(tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, fake.url, hang_seconds=0.3)
    fake.faults.append("hangs")
    with pytest.raises(InfraError, match=rf"the vLLM server at {fake.url} fails: .*it hangs.*vllm.hang_seconds"):
        ask(engine, PROMPT)


@pytest.mark.slow
def test_one_of_ours_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, command=FAKE, hang_seconds=1.0)
    [server] = engine.fleet.servers
    stopped = [int(server.log.read_text().split()[1])]
    os.kill(stopped[0], signal.SIGSTOP)
    assert [made.policy_version for made in ask(engine, *[PROMPT] * 3)] == [1] * 3
    assert engine.fleet.restarts == 1
    stopped.append(int(server.log.read_text().rpartition("listening ")[2].split()[0]))
    os.kill(stopped[1], signal.SIGSTOP)
    publish(engine, LOADED, 2)
    assert engine.fleet.restarts == 2
    asyncio.run(engine.close())
    for pid in stopped:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def three(path: Path) -> list[Server]:
    return [Server(f"http://node{number}", DEFAULT_CONFIG, number, path) for number in range(3)]


def test_the_least_busy_is_asked_and_none_that_fails(tmp_path: Path):
    servers = three(tmp_path)
    some = Router(servers)
    servers[0].active_requests, servers[1].active_requests, servers[2].active_requests = 3, 0, 5
    assert some.least_busy() is servers[1]
    servers[1].is_failing = True
    assert some.least_busy() is servers[0]
    servers[0].is_failing = servers[2].is_failing = True
    assert some.least_busy() is servers[1]


def test_a_next_turn_goes_where_the_last_one_was_answered(tmp_path: Path):
    servers = three(tmp_path)
    some = Router(servers)
    _, key = some.choose([1, 2, 3])
    some.remember(key, [4, 5], servers[2])
    assert some.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[2]
    assert some.choose([1, 2, 3, 4])[0] is servers[0]
    servers[2].is_failing = True
    assert some.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[0]


def test_what_is_remembered_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spread, "MAX_REMEMBERED", 2)
    servers = three(tmp_path)
    some = Router(servers)
    for first in (1, 2, 3):
        some.remember(some.choose([first])[1], [9], servers[2])
    assert [some.choose([first, 9])[0] for first in (1, 2, 3)] == [servers[0], servers[2], servers[2]]
