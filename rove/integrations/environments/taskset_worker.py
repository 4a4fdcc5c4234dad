"""Worker of `TasksetEnv`: verifiers v1 runs and scores episodes of a taskset, concurrently. It does not import rove."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
from contextlib import suppress
from traceback import format_exc, format_exception
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from verifiers import __version__  # pyright: ignore[reportMissingImports,reportAttributeAccessIssue]
from verifiers.v1.configs.env import default_agent_harness  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.null.harness import NullHarness  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE  # pyright: ignore[reportMissingImports]

LENGTH = struct.Struct("<I")
MAX_TRACEBACK_CHARS = 8000
CANCEL_TIMEOUT_S = 10.0
"""Time limit for releasing the resources of a canceled episode."""
NO_KEY = "ROVE_NO_KEY"
"""Name of an unset environment variable: the API key is in the URL."""


class Loaded:
    """The environment of this process, the agent that is the model, and the tasks by whether they are for training."""

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
    """Load the taskset and all of its tasks; return their description."""
    settings = {**env, "taskset": taskset}
    kind = vf.env_config_type(taskset["id"], env.get("id", ""))
    defaults = {name: field.default for name, field in kind.model_fields.items()}
    roles = {name: default for name, default in defaults.items() if isinstance(default, vf.AgentConfig)}
    overrides = {name: dict(settings.get(name) or {}) for name in roles}
    Loaded.agent = _model_agent(roles, overrides, agent)
    other_roles = [name for name in roles if name != Loaded.agent and not _has_model(roles[name], overrides[name])]
    for name, default in roles.items():
        settings[name] = _with_local_defaults(default, overrides[name], taskset["id"])
        if name in other_roles:
            settings[name]["model"] = name  # identifies its requests
    if timeout_seconds is not None:
        settings[Loaded.agent]["timeout"] = {"rollout": timeout_seconds, **overrides[Loaded.agent].get("timeout", {})}
    Loaded.env = vf.load_environment(vf.resolve_env_config(settings))
    _no_retries(Loaded.env.config, list(roles))
    views = [Loaded.env.taskset]
    if eval_taskset is not None:
        views.append(vf.load_taskset(vf.taskset_config_type(taskset["id"])(**{**taskset, **eval_taskset})))
    selected = [view.select(vf.SelectConfig(**select)) for view in views]
    if not all(view.bounded for view in selected):
        raise ValueError(f"the taskset '{taskset['id']}' is infinite; limit its tasks with num_examples=")
    loaded = [list(view) for view in selected]
    if not all(loaded):
        raise ValueError(f"the taskset '{taskset['id']}' has no tasks with these settings")
    Loaded.tasks = {True: loaded[0], False: loaded[-1]}
    return {
        "agent": Loaded.agent,
        "model_roles": other_roles,
        "count": {"train": len(loaded[0]), "eval": len(loaded[-1])},
        "names": [hook.__name__ for kind in ("reward", "metric") for hook in loaded[0][0].hooks(kind)],
        "file": sys.modules[type(Loaded.env.taskset).__module__].__file__,
        "version": __version__,
    }


def serve(connection: socket.socket, module: object) -> None:
    """Answer calls, concurrently, until the connection is closed."""
    asyncio.run(_RpcServer().serve(connection))


class _RpcServer:
    """Runs episodes, and answers calls about them."""

    def __init__(self) -> None:
        self.traces: dict[int, list[Any]] = {}
        self.episodes: dict[int, asyncio.Task[Any]] = {}
        self.replies: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self.ready, self.closing, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(self, connection: socket.socket) -> None:
        """Answer calls; resources that episodes share are available until `tear_down`."""
        reader, self.writer = await asyncio.open_connection(sock=connection)
        reading = asyncio.create_task(self._read(reader))
        closing = asyncio.create_task(self.closing.wait())
        try:
            async with Loaded.env.serving():
                # Each episode has its own endpoint and client; a shared interception server would reuse the first.
                Loaded.env._interception = None
                self.ready.set()
                await asyncio.wait([reading, closing], return_when=asyncio.FIRST_COMPLETED)
        except Exception as error:
            self.failure = error
        closing.cancel()
        self.ready.set()
        self.closed.set()
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

    async def _reply(self, number: int, name: str, args: dict[str, object]) -> None:
        try:
            body = _encode({"id": number, "result": await getattr(self, name)(**args)})
        except Exception as error:
            body = _encode({"id": number, "error": error_to_dict(error)})
        self.writer.write(LENGTH.pack(len(body)) + body)
        await self.writer.drain()

    async def ping(self) -> None:
        """Show that the worker responds."""

    async def tear_down(self) -> None:
        """Release the resources that episodes share."""
        self.closing.set()
        await self.closed.wait()

    async def rows(self, train: bool, start: int, stop: int) -> list[dict[str, Any]]:
        """Return some of the tasks as rows."""
        return [_row(task, place) for place, task in enumerate(Loaded.tasks[train][start:stop], start)]

    async def run_episode(self, number: int, train: bool, place: int, key: str, base_url: str) -> dict[str, object]:
        """Run and score an episode whose agents call models at `base_url`; return its result."""
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        task = Loaded.tasks[train][place]
        if task.key != key:
            raise ValueError(f"task {place} of the taskset is not the one of the row; make load() deterministic")
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=NO_KEY)
        context = vf.ModelContext(model="rove", client=client)
        traces = self.traces[number] = []
        episode = Loaded.env.run_episode(task, context, on_trace=traces.append, on_discard=traces.remove)
        self.episodes[number] = asyncio.create_task(episode)
        try:
            return _result_of(await self.episodes[number])
        finally:
            del self.traces[number], self.episodes[number]

    async def stop(self, number: int, condition: str) -> None:
        """End the agent's part of an episode, which is then scored as it is."""
        for trace in self.traces.get(number, ()):
            if trace.agent.name == Loaded.agent:
                trace.stop(condition)

    async def cancel(self, number: int) -> None:
        """Cancel an episode."""
        episode = self.episodes.get(number)
        if episode is not None:
            episode.cancel()
            await asyncio.wait([episode], timeout=CANCEL_TIMEOUT_S)


def _model_agent(roles: dict[str, Any], overrides: dict[str, Any], selected: str | None) -> str:
    """Return the role of the model."""
    unset = [name for name in roles if not _has_model(roles[name], overrides[name])]
    if selected is None and len(unset) != 1:
        raise ValueError(
            f"this environment has {len(roles)} agents ({', '.join(roles)}); select the model's with agent="
        )
    agent = selected or unset[0]
    if agent not in roles:
        raise ValueError(f"this environment has no agent '{agent}'; expected one of {', '.join(roles)}")
    return agent


def _has_model(default: object, overrides: dict[str, Any]) -> bool:
    return any(overrides.get(name) or getattr(default, name) for name in ("model", "client"))


def _with_local_defaults(default: Any, overrides: dict[str, Any], taskset_id: str) -> dict[str, object]:
    """Return the settings of a role: by default on this machine and without a shell."""
    if isinstance(default.runtime, vf.PrimeConfig):
        overrides.setdefault("runtime", {"type": "subprocess"})
    if default.harness is None and default_agent_harness(taskset_id).id == "bash":
        overrides.setdefault("harness", {"id": "null"})
    return overrides


def _no_retries(config: Any, roles: list[str]) -> None:
    for owner in (config, *(getattr(config, name) for name in roles)):
        if owner.retries.max_retries:
            raise ValueError("retries would record several attempts in one rollout; set max_retries to 0, rove retries")


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


def _result_of(episode: Any) -> dict[str, object]:
    """Return the agent's scores and stop condition, or the error of the episode."""
    traces = [trace for trace in episode.traces if trace.agent.name == Loaded.agent]
    if not Loaded.env.complete(episode):
        errors = [*episode.errors, *(error for trace in (*traces, *episode.traces) for error in trace.errors)]
        if not errors:
            raise ValueError("the environment reports an incomplete episode without a reason")
        trace = (errors[0].traceback or "")[-MAX_TRACEBACK_CHARS:]
        return {"error": {"type": errors[0].type, "message": errors[0].message, "traceback": trace}}
    if len(traces) != 1:
        raise ValueError(
            f"'{Loaded.agent}' ran {len(traces)} times in this episode; a rollout has one reward, so it must run once"
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


async def _chat_in_process(
    self: Any,
    ctx: Any,
    trace: Any,
    runtime: Any,
    endpoint: str,
    secret: str,
    mcp_urls: dict[str, str],
    data: Any,
    tool_interception_url: str | None = None,
) -> object:
    """Replace `NullHarness.launch`: run its program, which does not execute output of the model, in this process."""
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
        return vf.ProgramResult(code, "", format_exc())
    except Exception:
        return vf.ProgramResult(1, "", format_exc())
    return vf.ProgramResult(0, "", "")


_PROGRAM = compile(CHAT_PROGRAM_SOURCE, "null_harness", "exec")
_original_launch, _original_setup = NullHarness.launch, NullHarness.setup


async def _launch(self: Any, ctx: Any, trace: Any, runtime: Any, *args: Any, **kwargs: Any) -> object:
    launch = _chat_in_process if isinstance(runtime.config, vf.SubprocessConfig) else _original_launch
    return await launch(self, ctx, trace, runtime, *args, **kwargs)


async def _setup(self: Any, runtime: Any) -> None:
    if not isinstance(runtime.config, vf.SubprocessConfig):
        await _original_setup(self, runtime)


NullHarness.launch, NullHarness.setup = _launch, _setup


def error_to_dict(error: BaseException) -> dict[str, str]:
    """Return an exception in the form in which it is sent."""
    text = "".join(format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text[-MAX_TRACEBACK_CHARS:]}


def _encode(frame: dict[str, Any]) -> bytes:
    with suppress(ValueError):
        return json.dumps(frame, allow_nan=False).encode()
    message = "the taskset returned a score that is not a finite number"
    return json.dumps({"id": frame["id"], "error": error_to_dict(ValueError(message))}).encode()
