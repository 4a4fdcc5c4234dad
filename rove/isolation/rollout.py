"""One rollout of an isolated environment: where it is played, and the answers it has had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rove.envs.environment import Turn
from rove.errors import Error, LimitReachedError, OverlongPromptError, RemoteError, WorkerError
from rove.isolation.room import Room
from rove.messages import Message
from rove.records import Scores, TrajectoryStep
from rove.state import State
from rove.workers import Worker

CONTROL = {"LimitReachedError": LimitReachedError, "OverlongPromptError": OverlongPromptError}
"""What ends a rollout without being a failure."""


class Rollout:
    """Played in the worker that many share; once that has died, alone and with the answers it had.

    Args:
        room: the workers.
        state: of the rollout, here. The worker has one of its own.
        turn: asks the model.
    """

    def __init__(self, room: Room, state: State, turn: Turn):
        self.room, self.state, self._turn = room, state, turn
        self.worker: Worker | None = None
        self.number = -1
        self._turns: list[tuple[list[Any], asyncio.Task[TrajectoryStep]]] = []  # what the model was shown; its answer
        self._is_over = self._has_moved = False
        self._is_back = asyncio.Event()  # where it was when its worker died
        self._failure: Error | None = None

    async def time_limit(self) -> float | None:
        """Wall seconds that it may take."""
        worker = await self.room.shared()
        return await worker.ask("time_limit", example=self.state["input"])

    async def run(self) -> None:
        """Play it to its end.

        Raises:
            WorkerError: the worker died, and so did the next one when it was played again alone.
            RemoteError: what the environment raised.
        """
        try:
            await self._enter(await self.room.shared())
            try:
                await self._play()
            except WorkerError:
                await self.move(await self.room.another())
        except asyncio.CancelledError as error:
            await self._give_up(error)
            raise
        finally:
            self._is_over = True

    async def clean_up(self) -> None:
        """End it in its worker, and take over what is to be known of it.

        Raises:
            RemoteError: what a `@cleanup` method raised.
        """
        if self.worker is None or (self.worker.is_gone and self.state["error"] is not None):
            return
        told = await self._ask_surely("clean_up", **self._reasons())
        self._take(told)
        if self.state["error"] is not None or told["failed"] is not None:
            self.leave()
        if told["failed"] is not None:
            raise RemoteError(**told["failed"])

    async def score(self) -> Scores:
        """What the environment's rubric says of it, group rewards left out."""
        return self.taken(await self._ask_surely("score"))

    def taken(self, told: dict[str, Any]) -> Scores:
        """The scores in what a worker has told; the rest is taken over."""
        self._take(told)
        return msgspec.convert(told["scores"], Scores)

    async def move(self, worker: Worker) -> None:
        """Play it again in another worker, with the answers it had."""
        self._has_moved = True
        await self._enter(worker)
        await self._play()

    async def settle_in(self, worker: Worker) -> None:
        """The same for a rollout that is over."""
        with suppress(RemoteError, *CONTROL.values()):  # as it ended before
            await self.move(worker)
        await self._ask("clean_up", **self._reasons())

    @property
    def is_lost(self) -> bool:
        """Whether its worker has died."""
        return self.worker is None or self.worker.is_gone

    async def score_with(self, rollouts: Sequence[Rollout], scores: Sequence[Scores]) -> list[dict[str, Any]]:
        """The scores of siblings, all of them in this one's worker, group rewards included; to be `taken`."""
        assert self.worker is not None
        numbers = [rollout.number for rollout in rollouts]
        return await self.worker.ask("score_group", numbers=numbers, scores=msgspec.to_builtins(list(scores)))

    def leave(self) -> None:
        """Nothing more will be asked of its worker."""
        if self.worker is not None:
            self.room.leave(self.number, self.worker)

    async def ask_player(self, name: str, messages: list[Any], rng: Any) -> Any:
        """What a scripted player of the environment says."""
        return await self._ask("player", who=name, messages=messages, rng=rng)

    async def _enter(self, worker: Worker) -> None:
        self.worker, self.number = worker, self.room.enter(self._answer)

    async def _play(self) -> None:
        seeds = {"seed": self.state["seed"], "env_seed": self.state["env_seed"]}
        try:
            await self._ask("run", example=self.state["input"], **seeds, forget=self.room.forgotten())
        except RemoteError as error:
            own = self._failure
            if own is not None and (error.type, error.args[0]) == (type(own).__name__, str(own)):
                raise own from None
            if error.type in CONTROL:
                raise CONTROL[error.type](error.args[0]) from error
            raise

    async def _answer(
        self, index: int, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, prompt: str | None
    ) -> dict[str, Any]:
        """The model's answer number `index`: a new one, or the one that it gave when the rollout was played before."""
        if index == len(self._turns):
            if self._is_over:
                return {"limit": str(self.state["stop_condition"]), "truncated": False}
            self.state["tools"] = tools
            if prompt is not None:
                self.state["prompt"] = prompt
            shown = [Message(message) for message in messages]
            self._turns.append((messages, asyncio.create_task(self._asked(shown))))
        before, task = self._turns[index]
        if before != messages:
            raise WorkerError("its worker died; played again, the environment said something else than before")
        if self._has_moved and index == len(self._turns) - 1:
            self._is_back.set()
        try:
            step = await asyncio.shield(task)
        except LimitReachedError as error:
            return {"limit": str(error), "truncated": error.truncated}
        usage = [step.usage.prompt_tokens, step.usage.completion_tokens]
        told = {"finish_reason": step.finish_reason, "usage": usage, "seconds": step.seconds, "attempts": step.attempts}
        return {"message": step.completion[-1], **told}

    async def _asked(self, messages: list[Message]) -> TrajectoryStep:
        worker = self.worker
        try:
            try:
                said = await self._turn(self.state, messages)
            except WorkerError:  # a scripted player that died with the worker: another one will know the rollout
                if worker is None or not worker.is_gone:
                    raise
                await self._is_back.wait()
                said = await self._turn(self.state, messages)
        except Error as error:
            self._failure = error
            raise
        return next(step for step in reversed(self.state["trajectory"]) if step.completion[-1] is said)

    async def _give_up(self, error: asyncio.CancelledError) -> None:
        """Cancel what is asked of the model; whoever asks why a rollout took so long is told what its endpoint said."""
        for _, task in self._turns:
            if not task.done():
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError as inner:
                    if hasattr(inner, "rove_unanswered"):
                        error.rove_unanswered = inner.rove_unanswered  # pyright: ignore[reportAttributeAccessIssue]
                except Exception:
                    continue

    async def _ask(self, name: str, **args: Any) -> Any:
        assert self.worker is not None
        return await self.worker.ask(name, number=self.number, **args)

    async def _ask_surely(self, name: str, **args: Any) -> Any:
        """A call about a rollout that is over; it is played again first if its worker has died meanwhile."""
        try:
            return await self._ask(name, **args)
        except WorkerError:
            if self._has_moved:
                raise
        await self.settle_in(await self.room.another())
        return await self._ask(name, **args)

    def _reasons(self) -> dict[str, Any]:
        """How it ended, where this side knows."""
        return {"stop_condition": self.state["stop_condition"], "is_truncated": self.state["is_truncated"]}

    def _take(self, told: dict[str, Any]) -> None:
        state = self.state
        for name in ("prompt", "completion"):
            said = told[name]
            state[name] = said if isinstance(said, str) else [Message(message) for message in said]
        state["stop_condition"] = state["stop_condition"] or told["stop_condition"]
        state["is_truncated"] = state["is_truncated"] or told["is_truncated"]
        state["tools"] = told["tools"]
        state["seats"] = msgspec.convert(told["seats"], dict[str, list[TrajectoryStep]])
        if told["env_id"]:
            state["env_id"] = told["env_id"]
        for (_, task), seen in zip(self._turns, told["steps"]):
            if seen is None:  # not answered, or nobody listened any more
                continue
            step, (is_kept, reward) = task.result(), seen
            if not is_kept:  # a call beside the trajectory, which is in a seat
                state["trajectory"] = [one for one in state["trajectory"] if one is not step]
            elif reward is not None:
                step["reward"] = reward
