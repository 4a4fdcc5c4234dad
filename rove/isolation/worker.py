"""What the worker of an `IsolatedEnv` does: it plays and scores rollouts of an environment, many at once. The model is asked
for at the other end of the socket."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import random
import socket
import struct
from typing import Any

import msgspec

from rove import errors
from rove.envs.environment import Environment, Turn
from rove.envs.loading import load_environment
from rove.errors import ConfigError, Error, LimitReachedError, RemoteError, ends_task, traceback_text
from rove.functions import maybe_await
from rove.messages import Message, Messages, as_message
from rove.records import Scores, TrajectoryStep, Usage
from rove.rollout import error_info
from rove.state import State

LENGTH = struct.Struct("<I")


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
        "players": sorted(env.players),
        "names": env.rubric.names,
        "extras_names": env.rubric.extras_names,
        "has_group_rewards": env.rubric.has_group_rewards,
        "identity": env.identity,
        "env_id": env.env_id,
        "source": env.source,
    }


def serve(connection: socket.socket, module: Any) -> None:
    """Answer calls, many at once, until the other end is gone."""
    asyncio.run(_Desk(Loaded.env).serve(connection))


class _Desk:
    """Rollouts by number, and the conversation about them."""

    def __init__(self, env: Environment):
        self.env = env
        self.states: dict[int, State] = {}
        self.steps: dict[int, list[TrajectoryStep | None]] = {}
        """The steps of each rollout as they were asked for; None: not answered."""
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
        self.writer.write(LENGTH.pack(len(body)) + body)
        await self.writer.drain()

    async def ask(self, name: str, **args: Any) -> Any:
        """The owner's answer to a call; what it raised is raised here, by name."""
        self.count += 1
        answer = self.waiting[self.count] = asyncio.get_running_loop().create_future()
        await self.send(_encoded({"id": self.count, "call": name, "args": args}))
        frame = await answer
        if "error" in frame:
            raise _theirs(**frame["error"])
        return frame["result"]

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

    async def run(self, number: int, example: dict[str, Any], seed: int, env_seed: int, forget: list[int]) -> None:
        """Play a rollout up to its end; `clean_up` is another call. Forget those that nobody asks for any more."""
        for old in forget:
            self.states.pop(old, None)
            self.steps.pop(old, None)
        if isinstance(example["prompt"], list):
            example["prompt"] = [Message(one) for one in example["prompt"]]
        state = self.states[number] = State(
            input=example,
            trajectory=[],
            seats={},
            completion=[],
            seed=seed,
            env_seed=env_seed,
            stop_condition=None,
            is_truncated=False,
            error=None,
        )

        async def turn(state: State, messages: Messages, *, seat: Any = None, asked: Any = None, **_: Any) -> Message:
            if seat is not None or asked is not None:
                raise ConfigError(
                    "sub-models and foreign agents cannot ask the model from a worker; go on without --isolated"
                )
            return await self.turn(number, state, messages)

        self.steps[number] = []
        self.plays[number] = asyncio.create_task(self._played(state, turn))
        await asyncio.wait([self.plays[number]])
        play = self.plays.pop(number, None)  # none where it is being cleaned up already
        failure = play.result() if play is not None and not play.cancelled() else None
        if failure is not None:
            state["error"] = error_info(failure)
            raise failure

    async def _played(self, state: State, turn: Turn) -> BaseException | None:
        """Plays; what went wrong. An exit() that left this task would end the worker."""
        try:
            await self.env.run(state, turn)
        except BaseException as error:
            if ends_task(error):
                raise
            return error
        return None

    async def turn(self, number: int, state: State, messages: Messages) -> Message:
        """Have the model asked; keep the step as the owner does. The state may be a copy, for a call beside the trajectory."""
        steps = self.steps[number]
        index = len(steps)
        steps.append(None)
        told = await self.ask(
            "turn",
            number=number,
            index=index,
            messages=messages,
            tools=state.get("tools"),
            prompt=state["prompt"] if isinstance(state["prompt"], str) else None,
        )
        if "limit" in told:
            reached = LimitReachedError(told["limit"])
            reached.truncated = told["truncated"]
            raise reached
        message = as_message(told["message"])
        step = steps[index] = TrajectoryStep(
            prompt=list(messages),
            completion=[message],
            finish_reason=told["finish_reason"],
            usage=Usage(*told["usage"]),
            seconds=told["seconds"],
            attempts=told["attempts"],
        )
        state["trajectory"].append(step)
        if told["finish_reason"] == "length":
            state["is_truncated"] = True
        return message

    async def clean_up(self, number: int, stop_condition: str | None, is_truncated: bool) -> dict[str, Any]:
        """End a rollout, whose owner may have had a reason of its own; what is to be told of it."""
        state = self.states[number]
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
        return {**self.seen(number), "failed": failed}

    async def score(self, number: int) -> dict[str, Any]:
        """The rubric's scores of a finished rollout, and what scoring it has added."""
        state = self.states[number]
        scores = await self.env.rubric.score_rollout(state)
        return {"scores": msgspec.to_builtins(scores), **self.seen(number)}

    async def score_group(self, numbers: list[int], scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same of siblings, group rewards included."""
        states = [self.states[number] for number in numbers]
        given = await self.env.rubric.score_group(states, msgspec.convert(scores, list[Scores]))
        told = zip(given, numbers, strict=True)
        return [{"scores": msgspec.to_builtins(one), **self.seen(number)} for one, number in told]

    def seen(self, number: int) -> dict[str, Any]:
        """What of a rollout its owner keeps."""
        state, steps = self.states[number], self.steps[number]
        kept = {id(step) for step in state["trajectory"]}
        return {
            "prompt": state["prompt"],
            "completion": state["completion"],
            "stop_condition": None if state["stop_condition"] is None else str(state["stop_condition"]),
            "is_truncated": bool(state["is_truncated"]),
            "tools": state.get("tools"),
            "seats": msgspec.to_builtins(state.get("seats") or {}),
            "steps": [step if step is None else [id(step) in kept, step.reward] for step in steps],
            "env_id": state.get("env_id", ""),
        }

    async def player(self, number: int, who: str, messages: list[dict[str, Any]], rng: list[Any]) -> Any:
        """What a scripted player of the environment says."""
        drawn = random.Random()
        drawn.setstate((rng[0], tuple(rng[1]), rng[2]))
        asked = [Message(message) for message in messages]
        return await maybe_await(self.env.players[who](asked, self.states[number], drawn))

    async def tear_down(self) -> None:
        """Run the environment's `@teardown` methods."""
        await self.env.tear_down()


def _told(error: BaseException) -> dict[str, Any]:
    """An exception as data; one that the owner raised by its number."""
    if isinstance(error, RemoteError) and error.type:
        told = {"type": error.type, "message": error.args[0], "traceback": error.traceback}
    else:
        told = {"type": type(error).__name__, "message": str(error), "traceback": traceback_text(error)}
    return {**told, "phase": getattr(error, "rove_phase", "")}


def _theirs(type: str, message: str, traceback: str) -> Error:
    """What the owner raised: of rove's own class where there is one, for environments that catch some."""
    kind = vars(errors).get(type, RemoteError)
    error: Any = kind(message) if kind is not RemoteError else RemoteError(message, type, traceback)
    error.rove_phase = "model"
    return error


def _encoded(frame: Any) -> bytes:
    try:
        return json.dumps(frame).encode()
    except (TypeError, ValueError) as error:
        raise Error(
            f"{error}: what goes in and out of an isolated environment must be such that JSON can hold it"
        ) from error
