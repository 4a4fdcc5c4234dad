"""Scoring the rollouts of a run again, with the rubric as it is now, without asking a model.

A rubric may read what no record holds: whatever the environment keeps in the rollout's state. So every rollout is played
again. The environment runs as it did, with the seeds it had; the answers are those on record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rove.clients.scripted import ScriptedClient
from rove.core.digest import derive_seed, fingerprint
from rove.core.errors import ConfigError, Error, LimitReachedError, RunError, phase
from rove.core.messages import Message, text_of
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.records import ErrorInfo, Outcome, RolloutRecord, Timing
from rove.core.state import State
from rove.envs.environment import Environment, Turn, messages_of
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job, make_turn, plan
from rove.runs.run import Run, in_one_piece
from rove.runs.serialization import decode_record, encode_record
from rove.statistics import Price, Tally

CONCURRENT = 32
"""Rollouts played again at a time."""
LIMITS = frozenset(
    {
        "max_turns_reached",
        "max_total_tokens_reached",
        "max_cost_reached",
        "max_total_completion_tokens_reached",
        "prompt_too_long",
        "timeout_reached",
    }
)
"""Stop conditions that are not the environment's word: a replay ends where the rollout did, and for its reason."""
SHOWN = 100
"""Characters of a message that an error quotes."""


class ReplayError(Error):
    """The environment does not do again what it did: the rollout cannot be scored as it was played."""


async def rescore(
    env: Environment,
    source: Run,
    *,
    into: Run | str | Path,
    max_concurrent: int = CONCURRENT,
    max_scoring: int | None = None,
    on_record: Callable[[RolloutRecord | Outcome], None] | None = None,
    price: Price | None = None,
    pass_threshold: float | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Score the rollouts of an evaluation again by playing them again with their recorded answers.

    A record keeps its answers, tokens, usage and times; scores and the time they took are new. A rollout that a limit had
    ended ends there again, by the same name. Where the environment shows the model anything else than it did (its rules
    or data have changed, or a tool of it does not repeat itself) the rollout fails with a `ReplayError`; it gets no score.
    Failed rollouts, and those of examples that the dataset has no more, are left out and counted.

    Args:
        env: the environment with its new rubric.
        into: a run folder, or a started `Run`. What it holds of `source` already is not played again, unless `source` has
            another rollout in its place by now.
        max_concurrent: rollouts played at a time. Default: 32.
        max_scoring: rollouts scored at a time. Default: as many as are played.
        on_record: called with every new record, and with an `Outcome` for what `into` holds already.
        price, pass_threshold: for the summary, see `rove.evaluate.Options`. Default: those of `source`.
        overwrite: throw away what is in the folder `into`.

    Returns:
        a summary as of `rove.evaluate`, and `rescored`: the `run` that `source` is, how many rollouts had `failed` there,
        and of how many the example is `gone` from the dataset.

    Raises:
        ConfigError: `into` is `source`, or one of the numbers is not above 0.
        RunError: `source` is not the run of an evaluation, or `into` cannot be used.
    """
    for name, value in (("max_concurrent", max_concurrent), ("max_scoring", max_scoring)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected 1 or more")
    recorded = _Recorded(source)
    try:
        told = msgspec.convert(recorded.config, _Told)
    except msgspec.ValidationError as error:
        raise RunError(f"{source.path}/config.toml has settings that rove cannot use: {error}") from error
    passes_at = told.pass_threshold if pass_threshold is None else pass_threshold
    tally = Tally(price=price or told.price, pass_threshold=passes_at)

    def count(record: RolloutRecord | Outcome) -> None:
        tally.add(record)
        if on_record is not None:
            on_record(record)

    with _opened(env, source, into, overwrite) as run:
        async with env.used_in_run():
            await _play(_Replay(env, recorded), run, count, max_concurrent, max_scoring)
        left_out = {"failed": recorded.failed, "gone": recorded.gone}
        summary = {**tally.summary(), "not_run": 0, "rescored": {"run": str(source.path), **left_out}}
        run.finish(summary)
    return summary


def settings_of(source: Run) -> dict[str, Any]:
    """The settings of an evaluation that was kept.

    Raises:
        RunError: `source` is no run folder, not that of an evaluation, or does not say how its rollouts were seeded.
    """
    content = source.config()
    if content.get("kind") != "eval" or "seed" not in content.get("config", {}):
        raise RunError(f"{source.path} is not the run of an evaluation; only those of `rove eval` can be rescored")
    return content["config"]


def rescored_identity(env: Environment, source: Run) -> dict[str, Any]:
    """The identity of `source` rescored in `env`: as it was, but for the environment, and a digest of the whole of it."""
    identity = source.config().get("identity", {})
    return {**identity, **env.identity, "rescored": fingerprint(identity)}


@contextmanager
def _opened(env: Environment, source: Run, into: Run | str | Path, overwrite: bool) -> Iterator[Run]:
    path = into.path if isinstance(into, Run) else Path(into)
    if path.resolve() == source.path.resolve():
        raise ConfigError(f"{path} cannot be rescored into itself; give another folder")
    if isinstance(into, Run):
        yield into
        return
    config = {**settings_of(source), "env": env.env_id, "env_args": env.env_args}
    config.pop("run_dir", None)  # that is where `source` lies
    with Run(path) as run:
        run.start("eval", config, rescored_identity(env, source), overwrite)
        yield run


async def _play(
    replay: _Replay,
    run: Run,
    count: Callable[[RolloutRecord | Outcome], None],
    max_concurrent: int,
    max_scoring: int | None,
) -> None:
    """Add to `run` what it does not hold yet; `count` gets every rollout of it, kept or new."""
    rollouts = run_groups(
        replay,
        ScriptedClient(lambda *_: "", "nobody"),  # never asked: every rollout brings its answers
        _missing(replay, run, count),
        sampling=SamplingParams(),
        max_concurrent=max_concurrent,
        max_scoring=max_scoring,
    )
    async with aclosing(rollouts):
        async for record in rollouts:
            record = replay.finished(record)
            run.append_rollout(record)
            count(record)


def _missing(replay: _Replay, run: Run, on_kept: Callable[[Outcome], None]) -> Iterator[list[Job]]:
    """The groups that `run` does not hold yet; one that is scored together is played together."""
    kept = {(key, index): line for (_, key, index), line in run.kept().items()}
    source, together = replay.recorded, replay.rubric.has_group_rewards
    for group in source.groups(replay.env):
        there = {
            job.index: run.outcome_at(kept[place].offset) for job in group if (place := (job.key, job.index)) in kept
        }
        held = {job.index for job in group if job.index in there and source.holds(job, there[job.index])}
        pieces = [kept[job.key, job.index] for job in group if job.index in held]
        if together and (len(held) < len(group) or not in_one_piece(pieces)):
            held.clear()
        for index in held:
            on_kept(there[index])
        again = [job for job in group if job.index not in held]
        if again:
            run.reopen()
            for job in again:
                replay.expect(job)
            yield again


class _Told(msgspec.Struct):
    """What the settings of an evaluation say of its summary."""

    price: Price | None = None
    pass_threshold: float = 1.0


class _Recorded:
    """The rollouts of an evaluation that were played to their end: where they lie, by example and sibling."""

    def __init__(self, run: Run):
        self.run = run
        self.config = settings_of(run)
        self.seed: int = self.config["seed"]
        self.gone = 0
        self.failed = 0
        self._places: dict[str, dict[int, int]] = {}
        self._rows = 0
        for (_, key, index), line in run.ledger()[0].items():
            outcome = run.outcome_at(line.offset)
            self._rows = max(self._rows, outcome.example_id + 1)
            if outcome.error is None or _is_of_scoring(outcome.error):
                self._places.setdefault(key, {})[index] = line.offset
            else:
                self.failed += 1

    def groups(self, env: Environment) -> Iterator[list[Job]]:
        """The rollouts of every example that the dataset still has; afterwards `gone` says how many of others there are."""
        train = bool(self.config.get("train"))
        endless = env.count_examples(-1, train) is None
        left = set(self._places)
        for [job] in plan(env.examples(self._rows if endless else -1, train), 1, self.seed):
            if job.key in left:
                left.remove(job.key)
                yield [msgspec.structs.replace(job, index=index) for index in sorted(self._places[job.key])]
            if not left:
                break
        self.gone = sum(len(self._places[key]) for key in left)

    def record(self, job: Job) -> RolloutRecord:
        """The rollout of `job`."""
        return self.run.record_at(self._places[job.key][job.index])

    def holds(self, job: Job, outcome: Outcome) -> bool:
        """Whether `outcome` is of the very rollout that lies here: no two take the same time to the last digit."""
        mine = self.run.outcome_at(self._places[job.key][job.index])
        return (mine.turn_seconds, mine.usage) == (outcome.turn_seconds, outcome.usage)


def _is_of_scoring(error: ErrorInfo) -> bool:
    """Whether all was said, and only a reward function failed: what rescoring is there to mend."""
    return error.phase == "scoring" or error.phase.startswith("reward ")


class _Replay(Environment):
    """`env`, in which every answer has been given already."""

    def __init__(self, env: Environment, recorded: _Recorded):
        self.env = env
        self.recorded = recorded
        self.rubric = env.rubric
        self.timeout_seconds = None  # how long a replay takes says nothing about the rollout
        self._expected: dict[int, RolloutRecord] = {}

    def expect(self, job: Job) -> None:
        """Have the record of a rollout ready that is about to be played."""
        self._expected[derive_seed(job.seed, job.key, job.index)] = self.recorded.record(job)

    async def run(self, state: State, turn: Turn) -> None:
        """Play one rollout by its record, whoever `turn` would ask."""
        answers = _Answers(self._expected[state["seed"]])
        others = answers.record.model_roles.items()
        state["role_clients"] = {
            role: _Answers(msgspec.structs.replace(answers.record, steps=steps, stop_condition=None))
            for role, steps in others
        }
        limit: LimitReachedError | None = None
        try:
            await self.env.run(state, make_turn(answers, "", SamplingParams()))
        except LimitReachedError as reached:
            limit = reached
        finally:
            del state["role_clients"]  # a rubric that asks does so anew
            steps = zip(state["trajectory"], answers.record.steps)
            state["trajectory"][:] = [msgspec.structs.replace(step, seconds=old.seconds) for step, old in steps]
        answers.check_end(state, limit is not None)
        if limit is not None:
            raise limit

    async def clean_up(self, state: State) -> None:
        """See `Environment.clean_up`."""
        await self.env.clean_up(state)

    def finished(self, record: RolloutRecord) -> RolloutRecord:
        """The new record with the times and the sampling of the old one; the old one is forgotten."""
        old = self._expected.pop(derive_seed(self.recorded.seed, record.example_key, record.rollout_index))
        timing = Timing(old.timing.total, record.timing.model, record.timing.scoring)
        return msgspec.structs.replace(record, timing=timing, temperature=old.temperature)


class _Answers:
    """The client of one rollout: it answers as its record says, to the very prompts the record says.

    Conversations of several models at once (see `RLMEnv`) may come in another order than they were recorded in.
    """

    max_concurrent = 1

    def __init__(self, record: RolloutRecord):
        self.record = record
        self._left = list(record.steps)
        self._failure: ReplayError | None = None

    async def respond(self, request: Request) -> Response:
        """The next answer.

        Raises:
            LimitReachedError: the rollout ended here, by a limit.
            ReplayError: the prompt is another one, or nothing more was asked then.
        """
        turn, ended = self._given, self.record.stop_condition
        with phase("replay"):
            if not self._left:
                if ended in LIMITS:
                    raise LimitReachedError(ended, self.record.is_truncated)
                self._fail(f"at turn {turn + 1}: one more answer is asked for; the rollout had ended there ({ended})")
            step = self._left.pop(self._place(f"at turn {turn + 1}", request.messages))
        # A copy, as the environment may change it, and the prompts on record hold the same message.
        message = copy.deepcopy(Message(step.completion[-1]))
        return Response(message, step.usage, step.finish_reason, step.tokens, step.attempts)

    async def close(self) -> None:
        """Nothing to free."""

    def check_end(self, state: State, by_limit: bool) -> None:
        """Refuse a rollout that has ended otherwise than its record; give one that a limit had ended that end.

        Args:
            by_limit: it has ended because it asked for an answer that a limit had refused.

        Raises:
            ReplayError: what is different.
        """
        record, turns = self.record, len(self.record.steps)
        with phase("replay"):
            if self._failure is not None:  # the environment may have caught it
                raise self._failure
            if self._given < turns:
                stop = state["stop_condition"]
                self._fail(f"after turn {self._given}: the rollout ends ({stop}); it had gone on for {turns} turns")
            prompt, completion = messages_of(state)
            self._compare("in its first prompt", prompt, record.prompt)
            if record.stop_condition == "timeout_reached" and not by_limit:
                self._fail(f"after turn {turns}: it was cut off there, in the middle of the environment's own work")
            self._compare("in its last messages", completion, record.completion)
        if record.stop_condition in LIMITS:
            state.update(stop_condition=record.stop_condition, is_truncated=record.is_truncated)

    @property
    def _given(self) -> int:
        return len(self.record.steps) - len(self._left)

    def _place(self, where: str, now: Sequence[Any]) -> int:
        """Which of the answers that are left was given to this prompt."""
        prompts = [step.prompt for step in self._left]
        if now not in prompts:
            now = self._read_back(now)
        if now not in prompts:
            self._fail(f"{where}: {_difference(now, prompts[0])}")
        return prompts.index(list(now))

    def _compare(self, where: str, now: Sequence[Any], then: Sequence[Any]) -> None:
        if now != then:  # as they are; else as they would be read back
            now = self._read_back(now)
        if now != then:
            self._fail(f"{where}: {_difference(now, then)}")

    def _read_back(self, prompt: Sequence[Any]) -> list[Any]:
        return decode_record(encode_record(self._with(prompt))).prompt

    def _with(self, prompt: Sequence[Any]) -> RolloutRecord:
        return msgspec.structs.replace(self.record, prompt=list(prompt), completion=[], steps=[])

    def _fail(self, what: str) -> None:
        self._failure = ReplayError(f"replay differs {what}")
        raise self._failure


def _difference(now: Sequence[Any], then: Sequence[Any]) -> str:
    """The first message in which two conversations are not the same."""
    for position, (mine, theirs) in enumerate(zip(now, then), start=1):
        if mine != theirs:
            a, b = text_of(mine), text_of(theirs)
            if a == b:
                a, b = str(mine), str(theirs)
            parting = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            start = max(0, parting - SHOWN // 4)
            return f"message {position} is now {a[start : start + SHOWN]!r}, was {b[start : start + SHOWN]!r}"
    return f"{len(now)} messages now, {len(then)} then"
