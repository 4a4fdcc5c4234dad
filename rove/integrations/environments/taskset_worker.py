"""What the worker of a `TasksetEnv` does: verifiers v1 plays and scores episodes of a taskset, many at once. Knows no rove."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
import traceback
from contextlib import suppress
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from verifiers import __version__  # pyright: ignore[reportMissingImports,reportAttributeAccessIssue]
from verifiers.v1.configs.env import default_agent_harness  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.null.harness import NullHarness  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE  # pyright: ignore[reportMissingImports]

LENGTH = struct.Struct("<I")
KEPT = 8000
"""Characters of a traceback."""
CANCEL_SECONDS = 10.0
"""For an episode that is not wanted any more to free what it holds."""
NO_KEY = "ROVE_NO_KEY"
"""Name of an environment variable that nobody sets: the key is in the URL."""


class Loaded:
    """The environment of this process, which of its agents the model plays, and its tasks: to train on, and to evaluate on."""

    env: Any
    agent: str
    tasks: dict[bool, list[Any]]


def setup(
    taskset: dict[str, Any],
    eval_taskset: dict[str, Any] | None,
    env: dict[str, Any],
    select: dict[str, Any],
    agent: str | None,
    timeout_seconds: float | None,
) -> dict[str, Any]:
    """Load the taskset and all of its tasks; what the owner must know of them."""
    settings = {**env, "taskset": taskset}
    kind = vf.env_config_type(taskset["id"], env.get("id", ""))
    roles = {
        name: field.default for name, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)
    }
    given = {name: dict(settings.get(name) or {}) for name in roles}
    Loaded.agent = _agent(roles, given, agent)
    served = [name for name in roles if name != Loaded.agent and not _has_model(roles[name], given[name])]
    for name, default in roles.items():
        settings[name] = _placed(default, given[name], taskset["id"])
        if name in served:
            settings[name]["model"] = name  # which tells its requests from those of the agent
    if timeout_seconds is not None:
        settings[Loaded.agent]["timeout"] = {"rollout": timeout_seconds, **given[Loaded.agent].get("timeout", {})}
    Loaded.env = vf.load_environment(vf.resolve_env_config(settings))
    _no_retries(Loaded.env.config, list(roles))
    views = [Loaded.env.taskset]
    if eval_taskset is not None:
        views.append(vf.load_taskset(vf.taskset_config_type(taskset["id"])(**{**taskset, **eval_taskset})))
    selected = [view.select(vf.SelectConfig(**select)) for view in views]
    if not all(view.bounded for view in selected):
        raise ValueError(f"the taskset '{taskset['id']}' never ends; say how many of its tasks with num_examples=")
    loaded = [list(view) for view in selected]
    if not all(loaded):
        raise ValueError(f"the taskset '{taskset['id']}' has no tasks with these settings")
    Loaded.tasks = {True: loaded[0], False: loaded[-1]}
    return {
        "agent": Loaded.agent,
        "model_roles": served,
        "count": {"train": len(loaded[0]), "eval": len(loaded[-1])},
        "names": [hook.__name__ for kind in ("reward", "metric") for hook in loaded[0][0].hooks(kind)],
        "file": sys.modules[type(Loaded.env.taskset).__module__].__file__,
        "version": __version__,
    }


def serve(connection: socket.socket, module: Any) -> None:
    """Answer calls, many at once, until the other end is gone."""
    asyncio.run(_RpcServer().serve(connection))


class _RpcServer:
    """Episodes by number, and the conversation about them."""

    def __init__(self) -> None:
        self.traces: dict[int, list[Any]] = {}
        self.plays: dict[int, asyncio.Task[Any]] = {}
        self.replies: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self.ready, self.over, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(self, connection: socket.socket) -> None:
        """Answer, with what the environment shares between episodes at hand until `tear_down`."""
        reader, self.writer = await asyncio.open_connection(sock=connection)
        reading = asyncio.create_task(self._read(reader))
        over = asyncio.create_task(self.over.wait())
        try:
            async with Loaded.env.serving():
                # Each episode has an endpoint of its own, and so a client, which a server that all share would keep.
                Loaded.env._interception = None
                self.ready.set()
                await asyncio.wait([reading, over], return_when=asyncio.FIRST_COMPLETED)
        except Exception as error:
            self.failure = error
        over.cancel()
        self.ready.set()
        self.left.set()
        await reading

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                frame = json.loads(await reader.readexactly(size))
            except (EOFError, OSError):
                return
            task = asyncio.create_task(self._reply(frame["id"], frame["call"], frame["args"]))
            self.replies.add(task)
            task.add_done_callback(self.replies.discard)

    async def _reply(self, number: int, name: str, args: dict[str, Any]) -> None:
        try:
            body = _encoded({"id": number, "result": await getattr(self, name)(**args)})
        except Exception as error:
            body = _encoded({"id": number, "error": described(error)})
        self.writer.write(LENGTH.pack(len(body)) + body)
        await self.writer.drain()

    async def ping(self) -> None:
        """Nothing but a sign of life."""

    async def tear_down(self) -> None:
        """Let go of what the episodes share."""
        self.over.set()
        await self.left.wait()

    async def rows(self, train: bool, start: int, stop: int) -> list[dict[str, Any]]:
        """Some of the tasks as rows."""
        return [_row(task, place) for place, task in enumerate(Loaded.tasks[train][start:stop], start)]

    async def play(self, number: int, train: bool, place: int, key: str, base_url: str) -> dict[str, Any]:
        """Play and score an episode, whose models are asked for at an address; what is to be known of it."""
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        task = Loaded.tasks[train][place]
        if task.key != key:
            raise ValueError(
                f"task {place} of the taskset is another one than when its rows were read: is load() random?"
            )
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=NO_KEY)
        context = vf.ModelContext(model="rove", client=client)
        traces = self.traces[number] = []
        playing = Loaded.env.run_episode(task, context, on_trace=traces.append, on_discard=traces.remove)
        self.plays[number] = asyncio.create_task(playing)
        try:
            return _told(await self.plays[number])
        finally:
            del self.traces[number], self.plays[number]

    async def stop(self, number: int, condition: str) -> None:
        """Let the agent's part of an episode end here: it is scored as it stands."""
        for trace in self.traces.get(number, ()):
            if trace.agent.name == Loaded.agent:
                trace.stop(condition)

    async def cancel(self, number: int) -> None:
        """End an episode that is not wanted any more."""
        playing = self.plays.get(number)
        if playing is not None:
            playing.cancel()
            await asyncio.wait([playing], timeout=CANCEL_SECONDS)


def _agent(roles: dict[str, Any], given: dict[str, Any], chosen: str | None) -> str:
    """The role that the model plays."""
    unset = [name for name in roles if not _has_model(roles[name], given[name])]
    if chosen is None and len(unset) != 1:
        raise ValueError(
            f"{len(roles)} agents play in this environment ({', '.join(roles)}); say with agent= which of them the model is"
        )
    agent = chosen or unset[0]
    if agent not in roles:
        raise ValueError(f"this environment has no agent '{agent}'; expected one of {', '.join(roles)}")
    return agent


def _has_model(default: Any, given: dict[str, Any]) -> bool:
    return any(given.get(name) or getattr(default, name) for name in ("model", "client"))


def _placed(default: Any, given: dict[str, Any], taskset_id: str) -> dict[str, Any]:
    """The settings of a role, on this machine unless told otherwise, and without a shell unless one is asked for."""
    if isinstance(default.runtime, vf.PrimeConfig):
        given.setdefault("runtime", {"type": "subprocess"})
    if default.harness is None and default_agent_harness(taskset_id).id == "bash":
        given.setdefault("harness", {"id": "null"})
    return given


def _no_retries(config: Any, roles: list[str]) -> None:
    for owner in (config, *(getattr(config, name) for name in roles)):
        if owner.retries.max_retries:
            raise ValueError("retries would put the steps of several attempts into one rollout; leave them to rove")


def _row(task: Any, place: int) -> dict[str, Any]:
    data = task.data
    prompt = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else []
    if isinstance(data.prompt, list):
        prompt = [message_to_wire(message) for message in data.prompt]
    if data.system_prompt is not None:
        prompt = [{"role": "system", "content": data.system_prompt}, *prompt]
    if not prompt:
        prompt = [{"role": "user", "content": data.description or data.name or "(the user opens the conversation)"}]
    rest = data.model_dump(mode="json", exclude_defaults=True, exclude={"prompt", "system_prompt"})
    answer = rest.get("answer", "")
    return {
        "prompt": prompt,
        "answer": answer if isinstance(answer, str) else json.dumps(answer),
        "info": {"place": place, "key": task.key, "task": rest},
    }


def _told(episode: Any) -> dict[str, Any]:
    """What the agent's trace says, if all went well."""
    traces = [trace for trace in episode.traces if trace.agent.name == Loaded.agent]
    if not Loaded.env.complete(episode):
        errors = [*episode.errors, *(error for trace in (*traces, *episode.traces) for error in trace.errors)]
        if not errors:
            raise ValueError("the environment says that this episode is not complete, and not why")
        error = errors[0]
        return {"error": {"type": error.type, "message": error.message, "traceback": (error.traceback or "")[-KEPT:]}}
    if len(traces) != 1:
        raise ValueError(
            f"'{Loaded.agent}' played {len(traces)} times in this episode; a rollout has one reward, so it must play once"
        )
    [trace] = traces
    missing = [name for name, value in (*trace.rewards.items(), *trace.metrics.items()) if value is None]
    if missing:
        raise ValueError(f"the taskset has not scored {', '.join(missing)} ({trace.stop_condition})")
    return {
        "error": None,
        "stop_condition": trace.stop_condition,
        "is_truncated": trace.is_truncated,
        "reply": trace.last_reply,
        "rewards": {name: reward.score for name, reward in trace.rewards.items()},
        "weights": {name: reward.weight for name, reward in trace.rewards.items()},
        "metrics": dict(trace.metrics),
        "info": json.loads(json.dumps(trace.info, default=str)),
    }


async def _chat_here(
    self: Any,
    ctx: Any,
    trace: Any,
    runtime: Any,
    endpoint: str,
    secret: str,
    mcp_urls: dict[str, str],
    data: Any,
    tool_interception_url: str | None = None,
) -> Any:
    """`NullHarness.launch` in this process: its program is a conversation that runs nothing of the model's."""
    system_prompt, prompt = self.resolve_prompt(data)
    servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
    initial = None
    if isinstance(prompt, list):
        initial = f"{runtime.workdir}/.messages-{trace.id}.json"
        await runtime.write(initial, json.dumps([message_to_wire(message) for message in prompt]).encode())
    args = argparse.Namespace(
        base_url=endpoint,
        api_key=secret,
        model=ctx.model,
        system_prompt=system_prompt or "",
        prompt=prompt if isinstance(prompt, str) else "",
        initial_messages_file=initial or "",
        mcp_config=json.dumps({"mcpServers": servers}) if servers else "",
        tool_interception_url=tool_interception_url or "",
        bash=False,
        compaction=False,
        summarize_at_tokens=None,
        edit=False,
        search=False,
        serper_key="",
    )
    program: dict[str, Any] = {"__name__": "null_harness"}
    exec(_PROGRAM, program)
    program["parse_args"] = lambda: args
    try:
        await program["main"]()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        return vf.ProgramResult(code, "", traceback.format_exc())
    except Exception:
        return vf.ProgramResult(1, "", traceback.format_exc())
    return vf.ProgramResult(0, "", "")


_PROGRAM = compile(CHAT_PROGRAM_SOURCE, "null_harness", "exec")
_launched, _prepared = NullHarness.launch, NullHarness.setup


async def _launch(self: Any, ctx: Any, trace: Any, runtime: Any, *args: Any, **kwargs: Any) -> Any:
    launch = _chat_here if isinstance(runtime.config, vf.SubprocessConfig) else _launched
    return await launch(self, ctx, trace, runtime, *args, **kwargs)


async def _setup(self: Any, runtime: Any) -> None:
    if not isinstance(runtime.config, vf.SubprocessConfig):
        await _prepared(self, runtime)


NullHarness.launch, NullHarness.setup = _launch, _setup


def described(error: BaseException) -> dict[str, str]:
    """An exception as data."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text[-KEPT:]}


def _encoded(frame: dict[str, Any]) -> bytes:
    with suppress(ValueError):
        return json.dumps(frame, allow_nan=False).encode()
    said = "the taskset gave a score that is no finite number"
    return json.dumps({"id": frame["id"], "error": described(ValueError(said))}).encode()
