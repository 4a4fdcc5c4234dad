"""rove environments as tasksets of verifiers v1 (version 0.4): for `vf-eval`, prime-rl and torchtitan.

`rove build --verifiers-v1` writes a package with a subclass of `RoveTaskset`, and with the harness and the environment of this
module. The harness runs a rove rollout in verifiers' process. Its model requests go through verifiers' interception server,
which records the messages and, in training, the tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import Any, ClassVar, Literal

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
from pydantic import Field
from verifiers.v1.configs.client import resolve_api_key, resolve_headers  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import parse_message  # pyright: ignore[reportMissingImports]

from rove.clients.named import NamedClient
from rove.clients.openai import OpenAIClient
from rove.core.errors import ConfigError, Error, InfraError, LimitReachedError
from rove.core.messages import SystemMessage, text_of
from rove.core.plain import JsonMapping, JsonObject, Row
from rove.core.protocols import Client, Limits, Request, Response
from rove.core.records import ErrorInfo, RolloutRecord
from rove.envs.environment import Environment
from rove.integrations.stepwise import load_once
from rove.integrations.verifiers_export import check_exportable, group_rewards_of
from rove.rollouts.run_rollouts import run_rollouts
from rove.rollouts.runner import plan

REQUEST_TIMEOUT_S = 86_400.0
"""Time limit of a model request. verifiers limits the whole rollout; a request that is sent again could be recorded twice."""
MAX_CONCURRENT_REQUESTS = 64
"""Concurrent model requests of one rollout."""
GRACE_S = 10.0
"""Time after the agent's time limit until rove interrupts the environment's own code. At the limit itself, verifiers closes the
connection of a request in progress; rove's limit would take this for a failure of the endpoint, and the rollout would fail."""
TRUNCATED_CONDITIONS = {
    "max_total_completion_tokens_reached": "max_output_tokens",
    "prompt_too_long": "max_input_tokens",
}
"""rove's stop conditions of truncated rollouts → v1's, because v1 derives `is_truncated` from its own names."""


class ModelRole(vf.BaseConfig):
    """The endpoint of a model role, such as a judge or an opponent."""

    model: str
    base_url: str | None = None
    """Default: the endpoint of the run's model."""
    api_key_var: str = "OPENAI_API_KEY"
    """Environment variable with the key of `base_url`."""


class RoveTasksetConfig(vf.TasksetConfig):
    """Settings of a rove environment as a taskset (`--env.taskset.` in `vf-eval`)."""

    environment: str = ""
    """Name of the rove environment. Default: the environment of the package."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's `load_environment`."""
    split: Literal["train", "eval"] = "train"
    """The training rows or the evaluation rows of the environment."""
    seed: int = 0
    """Seed of the rollouts, as in `rove eval --seed`."""
    model_roles: dict[str, ModelRole] = Field(default_factory=dict)
    """Models that replace those of the environment, by role."""


class RoveTaskData(vf.TaskData):
    """A row of a rove environment."""

    environment: str
    environment_args: dict[str, Any] = Field(default_factory=dict)
    row: dict[str, Any]
    """The row, with its prompt and hidden columns."""
    example_key: str
    """Key of the row in rove's records."""
    seed: int = 0
    model_roles: dict[str, ModelRole] = Field(default_factory=dict)


class RoveState(vf.State):
    """The running rove rollout of a trace; never serialized."""

    rollout: Any = Field(default=None, exclude=True)
    """An asyncio task that returns the `RolloutRecord`; None before the harness starts."""


class RoveTask(vf.Task[RoveTaskData, RoveState, vf.TaskConfig]):
    """A row of a rove environment, scored by the environment's rubric."""

    @property
    def key(self) -> str:
        """The key of the row in rove's records."""
        return self.data.example_key

    async def score(self, trace: vf.Trace, runtime: vf.Runtime | None = None) -> None:
        """Record rove's rewards and metrics on the trace, then those that the taskset's settings add."""
        if self.scoring_deferred:
            return
        if trace.state.rollout is not None:
            # The harness was interrupted if the agent's time is over; rove then ends and scores the rollout as it is.
            record = await asyncio.shield(trace.state.rollout)
            _raise_error_of(record)
            trace.info["rove"] = _facts(record)
            trace.extra_usage.extend(_role_usage(record))
        facts = trace.info.get("rove")
        if facts is None:
            raise ValueError(
                "the trace has no rove rollout; tasks of a rove environment need the harness of their package"
            )
        for name, value in facts["rewards"].items():
            trace.record_reward(name, value, facts["weights"][name])
        trace.record_metrics(facts["metrics"])
        await super().score(trace, runtime)


class RoveTaskset(vf.Taskset[RoveTask, RoveTasksetConfig]):
    """The rows of a rove environment."""

    environment: ClassVar[str] = ""
    """Name of the rove environment of this package."""

    @property
    def rove_environment(self) -> Environment:
        """The environment, loaded once per process."""
        name = self.config.environment or self.environment
        if not name:
            raise ConfigError("this taskset has no environment: set --env.taskset.environment NAME")
        return _load(name, self.config.args)

    @property
    def bounded(self) -> bool:
        """Whether iterating ends; unknown for a dataset that is a generator."""
        if self._bounded is not None:
            return self._bounded
        return self.rove_environment.count_examples(-1, self.config.split == "train") is not None

    def load(self) -> Iterator[RoveTask]:
        """Yield a task per row."""
        env = self.rove_environment
        name = self.config.environment or self.environment
        for [job] in plan(env.examples(-1, self.config.split == "train"), 1):
            system_prompt, prompt = _split_prompt(job.example)
            data = RoveTaskData(
                prompt=prompt,
                system_prompt=system_prompt,
                environment=name,
                environment_args=self.config.args,
                row=_as_json(job.example),
                example_key=job.key,
                seed=self.config.seed,
                model_roles=self.config.model_roles,
            )
            yield RoveTask(data, self.config.task)


class RoveHarness(vf.Harness[vf.HarnessConfig]):
    """Runs a rollout of a rove environment in this process: its turns, tools, limits and errors."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run the rollout; see `verifiers.v1.Harness.launch`."""
        if not isinstance(data, RoveTaskData):
            raise TypeError(f"rove's harness cannot run a {type(data).__name__}; expected a task of a rove environment")
        model = _InterceptedModel(trace, endpoint, secret)
        seconds = trace.agent.config.timeout.rollout or data.timeout.agent
        limits = Limits(timeout_seconds=None if seconds is None else seconds + GRACE_S)
        trace.state.rollout = asyncio.create_task(self._run(ctx, model, data, limits))
        # The agent's time limit cancels this method. The rollout goes on: its next request is refused, and it is scored.
        record = await asyncio.shield(trace.state.rollout)
        _raise_error_of(record)
        condition = record.stop_condition or "agent_completed"
        trace.stop(TRUNCATED_CONDITIONS.get(condition, condition))
        return vf.ProgramResult(0, "", "")

    async def _run(
        self, ctx: vf.ModelContext, model: _InterceptedModel, data: RoveTaskData, limits: Limits
    ) -> RolloutRecord:
        roles = _RoleClients(ctx, model, data.model_roles)
        row = (data.environment, json.dumps(data.environment_args, sort_keys=True), data.example_key)
        try:
            [record] = await run_rollouts(
                _load(data.environment, data.environment_args),
                [_row(data)],
                model,
                ctx.model,
                model_roles=roles,
                limits=limits,
                seed=data.seed,
                first_index=next(_rollout_indices[row]),
            )
        finally:
            await model.close()
            await roles.close()
        return record

    async def cleanup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Cancel the rollout if verifiers has given it up."""
        rollout = getattr(trace.state, "rollout", None)
        if rollout is not None and not rollout.done():
            rollout.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await rollout


class RoveEnvConfig(vf.EnvConfig):
    """The settings of verifiers' `[env]` table for a rove environment."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The model. The rollout runs in verifiers' process, so the agent needs no sandbox."""


class RoveEnv(vf.Env[RoveEnvConfig]):
    """One agent, and the resources of the rove environment for as long as verifiers serves it."""

    async def start(self) -> None:
        """Keep the environment's servers and worker processes until `stop`."""
        self._in_use = AsyncExitStack()
        if isinstance(self.taskset, RoveTaskset):
            await self._in_use.enter_async_context(self.taskset.rove_environment.used_in_run())

    async def stop(self) -> None:
        """End the environment's servers and worker processes."""
        await self._in_use.aclose()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Run one rollout."""
        await agents.agent.run(task)


class _InterceptedModel:
    """The model of a trace, behind verifiers' interception server.

    The server refuses requests once verifiers has stopped the trace, at a limit of the agent for example. rove then ends
    and scores the rollout, as at its own limits.
    """

    max_concurrent = MAX_CONCURRENT_REQUESTS

    def __init__(self, trace: vf.Trace, endpoint: str, secret: str):
        self.trace = trace
        self.client = OpenAIClient(endpoint, secret, max_concurrent=MAX_CONCURRENT_REQUESTS, timeout=REQUEST_TIMEOUT_S)

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        self._check_stopped()
        try:
            return await self.client.respond(request)
        except Error as error:
            self._check_stopped(error)
            raise

    def _check_stopped(self, cause: Error | None = None) -> None:
        condition = self.trace.stop_condition
        if condition is None:
            return
        # A rollout without an answer from its endpoint must not get a score; see `rove.rollouts.runner.run_with_limits`.
        if self.trace.is_timeout and not self.trace.num_turns:
            raise InfraError("no answer within the agent's time limit") from cause
        raise LimitReachedError(condition, self.trace.is_truncated) from cause

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


class _RoleClients:
    """Clients of model roles: those of the settings, else the environment's own.

    Queries of the run's own model under a role are sent directly to its endpoint. Through the interception server, they
    would become branches of the trace, and would be trained on.
    """

    def __init__(self, ctx: vf.ModelContext, model: _InterceptedModel, roles: dict[str, ModelRole]):
        self.ctx = ctx
        self.model = model
        self.roles = roles
        self._clients: dict[str, NamedClient] = {}

    def get(self, role: str, client: Client, /) -> Client:
        """Return the client for a role; `client` is the environment's own client."""
        if role not in self.roles and client is not self.model:
            return client
        if role not in self._clients:
            self._clients[role] = self._connect(self.roles.get(role))
        return self._clients[role]

    def _connect(self, role: ModelRole | None) -> NamedClient:
        config = self.ctx.client
        name = self.ctx.model if role is None else role.model
        if role is None or role.base_url is None:
            key, headers = resolve_api_key(config), resolve_headers(config)
            return NamedClient(OpenAIClient(config.base_url, key, headers=headers), name)
        key = resolve_api_key(vf.EvalClientConfig(base_url=role.base_url, api_key_var=role.api_key_var))
        return NamedClient(OpenAIClient(role.base_url, key), name)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


def _load(name: str, env_args: JsonMapping) -> Environment:
    env = load_once(name, env_args)
    check_exportable(name, group_rewards_of(env), env.message_type)
    return env


_rollout_indices: defaultdict[tuple[str, str, str], count[int]] = defaultdict(count)
"""Positions of the rollouts of each row in its group: each needs another seed."""


def _split_prompt(example: Row) -> tuple[str | None, Any]:
    """Return the system prompt of a row, and its other messages: a text if there is a single user message."""
    messages = list(example["prompt"])
    system_prompt: str | None = None
    if messages and messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
        system_prompt = messages.pop(0)["content"]
    if len(messages) == 1 and messages[0]["role"] == "user" and isinstance(messages[0]["content"], str):
        return system_prompt, messages[0]["content"]
    return system_prompt, [parse_message(dict(message)) for message in messages]


def _as_json(example: Row) -> JsonObject:
    """Return a row as plain JSON, as which verifiers sends it to its workers."""
    try:
        return json.loads(json.dumps(example, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"row {example['example_id']} cannot be sent to verifiers' workers: {error}; expected JSON values in all columns"
        ) from error


def _row(data: RoveTaskData) -> Row:
    """Return the row of a task, with the system prompt that verifiers' settings may have replaced."""
    row = dict(data.row)
    system_prompt, _ = _split_prompt(row)
    if data.system_prompt is not None and data.system_prompt != system_prompt:
        messages = row["prompt"] if system_prompt is None else row["prompt"][1:]
        row["prompt"] = [SystemMessage(data.system_prompt), *messages]
    return row


def _raise_error_of(record: RolloutRecord) -> None:
    """Raise the error of a failed rollout as verifiers' error of the same boundary."""
    if record.error is not None:
        error = record.error
        raise _error_type(error)(f"{error.phase}: {error.type}: {error.message}\n{error.traceback}".rstrip())


def _error_type(error: ErrorInfo) -> type[Exception]:
    if error.type == "SandboxError":
        return vf.SandboxError
    if error.phase == "model" or error.phase.startswith("role "):
        return vf.ProviderError
    if error.phase == "agent":
        return vf.HarnessError
    return vf.TaskError


def _facts(record: RolloutRecord) -> JsonObject:
    """Return the facts about the rollout for `info["rove"]` of the trace."""
    scores = record.scores
    assert scores is not None
    facts: JsonObject = {
        "environment": record.env_id,
        "example_id": record.example_id,
        "example_key": record.example_key,
        "rollout_index": record.rollout_index,
        "seed": record.seed,
        "stop_condition": record.stop_condition,
        "is_truncated": record.is_truncated,
        "rewards": scores.rewards,
        "weights": scores.weights,
        "metrics": scores.metrics,
    }
    if scores.extras:
        facts["extras"] = scores.extras
    if any(step.reward is not None for step in record.steps):
        facts["turn_rewards"] = [step.reward for step in record.steps]
    if record.model_roles:
        facts["model_roles"] = {
            role: [[text_of(message) for message in (*step.prompt, *step.completion)] for step in steps]
            for role, steps in record.model_roles.items()
        }
    return facts


def _role_usage(record: RolloutRecord) -> Iterator[vf.Usage]:
    """Yield the tokens of each query of a model role."""
    for steps in record.model_roles.values():
        for step in steps:
            yield vf.Usage(prompt_tokens=step.usage.prompt_tokens, completion_tokens=step.usage.completion_tokens)
