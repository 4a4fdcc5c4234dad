"""Load balancing and health checks of vLLM servers."""

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
from rove.vllm import router as router_module
from rove.vllm.router import HealthMonitor, Router
from rove.vllm.server import DEFAULT_CONFIG, Server, VLLMConfig
from tests.vllm.test_engine import FAKE, LOADED, PROMPT, generate, publish, set_backoff, synced_engine


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVLLM]:
    LOADED.save(tmp_path / "model")
    with FakeVLLM(tmp_path / "model") as server:
        yield server


def run_watched(fake: FakeVLLM, seconds: float, excused: bool = False, waits: float = 2.0) -> str:
    """Run two monitored requests that take `waits` seconds; return their response or the error message."""
    server = Server(fake.url, VLLMConfig(urls=[fake.url], hang_seconds=seconds), 0, Path())
    monitor = HealthMonitor(server, lambda: excused)

    async def answer() -> str:
        await asyncio.sleep(waits)
        return "an answer"

    async def run_both() -> str:
        async with aiohttp.ClientSession() as session:
            try:
                first, second = await asyncio.gather(monitor.run(session, answer()), monitor.run(session, answer()))
            except InfraError as error:
                return str(error)
            assert first == second
            return first

    result = asyncio.run(run_both())
    assert server.is_hung == (result != "an answer")
    return result


@pytest.mark.broad
def test_a_response_may_take_longer_than_hang_seconds(fake: FakeVLLM):
    assert run_watched(fake, 0.5) == "an answer"
    assert len([path for path, _ in fake.requests if path == "/weight_info"]) > 8


def test_a_server_with_a_silent_engine_is_hung(fake: FakeVLLM):
    fake.faults.append("hangs")
    assert run_watched(fake, 0.5, waits=60).startswith("it hangs: its engine has not responded for 0.5 seconds")


def test_an_unreachable_server_is_hung(fake: FakeVLLM):
    fake.url = "http://127.0.0.1:9"
    assert run_watched(fake, 0.5, waits=60).startswith("it hangs")


@pytest.mark.broad
def test_a_server_that_loads_weights_may_be_silent(fake: FakeVLLM):
    fake.faults.append("hangs")
    assert run_watched(fake, 0.5, excused=True) == "an answer"


def test_a_canceled_request_raises_no_server_error(fake: FakeVLLM):
    async def cancel_request() -> None:
        async with aiohttp.ClientSession() as session:
            monitor = HealthMonitor(Server(fake.url, VLLMConfig(urls=[fake.url]), 0, Path()), lambda: False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(monitor.run(session, asyncio.sleep(60)), 0.05)
            assert not monitor._waiting

    asyncio.run(cancel_request())


@pytest.mark.broad
def test_requests_of_a_hung_server_go_to_the_others(tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    with FakeVLLM(tmp_path / "model") as healthy:
        engine = synced_engine(tmp_path, fake.url, healthy.url, hang_seconds=1.0)
        fake.faults.append("hangs")
        assert all(generation.ids for generation in generate(engine, *[[*PROMPT, n] for n in range(10, 20)]))
        with pytest.raises(RunError, match=r"weights of version 2 were not loaded: .* does not answer POST /pause"):
            publish(engine, LOADED, 2)
        fake.faults.clear()
        publish(engine, LOADED, 3)
        assert not engine.fleet.servers[0].is_hung


def test_a_single_hung_server_is_named_in_the_error(tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, fake.url, hang_seconds=0.3)
    fake.faults.append("hangs")
    with pytest.raises(InfraError, match=rf"the vLLM server at {fake.url} fails: .*it hangs.*vllm.hang_seconds"):
        generate(engine, PROMPT)


@pytest.mark.slow
def test_a_hung_server_that_rove_started_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, command=FAKE, hang_seconds=1.0)
    [server] = engine.fleet.servers
    stopped = [int(server.log.read_text().split()[1])]
    os.kill(stopped[0], signal.SIGSTOP)
    assert [generation.policy_version for generation in generate(engine, *[PROMPT] * 3)] == [1] * 3
    assert engine.fleet.restarts == 1
    stopped.append(int(server.log.read_text().rpartition("listening ")[2].split()[0]))
    os.kill(stopped[1], signal.SIGSTOP)
    publish(engine, LOADED, 2)
    assert engine.fleet.restarts == 2
    asyncio.run(engine.close())
    for pid in stopped:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def three_servers(path: Path) -> list[Server]:
    return [Server(f"http://node{number}", DEFAULT_CONFIG, number, path) for number in range(3)]


def test_the_least_busy_healthy_server_is_chosen(tmp_path: Path):
    servers = three_servers(tmp_path)
    router = Router(servers)
    servers[0].active_requests, servers[1].active_requests, servers[2].active_requests = 3, 0, 5
    assert router.least_busy() is servers[1]
    servers[1].is_failing = True
    assert router.least_busy() is servers[0]
    servers[0].is_failing = servers[2].is_failing = True
    assert router.least_busy() is servers[1]


def test_a_next_turn_goes_to_the_server_of_the_previous_turn(tmp_path: Path):
    servers = three_servers(tmp_path)
    router = Router(servers)
    _, key = router.choose([1, 2, 3])
    router.remember(key, [4, 5], servers[2])
    assert router.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[2]
    assert router.choose([1, 2, 3, 4])[0] is servers[0]
    servers[2].is_failing = True
    assert router.choose([1, 2, 3, 4, 5, 6, 7])[0] is servers[0]


def test_the_number_of_remembered_prefixes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router_module, "MAX_REMEMBERED", 2)
    servers = three_servers(tmp_path)
    router = Router(servers)
    for first in (1, 2, 3):
        router.remember(router.choose([first])[1], [9], servers[2])
    assert [router.choose([first, 9])[0] for first in (1, 2, 3)] == [servers[0], servers[2], servers[2]]
