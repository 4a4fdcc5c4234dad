"""Faults around servers: `rove serve`, its clients, MCP servers, OpenEnv servers, and the kinds that need vLLM or Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from endpoint_faults import asynchronous
from run_faults import SUBJECTS, descendants
from trials import API_KEY, POLL_S, Process, Trial, fault, limit_files
from workshop import check_kept, check_no_invented_reward, finished_lines

import rove
from rove import Run

EXAMPLES = 8
START_TIMEOUT_S = 120.0
SERVE = ("serve", "-m", "scripted:repeats", "--env", "numbers", "-k", "OPENAI_API_KEY", "--name", "model", "--port")


class Server:
    """A rove command that serves at a URL; `restart` starts it again at the same address.

    Args:
        trial: The trial.
        words: The command; its last word is followed by the port.
        prepare: Called in the new process, for a fault.
    """

    def __init__(self, trial: Trial, words: tuple[str, ...], prepare: Any = None):
        self.trial, self.words = trial, words
        self.process, self.url = self._start("0", prepare)

    def _start(self, port: str, prepare: Any = None) -> tuple[Process, str]:
        process = self.trial.start((*self.words, port), prepare)
        end = time.monotonic() + START_TIMEOUT_S
        while not (match := re.search(r"http://[\d.:]+\S*", process.out.read_text() if process.out.exists() else "")):
            if process.poll() is not None or time.monotonic() > end:
                ended = process.wait(0.0)
                raise RuntimeError(f"no server: {ended and ended.text[-500:]}")
            time.sleep(POLL_S)
        return process, match.group().rstrip(",")

    @property
    def port(self) -> int:
        """The port."""
        match = re.search(r":(\d+)", self.url.removeprefix("http:"))
        assert match is not None
        return int(match[1])

    def kill(self) -> bool:
        """End the server as `kill -9` does; return whether it was running."""
        was_running = self.process.send(signal.SIGKILL)
        self.process.wait()
        return was_running

    def restart(self) -> None:
        """Start the server again."""
        self.process, self.url = self._start(str(self.port))


def questions() -> rove.Environment:
    """Return questions whose answer is the number in the question."""
    from endpoint_faults import correct

    rows = [{"question": f"Say {n}", "answer": f"<answer>{n}</answer>"} for n in range(EXAMPLES)]
    return rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric([correct]))


async def evaluate(url: str, run: Path, retries: int, concurrent: int = 2, on_record: Any = None) -> None:
    """Evaluate the model of a server in a run folder."""
    client = rove.OpenAIClient(url, api_key=API_KEY, timeout=20.0, max_retries=retries, backoff=0.02)
    try:
        await rove.evaluate(questions(), client, "model", run=str(run), max_concurrent=concurrent, on_record=on_record)
    finally:
        await client.close()


def check_complete(trial: Trial, run: Path, earlier: list[bytes]) -> None:
    """Check that every rollout has the reward of the right answer, once, and that none was lost."""
    check_no_invented_reward(trial, run)
    check_kept(trial, run, earlier)
    scored = [record for record in Run(run).rollouts() if record.scores]
    trial.require(all(record.reward == 1.0 for record in scored), "a wrong reward")
    keys = [record.example_key for record in scored]
    trial.require(len(keys) == len(set(keys)) == EXAMPLES, f"{len(keys)} rewards of {len(set(keys))} rollouts")


@fault("kill -9", "serve", 60, ("eval",))
def kill_server(trial: Trial) -> None:
    """Kill the server during an evaluation, start it again, and repeat the evaluation."""
    asyncio.run(_during_evaluation(trial, stop=False))


@fault("SIGSTOP and SIGCONT", "serve", 30, ("eval",))
def stop_server(trial: Trial) -> None:
    """Stop the server during an evaluation for a moment."""
    asyncio.run(_during_evaluation(trial, stop=True))


async def _during_evaluation(trial: Trial, stop: bool) -> None:
    SUBJECTS["eval"].set_up(trial)
    run, server = trial.folder / "run", Server(trial, SERVE)
    moment, records = trial.rng.randrange(EXAMPLES), 0

    async def disturb() -> None:
        if stop and server.process.send(signal.SIGSTOP):
            trial.injected(f"stopped after {moment} rollouts")
            await asyncio.sleep(trial.rng.uniform(0.0, 0.3))
            server.process.send(signal.SIGCONT)
        elif not stop and server.kill():
            trial.injected(f"killed after {moment} rollouts")

    disturbance: asyncio.Task[None] | None = None

    def count(record: Any) -> None:
        nonlocal records, disturbance
        records += 1
        if records == moment:
            disturbance = asyncio.get_running_loop().create_task(disturb())

    if moment == 0:
        await disturb()
    await evaluate(server.url, run, 1, on_record=count)
    if disturbance is not None:
        await disturbance
    check_no_invented_reward(trial, run)
    earlier = finished_lines(run)
    if not stop:
        server.kill()
        server.restart()
    await evaluate(server.url, run, 4)
    check_complete(trial, run, earlier)
    server.kill()


HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"


def bad_request(trial: Trial) -> tuple[str, bytes]:
    """Return a name and the bytes of a request that is wrong, or breaks off."""
    rng = trial.rng
    message = {"role": "user", "content": "Say 3"}
    body = json.dumps({"model": "model", "messages": [message], "stream": rng.random() < 0.5}).encode()
    head = (
        HEAD.format(key=API_KEY) + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    request = head + body
    bodies: list[Any] = [
        None,
        [],
        3,
        {},
        {"messages": 3},
        {"model": "other", "messages": [message]},
        {"messages": [[]]},
    ]
    bodies += [{"model": "model", "messages": [message], "max_tokens": value} for value in (-1, "x", 1e400)]
    wrong = json.dumps(rng.choice(bodies)).encode()
    kinds = {
        "a request that breaks off": request[: rng.randrange(1, len(request))],
        "a hang-up before the response": request,
        "no HTTP": rng.randbytes(rng.randrange(1, 300)),
        "no JSON": head + rng.randbytes(len(body)),
        "another body": head.replace(b"%d\r\n\r\n" % len(body), b"%d\r\n\r\n" % len(wrong)) + wrong,
        "long headers": head[:-2] + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n" + body,
        "no key": request.replace(API_KEY.encode(), b"sk-other"),
        "no length": head.replace(b"Content-Length", b"X-Length") + body,
        "two requests at once": request + request,
    }
    name = rng.choice(list(kinds))
    return name, kinds[name]


@fault("hang-ups and garbage of a client", "serve", 170, ("eval",))
def disturb_server(trial: Trial) -> None:
    """Send a wrong request, hang up in the middle of the response or stream, then evaluate."""
    SUBJECTS["eval"].set_up(trial)
    server = Server(trial, SERVE)
    for _ in range(3):
        name, content = bad_request(trial)
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            connection.settimeout(0.05)
            try:
                connection.sendall(content)
                connection.recv(trial.rng.choice((1, 40, 1000)))
            except OSError:
                pass  # the server may close the connection first, or wait for more
            if trial.rng.random() < 0.5:  # a reset instead of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        trial.injected(name)
    trial.require(server.process.poll() is None, "the server has ended")
    asyncio.run(evaluate(server.url, trial.folder / "run", 2))
    check_complete(trial, trial.folder / "run", [])
    server.process.send(signal.SIGINT)
    ended = trial.finish(server.process, SERVE)
    trial.require(ended.status == 0, f"Ctrl-C ended the server with {ended.status}: {ended.text[-500:]}")


@fault("few file descriptors", "serve", 40, ("eval",))
def few_files_of_server(trial: Trial) -> None:
    """Let a server open only a few more files, and use all of them; afterward, it serves again."""
    SUBJECTS["eval"].set_up(trial)
    extra_files = trial.rng.randint(6, 14)  # the event loop and the listening socket need some
    try:
        server = Server(trial, SERVE, lambda: limit_files(extra_files))
    except RuntimeError as error:
        trial.require("open files" in str(error), f"no reason: {error}")
        trial.injected(f"{extra_files} more files, too few to start")
        return
    connections = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(20)]
    trial.injected(f"20 connections, {extra_files} more files")
    time.sleep(0.05)
    for connection in connections:
        connection.close()
    run = trial.folder / "run"
    asyncio.run(evaluate(server.url, run, 4, concurrent=1))
    check_no_invented_reward(trial, run)
    earlier = finished_lines(run)
    asyncio.run(evaluate(server.url, run, 4, concurrent=1))
    check_complete(trial, run, earlier)
    server.kill()


# MCP

MCP_SERVER = '''
"""A server of the Model Context Protocol over stdio that adds two numbers, and fails as the file `fault` says, once."""

import json
import os
import sys

fault = ""
if os.path.exists("fault"):
    fault = open("fault").read()
    os.remove("fault")
kind, _, number = fault.partition(" ")
calls = 0
tool = {"name": "add", "description": "Add two numbers.", "inputSchema": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "sums", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [tool]}
    elif method == "tools/call":
        calls += 1
        total = params["arguments"]["a"] + params["arguments"]["b"]
        result = {"content": [{"type": "text", "text": str(total)}]}
    else:
        result = {}
    text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    if kind and (calls == int(number)):
        if kind == "half":
            sys.stdout.write(text[: len(text) // 2])
            sys.stdout.flush()
        if kind in ("die", "half"):
            os._exit(1)
        if kind == "garbage":
            print("this is no JSON {", flush=True)
        if kind == "twice":
            print(text, flush=True)
        kind = ""
    print(text, flush=True)
'''
MCP_FAULTS = ("die", "half", "garbage", "twice")


def sums(folder: Path) -> rove.Environment:
    """Return an environment in which the tool of an MCP server adds two numbers."""

    def adds(messages: Any, state: Any, rng: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        arguments = json.dumps({"a": int(state["answer"]) - 1, "b": 1})
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
        return rove.AssistantMessage(None, tool_calls=[call])

    def correct(completion: Any, answer: str) -> float:
        content = completion[-1]["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])
        return 1.0 if text == answer else 0.5

    server = {"name": "sums", "command": sys.executable, "args": [str(folder / "server.py")], "cwd": str(folder)}
    rows = [{"question": f"Add 1 to {n}", "answer": str(n + 1)} for n in range(EXAMPLES)]
    return rove.MCPEnv(
        mcp_servers=[server], dataset=rows, rubric=rove.Rubric([correct]), policies={"adds": adds}, call_timeout=5.0
    )


@fault(
    "loss of an MCP server",
    "eval",
    60,
    missing="" if importlib.util.find_spec("mcp") else "the package mcp is not installed",
)
@asynchronous
async def lose_mcp_server(trial: Trial) -> None:
    """Let an MCP server die, break off a line, or write garbage at some call; or kill it."""
    run = trial.folder / "run"
    (trial.folder / "server.py").write_text(MCP_SERVER)
    kind = trial.rng.choice((*MCP_FAULTS, "kill -9"))
    moment = trial.rng.randrange(EXAMPLES)
    if kind in MCP_FAULTS:
        (trial.folder / "fault").write_text(f"{kind} {moment}")
        trial.injected(f"{kind} at call {moment}")
    records = 0

    def count(record: Any) -> None:
        nonlocal records
        records += 1
        if kind == "kill -9" and records == max(1, moment):
            for pid in descendants(os.getpid()):
                os.kill(pid, signal.SIGKILL)
                trial.injected(f"killed after {records} rollouts")

    for on_record in (count, None):
        env = sums(trial.folder)
        client = rove.ScriptedClient(env.policies["adds"], "adds")
        earlier = finished_lines(run)
        try:
            await rove.evaluate(env, client, run=str(run), max_concurrent=2, on_record=on_record)
        except rove.Error as error:  # the server did not start
            trial.require(on_record is not None, f"the repeated evaluation failed: {error}")
        if run.exists():
            check_no_invented_reward(trial, run)
    check_complete(trial, run, earlier)


# OpenEnv


@fault("loss of an OpenEnv server", "eval", 50, ("eval",))
@asynchronous
async def lose_open_env_server(trial: Trial) -> None:
    """Kill `rove serve --openenv` during an evaluation, start it again, and repeat the evaluation."""
    SUBJECTS["eval"].set_up(trial)
    run = trial.folder / "run"
    server = Server(trial, ("serve", "--openenv", "numbers", "--max_sessions", "8", "--port"))
    moment, records = trial.rng.randint(1, EXAMPLES - 1), 0

    def count(record: Any) -> None:
        nonlocal records
        records += 1
        if records == moment and server.kill():
            trial.injected(f"killed after {records} rollouts")

    for on_record in (count, None):
        env = rove.OpenEnvEnv(server.url, num_eval_examples=EXAMPLES, max_turns=2, call_seconds=20.0)
        client = rove.ScriptedClient(lambda messages, state, rng: "<answer>3</answer>", "three")
        earlier = finished_lines(run)
        try:
            await rove.evaluate(env, client, run=str(run), max_concurrent=2, on_record=on_record)
        except rove.Error as error:
            trial.require(on_record is not None, f"the repeated evaluation failed: {error}")
        check_no_invented_reward(trial, run)
        if on_record is not None:
            server.kill()
            server.restart()
    check_kept(trial, run, earlier)
    scored = [record.example_key for record in Run(run).rollouts() if record.scores]
    trial.require(len(scored) == len(set(scored)) == EXAMPLES, f"{len(scored)} rewards of {len(set(scored))} rollouts")
    server.kill()


def _not_here(package: str, covered: str) -> str:
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    return f"it needs a cluster or a GPU: {covered} covers it"


@fault("loss of a vLLM server", "rl", 1, missing=_not_here("vllm", "tests/vllm"))
def lose_vllm_server(trial: Trial) -> None:
    """Not part of the campaign."""


@fault("loss of a Ray node", "eval", 1, missing=_not_here("ray", "benchmarks/ray_rollouts.py"))
def lose_ray_node(trial: Trial) -> None:
    """Not part of the campaign."""
