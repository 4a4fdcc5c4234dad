"""The worker process of an `IsolatedEnv`: it runs and scores many rollouts of an environment concurrently.

The parent process queries the model, at the other end of a socket.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import itertools
import json
import random
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from rove.core import errors
from rove.core.errors import (
    ConfigError,
    Error,
    LimitReachedError,
    RemoteError,
    ends_task,
    mark_phase,
    phase,
    phase_of,
    traceback_text,
)
from rove.core.messages import Message, Messages, as_message
from rove.core.model_roles import query
from rove.core.plain import Arguments, JsonMapping, JsonObject, JsonValue, MessageDict, Row
from rove.core.protocols import Request, Response
from rove.core.records import Scores, TrajectoryStep, Usage
from rove.core.renderings import Rendering
from rove.core.state import State, bookkeeping, completion_of, prompt_of
from rove.envs.environment import Environment, Turn, offered_tools, take_result
from rove.envs.loading import load_environment
from rove.envs.multi_turn import TwoPlayer, env_with_opponent
from rove.rollouts.runner import error_info
from rove.utils.functions import maybe_await

LENGTH = struct.Struct("<I")

_rollout_number: contextvars.ContextVar[int] = contextvars.ContextVar("rollout_number")
"""Number of the rollout that the current task runs."""


class LoadedEnvironment:
    """The environment of this process."""

    env: Environment


def setup(env_id: str, env_dir: str | None, env_args: Arguments, prepare: str = "") -> JsonObject:
    """Call the function `prepare` ("module:name"), load the environment, and return its description for the parent."""
    if prepare:
        module, _, name = prepare.partition(":")
        getattr(importlib.import_module(module), name)()
    env = LoadedEnvironment.env = load_environment(env_id, env_dir, **env_args)
    return {
        "message_type": env.message_type,
        "system_prompt": env.system_prompt,
        "sampling_args": env.sampling_args,
        "policies": sorted(env.policies),
        "names": env.scoring_rubric.names,
        "extras_names": env.scoring_rubric.extras_names,
        "has_group_rewards": env.scoring_rubric.has_group_rewards,
        "identity": env.identity,
        "env_id": env.env_id,
        "source": env.source,
        "two_player": bool(getattr(env, "two_player", False)),
        "sends_prompt": bool(getattr(env, "sends_prompt", True)),
    }


def serve(connection: socket.socket, module: object) -> None:
    """Answer calls concurrently until the parent closes the connection."""
    # Not `setup`, which runs before the fork: an event loop does not survive it.
    asyncio.run(_RpcServer(LoadedEnvironment.env).serve(connection))


@dataclass(eq=False, slots=True)
class WorkerRollout:
    """A rollout in this process, with its conversations and model responses."""

    number: int
    state: State
    conversations: list[State]
    """The rollout's own conversation, followed by conversations of sub-models; the index is the conversation's number in the
    parent."""
    answers: list[tuple[TrajectoryStep, int]] = field(default_factory=list)
    """Steps that the parent has recorded, with their numbers in the parent."""

    def conversation(self, state: State) -> int:
        """Return the number of a conversation."""
        for number, conversation in enumerate(self.conversations):
            if conversation is state:  # not ==: two conversations may have equal states
                return number
        self.conversations.append(state)
        return len(self.conversations) - 1

    def result(self) -> JsonObject:
        """Return the parts of the rollout that the parent needs. A step that the parent has recorded is represented by
        its number.
        """
        record = bookkeeping(self.state)
        numbers = {id(step): number for step, number in self.answers}

        def encode_steps(steps: Sequence[TrajectoryStep]) -> list[object]:
            # The exact tokens of a step are only in the parent (docs/decisions/workers.md).
            return [numbers[id(step)] if id(step) in numbers else msgspec.to_builtins(step) for step in steps]

        return {
            "prompt": prompt_of(self.state),
            "completion": completion_of(self.state),
            "stop_condition": record.stop_condition,
            "is_truncated": record.is_truncated,
            "tools": record.tools,
            "model_roles": {role: encode_steps(steps) for role, steps in record.model_roles.items()},
            "trajectory": encode_steps(record.trajectory),
            "renderings": msgspec.to_builtins(record.renderings, str_keys=True),
            "step_rewards": [step.reward for step in record.trajectory],
            "env_id": record.env_id,
        }


class _RpcServer:
    """Serves the parent's calls about rollouts, and calls the parent."""

    def __init__(self, env: Environment):
        self.env = env
        self.rollouts: dict[int, WorkerRollout] = {}
        self.tasks_by_rollout: dict[int, asyncio.Task[BaseException | None]] = {}
        self.count = 0
        self.waiting: dict[int, asyncio.Future[JsonValue]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, connection: socket.socket) -> None:
        reader, self.writer = await asyncio.open_connection(sock=connection)
        while True:
            try:
                head = await reader.readexactly(LENGTH.size)
                frame = json.loads(await reader.readexactly(LENGTH.unpack(head)[0]))
            except (EOFError, OSError):
                return
            if "call" in frame:
                task = asyncio.create_task(self.reply(frame["id"], frame["call"], frame["args"]))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                continue
            answer = self.waiting.pop(frame["id"], None)
            if answer is not None and not answer.done():  # done: the call has been canceled
                answer.set_result(frame)

    async def reply(self, number: int, name: str, args: JsonObject) -> None:
        """Answer a call with its result or with the exception that it raised."""
        try:
            frame = {"id": number, "result": await getattr(self, name)(**args)}
            body = _encode(frame)
        except BaseException as error:
            if ends_task(error):
                raise
            body = _encode({"id": number, "error": _error_to_dict(error)})
        await self.send(body)

    async def send(self, body: bytes) -> None:
        self.write(body)
        await self.writer.drain()

    def write(self, body: bytes) -> None:
        self.writer.write(LENGTH.pack(len(body)) + body)

    async def call_parent(self, name: str, **args: object) -> JsonValue:
        """Call the parent and return its reply; an error in the parent is raised in this process with the same class."""
        call_id = self.next_number()
        answer = self.waiting[call_id] = asyncio.get_running_loop().create_future()
        await self.send(_encode({"id": call_id, "call": name, "args": args}))
        frame = await answer
        if "error" in frame:
            raise _error_from_dict(**frame["error"])
        return frame["result"]

    def next_number(self) -> int:
        self.count += 1
        return self.count

    async def ping(self) -> None:
        """Show that the event loop is alive."""

    async def examples(self, start: int, stop: int, train: bool) -> list[Row]:
        """Return the examples `start` to `stop` of the dataset."""
        return list(itertools.islice(self.env.examples(stop, train), start, stop))

    async def count_examples(self, n: int, train: bool) -> int | None:
        """Return the number of examples."""
        return self.env.count_examples(n, train)

    async def time_limit(self, example: Row) -> float | None:
        """Return the time limit of a rollout in seconds."""
        return self.env.time_limit(State(input=example))

    async def run(
        self, number: int, example: Row, seed: int, env_seed: int, has_opponent: bool, forget: list[int]
    ) -> None:
        """Run a rollout without its cleanup, and drop the rollouts in `forget`, which the parent no longer needs."""
        for old in forget:
            self.rollouts.pop(old, None)
        if isinstance(example["prompt"], list):
            example["prompt"] = [Message(message) for message in example["prompt"]]
        state = State(
            input=example,
            trajectory=[],
            model_roles={},
            completion=None,
            seed=seed,
            env_seed=env_seed,
            stop_condition=None,
            is_truncated=False,
            error=None,
        )
        rollout = self.rollouts[number] = WorkerRollout(number, state, [state])
        # The environment is shared by all rollouts, so one with the parent's opponent gets its own copy.
        env = self.env
        if has_opponent and isinstance(env, TwoPlayer):
            env = env_with_opponent(env, self.opponent)

        async def turn(
            state: State,
            messages: Messages,
            *,
            role: str | None = None,
            model: str = "",
            sampling_args: JsonMapping | None = None,
            agent_request: Request | None = None,
        ) -> Message:
            if role is not None:
                options = {"role": role, "model": model, "sampling_args": sampling_args and dict(sampling_args)}
                return await self.role(rollout, state, messages, role, options)
            return await self.turn(rollout, state, messages, agent_request)

        self.tasks_by_rollout[number] = asyncio.create_task(self._run(env, number, state, turn))
        await asyncio.wait([self.tasks_by_rollout[number]])
        task = self.tasks_by_rollout.pop(number, None)  # None if `clean_up` has taken it
        failure = task.result() if task is not None and not task.cancelled() else None
        if failure is not None:
            bookkeeping(state).error = error_info(failure)
            raise failure

    async def _run(self, env: Environment, number: int, state: State, turn: Turn) -> BaseException | None:
        """Run the environment's loop; return its exception. Even SystemExit must not leave the task: it would end the worker."""
        _rollout_number.set(number)
        try:
            await env.run(state, turn)
            take_result(state)
        except BaseException as error:
            if ends_task(error):
                raise
            return error
        return None

    async def turn(
        self, rollout: WorkerRollout, state: State, messages: Messages, agent_request: Request | None
    ) -> Message:
        """Let the parent query the model; record the step here as the parent does."""
        options: JsonObject = {}
        if agent_request is not None:
            values = msgspec.structs.asdict(agent_request.sampling_params)
            sampling = {name: value for name, value in values.items() if value is not None}
            options["agent_request"] = {
                "sampling": msgspec.to_builtins(sampling, str_keys=True),
                "tools": agent_request.tools,
            }
        reply = await self.query_parent(rollout, state, messages, **options)
        message = as_message(reply["message"])
        record = bookkeeping(state)
        tools = record.tools if agent_request is None else agent_request.tools
        step = TrajectoryStep(
            prompt=list(messages),
            completion=[message],
            finish_reason=reply["finish_reason"],
            usage=Usage(*reply["usage"]),
            seconds=reply["seconds"],
            attempts=reply["attempts"],
            tools=None if tools == record.tools else tools or [],
        )
        record.trajectory.append(step)
        rollout.answers.append((step, reply["answer"]))
        if reply["finish_reason"] == "length":
            record.is_truncated = True
        return message

    async def role(
        self, rollout: WorkerRollout, state: State, messages: Messages, role: str, options: JsonObject
    ) -> Message:
        """Let the parent query the model in another role."""
        client = _ParentClient(self, rollout, options)
        message = await query(state, messages, client, role=role, tools=bookkeeping(state).tools)
        step = next(step for step in reversed(bookkeeping(state).model_roles[role]) if step.completion[-1] is message)
        rollout.answers.append((step, client.answer))
        return message

    async def query_parent(
        self, rollout: WorkerRollout, state: State, messages: Sequence[JsonMapping], **options: object
    ) -> JsonObject:
        """Send a model request to the parent; cancelling this call cancels the request in the parent."""
        call_id = self.count + 1  # the number that `call_parent` takes: there is no await before that
        prompt, record = prompt_of(rollout.state), bookkeeping(state)
        record.tools = offered_tools(state)
        try:
            reply = await self.call_parent(
                "respond",
                number=rollout.number,
                call_id=call_id,
                conversation=rollout.conversation(state),
                messages=messages,
                tools=record.tools,
                prompt=prompt if isinstance(prompt, str) else None,
                seed=record.seed,
                **options,
            )
        except asyncio.CancelledError:
            frame = {"id": self.next_number(), "call": "cancel", "args": {"number": rollout.number, "call_id": call_id}}
            self.write(_encode(frame))
            raise
        if "limit" in reply:
            raise LimitReachedError(reply["limit"], reply["truncated"])
        if "failed" in reply:
            raise _error_from_dict(**reply["failed"])
        return reply

    async def opponent(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """Return the move of the other player."""
        rendering = msgspec.to_builtins(board, str_keys=True)
        return await self.call_parent(
            "opponent_move", number=_rollout_number.get(), view=view, legal=legal, rendering=rendering
        )

    async def _end(self, number: int, stop_condition: str | None, is_truncated: bool) -> WorkerRollout:
        """Stop a rollout if it still runs, and return it. The parent may pass its own stop condition."""
        rollout = self.rollouts[number]
        record = bookkeeping(rollout.state)
        task = self.tasks_by_rollout.pop(number, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if stop_condition is not None:
            record.stop_condition = stop_condition
        record.is_truncated = record.is_truncated or is_truncated
        with suppress(ConfigError):  # then the rollout has failed with this error
            take_result(rollout.state)
        return rollout

    async def finish(self, number: int, stop_condition: str | None, is_truncated: bool) -> None:
        """Stop a rollout if it still runs, and prepare its scoring."""
        rollout = await self._end(number, stop_condition, is_truncated)
        with phase("post_rollout"):
            await maybe_await(self.env.post_rollout(rollout.state))

    async def clean_up(self, number: int, stop_condition: str | None, is_truncated: bool) -> JsonObject:
        """Stop a rollout if it still runs, clean up, and return its result."""
        rollout = await self._end(number, stop_condition, is_truncated)
        failed: JsonObject | None = None
        try:
            await self.env.clean_up(rollout.state)
        except BaseException as error:
            if ends_task(error):
                raise
            failed = _error_to_dict(error)
        return {**rollout.result(), "failed": failed}

    async def score(self, number: int) -> JsonObject:
        """Return the rubric's scores of a finished rollout, and the result that scoring may have changed."""
        rollout = self.rollouts[number]
        scores = await self.env.scoring_rubric.score_rollout(rollout.state)
        return {"scores": msgspec.to_builtins(scores), **rollout.result()}

    async def score_group(self, numbers: list[int], scores: list[JsonObject]) -> list[JsonObject]:
        """Return the scores and results of the members of a group, with group rewards."""
        rollouts = [self.rollouts[number] for number in numbers]
        states = [rollout.state for rollout in rollouts]
        group_scores = await self.env.scoring_rubric.score_group(states, msgspec.convert(scores, list[Scores]))
        replies: list[JsonObject] = []
        for member_scores, rollout in zip(group_scores, rollouts, strict=True):
            replies.append({"scores": msgspec.to_builtins(member_scores), **rollout.result()})
        return replies

    async def policy(
        self, number: int, policy: str, messages: list[MessageDict], rng: list[JsonValue], conversation: int
    ) -> object:
        """Return the message of a scripted policy of the environment."""
        version, internal_state, gauss_next = rng
        generator = random.Random()
        generator.setstate((version, tuple(internal_state), gauss_next))  # JSON has made a list of the tuple
        conversation_messages = [Message(message) for message in messages]
        state = self.rollouts[number].conversations[conversation]
        return await maybe_await(self.env.policies[policy](conversation_messages, state, generator))

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods."""
        await self.env.tear_down()


class _ParentClient:
    """The parent's model as a client, for queries in another role."""

    max_concurrent = 1 << 16

    def __init__(self, server: _RpcServer, rollout: WorkerRollout, options: JsonObject):
        self.server, self.rollout, self.options = server, rollout, options
        self.answer = -1
        """Number of the last response."""

    async def respond(self, request: Request) -> Response:
        """Let the parent query the model."""
        assert request.state is not None
        reply = await self.server.query_parent(self.rollout, request.state, request.messages, **self.options)
        self.answer = reply["answer"]
        message, usage = as_message(reply["message"]), Usage(*reply["usage"])
        return Response(message, usage, reply["finish_reason"], attempts=reply["attempts"])

    async def close(self) -> None:
        """See `Client`; the parent owns the model."""


def _error_to_dict(error: BaseException) -> JsonObject:
    """Return an exception as data. An exception of the parent keeps its original type and message."""
    if isinstance(error, RemoteError) and error.type:
        reply = {"type": error.type, "message": error.args[0], "traceback": error.traceback}
    else:
        reply = {"type": type(error).__name__, "message": str(error), "traceback": traceback_text(error)}
    return {**reply, "phase": phase_of(error, "")}


def _error_from_dict(type: str, message: str, traceback: str = "", phase: str = "model") -> Error:
    """Return the parent's exception, with the same class if it is in `rove.core.errors`, because environments catch
    some of these.
    """
    kind = vars(errors).get(type, RemoteError)
    if kind is RemoteError:
        error: Error = RemoteError(message, type, traceback)
    else:
        error = kind(message)
    mark_phase(error, phase)
    return error


def _encode(frame: object) -> bytes:
    try:
        return json.dumps(frame).encode()
    except (TypeError, ValueError) as error:
        raise Error(
            f"{error}: values that enter or leave an isolated environment must be JSON: numbers, strings, lists and dicts"
        ) from error
