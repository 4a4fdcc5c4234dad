"""MCP servers that list too many tools, or leave processes behind."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rove as vf
from rove.core.errors import MCPServerError
from rove.mcp import sdk
from rove.mcp.process import MARK_VARIABLE, ServerProcess
from rove.mcp.sdk import Session
from rove.mcp.settings import ServerSettings
from rove.utils.processes import kill_marked

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    with open(sys.argv[1] + ".draft", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[1] + ".draft", sys.argv[1])
    time.sleep(600)
sys.stdin.read()
"""
"""A server that starts a daemon: a child process in another session, with another parent."""


class PagedSession:
    """A session of the SDK with a server that lists this many tools per page."""

    def __init__(self, per_page: int, pages: int):
        self.per_page, self.pages, self.requests = per_page, pages, 0

    async def list_tools(self, **_: Any) -> Any:
        self.requests += 1
        first = self.requests * self.per_page
        tools = [{"name": f"tool{i}", "inputSchema": {"type": "object"}} for i in range(first, first + self.per_page)]
        cursor = {"nextCursor": str(self.requests)} if self.requests < self.pages else {}
        return SimpleNamespace(tools=tools, model_dump=lambda **_: {"tools": tools, **cursor})


@pytest.mark.parametrize(("per_page", "pages"), [(20_000, 1), (100, 200), (100, 10**9)])
async def test_too_many_tools_are_an_error(per_page: int, pages: int):
    listing = PagedSession(per_page, pages)
    with pytest.raises(MCPServerError, match=r"'shop' lists more than 2,000 tools; expected at most 2,000: start it"):
        await Session(listing, name="shop").tools()
    assert listing.requests <= sdk.MAX_TOOLS // listing.per_page + 1


async def test_pages_of_tools_up_to_the_limit_are_read():
    assert len(await Session(PagedSession(100, 20), name="shop").tools()) == sdk.MAX_TOOLS == 2000


class ComparedName(str):
    """A tool name that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        ComparedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_adding_tools_does_not_compare_each_with_each(monkeypatch: pytest.MonkeyPatch):
    env = vf.MCPEnv(
        mcp_servers=[{"name": "shop", "command": "none"}], dataset=[{"prompt": "a", "answer": "b"}], parser=vf.Parser()
    )
    make = env._as_tool

    def counted(server: ServerSettings, listed: Any) -> Any:
        _, tool = make(server, listed)
        return server, dataclasses.replace(tool, name=ComparedName(tool.name))

    monkeypatch.setattr(env, "_as_tool", counted)
    monkeypatch.setattr(env.tool_monitor_rubric, "add_tool_metric", lambda name: None)
    names = [f"tool{i}" for i in range(300)]
    env._add_server_tools({"shop": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
    assert [tool["function"]["name"] for tool in env.tool_defs] == names
    assert ComparedName.comparisons < 20 * len(names)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def daemon_of(folder: Path) -> tuple[ServerProcess, int]:
    """Start a server that starts a daemon; return its process and the daemon's id."""
    program, file = folder / "daemon.py", folder / "pid"
    program.write_text(DAEMON)
    settings = ServerSettings(name="shop", command=sys.executable, args=[str(program), str(file)])
    process = await ServerProcess.start(settings, dict(os.environ), lambda line: line, lambda message: message)
    while not file.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process, int(file.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found through /proc")
@pytest.mark.parametrize("ending", ["end", "kill"])
async def test_a_daemon_ends_with_its_server(ending: str, tmp_path: Path):
    process, daemon = await daemon_of(tmp_path)
    assert is_running(daemon)
    if ending == "end":
        await process.end()
    else:
        process.kill()
    while is_running(daemon):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await process.end()


@pytest.mark.skipif(sys.platform != "linux", reason="marked processes are found through /proc")
async def test_only_processes_with_the_mark_are_killed():
    async def start(mark: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "sleep", "600", env={"PATH": os.environ["PATH"], MARK_VARIABLE: mark}
        )

    marked, unmarked = await start("a1"), await start("a12")
    assert kill_marked(MARK_VARIABLE, "a1") == 1
    assert await marked.wait() < 0
    assert unmarked.returncode is None
    unmarked.kill()
    await unmarked.wait()
    assert kill_marked(MARK_VARIABLE, "no such mark") == 0
