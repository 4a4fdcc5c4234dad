"""One rollout of an isolated environment: where it is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from rove.core.errors import LimitReachedError, OverlongPromptError, RemoteError, WorkerError
from rove.core.messages import Message
from rove.core.records import Scores
from rove.core.renderings import Rendering
from rove.core.state import State
from rove.envs.environment import Turn
from rove.envs.multi_turn import Opponent
from rove.remote.requests import Questions
from rove.remote.worker_pool import WorkerPool, WorkerPools
from rove.workers import Worker

CONTROL = {"LimitReachedError": LimitReachedError, "OverlongPromptError": OverlongPromptError}
"""What ends a rollout without being a failure."""
LOSSES = 3
"""Machines that may be lost under one rollout: it may be what ends them."""


class Rollout:
    """Played in the worker that many share; once that has died, alone and with the answers it had.

    Where the whole machine is lost, nobody's rollout is to blame: it is played again on another, like any there.

    Args:
        rooms: the workers.
        state: of the rollout, here. The worker has one of its own.
        turn: asks the model.
        opponent: takes the other role of a two-player environment, which is asked for then.
    """

    def __init__(self, rooms: WorkerPools, state: State, turn: Turn, opponent: Opponent | None = None):
        self.rooms, self.state = rooms, state
        self.room: WorkerPool | None = None
        self.worker: Worker | None = None
        self.number = -1
        state["isolated"] = self
        self._questions = Questions(state, turn, opponent)
        self._has_opponent = opponent is not None
        self._is_in = False
        self._has_moved = False
        self._losses = 0

    async def time_limit(self) -> float | None:
        """Wall seconds that it may take."""
        while True:
            worker = await self._next()
            try:
                return await worker.request("time_limit", example=self.state["input"])
            except WorkerError:
                if not await self._is_homeless():
                    raise

    async def run(self) -> None:
        """Play it to its end.

        Raises:
            WorkerError: the worker died, and so did the next one when it was played again alone; or one machine after the
                other was lost, or the last.
            RemoteError: what the environment raised.
        """
        try:
            worker: Worker | None = await self._next()
            while worker is not None:
                try:
                    await self.move(worker)
                    break
                except WorkerError:
                    worker = await self._after_death()
                    if worker is None:
                        raise
        except asyncio.CancelledError as error:
            await self._questions.end(error)
            raise
        finally:
            await self._questions.end()

    async def clean_up(self) -> None:
        """End it in its worker, and take over what is to be known of it.

        Raises:
            RemoteError: what a `@cleanup` method raised.
        """
        if self.worker is None or (self.worker.is_closed and self.state["error"] is not None):
            self.leave()
            return
        told = await self._ask_surely("clean_up", self._play_again, **self._reasons())
        self._take(told)
        if self.state["error"] is not None or told["failed"] is not None:
            self.leave()
        if told["failed"] is not None:
            raise RemoteError(**told["failed"])

    async def score(self) -> Scores:
        """What the environment's rubric says of it, group rewards left out."""
        return self.taken(await self._ask_surely("score", self.settle_in))

    def taken(self, told: dict[str, Any]) -> Scores:
        """The scores in what a worker has told; the rest is taken over."""
        self._take(told)
        return msgspec.convert(told["scores"], Scores)

    async def move(self, worker: Worker) -> None:
        """Play it in a worker, with the answers it had if this is not the first."""
        assert self.room is not None
        self._depart()
        self.worker, self.number = worker, self.room.enter(self._questions)
        self._is_in = True
        self._questions.begin(worker)
        await self._play()

    async def settle_in(self, worker: Worker) -> None:
        """The same for a rollout that is over and cleaned up."""
        await self._play_again(worker)
        await self._ask("clean_up", **self._reasons())

    async def score_with(self, rollouts: Sequence[Rollout], scores: Sequence[Scores]) -> list[dict[str, Any]]:
        """The scores of siblings, all of them in this one's worker, group rewards included; to be `taken`."""
        assert self.worker is not None
        numbers = [rollout.number for rollout in rollouts]
        return await self.worker.request("score_group", numbers=numbers, scores=msgspec.to_builtins(list(scores)))

    def leave(self) -> None:
        """Nothing more will be asked of its worker."""
        self._depart()
        if self.room is not None:
            self.room.members.discard(self)

    def _depart(self) -> None:
        if self._is_in:
            assert self.room is not None
            assert self.worker is not None
            self._is_in = False
            self.room.leave(self.number, self.worker)

    async def ask_player(self, name: str, messages: list[Any], rng: Any, conversation: int = 0) -> Any:
        """What a scripted policy of the environment says; `conversation` is the worker's number of it."""
        return await self._ask("player", who=name, messages=messages, rng=rng, conversation=conversation)

    def live_in(self, room: WorkerPool) -> None:
        """From now on it is in this room."""
        self.room = room
        room.members.add(self)

    async def _next(self, alone: bool = False) -> Worker:
        """A worker to be played in: one that many share, or one of its own."""
        while True:
            if self.room is None:
                self.live_in(await self.rooms.choose(self.state))
            assert self.room is not None
            try:
                return await (self.room.another() if alone else self.room.shared())
            except WorkerError:
                if not await self._is_homeless():
                    raise

    async def _is_homeless(self) -> bool:
        """Whether the machine that it was on is lost and it may go to another: then it has no room any more."""
        if self.room is not None:
            if not await self.rooms.is_lost(self.room):
                return False
            self.leave()
            self.room = None
            self._losses += 1
        return self._losses < LOSSES

    async def _after_death(self) -> Worker | None:
        """The worker to be played in when one has died; None when that was enough."""
        if await self._is_homeless():
            return await self._next(self._has_moved)
        if self._has_moved or self.room is None:
            return None
        self._has_moved = True
        return await self._next(alone=True)

    async def _play(self) -> None:
        assert self.room is not None
        seeds = {"seed": self.state["seed"], "env_seed": self.state["env_seed"]}
        try:
            how = {"has_opponent": self._has_opponent, "forget": self.room.forgotten()}
            await self._ask("run", example=self.state["input"], **seeds, **how)
        except RemoteError as error:
            own = self._questions.failure
            if own is not None and (error.type, error.args[0]) == (type(own).__name__, str(own)):
                raise own from None
            if error.type in CONTROL:
                raise CONTROL[error.type](error.args[0]) from error
            raise

    async def _ask(self, name: str, **args: Any) -> Any:
        assert self.worker is not None
        return await self.worker.request(name, number=self.number, **args)

    async def _ask_surely(self, name: str, again: Callable[[Worker], Awaitable[None]], **args: Any) -> Any:
        """A call about a rollout that is over; where its worker has died meanwhile it is played `again` first."""
        worker: Worker | None = None
        while True:
            try:
                if worker is not None:
                    await again(worker)
                return await self._ask(name, **args)
            except WorkerError:
                worker = await self._after_death()
                if worker is None:
                    raise

    async def _play_again(self, worker: Worker) -> None:
        """Move a rollout that is over; it ends as it did before."""
        with suppress(RemoteError, *CONTROL.values()):
            await self.move(worker)

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
        state["drawn_boards"] = msgspec.convert(told["renderings"], dict[int, Rendering], strict=False)
        questions = self._questions
        state["model_roles"] = {role: questions.steps(steps) for role, steps in told["model_roles"].items()}
        if told["env_id"]:
            state["env_id"] = told["env_id"]
        steps = questions.steps(told["trajectory"])
        for step, reward in zip(steps, told["step_rewards"], strict=True):
            if reward is not None:
                step["reward"] = reward
        state["trajectory"][:] = [*steps, *questions.missing(told["trajectory"])]


async def score_together(rollouts: Sequence[Rollout], scores: Sequence[Scores]) -> list[Scores]:
    """The scores of siblings, group rewards included; they are brought together in one worker if they are not."""
    first = rollouts[0]
    while True:
        try:
            if len({rollout.worker for rollout in rollouts}) > 1 or first.worker is None or first.worker.is_closed:
                worker = await first._next(alone=True)
                assert first.room is not None
                for rollout in rollouts:
                    rollout.leave()
                    rollout.live_in(first.room)
                    await rollout.settle_in(worker)
            told = await first.score_with(rollouts, scores)
            return [rollout.taken(one) for rollout, one in zip(rollouts, told, strict=True)]
        except WorkerError:
            if not await first._is_homeless():
                raise
