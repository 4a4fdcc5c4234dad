"""Every line of play: one player's answers against all that its opponent may do, as a tree whose chances are exact."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages, as_messages, text_of
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import RolloutRecord
from rove.core.renderings import Rendering
from rove.envs.dataset import build_example, example_key
from rove.envs.environment import Environment
from rove.envs.multi_turn import MultiTurnEnv
from rove.rollouts.evaluation_kinds import EVALUATION_KINDS, EvaluationKind
from rove.rollouts.groups import RolloutError
from rove.rollouts.runner import Job, make_turn, run_rollout, score, try_record


@runtime_checkable
class ExhaustiveGame(Protocol):
    """What a two-player environment needs besides, so that its lines can be played."""

    def openings(self) -> Sequence[Mapping[str, Any]]:
        """Dataset rows, equally likely, with which every game begins in one of all its ways."""
        ...

    def check_answer(self, messages: Messages, answer: str) -> Mapping[str, bool]:
        """What there was to see in the last of `messages`, by name, and whether the answer did see it."""
        ...


def as_exhaustive_game(env: Environment) -> ExhaustiveGame:
    """The environment, where its lines can be played.

    Raises:
        ConfigError: it has no second role, or cannot tell its openings.
    """
    if not (isinstance(env, MultiTurnEnv) and env.two_player and isinstance(env, ExhaustiveGame)):
        raise ConfigError(
            f"environment '{env.env_id}' cannot be played line by line; it needs two_player = True, and the methods "
            "openings() and check_answer() (see rove.lines.Lined)"
        )
    return env


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


class Missed(NamedTuple):
    """A goal that a player does not reach."""

    amount: float
    """By how much: lines, answers, or points of a percentage."""
    text: str


class Goals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What mastery of a game is, in every line of play; without any of these a player lacks nothing."""

    never: list[str] = []
    """Reward functions and metrics that must be 0 in every line."""
    expected: dict[str, float] = {}
    """The least mean of reward functions and metrics, from 0 to 1, against a uniformly random opponent."""
    checks: dict[str, float] = {}
    """The least share of what was there that was seen, by check; what was never there counts as one that was not seen."""

    def missed(self, proof: Proof) -> list[Missed]:
        """What a player lacks; nothing when it masters the game.

        Raises:
            ConfigError: the environment has no such reward function or metric.
        """
        for name in (*self.never, *self.expected):
            if name not in proof.counts:
                raise ConfigError(f"no line of play has a '{name}'; {nearest(name, proof.counts)}")
        lines = [Missed(proof.counts[name], f"{name} in {proof.counts[name]} lines") for name in self.never]
        means = [
            Missed(
                100 * (least - proof.expected[name]),
                f"{name} {100 * proof.expected[name]:.2f} % against random, {100 * least:g} wanted",
            )
            for name, least in self.expected.items()
        ]
        checks = [(name, least, proof.checks.get(name, Check(there=1))) for name, least in self.checks.items()]
        answers = [
            Missed(least * check.there - check.seen, f"{name} {check.seen} of {check.there}, {100 * least:g} % wanted")
            for name, least, check in checks
        ]
        return [missed for missed in (*lines, *means, *answers) if missed.amount > 0]


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


async def play_every_line(
    env: Environment, client: Client, sampling: SamplingParams, model: str = "", seed: int = 0
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
        ConfigError: see `lined`.
        RolloutError: a game failed.
    """
    rows = enumerate(as_exhaustive_game(env).openings())
    assert isinstance(env, MultiTurnEnv)
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

    async def opponent(view: str, legal: list[str], board: Rendering | None = None) -> str:
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


def summarize(env: Environment, lines: Sequence[Line]) -> Proof:
    """Sum the lines of a player up.

    Raises:
        ConfigError: see `lined`.
    """
    check_answer = as_exhaustive_game(env).check_answer
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
        for name, seen in check_answer(as_messages(messages), text_of(answer)).items():
            check = checks.setdefault(name, Check())
            check.there += 1
            check.seen += seen
    return Proof(len(lines), len(asked), counts, expected, checks)


def values_of(record: RolloutRecord) -> dict[str, float]:
    """What every reward function and metric said of a record."""
    return {} if record.scores is None else {**record.scores.rewards, **record.scores.metrics}


async def measure_exhaustively(
    env: Environment, client: Client, sampling_params: SamplingParams, goals: Goals, seed: int
) -> dict[str, float]:
    """Return the metrics of an exhaustive evaluation.

    Returns:
        `lines`, the number of games; `lines/NAME`, in how many a reward function or metric is above 0; `reward/mean`,
        `reward/NAME` and `metrics/NAME`, exact means against a uniformly random opponent; `checks/NAME`, the fraction of
        situations that the model recognized; and `missed`, by how much it misses the goals: games, answers and percentage
        points, summed.
    """
    lines = await play_every_line(env, client, sampling_params, seed=seed)
    summary = summarize(env, lines)
    found = {"lines": float(summary.lines), "missed": math.fsum(one.amount for one in goals.missed(summary))}
    found["reward/mean"] = math.fsum(line.probability * (line.record.reward or 0.0) for line in lines)
    scores = lines[0].record.scores
    for name, value in summary.expected.items():
        found[f"{'reward' if scores and name in scores.rewards else 'metrics'}/{name}"] = value
    found |= {f"lines/{name}": float(count) for name, count in summary.counts.items()}
    return found | {f"checks/{name}": check.seen / check.there for name, check in summary.checks.items()}


EVALUATION_KINDS["exhaustive"] = EvaluationKind(Goals, as_exhaustive_game, measure_exhaustively)
