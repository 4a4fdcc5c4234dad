"""Tests of MCPEnv: tools of real servers (commands, HTTP, in process), server failures, and process cleanup."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_server
import pytest
from tiers import first_quick, some_broad
from toy_envs import correct, generate_sync, rows, scripted_client

import rove as vf
from rove.mcp import ServerSettings
from rove.mcp.servers import Connection
from tests.envs.test_tool import call, calls, replies_in_order, run_replies, tool_results

SERVER = str(Path(mcp_server.__file__))
ODD_SERVER = str(Path(mcp_server.__file__).with_name("odd_mcp_server.py"))
MUTE_COMMAND = "echo waiting for a database >&2; cat > /dev/null"
ENV = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def command(*args: str, **fields: Any) -> dict[str, Any]:
    """Return the settings of the test server as a command, in the format of verifiers v0."""
    settings = {"name": "test", "command": sys.executable, "args": [SERVER, *(args or ("stdio",))], "env": ENV}
    return {**settings, "description": "for people", **fields}


def in_process_server(**fields: Any) -> dict[str, Any]:
    return {"name": "test", "server": mcp_server.make_server, **fields}


def env_of(*servers: Any, **options: Any) -> vf.MCPEnv:
    return vf.MCPEnv(**{"mcp_servers": list(servers or (in_process_server(),)), "dataset": rows(1), **options})


def descendant_commands(pid: int) -> list[str]:
    """Return the command lines of all descendants of a process, without zombies."""
    parents: dict[int, tuple[int, str, str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat_fields = stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        parents[int(stat.parent.name)] = (int(stat_fields[1]), stat_fields[0], words)

    def is_below(process_id: int) -> bool:
        while process_id in parents:
            process_id = parents[process_id][0]
            if process_id == pid:
                return True
        return False

    return [words for process_id, (_, kind, words) in parents.items() if kind != "Z" and is_below(process_id)]


def servers_left() -> list[str]:
    return [words for words in descendant_commands(os.getpid()) if SERVER in words]


def exits_soon(pid: int) -> bool:
    """Return whether a process exits within 20 seconds; a busy machine may need several."""
    for _ in range(2000):
        if not is_alive(pid):
            return True
        time.sleep(0.01)
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def no_server_left() -> Iterator[None]:
    yield
    assert servers_left() == []


def start_http(port: int) -> subprocess.Popen[bytes]:
    """Start the test server over HTTP in a process and wait until it listens."""
    process = subprocess.Popen([sys.executable, SERVER, "http", str(port)], env={**os.environ, **ENV})
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            time.sleep(0.05)
    process.kill()
    raise AssertionError("the server does not listen")


def stop_http(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def http() -> Iterator[dict[str, Any]]:
    """Start the test server over HTTP and return its settings."""
    port = free_port()
    process = start_http(port)
    yield {"name": "test", "url": f"http://127.0.0.1:{port}/mcp", "headers": {"x-who": "rove"}}
    stop_http(process)


@pytest.fixture(params=first_quick(["object", "factory", "command", "http"], 2))
def any_server(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of the test server for each kind of connection."""
    if request.param == "http":
        return request.getfixturevalue("http")
    if request.param == "object":
        return {"name": "test", "server": mcp_server.make_server()}
    return command() if request.param == "command" else in_process_server()


def test_a_rollout_uses_the_tools_of_a_server(any_server: dict[str, Any]) -> None:
    env = env_of(any_server, rubric=vf.Rubric([correct]))
    assert env.tool_defs == []
    tool_calls = [call("add", {"a": 1, "b": 2}, "1"), call("fail", {}, "2"), call("add", {"a": "x", "b": 1}, "3")]
    record = run_replies(env, calls(*tool_calls), "0")
    assert record.error is None, record.error
    first, failed, wrong = tool_results(record)
    assert (first, record.reward, record.stop_condition) == ("3", 1.0, "no_tools_called")
    assert "the shop is closed" in failed and "int" in wrong
    assert record.scores is not None
    assert (record.scores.metrics["add_calls"], record.scores.metrics["fail_calls"]) == (2, 1)
    assert record.tools == env.tool_defs
    functions = {tool["function"]["name"]: tool["function"] for tool in env.tool_defs}
    assert functions["add"]["description"] == "Add two numbers."
    assert functions["add"]["parameters"]["required"] == ["a", "b"]


def test_the_model_is_shown_the_tools_before_its_first_turn() -> None:
    tool_names: list[Any] = []

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        tool_names.append([tool["function"]["name"] for tool in state["tools"]])
        return "done"

    generate_sync(env_of(in_process_server(include=["add", "count"], exclude=["count"])), scripted_client(policy))
    assert tool_names == [["add"]]


def test_images_become_content_parts_and_long_texts_are_truncated() -> None:
    env = env_of(in_process_server(), max_chars=10)
    parts, long = tool_results(run_replies(env, calls(call("show"), call("long", {"chars": 25}, "2"))))
    assert parts == [
        {"type": "text", "text": "a pixel"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{mcp_server.PIXEL}"}},
    ]
    assert long == "x" * 10 + "\n… 15 more characters"


@pytest.mark.slow
def test_results_of_several_megabytes_are_received() -> None:
    env = env_of(command(), max_chars=10_000_000)
    [long] = tool_results(run_replies(env, calls(call("long", {"chars": 3_000_000}))))
    assert len(long) == 3_000_000


@pytest.mark.broad
def test_a_command_gets_its_env_variables_but_no_inherited_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-1")
    env = env_of(command(env={**ENV, "CITY": "Rome"}))
    tool_calls = [call("see", {"name": name}, name) for name in ("CITY", "SECRET_API_KEY")]
    assert tool_results(run_replies(env, calls(*tool_calls))) == ["Rome", "not set"]


def test_stop_errors_end_the_rollout() -> None:
    error = run_replies(env_of(stop_errors=[vf.ToolCallError]), calls(call("fail"))).error
    assert error is not None
    assert (error.phase, error.type) == ("tool fail", "ToolCallError") and "the shop is closed" in error.message


def test_functions_and_server_tools_can_be_combined() -> None:
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    env = env_of(tools=[double])
    assert tool_results(run_replies(env, calls(call("double", {"n": 2}), call("add", {"a": 1, "b": 1}, "2")))) == [
        "4",
        "2",
    ]


def test_two_servers_with_the_same_tool_need_a_prefix() -> None:
    error = run_replies(env_of(in_process_server(), in_process_server(name="other")), "x").error
    assert error is not None and (error.type, error.phase) == ("ConfigError", "mcp servers")
    expected = "'other' and server 'test' both have a tool 'add'; give the server a prefix (prefix='other_')"
    assert expected in error.message
    env = env_of(in_process_server(), in_process_server(name="other", prefix="other.", include=["add", "count"]))
    tool_calls = [call("count", {}, "1"), call("count", {}, "2"), call("other_count", {}, "3")]
    answers = tool_results(run_replies(env, calls(*tool_calls)))
    assert sorted(answer.split()[0] for answer in answers) == ["1", "1", "2"]


@pytest.mark.parametrize(
    ("oddity", "tools"),
    [
        ("pages", ["t0", "t1", "t2"]),
        ("empty page that names itself", ["t0"]),
        ("text on stdout", ["t0"]),
        ("definitions", ["t0"]),
        ("odd names", ["a_b", "c_d"]),
    ],
)
def test_a_list_of_tools_in_an_unusual_form_is_read(oddity: str, tools: list[str]) -> None:
    record = run_replies(env_of(command(name="odd", args=[ODD_SERVER, oddity])), calls(call(tools[-1], {})))
    assert record.error is None
    assert [tool["function"]["name"] for tool in record.tools or ()] == tools
    assert tool_results(record) == ["done"]


@pytest.mark.parametrize(
    ("oddity", "kind", "message"),
    [
        (
            "page that names itself",
            "MCPServerError",
            "'odd' names the page 'again' of its tools again; expected another",
        ),
        ("same name twice", "ConfigError", "'odd' lists the tool 't0' twice; expected one tool of each name"),
        pytest.param(
            "no type",
            "MCPServerError",
            "'odd' lists its tools in another form than the protocol's: tools.0.inputSchema",
            marks=pytest.mark.skipif(not mcp_server.IS_SDK_2, reason="SDKs before mcp 2 read a schema without a type"),
        ),
    ],
)
def test_an_unusable_list_of_tools_is_explained(oddity: str, kind: str, message: str) -> None:
    error = run_replies(env_of(command(name="odd", args=[ODD_SERVER, oddity])), "x").error
    assert error is not None and error.type == kind
    assert message in error.message and "correct" in error.message


def test_tools_to_include_must_exist() -> None:
    error = run_replies(env_of(in_process_server(include=["ad"])), "x").error
    assert error is not None and "MCP server 'test' has no tool 'ad' to include; did you mean 'add'?" in error.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mcp_servers": []}, "mcp_servers is empty"),
        ({"mcp_servers": "npx server"}, "expected a list like"),
        ({"mcp_servers": [{"command": "x"}]}, "missing setting: name"),
        ({"mcp_servers": [{"name": "a"}]}, "'a' has none of them; expected one of command, url and server"),
        ({"mcp_servers": [{"name": "a", "command": "x", "url": "y"}]}, "has command and url"),
        ({"mcp_servers": [{"name": "a", "command": "x", "arg": []}]}, "did you mean 'args'"),
        ({"mcp_servers": [{"name": "a", "url": "x", "args": ["y"]}]}, "has args, which a url does not take"),
        ({"mcp_servers": [command(), command()]}, "two servers named 'test'"),
        ({"scope": "group"}, "scope is 'group'"),
        ({"call_timeout": 0}, "call_timeout is 0; expected a number, more than 0"),
        ({"scope": "rollout", "mcp_servers": [{"name": "a", "server": object()}]}, "pass a function that creates it"),
    ],
)
def test_invalid_arguments_are_reported_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message.replace("(", r"\(")):
        env_of(**options)


async def test_tools_can_be_listed_before_a_run(any_server: dict[str, Any]) -> None:
    env = env_of(any_server)
    identity_before = env.identity
    await env.connect()
    assert "add" in env.tool_map
    assert env.identity == identity_before  # otherwise a connected environment could not resume the run
    await env.tear_down()


@pytest.mark.slow
async def test_shared_servers_keep_their_state_and_rollouts_have_their_own() -> None:
    script = replies_in_order(calls(call("count")), calls(call("count")))
    shared = await vf.generate(env_of(command(), dataset=rows(3)), script)
    answers = [answer.split() for record in shared for answer in tool_results(record)]
    assert sorted(int(count) for count, _ in answers) == [1, 2, 3, 4, 5, 6]
    assert len({pid for _, pid in answers}) == 1
    own_records = await vf.generate(env_of(command(), dataset=rows(3), scope="rollout", max_servers=2), script)
    assert [[answer.split()[0] for answer in tool_results(record)] for record in own_records] == [["1", "2"]] * 3
    assert len({answer.split()[1] for record in own_records for answer in tool_results(record)}) == 3


async def test_a_factory_creates_a_server_per_rollout() -> None:
    env = env_of(in_process_server(), dataset=rows(3), scope="rollout")
    await env.connect()
    records = await vf.generate(env, replies_in_order(calls(call("count"))))
    assert [tool_results(record)[0].split()[0] for record in records] == ["1"] * 3


@pytest.mark.slow
def test_an_environment_can_be_used_on_several_event_loops_in_turn() -> None:
    env = env_of(command())
    asyncio.run(env.connect())  # closes its event loop without disconnecting
    assert tool_results(run_replies(env, calls(call("count"))))[0].startswith("1 ")
    assert tool_results(run_replies(env, calls(call("count"))))[0].startswith("1 ")


def test_an_mcp_environment_works_as_a_group_member() -> None:
    group = vf.EnvGroup([env_of(), vf.ToolEnv(tools=[], dataset=rows(1))], env_names=["mcp", "plain"])
    records = generate_sync(
        group, scripted_client(lambda m, state, rng: "x" if state["trajectory"] or not state["tools"] else ADD)
    )
    assert [tool_results(record) for record in records] == [["3"], []]


ADD = calls(call("add", {"a": 1, "b": 2}))

# Servers that fail


def test_a_slow_call_is_reported_to_the_model(any_server: dict[str, Any]) -> None:
    env = env_of(any_server, call_timeout=3.0)
    slow, quick = tool_results(
        run_replies(env, calls(call("wait", {"seconds": 60}, "1"), call("add", {"a": 1, "b": 1}, "2")))
    )
    assert (slow, quick) == ("wait has not returned within 3 s", "2")


@pytest.mark.broad
def test_a_shared_server_that_exits_is_restarted_at_the_next_call() -> None:
    script = scripted_client(
        lambda m, state, rng: calls(call("die")) if state["answer"] == "0" else ADD if len(m) < 3 else "done"
    )
    env = env_of(command(), dataset=rows(3))
    first, *later_records = generate_sync(env, script, max_concurrent=1)
    assert first.error is not None
    assert (first.error.type, first.error.phase) == ("MCPServerError", "tool die")
    assert "MCP server 'test' ended during the call" in first.error.message
    assert "exit code 3" in first.error.message and "something terrible happened" in first.error.message
    assert [tool_results(record) for record in later_records] == [["3"], ["3"]]


@pytest.mark.slow
def test_restarts_are_bounded() -> None:
    env = env_of(command(), dataset=rows(4), max_restarts=1)
    records = generate_sync(env, replies_in_order(calls(call("die"))), max_concurrent=1)
    errors = [record.error.message for record in records if record.error is not None]
    assert len(errors) == 4
    assert ["ended during the call" in error for error in errors] == [True, True, False, False]
    assert "is not restarted: 1 consecutive restarts failed" in errors[-1]


@pytest.mark.slow
def test_a_rollout_fails_if_its_own_server_exits() -> None:
    record = run_replies(
        env_of(command(), scope="rollout"), calls(call("die"), call("wait", {"seconds": 30}, "2")), ADD
    )
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("MCPServerError", "tool die")


@pytest.mark.broad
def test_calls_in_flight_fail_when_the_server_exits() -> None:
    started = time.monotonic()
    record = run_replies(env_of(command()), calls(call("wait", {"seconds": 50}, "1"), call("die", {}, "2")))
    assert record.error is not None and record.error.type == "MCPServerError"
    assert time.monotonic() - started < 40


@pytest.mark.slow
def test_an_http_server_that_stops_and_returns_is_reconnected() -> None:
    port = free_port()
    servers = [start_http(port)]

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        turn = len(state["trajectory"])
        if state["answer"] == "0" and turn == 1:
            stop_http(servers.pop())
        if state["answer"] == "1" and turn == 0:
            servers.append(start_http(port))
        return ADD if turn < 2 else "done"

    env = env_of({"name": "far", "url": f"http://127.0.0.1:{port}/mcp"}, dataset=rows(2), call_timeout=20)
    try:
        first, second = generate_sync(env, scripted_client(policy), max_concurrent=1)
    finally:
        for server in servers:
            stop_http(server)
    assert first.error is not None and tool_results(first) == ["3"]
    assert (first.error.type, first.error.phase) == ("MCPServerError", "tool add")
    assert "MCP server 'far' ended during the call" in first.error.message
    assert (second.error, tool_results(second)) == (None, ["3", "3"])


@pytest.mark.parametrize("scope", ["shared", "rollout"])
@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"name": "a", "command": "no-such-program"}, "MCP server 'a' cannot be started: .*No such file"),
        ({"name": "a", "command": sys.executable, "args": ["-c", "import no_such"]}, "exit code 1.*no_such"),
        ({"name": "a", "command": "true"}, "MCP server 'a' could not be started"),
        pytest.param(
            {"name": "a", "command": "yes"},
            "has not listed its tools within 2 s; its last lines:\n  y",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"name": "a", "command": "sh", "args": ["-c", MUTE_COMMAND]},
            "has not listed its tools within 2 s; its last lines:\n  waiting for a database",
            marks=pytest.mark.slow,
        ),
        ({"name": "a", "url": "http://127.0.0.1:9/mcp"}, "MCP server 'a' could not be started"),
    ],
    ids=["missing", "crash", "true", "yes", "mute", "http"],
)
def test_a_server_that_does_not_start_is_reported(server: dict[str, Any], message: str, scope: str) -> None:
    env = env_of(server, scope=scope, start_timeout=2 if "within" in message else 30)
    error = run_replies(env, "x").error
    assert error is not None
    assert (error.type, error.phase) == ("MCPServerError", "mcp servers")
    assert re.search(message, error.message, re.DOTALL), error.message


@pytest.mark.slow
def test_a_failing_server_stops_the_other_servers_and_has_a_limited_number_of_restarts() -> None:
    env = env_of(command(), {"name": "bad", "command": "false"}, dataset=rows(5), max_restarts=1)
    errors = [record.error.message for record in generate_sync(env, scripted_client("x")) if record.error is not None]
    assert len(errors) == 5 and sum("tried 2 times" in error for error in errors) == 3


# Process cleanup


@pytest.mark.slow
def test_child_processes_of_a_server_are_killed_with_it() -> None:
    for scope in ("shared", "rollout"):
        [pid] = tool_results(run_replies(env_of(command(), scope=scope), calls(call("spawn"))))
        assert exits_soon(int(pid))


@pytest.mark.broad
def test_a_server_that_ignores_termination_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rove.mcp.process.CLOSE_TIMEOUT_S", 0.2)
    pid = tool_results(run_replies(env_of(command("stubborn")), calls(call("count"))))[0].split()[1]
    assert exits_soon(int(pid))


@pytest.mark.parametrize("scope", some_broad(["shared", "rollout"], 2))
async def test_no_server_is_left_after_a_cancellation(scope: str) -> None:
    env = env_of(command(), dataset=rows(4), scope=scope)
    reached = asyncio.Event()

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        reached.set()
        return calls(call("wait", {"seconds": 60}), call("spawn", {}, "2"))

    run = asyncio.ensure_future(vf.generate(env, scripted_client(policy)))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert servers_left() == []


@pytest.mark.broad
async def test_no_server_is_left_after_a_cancelled_start() -> None:
    connection = Connection(ServerSettings(**command("mute")), 60, 60)
    opening = asyncio.create_task(connection.open())
    while not servers_left():  # noqa: ASYNC110  a process start has no event to await
        await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert servers_left() == []


@pytest.mark.slow
def test_no_server_is_left_after_a_rollout_timeout() -> None:
    record = run_replies(env_of(command(), scope="rollout", timeout_seconds=8), calls(call("wait", {"seconds": 60})))
    assert record.stop_condition == "timeout_reached"


SCRIPT = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test that runs in the background inherits that it is ignored
sys.path.insert(0, {tests!r})
from tests.envs.test_mcp import *
script = scripted_client(lambda m, state, rng: calls(call("spawn"), call("wait", {{"seconds": 60}}, "2")))
env = env_of(command(), scope={scope!r}, dataset=rows(2))
async def main():
    asyncio.get_running_loop().call_later(0.2, report_when_ready)
    await vf.generate(env, script)
def report_when_ready():
    if sum("sleep" in words for words in descendant_commands(os.getpid())) < {sleeping}:
        asyncio.get_running_loop().call_later(0.1, report_when_ready)
    elif {exits}:
        raise SystemExit(7)
    else:
        print("ready", flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize(("scope", "sleeping"), [("shared", 2), ("rollout", 2)])
def test_no_server_is_left_after_ctrl_c_or_exit(scope: str, sleeping: int, exits: bool) -> None:
    code = SCRIPT.format(tests=str(Path(__file__).parents[1] / "support"), scope=scope, sleeping=sleeping, exits=exits)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **ENV}
    )
    assert process.stdout is not None
    if not exits:
        assert process.stdout.readline() == b"ready\n", process.communicate()
        command_lines = descendant_commands(process.pid)
        assert any("sleep" in words for words in command_lines)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    running = [
        p for p in Path("/proc").glob("[0-9]*") if SERVER.encode() in command_line(p) and not exits_soon(int(p.name))
    ]
    assert running == []


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


# Concurrency


@pytest.mark.slow
@pytest.mark.parametrize("way", ["command", "http"])
async def test_two_hundred_concurrent_rollouts_share_a_server(way: str, request: pytest.FixtureRequest) -> None:
    server = command() if way == "command" else request.getfixturevalue("http")
    env = env_of(server, dataset=rows(200))
    first_calls = calls(call("wait", {"seconds": 0.2}, "1"), call("add", {"a": 1, "b": 2}, "2"))
    records = await vf.generate(env, replies_in_order(first_calls, calls(call("count"))), max_concurrent=200)
    assert [record.error for record in records] == [None] * 200
    assert all(tool_results(record)[:2] == ["waited", "3"] for record in records)
    assert sorted(int(tool_results(record)[2].split()[0]) for record in records) == list(range(1, 201))


@pytest.mark.slow
async def test_max_servers_limits_the_servers_of_concurrent_rollouts() -> None:
    env = env_of(command(), dataset=rows(12), scope="rollout", max_servers=4)
    most = 0

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        nonlocal most
        most = max(most, len(servers_left()))
        return "done" if state["trajectory"] else calls(call("count"))

    records = await vf.generate(env, scripted_client(policy), max_concurrent=12)
    assert [tool_results(record)[0].split()[0] for record in records] == ["1"] * 12
    assert 1 <= most <= 4


@pytest.mark.slow
@pytest.mark.skipif(not mcp_server.IS_SDK_2, reason="the benchmark's server is written for mcp 2")
def test_the_benchmark_runs_and_leaves_no_process():
    script = Path(__file__).resolve().parents[2] / "benchmarks/mcp_tools.py"
    arguments = ["--rollouts", "5", "--calls", "2", "--rounds", "1"]
    process = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)
    assert process.stdout.count("left behind: nothing\n") == 2, process.stdout
