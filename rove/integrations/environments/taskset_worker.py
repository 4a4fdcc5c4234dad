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
"""Name of an environment variable that is not set, because the API key is in the URL."""


class Loaded:
    """The environment of this process, the agent that is the model, and the tasks for training and for evaluation."""

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
    config_type = vf.env_config_type(taskset["id"], env.get("id", ""))
    # An environment's agents are those fields of its settings that are agents' settings.
    defaults = {name: field.default for name, field in config_type.model_fields.items()}
    roles = {name: default for name, default in defaults.items() if isinstance(default, vf.AgentConfig)}
    overrides = {name: dict(settings.get(name) or {}) for name in roles}
    Loaded.agent = _model_agent(roles, overrides, agent)
    other_roles: list[str] = []
    for name, default in roles.items():
        is_recorded = not _has_model(default, overrides[name])  # another client's requests do not come to rove
        settings[name] = _with_local_defaults(default, overrides[name], taskset["id"])
        if name != Loaded.agent and is_recorded:
            other_roles.append(name)
            settings[name]["model"] = name  # identifies its requests
    if timeout_seconds is not None:
        settings[Loaded.agent]["timeout"] = {"rollout": timeout_seconds, **overrides[Loaded.agent].get("timeout", {})}
    Loaded.env = vf.load_environment(vf.resolve_env_config(settings))
    _no_retries(Loaded.env.config, list(roles))
    views = [Loaded.env.taskset]
    if eval_taskset is not None:
        taskset_type = vf.taskset_config_type(taskset["id"])
        views.append(vf.load_taskset(taskset_type(**{**taskset, **eval_taskset})))
    selected = [view.select(vf.SelectConfig(**select)) for view in views]
    if not all(view.bounded for view in selected):
        raise ValueError(f"the taskset '{taskset['id']}' is infinite; limit its tasks with num_examples=")
    tasks_of_views = [list(view) for view in selected]
    if not all(tasks_of_views):
        raise ValueError(f"the taskset '{taskset['id']}' has no tasks with these settings")
    # Without a taskset for evaluation, the only view is the first and the last one.
    train_tasks, eval_tasks = tasks_of_views[0], tasks_of_views[-1]
    Loaded.tasks = {True: train_tasks, False: eval_tasks}
    hooks = [*train_tasks[0].hooks("reward"), *train_tasks[0].hooks("metric")]
    return {
        "model_roles": other_roles,
        "names": [hook.__name__ for hook in hooks],
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
        tasks = Loaded.tasks[train][start:stop]
        return [_row(task, position) for position, task in enumerate(tasks, start)]

    async def run_episode(self, number: int, train: bool, position: int, key: str, base_url: str) -> dict[str, object]:
        """Run and score an episode whose agents call models at `base_url`; return its result."""
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        task = Loaded.tasks[train][position]
        # The row may come from an earlier run, or from another worker, which loaded the taskset itself.
        if task.key != key:
            raise ValueError(f"task {position} of the taskset is not the one of the row; make load() deterministic")
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
    without_model = [name for name in roles if not _has_model(roles[name], overrides[name])]
    if selected is None and len(without_model) != 1:
        raise ValueError(
            f"this environment has {len(roles)} agents ({', '.join(roles)}); select the model's with agent="
        )
    agent = selected or without_model[0]
    if agent not in roles:
        raise ValueError(f"this environment has no agent '{agent}'; expected one of {', '.join(roles)}")
    return agent


def _has_model(default: object, overrides: dict[str, Any]) -> bool:
    return any(overrides.get(name) or getattr(default, name) for name in ("model", "client"))


def _with_local_defaults(default: Any, overrides: dict[str, Any], taskset_id: str) -> dict[str, object]:
    """Return the settings of a role; by default, it runs on this machine and without a shell."""
    if isinstance(default.runtime, vf.PrimeConfig):
        overrides.setdefault("runtime", {"type": "subprocess"})
    if default.harness is None and default_agent_harness(taskset_id).id == "bash":
        overrides.setdefault("harness", {"id": "null"})
    return overrides


def _no_retries(config: Any, roles: list[str]) -> None:
    for settings in (config, *(getattr(config, name) for name in roles)):
        if settings.retries.max_retries:
            raise ValueError("retries would record several attempts in one rollout; set max_retries to 0, rove retries")


def _row(task: Any, position: int) -> dict[str, Any]:
    data = task.data
    prompt: list[Any] = []
    if data.system_prompt is not None:
        prompt.append({"role": "system", "content": data.system_prompt})
    if isinstance(data.prompt, str):
        prompt.append({"role": "user", "content": data.prompt})
    elif isinstance(data.prompt, list):
        prompt += [message_to_wire(message) for message in data.prompt]
    # A simulated user may speak first. A row needs a prompt, which `TasksetEnv.run` replaces by the real one.
    if not prompt:
        prompt.append({"role": "user", "content": data.description or data.name or "(the user opens the conversation)"})
    fields = data.model_dump(mode="json", exclude_defaults=True, exclude={"prompt", "system_prompt"})
    answer = fields.get("answer", "")
    return {
        "prompt": prompt,
        "answer": answer if isinstance(answer, str) else json.dumps(answer),
        "info": {"place": position, "key": task.key, "task": fields},
    }


def _result_of(episode: Any) -> dict[str, object]:
    """Return the agent's scores and stop condition, or the error of the episode."""
    traces = [trace for trace in episode.traces if trace.agent.name == Loaded.agent]
    if not Loaded.env.complete(episode):
        # The first one is reported: the episode's own errors first, then the model's, then those of other agents.
        errors = list(episode.errors)
        for trace in (*traces, *episode.traces):
            errors += trace.errors
        if not errors:
            raise ValueError("the environment reports an incomplete episode without a reason")
        error = errors[0]
        traceback = (error.traceback or "")[-MAX_TRACEBACK_CHARS:]
        return {"error": {"type": error.type, "message": error.message, "traceback": traceback}}
    if len(traces) != 1:
        raise ValueError(
            f"'{Loaded.agent}' ran {len(traces)} times in this episode; a rollout has one reward, so it must run once"
        )
    [trace] = traces
    scores = (*trace.rewards.items(), *trace.metrics.items())
    missing = [name for name, value in scores if value is None]
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
        # Everything that would run code of the model on this machine stays off.
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
    """Return an exception in the form that is sent to the parent."""
    text = "".join(format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error), "traceback": text[-MAX_TRACEBACK_CHARS:]}


def _encode(frame: dict[str, Any]) -> bytes:
    # NaN is no JSON: the other side could not read the frame, and all episodes of the worker would fail.
    with suppress(ValueError):
        return json.dumps(frame, allow_nan=False).encode()
    error = ValueError("the taskset returned a score that is not a finite number")
    return json.dumps({"id": frame["id"], "error": error_to_dict(error)}).encode()
