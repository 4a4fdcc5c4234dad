"""Exhaustive evaluation over the game tree: all games against all legal opponent moves, with exact probabilities."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from rove.core.checks import Settings
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages, as_messages, text_of
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.ranges import Fraction
from rove.core.records import RolloutRecord
from rove.core.renderings import Rendering
from rove.envs.dataset import build_example, example_key
from rove.envs.environment import Environment
from rove.envs.multi_turn import MultiTurnEnv, env_with_opponent
from rove.rollouts.groups import RolloutError
from rove.rollouts.runner import Job, finished_rollout, make_turn, score, scores_after_cleanup, try_record


@runtime_checkable
class ExhaustiveGame(Protocol):
    """The methods that a two-player environment needs for exhaustive evaluation."""

    def openings(self) -> Sequence[Mapping[str, object]]:
        """Return dataset rows that together start every possible game; all rows are equally likely."""
        ...

    def check_answer(self, messages: Messages, answer: str) -> Mapping[str, bool]:
        """Return the opportunities that the last of `messages` offers, by name, and whether the answer took each."""
        ...


def as_exhaustive_game(env: Environment) -> ExhaustiveGame:
    """Return the environment as an exhaustive game."""
    if not (isinstance(env, MultiTurnEnv) and env.two_player and isinstance(env, ExhaustiveGame)):
        raise ConfigError(
            f"environment '{env.env_id}' does not support exhaustive evaluation; it needs two_player = True, and the "
            "methods openings() and check_answer() (see rove.rollouts.exhaustive.ExhaustiveGame)"
        )
    return env


class Line(msgspec.Struct, frozen=True):
    """One complete game: a path through the game tree."""

    opening: int
    """Index into the environment's openings."""
    replies: tuple[str, ...]
    """The opponent's moves."""
    probability: float
    """Probability of this game against a uniformly random opponent."""
    record: RolloutRecord


class Check(msgspec.Struct):
    """Counts of one kind of opportunity, such as a win in one move."""

    total: int = 0
    """Number of conversations that offered the opportunity."""
    taken: int = 0
    """Number of answers that took the opportunity."""


class ExhaustiveResult(msgspec.Struct, frozen=True):
    """Summary of an exhaustive evaluation."""

    lines: int
    """Number of games."""
    conversations: int
    """Number of distinct conversations that the model answered."""
    counts: dict[str, int]
    """Number of games in which a reward function or metric is positive."""
    expected: dict[str, float]
    """Exact mean of each reward function and metric against a uniformly random opponent."""
    checks: dict[str, Check]
    """Counts of each kind of opportunity over the distinct conversations."""


class Missed(NamedTuple):
    """A goal that was not reached."""

    amount: float
    """Shortfall: games, answers or percentage points."""
    text: str


class Goals(Settings, frozen=True, kw_only=True):
    """Goals of an exhaustive evaluation. If no goals are set, every result reaches them.

    Example:
        >>> Goals(never=["lost", "invalid_move"], expected={"won": 0.97})
    """

    never: list[str] = []
    """Names of reward functions and metrics that must be 0 in every game."""
    expected: dict[str, Fraction] = {}
    """Minimum mean of each named reward function or metric against a uniformly random opponent."""
    checks: dict[str, Fraction] = {}
    """Minimum share of opportunities that the model must take in each named check; an opportunity that never occurs
    counts as missed."""

    def missed(self, result: ExhaustiveResult) -> list[Missed]:
        """Return the goals that a result does not reach."""
        for name in (*self.never, *self.expected):
            if name not in result.counts:
                raise ConfigError(f"unknown reward function or metric '{name}'; {nearest(name, result.counts)}")
        goals: list[Missed] = []
        for name in self.never:
            count = result.counts[name]
            goals.append(Missed(count, f"{name} in {count} games"))
        for name, minimum in self.expected.items():
            expected = result.expected[name]
            text = f"{name} {100 * expected:.2f}% against random, goal {100 * minimum:g}%"
            goals.append(Missed(100 * (minimum - expected), text))
        for name, minimum in self.checks.items():
            check = result.checks.get(name, Check(total=1))
            text = f"{name} {check.taken} of {check.total}, goal {100 * minimum:g}%"
            goals.append(Missed(minimum * check.total - check.taken, text))
        return [goal for goal in goals if goal.amount > 0]


class _CachingClient:
    """A client that sends each conversation once, with a seed derived from the conversation, and reuses the response."""

    def __init__(self, client: Client):
        self.client = client
        self.max_concurrent = client.max_concurrent
        self.responses: dict[bytes, asyncio.Task[Response]] = {}

    async def respond(self, request: Request) -> Response:
        key = msgspec.json.encode(request.messages)
        # The seed comes from the conversation, so that a conversation has one response, whichever game reaches it first.
        if key not in self.responses:
            seeded = msgspec.structs.replace(request, seed=derive_seed(request.seed, key.decode()))
            self.responses[key] = asyncio.ensure_future(self.client.respond(seeded))
        # Other games wait for the same response, so the cancellation of this game must not cancel it.
        return await asyncio.shield(self.responses[key])

    async def close(self) -> None:
        await self.client.close()


@dataclass
class _Path:
    """One path through the game tree: the given replies, then always the first legal reply. Records the untried branches."""

    opening: int
    replies: tuple[str, ...]
    taken: list[str] = field(default_factory=list[str])
    probability: float = 1.0
    branches: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])

    async def opponent(self, view: str, legal: list[str], board: Rendering | None = None) -> str:
        """Return the next reply of the path (implements `Opponent`)."""
        depth = len(self.taken)
        if depth < len(self.replies):
            move = self.replies[depth]
        else:
            # Only new positions branch: those before were recorded by the path from which this one branched.
            move = legal[0]
            self.branches += [(*self.taken, alternative) for alternative in legal[1:]]
        self.taken.append(move)
        self.probability /= len(legal)
        return move


async def play_all_games(
    env: Environment, client: Client, sampling: SamplingParams, model: str = "", seed: int = 0
) -> list[Line]:
    """Run a two-player environment against every legal sequence of opponent moves.

    rove sends each distinct conversation to the client once, so all games follow one policy at any temperature.

    Args:
        sampling: Sampling parameters; temperature 0 evaluates the greedy policy.

    Returns:
        The games, ordered by opening and replies.
    """
    openings = as_exhaustive_game(env).openings()
    if not openings:
        raise ConfigError(f"openings() of environment '{env.env_id}' returned no rows; expected at least one")
    assert isinstance(env, MultiTurnEnv)
    game: MultiTurnEnv = env
    examples = [
        build_example(row, i, env.system_prompt, env.few_shot, env.message_type) for i, row in enumerate(openings)
    ]
    turn = make_turn(_CachingClient(client), model, sampling)
    lines: list[Line] = []

    async def play(path: _Path) -> None:
        example = examples[path.opening]
        job = Job(example, example_key(example), 0, seed)
        async with finished_rollout(env_with_opponent(game, path.opponent), job, turn) as state:
            scores = await score(env, state)
        record, _ = try_record(job, state, scores_after_cleanup(state, scores), sampling.temperature, None)
        if record.error is not None:  # without this game, counts and exact means would be wrong
            raise RolloutError(record)
        lines.append(Line(path.opening, tuple(path.taken), path.probability / len(examples), record))
        for replies in path.branches:
            games.create_task(play(_Path(path.opening, replies)))

    try:
        async with env.used_in_run(), asyncio.TaskGroup() as games:
            for opening in range(len(examples)):
                games.create_task(play(_Path(opening, ())))
    except* RolloutError as failed:  # the caller expects the error itself, not the group's
        raise failed.exceptions[0] from None
    return sorted(lines, key=lambda line: (line.opening, line.replies))


def summarize(env: Environment, lines: Sequence[Line]) -> ExhaustiveResult:
    """Summarize the games of an exhaustive evaluation."""
    check_answer = as_exhaustive_game(env).check_answer
    counts: dict[str, int] = {}
    expected: dict[str, float] = {}
    for line in lines:
        for name, value in values_of(line.record).items():
            counts[name] = counts.get(name, 0) + int(value > 0)
            expected[name] = expected.get(name, 0.0) + line.probability * value
    checks: dict[str, Check] = {}
    # Many games share their first conversations; each conversation counts once.
    answers: dict[bytes, tuple[Any, Any]] = {}
    for line in lines:
        for step in line.record.steps:
            answers[msgspec.json.encode(step.prompt)] = (step.prompt, step.completion[0])
    for messages, answer in answers.values():
        for name, was_taken in check_answer(as_messages(messages), text_of(answer)).items():
            check = checks.setdefault(name, Check())
            check.total += 1
            check.taken += int(was_taken)
    return ExhaustiveResult(len(lines), len(answers), counts, expected, checks)


def values_of(record: RolloutRecord) -> dict[str, float]:
    """Return the values of all reward functions and metrics of a record."""
    return {} if record.scores is None else {**record.scores.rewards, **record.scores.metrics}


async def measure_exhaustively(
    env: Environment, client: Client, sampling_params: SamplingParams, goals: Goals, seed: int
) -> dict[str, float]:
    """Return the metrics of an exhaustive evaluation.

    Returns:
        `lines`, the number of games; `lines/NAME`, the number of games with a positive reward function or metric;
        `reward/mean`, `reward/NAME` and `metrics/NAME`, exact means against a uniformly random opponent; `checks/NAME`, the
        fraction of opportunities that the model took; `missed`, the sum of all shortfalls (games, answers and percentage points).
    """
    lines = await play_all_games(env, client, sampling_params, seed=seed)
    summary = summarize(env, lines)
    missed = math.fsum(goal.amount for goal in goals.missed(summary))
    metrics = {"lines": float(summary.lines), "missed": missed}
    metrics["reward/mean"] = math.fsum(line.probability * (line.record.reward or 0.0) for line in lines)
    scores = lines[0].record.scores
    for name, value in summary.expected.items():
        is_reward = scores is not None and name in scores.rewards
        metrics[f"reward/{name}" if is_reward else f"metrics/{name}"] = value
    for name, count in summary.counts.items():
        metrics[f"lines/{name}"] = float(count)
    for name, check in summary.checks.items():
        metrics[f"checks/{name}"] = check.taken / check.total
    return metrics
