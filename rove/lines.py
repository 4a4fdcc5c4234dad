"""Every line of play: one player's answers against all that its opponent may do, as a tree whose chances are exact."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from rove.digest import derive_seed
from rove.envs.dataset import build_example, example_key
from rove.envs.multi_turn import MultiTurnEnv
from rove.errors import ConfigError
from rove.groups import RolloutError
from rove.messages import Messages, as_messages, text_of
from rove.protocols import Client, Request, Response, Sampling
from rove.records import RolloutRecord
from rove.rollout import Job, make_turn, run_rollout, score, try_record


@runtime_checkable
class Lined(Protocol):
    """What a two-player environment needs besides, so that its lines can be played."""

    def openings(self) -> Sequence[Mapping[str, Any]]:
        """Dataset rows, equally likely, with which every game begins in one of all its ways."""
        ...

    def check_answer(self, messages: Messages, answer: str) -> Mapping[str, bool]:
        """What there was to see in the last of `messages`, by name, and whether the answer did see it."""
        ...


class Line(msgspec.Struct, frozen=True):
    """One whole game."""

    opening: int
    """Which of the environment's openings."""
    replies: tuple[str, ...]
    """The opponent's moves."""
    probability: float
    """Of this line against an opponent that takes each of its moves equally often."""
    record: RolloutRecord


class Check(msgspec.Struct):
    """How often something was there to be seen, and how often it was seen."""

    there: int = 0
    seen: int = 0


class Proof(msgspec.Struct, frozen=True):
    """What a player does in every line of play."""

    lines: int
    questions: int
    """Different conversations it was asked to go on with."""
    counts: dict[str, int]
    """Lines in which a reward function or metric is more than 0."""
    expected: dict[str, float]
    """The mean of each against a uniformly random opponent: exact."""
    checks: dict[str, Check]
    """Over the questions, each counted once."""


class _Once:
    """A client that asks the one behind it every question once, with a seed of its own: equal ones get the same answer."""

    def __init__(self, client: Client):
        self.client = client
        self.max_concurrent = client.max_concurrent
        self.asked: dict[bytes, asyncio.Task[Response]] = {}

    async def respond(self, request: Request) -> Response:
        key = msgspec.json.encode(request.messages)
        if key not in self.asked:
            own = msgspec.structs.replace(request, seed=derive_seed(request.seed, key.decode()))
            self.asked[key] = asyncio.ensure_future(self.client.respond(own))
        return await asyncio.shield(self.asked[key])

    async def close(self) -> None:
        await self.client.close()


@dataclass
class _Path:
    """The replies of one game: those given, then always the first that is legal; the others are noted."""

    opening: int
    given: tuple[str, ...]
    taken: list[str] = field(default_factory=list)
    probability: float = 1.0
    others: list[tuple[str, ...]] = field(default_factory=list)

    def reply(self, legal: Sequence[str]) -> str:
        depth = len(self.taken)
        move = self.given[depth] if depth < len(self.given) else legal[0]
        if depth >= len(self.given):
            self.others += [(*self.taken, other) for other in legal[1:]]
        self.taken.append(move)
        self.probability /= len(legal)
        return move


_path: contextvars.ContextVar[_Path] = contextvars.ContextVar("path")


async def every_line(
    env: MultiTurnEnv, client: Client, sampling: Sampling, model: str = "", seed: int = 0
) -> list[Line]:
    """Play a two-player environment against everything its opponent may do, in whole rollouts as any others.

    Each conversation is put to the client once, so the lines are those of one player, whatever it samples with.

    Args:
        env: its `opponent` is taken meanwhile.
        client: who plays.
        sampling: temperature 0 for the player's best.
        model: its name, for endpoints that serve several.
        seed: of a player that draws lots.

    Returns:
        the lines in the order of openings and replies.

    Raises:
        ConfigError: the environment cannot tell its openings or has no second seat.
        RolloutError: a game failed.
    """
    if not (isinstance(env, Lined) and env.two_player):
        raise ConfigError(
            f"environment '{env.env_id}' cannot be played line by line; it needs two_player = True, and the methods "
            "openings() and check_answer() (see rove.lines.Lined)"
        )
    rows = enumerate(env.openings())
    examples = [build_example(row, i, env.system_prompt, env.few_shot, env.message_type) for i, row in rows]
    turn = make_turn(_Once(client), model, sampling)
    lines: list[Line] = []

    async def play(path: _Path) -> None:
        _path.set(path)
        example = examples[path.opening]
        job = Job(example, example_key(example), 0, seed)
        state = await run_rollout(env, job, turn)
        record = try_record(job, state, await score(env, state), sampling.temperature, None)
        if record.error is not None:
            raise RolloutError(record)
        lines.append(Line(path.opening, tuple(path.taken), path.probability / len(examples), record))
        for replies in path.others:
            games.create_task(play(_Path(path.opening, replies)))

    async def opponent(view: str, legal: list[str]) -> str:
        return _path.get().reply(legal)

    before, env.opponent = env.opponent, opponent
    try:
        async with asyncio.TaskGroup() as games:
            for opening in range(len(examples)):
                games.create_task(play(_Path(opening, ())))
    except* RolloutError as failed:
        raise failed.exceptions[0] from None
    finally:
        env.opponent = before
    return sorted(lines, key=lambda line: (line.opening, line.replies))


def prove(env: MultiTurnEnv, lines: Sequence[Line]) -> Proof:
    """Sum the lines of a player up."""
    assert isinstance(env, Lined)
    counts: dict[str, int] = {}
    expected: dict[str, float] = {}
    for line in lines:
        for name, value in values_of(line.record).items():
            counts[name] = counts.get(name, 0) + (value > 0)
            expected[name] = expected.get(name, 0.0) + line.probability * value
    checks: dict[str, Check] = {}
    asked = {
        msgspec.json.encode(step.prompt): (step.prompt, step.completion[0])
        for line in lines
        for step in line.record.steps
    }
    for messages, answer in asked.values():
        for name, seen in env.check_answer(as_messages(messages), text_of(answer)).items():
            check = checks.setdefault(name, Check())
            check.there += 1
            check.seen += seen
    return Proof(len(lines), len(asked), counts, expected, checks)


def values_of(record: RolloutRecord) -> dict[str, float]:
    """What every reward function and metric said of a record."""
    return {} if record.scores is None else {**record.scores.rewards, **record.scores.metrics}
