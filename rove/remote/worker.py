"""What the worker of an `IsolatedEnv` does: it plays and scores rollouts of an environment, many at once. The model is asked
for at the other end of the socket."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import itertools
import json
import random
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rove.core import errors
from rove.core.errors import Error, LimitReachedError, RemoteError, ends_task, traceback_text
from rove.core.messages import Message, Messages, as_message
from rove.core.model_roles import query
from rove.core.protocols import Request, Response
from rove.core.records import Scores, TrajectoryStep, Usage
from rove.core.renderings import Rendering
from rove.core.state import State
from rove.envs.environment import Environment, Turn
from rove.envs.loading import load_environment
from rove.envs.multi_turn import TwoPlayer
from rove.remote.worker_rollout import Played
from rove.rollouts.runner import error_info
from rove.utils.functions import maybe_await

LENGTH = struct.Struct("<I")


_playing: contextvars.ContextVar[int] = contextvars.ContextVar("playing")
"""The number of the rollout that is played."""


class Loaded:
    """The environment of this process."""

    env: Environment


def setup(env_id: str, env_dir: str | None, env_args: dict[str, Any], prepare: str = "") -> dict[str, Any]:
    """Load the environment, after a call of the function `prepare` ("module:name"); what its owner must know of it."""
    if prepare:
        module, _, name = prepare.partition(":")
        getattr(importlib.import_module(module), name)()
    env = Loaded.env = load_environment(env_id, env_dir, **env_args)
    return {
        "message_type": env.message_type,
        "system_prompt": env.system_prompt,
        "sampling_args": env.sampling_args,
        "policies": sorted(env.policies),
        "names": env.rubric.names,
        "extras_names": env.rubric.extras_names,
        "has_group_rewards": env.rubric.has_group_rewards,
        "identity": env.identity,
        "env_id": env.env_id,
        "source": env.source,
        "two_player": bool(getattr(env, "two_player", False)),
    }


def serve(connection: socket.socket, module: Any) -> None:
    """Answer calls, many at once, until the other end is gone."""
    asyncio.run(_RpcServer(Loaded.env).serve(connection))


class _RpcServer:
    """Rollouts by number, and the conversation about them."""

    def __init__(self, env: Environment):
        self.env = env
        self.own_opponent = env.opponent if isinstance(env, TwoPlayer) else None
        self.rollouts: dict[int, Played] = {}
        self.plays: dict[int, asyncio.Task[BaseException | None]] = {}
        self.count = 0
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, connection: socket.socket) -> None:
        reader, self.writer = await asyncio.open_connection(sock=connection)
        while True:
            try:
                [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                frame = json.loads(await reader.readexactly(size))
            except (EOFError, OSError):
                return
            if "call" in frame:
                task = asyncio.create_task(self.reply(frame["id"], frame["call"], frame["args"]))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            elif (answer := self.waiting.pop(frame["id"], None)) is not None and not answer.done():
                answer.set_result(frame)

    async def reply(self, number: int, name: str, args: dict[str, Any]) -> None:
        """Answer one call; whatever the environment raises is told."""
        try:
            frame = {"id": number, "result": await getattr(self, name)(**args)}
            body = _encoded(frame)
        except BaseException as error:
            if ends_task(error):
                raise
            body = _encoded({"id": number, "error": _told(error)})
        await self.send(body)

    async def send(self, body: bytes) -> None:
        self.write(body)
        await self.writer.drain()

    def write(self, body: bytes) -> None:
        self.writer.write(LENGTH.pack(len(body)) + body)

    async def ask(self, name: str, **args: Any) -> Any:
        """The owner's answer to a call; what it raised is raised here, by name."""
        which = self.next_number()
        answer = self.waiting[which] = asyncio.get_running_loop().create_future()
        await self.send(_encoded({"id": which, "call": name, "args": args}))
        frame = await answer
        if "error" in frame:
            raise _theirs(**frame["error"])
        return frame["result"]

    def next_number(self) -> int:
        """A number for a call."""
        self.count += 1
        return self.count

    async def ping(self) -> None:
        """Nothing but a sign of life."""

    async def examples(self, start: int, stop: int, train: bool) -> list[dict[str, Any]]:
        """Some of the dataset's examples."""
        return list(itertools.islice(self.env.examples(stop, train), start, stop))

    async def count_examples(self, n: int, train: bool) -> int | None:
        """How many there are."""
        return self.env.count_examples(n, train)

    async def time_limit(self, example: dict[str, Any]) -> float | None:
        """Wall seconds that a rollout of an example may take."""
        return self.env.time_limit(State(input=example))

    async def run(
        self, number: int, example: dict[str, Any], seed: int, env_seed: int, has_opponent: bool, forget: list[int]
    ) -> None:
        """Play a rollout up to its end; `clean_up` is another call. Forget those that nobody asks for any more."""
        for old in forget:
            self.rollouts.pop(old, None)
        if isinstance(example["prompt"], list):
            example["prompt"] = [Message(one) for one in example["prompt"]]
        state = State(
            input=example,
            trajectory=[],
            model_roles={},
            completion=[],
            seed=seed,
            env_seed=env_seed,
            stop_condition=None,
            is_truncated=False,
            error=None,
        )
        rollout = self.rollouts[number] = Played(number, state, [state])
        if isinstance(self.env, TwoPlayer):
            self.env.opponent = self.opponent if has_opponent else self.own_opponent

        async def turn(
            state: State,
            messages: Messages,
            *,
            role: str | None = None,
            model: str = "",
            sampling_args: Mapping[str, Any] | None = None,
            asked: Request | None = None,
        ) -> Message:
            if role is not None:
                how = {"role": role, "model": model, "sampling_args": sampling_args and dict(sampling_args)}
                return await self.role(rollout, state, messages, role, how)
            return await self.turn(rollout, state, messages, asked)

        self.plays[number] = asyncio.create_task(self._played(number, state, turn))
        await asyncio.wait([self.plays[number]])
        play = self.plays.pop(number, None)  # none where it is being cleaned up already
        failure = play.result() if play is not None and not play.cancelled() else None
        if failure is not None:
            state["error"] = error_info(failure)
            raise failure

    async def _played(self, number: int, state: State, turn: Turn) -> BaseException | None:
        """Plays; what went wrong. An exit() that left this task would end the worker."""
        _playing.set(number)
        try:
            await self.env.run(state, turn)
        except BaseException as error:
            if ends_task(error):
                raise
            return error
        return None

    async def turn(self, rollout: Played, state: State, messages: Messages, asked: Request | None) -> Message:
        """Have the model asked; keep the step as the owner does."""
        how: dict[str, Any] = {}
        if asked is not None:
            sampling = {
                name: value
                for name, value in msgspec.structs.asdict(asked.sampling_params).items()
                if value is not None
            }
            how["asked"] = {"sampling": msgspec.to_builtins(sampling, str_keys=True), "tools": asked.tools}
        told = await self.question(rollout, state, messages, **how)
        message = as_message(told["message"])
        tools = state.get("tools") if asked is None else asked.tools
        step = TrajectoryStep(
            prompt=list(messages),
            completion=[message],
            finish_reason=told["finish_reason"],
            usage=Usage(*told["usage"]),
            seconds=told["seconds"],
            attempts=told["attempts"],
            tools=None if tools == state.get("tools") else tools or [],
        )
        state["trajectory"].append(step)
        rollout.answers.append((step, told["answer"]))
        if told["finish_reason"] == "length":
            state["is_truncated"] = True
        return message

    async def role(self, rollout: Played, state: State, messages: Messages, role: str, how: dict[str, Any]) -> Message:
        """Have the model asked in another role."""
        client = _Owner(self, rollout, how)
        message = await query(state, messages, client, role=role, tools=state.get("tools"))
        step = next(step for step in reversed(state["model_roles"][role]) if step.completion[-1] is message)
        rollout.answers.append((step, client.answer))
        return message

    async def question(
        self, rollout: Played, state: State, messages: Sequence[Mapping[str, Any]], **how: Any
    ) -> dict[str, Any]:
        """What the owner says to a question; one that is not waited for any more is given up there."""
        which = self.count + 1
        prompt = rollout.state["prompt"]
        try:
            told = await self.ask(
                "answer",
                number=rollout.number,
                which=which,
                conversation=rollout.conversation(state),
                messages=messages,
                tools=state.get("tools"),
                prompt=prompt if isinstance(prompt, str) else None,
                seed=state["seed"],
                **how,
            )
        except asyncio.CancelledError:
            frame = {"id": self.next_number(), "call": "give_up", "args": {"number": rollout.number, "which": which}}
            self.write(_encoded(frame))
            raise
        if "limit" in told:
            reached = LimitReachedError(told["limit"])
            reached.truncated = told["truncated"]
            raise reached
        if "failed" in told:
            raise _theirs(**told["failed"])
        return told

    async def opponent(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """The move of whoever sits in the other role."""
        drawn = msgspec.to_builtins(board, str_keys=True)
        return await self.ask("opponent", number=_playing.get(), view=view, legal=legal, board=drawn)

    async def clean_up(self, number: int, stop_condition: str | None, is_truncated: bool) -> dict[str, Any]:
        """End a rollout, whose owner may have had a reason of its own; what is to be told of it."""
        rollout = self.rollouts[number]
        state = rollout.state
        play = self.plays.pop(number, None)
        if play is not None:
            play.cancel()
            await asyncio.wait([play])
        if stop_condition is not None:
            state["stop_condition"] = stop_condition
        state["is_truncated"] = state["is_truncated"] or is_truncated
        failed: dict[str, Any] | None = None
        try:
            await self.env.clean_up(state)
        except BaseException as error:
            if ends_task(error):
                raise
            failed = _told(error)
        return {**rollout.seen(), "failed": failed}

    async def score(self, number: int) -> dict[str, Any]:
        """The rubric's scores of a finished rollout, and what scoring it has added."""
        rollout = self.rollouts[number]
        scores = await self.env.rubric.score_rollout(rollout.state)
        return {"scores": msgspec.to_builtins(scores), **rollout.seen()}

    async def score_group(self, numbers: list[int], scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same of siblings, group rewards included."""
        rollouts = [self.rollouts[number] for number in numbers]
        states = [rollout.state for rollout in rollouts]
        given = await self.env.rubric.score_group(states, msgspec.convert(scores, list[Scores]))
        told = [msgspec.to_builtins(one) for one in given]
        return [{"scores": one, **rollout.seen()} for one, rollout in zip(told, rollouts, strict=True)]

    async def player(
        self, number: int, who: str, messages: list[dict[str, Any]], rng: list[Any], conversation: int
    ) -> Any:
        """What a scripted policy of the environment says."""
        drawn = random.Random()
        drawn.setstate((rng[0], tuple(rng[1]), rng[2]))
        asked = [Message(message) for message in messages]
        state = self.rollouts[number].conversations[conversation]
        return await maybe_await(self.env.policies[who](asked, state, drawn))

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods."""
        await self.env.tear_down()


class _Owner:
    """The model as a client, which another role asks."""

    max_concurrent = 1 << 16

    def __init__(self, desk: _RpcServer, rollout: Played, how: dict[str, Any]):
        self.desk, self.rollout, self.how = desk, rollout, how
        self.answer = -1
        """The number of its last answer."""

    async def respond(self, request: Request) -> Response:
        """Have the owner ask."""
        assert request.state is not None
        told = await self.desk.question(self.rollout, request.state, request.messages, **self.how)
        self.answer = told["answer"]
        message, usage = as_message(told["message"]), Usage(*told["usage"])
        return Response(message, usage, told["finish_reason"], attempts=told["attempts"])

    async def close(self) -> None:
        """Nothing to free."""


def _told(error: BaseException) -> dict[str, Any]:
    """An exception as data; one that the owner raised by its number."""
    if isinstance(error, RemoteError) and error.type:
        told = {"type": error.type, "message": error.args[0], "traceback": error.traceback}
    else:
        told = {"type": type(error).__name__, "message": str(error), "traceback": traceback_text(error)}
    return {**told, "phase": getattr(error, "rove_phase", "")}


def _theirs(type: str, message: str, traceback: str = "", phase: str = "model") -> Error:
    """What the owner raised: of rove's own class where there is one, for environments that catch some."""
    kind = vars(errors).get(type, RemoteError)
    error: Any = kind(message) if kind is not RemoteError else RemoteError(message, type, traceback)
    error.rove_phase = phase
    return error


def _encoded(frame: Any) -> bytes:
    try:
        return json.dumps(frame).encode()
    except (TypeError, ValueError) as error:
        raise Error(
            f"{error}: what goes in and out of an isolated environment must be such that JSON can hold it"
        ) from error
