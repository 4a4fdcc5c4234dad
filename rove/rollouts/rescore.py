"""Score the rollouts of a run again with the current rubric, without a model.

A rubric may read any part of the rollout's state, and records do not contain the state. So every rollout is replayed:
the environment runs again with the same seeds, and the answers come from the records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rove.clients.scripted import ScriptedClient
from rove.core.checks import checked
from rove.core.digest import derive_seed, fingerprint
from rove.core.errors import ConfigError, Error, LimitReachedError, RunError, phase
from rove.core.messages import Message, text_of
from rove.core.plain import Identity, JsonObject
from rove.core.protocols import Request, Response, SamplingParams
from rove.core.ranges import FiniteFloat, PositiveInt
from rove.core.records import Outcome, RolloutRecord, Timing
from rove.core.state import State, bookkeeping
from rove.envs.environment import Environment, Turn, messages_of
from rove.envs.loading import ForeignEnvironment, as_environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job, make_turn, plan
from rove.runs.run import Run, are_consecutive
from rove.runs.serialization import decode_record, encode_record
from rove.statistics import EvaluationResult, Price, Tally
from rove.statistics.result import Rescored
from rove.utils.functions import maybe_await

DEFAULT_MAX_CONCURRENT = 32
"""Default number of concurrent replays."""
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
"""Stop conditions that rove sets, not the environment; a replay ends at the same point as the rollout, with the same condition.
"""
MAX_QUOTED_CHARS = 100
"""Maximum characters of a message that an error quotes."""


class ReplayError(Error):
    """The environment behaves differently in the replay, so the rollout cannot be scored."""


async def rescore(
    env: Environment | ForeignEnvironment,
    source: Run,
    *,
    into: Run | str | Path,
    max_concurrent: int = DEFAULT_MAX_CONCURRENT,
    max_scoring: int | None = None,
    on_record: Callable[[RolloutRecord | Outcome], object] | None = None,
    price: Price | None = None,
    pass_threshold: float | None = None,
    overwrite: bool = False,
) -> EvaluationResult:
    """Score the rollouts of an evaluation again by replaying them with their recorded answers.

    Records keep their answers, tokens, usage and times; scores and scoring times are new. A rollout that ended at a
    limit ends at the same point again. If the environment's messages differ from the recorded messages (its rules or data have
    changed, or a tool is not deterministic), the rollout fails with a `ReplayError`. Failed rollouts, and rollouts of examples
    that are no longer in the dataset, are left out and counted.

    Example:
        >>> result = await rove.rescore(env, rove.Run("runs/old"), into="runs/rescored")

    Args:
        env: The environment with its new rubric.
        source: The run of an evaluation.
        into: A run folder, or a started `Run`. Rollouts already in it are not replayed, unless they have changed in `source`.
        max_concurrent: Maximum concurrent replays. Default: 32.
        max_scoring: Maximum number of rollouts scored concurrently. Default: no limit.
        on_record: Called with every new record, and with an `Outcome` for each rollout that is already in `into`.
        price, pass_threshold: Settings of the summary; see `rove.rollouts.evaluate.Options`. Default: the settings of `source`.
        overwrite: Discard the content of the folder `into`.

    Returns:
        A result as from `rove.evaluate`. Its field `rescored` has `source` and the numbers of rollouts that are left out.

    Raises:
        ConfigError: `into` is `source`, or a number is not positive.
        RunError: `source` is not the run of an evaluation, or `into` cannot be used.
    """
    checked("max_concurrent", max_concurrent, PositiveInt)
    checked("max_scoring", max_scoring, PositiveInt | None)
    checked("pass_threshold", pass_threshold, FiniteFloat | None)
    recorded = _Recorded(source)
    try:
        settings = msgspec.convert(recorded.config, _SummarySettings)
    except msgspec.ValidationError as error:
        raise RunError(f"{source.path}/config.toml has settings that rove cannot use: {error}") from error
    passes_at = settings.pass_threshold if pass_threshold is None else pass_threshold
    tally = Tally(price=price or settings.price, pass_threshold=passes_at)

    def count(record: RolloutRecord | Outcome) -> None:
        tally.add(record)
        if on_record is not None:
            on_record(record)

    env = as_environment(env)
    with _opened(env, source, into, overwrite) as run:
        async with env.used_in_run():
            await _replay_missing(_Replay(env, recorded), run, count, max_concurrent, max_scoring)
        origin = Rescored(str(source.path), recorded.failed, recorded.gone)
        result = msgspec.structs.replace(tally.result(), rescored=origin, run=run)
        run.finish(result.to_dict())
    return result


def settings_of(source: Run) -> JsonObject:
    """Return the settings of an evaluation's run folder.

    Raises:
        RunError: `source` is not the run folder of an evaluation, or has no seed.
    """
    content = source.config()
    if content.get("kind") != "eval" or "seed" not in content.get("config", {}):
        raise RunError(f"{source.path} is not the run of an evaluation; only those of `rove eval` can be rescored")
    return content["config"]


def rescored_identity(env: Environment, source: Run) -> Identity:
    """Return the identity of `source` rescored in `env`: its identity with the new environment, and a digest of its
    whole identity.
    """
    identity = source.config().get("identity", {})
    return {**identity, **env.identity, "rescored": fingerprint(identity)}


@contextmanager
def _opened(env: Environment, source: Run, into: Run | str | Path, overwrite: bool) -> Generator[Run]:
    path = into.path if isinstance(into, Run) else Path(into)
    if path.resolve() == source.path.resolve():
        raise ConfigError(f"{path} cannot be rescored into itself; give another folder")
    if isinstance(into, Run):
        yield into
        return
    config = {**settings_of(source), "env": env.env_id, "env_args": env.env_args}
    config.pop("run_dir", None)  # the folder of `source`
    with Run(path) as run:
        run.start("eval", config, rescored_identity(env, source), overwrite)
        yield run


async def _replay_missing(
    replay: _Replay,
    run: Run,
    count: Callable[[RolloutRecord | Outcome], None],
    max_concurrent: int,
    max_scoring: int | None,
) -> None:
    """Replay the rollouts that `run` lacks; `count` is called with every rollout, old or new."""
    rollouts = run_groups(
        replay,
        ScriptedClient(lambda messages, state, rng: "", "unused"),  # not called: every replay has its own answers
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
    """Yield the groups that `run` lacks (whole groups if they are scored together)."""
    lines = {(key, index): line for (_, key, index), line in run.scored_lines().items()}
    source, together = replay.recorded, replay.rubric.has_group_rewards
    for group in source.groups(replay.env):
        current: dict[int, Outcome] = {}  # rollouts of the group that `run` has already, by position
        for job in group:
            line = lines.get((job.key, job.index))
            outcome = run.outcome_at(line.offset) if line is not None else None
            if outcome is not None and source.holds(job, outcome):  # else it is of a rollout that `source` has repeated
                current[job.index] = outcome
        current_lines = [lines[job.key, job.index] for job in group if job.index in current]
        if together and (len(current) < len(group) or not are_consecutive(current_lines)):
            current.clear()
        for outcome in current.values():
            on_kept(outcome)
        remaining = [job for job in group if job.index not in current]
        if remaining:
            run.reopen()
            for job in remaining:
                replay.expect(job)
            yield remaining


class _SummarySettings(msgspec.Struct):
    """Settings of an evaluation that its summary uses."""

    price: Price | None = None
    pass_threshold: float = 1.0


class _Recorded:
    """The finished rollouts of an evaluation: their offsets in rollouts.jsonl by example and position in the group."""

    def __init__(self, run: Run):
        self.run = run
        self.config = settings_of(run)
        self.seed: int = self.config["seed"]
        self.gone = 0
        self.failed = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._rows = 0
        lines, _ = run.ledger()
        for (_, key, index), line in lines.items():
            outcome = run.outcome_at(line.offset)
            self._rows = max(self._rows, outcome.example_id + 1)
            # rescoring can correct the failure of a reward function, but not that of a rollout
            if outcome.error is None or self._is_of_scoring(outcome):
                self._offsets.setdefault(key, {})[index] = line.offset
            else:
                self.failed += 1

    @staticmethod
    def _is_of_scoring(outcome: Outcome) -> bool:
        """Return whether a rollout failed in its scoring; a judge's failure has the phase of its role."""
        failed_in = outcome.error.phase if outcome.error is not None else ""
        is_judge = failed_in.startswith("role ") and outcome.timing.scoring > 0
        return failed_in == "scoring" or failed_in.startswith("reward ") or is_judge

    def groups(self, env: Environment) -> Iterator[list[Job]]:
        """Yield the rollouts of every example that is still in the dataset; then set `gone` to the number of other rollouts."""
        train = bool(self.config.get("train"))
        is_endless = env.count_examples(-1, train) is None
        examples = env.examples(self._rows if is_endless else -1, train)
        remaining = set(self._offsets)
        for [job] in plan(examples, 1, self.seed):
            if job.key in remaining:
                remaining.remove(job.key)
                yield [msgspec.structs.replace(job, index=index) for index in sorted(self._offsets[job.key])]
            if not remaining:
                break
        self.gone = sum(len(self._offsets[key]) for key in remaining)

    def record(self, job: Job) -> RolloutRecord:
        """Return the recorded rollout of `job`."""
        return self.run.record_at(self._offsets[job.key][job.index])

    def holds(self, job: Job, outcome: Outcome) -> bool:
        """Return whether `outcome` belongs to the recorded rollout of `job`, identified by its exact times and usage."""
        recorded = self.run.outcome_at(self._offsets[job.key][job.index])
        return (recorded.turn_seconds, recorded.usage) == (outcome.turn_seconds, outcome.usage)


class _Replay(Environment):
    """The environment, with recorded answers in place of a model."""

    def __init__(self, env: Environment, recorded: _Recorded):
        self.env = env
        self.recorded = recorded
        self.rubric = env.scoring_rubric
        self._added_rubrics = []
        self.timeout_seconds = None  # the duration of a replay is not that of the rollout
        self._expected: dict[int, RolloutRecord] = {}

    def expect(self, job: Job) -> None:
        """Load the record of a rollout before its replay."""
        self._expected[derive_seed(job.seed, job.key, job.index)] = self.recorded.record(job)

    async def run(self, state: State, turn: Turn) -> None:
        """Replay one rollout with its recorded answers; `turn` is not used."""
        rollout = bookkeeping(state)
        answers = _Answers(self._expected[rollout.seed])
        rollout.role_clients = {
            role: _Answers(msgspec.structs.replace(answers.record, steps=steps, stop_condition=None))
            for role, steps in answers.record.model_roles.items()
        }
        limit: LimitReachedError | None = None
        try:
            await self.env.run(state, make_turn(answers, "", SamplingParams()))
        except LimitReachedError as reached:
            limit = reached
        finally:
            rollout.role_clients = None  # a rubric queries its judge again
            steps = zip(rollout.trajectory, answers.record.steps)
            rollout.trajectory[:] = [msgspec.structs.replace(step, seconds=old.seconds) for step, old in steps]
        answers.check_end(state, limit is not None)
        if limit is not None:
            raise limit

    async def post_rollout(self, state: State) -> None:
        """See `Environment.post_rollout`."""
        await maybe_await(self.env.post_rollout(state))

    async def clean_up(self, state: State) -> None:
        """See `Environment.clean_up`."""
        await self.env.clean_up(state)

    def finished(self, record: RolloutRecord) -> RolloutRecord:
        """Return the new record with the times and the temperature of the old record; release the old record."""
        old = self._expected.pop(derive_seed(self.recorded.seed, record.example_key, record.rollout_index))
        timing = Timing(old.timing.total, record.timing.model, record.timing.scoring)
        return msgspec.structs.replace(record, timing=timing, temperature=old.temperature)


class _Answers:
    """The client of one replay: it gives the recorded answers to the recorded prompts.

    Requests of concurrent conversations (see `RLMEnv`) may arrive in another order than the recorded one.
    """

    max_concurrent = 1

    def __init__(self, record: RolloutRecord):
        self.record = record
        self._remaining = list(record.steps)
        self._failure: ReplayError | None = None

    async def respond(self, request: Request) -> Response:
        """Return the recorded answer to a prompt.

        Raises:
            LimitReachedError: the rollout ended here at a limit.
            ReplayError: the prompt differs, or the rollout had ended.
        """
        turn, stop = self._num_answered + 1, self.record.stop_condition
        with phase("replay"):
            if not self._remaining:
                if stop in LIMITS:
                    raise LimitReachedError(stop, self.record.is_truncated)
                self._fail(f"at turn {turn}: one more answer is requested; the rollout had ended there ({stop})")
            step = self._remaining.pop(self._position_of(f"at turn {turn}", request.messages))
        # A copy, since the environment may change the message, which is also part of recorded prompts.
        message = copy.deepcopy(Message(step.completion[-1]))
        return Response(message, step.usage, step.finish_reason, step.tokens, step.attempts)

    async def close(self) -> None:
        """Do nothing; there are no resources."""

    def check_end(self, state: State, by_limit: bool) -> None:
        """Check that a replay ended like the recorded rollout; if it ended at a limit, set the stop condition.

        Args:
            state: State of the replay.
            by_limit: Whether the replay ended at a request that a limit had refused.

        Raises:
            ReplayError: the replay ended differently.
        """
        record, turns = self.record, len(self.record.steps)
        with phase("replay"):
            if self._failure is not None:  # the environment may have caught the error
                raise self._failure
            if self._remaining:
                stop = bookkeeping(state).stop_condition
                self._fail(
                    f"after turn {self._num_answered}: the rollout ends ({stop}); the recorded rollout has {turns} turns"
                )
            prompt, completion = messages_of(state)
            self._compare("in its first prompt", prompt, record.prompt)
            if record.stop_condition == "timeout_reached" and not by_limit:
                self._fail(f"after turn {turns}: it was cut off there, in the middle of the environment's own work")
            self._compare("in its last messages", completion, record.completion)
        if record.stop_condition in LIMITS:
            rollout = bookkeeping(state)
            rollout.stop_condition, rollout.is_truncated = record.stop_condition, record.is_truncated

    @property
    def _num_answered(self) -> int:
        return len(self.record.steps) - len(self._remaining)

    def _position_of(self, moment: str, messages: Sequence[object]) -> int:
        """Return the position of the remaining answer to this prompt."""
        prompts: list[Sequence[object]] = [step.prompt for step in self._remaining]
        if messages not in prompts:
            messages = self._read_back(messages)
        if messages not in prompts:
            self._fail(f"{moment}: {_difference(messages, prompts[0])}")
        return prompts.index(messages)

    def _compare(self, moment: str, messages: Sequence[object], recorded: Sequence[object]) -> None:
        if messages != recorded:  # the record has the messages as read from JSON
            messages = self._read_back(messages)
        if messages != recorded:
            self._fail(f"{moment}: {_difference(messages, recorded)}")

    def _read_back(self, prompt: Sequence[object]) -> list[Any]:
        record = msgspec.structs.replace(self.record, prompt=list(prompt), completion=[], steps=[])
        return decode_record(encode_record(record)).prompt

    def _fail(self, difference: str) -> None:
        self._failure = ReplayError(f"replay differs {difference}")
        raise self._failure


def _difference(messages: Sequence[Any], recorded: Sequence[Any]) -> str:
    """Describe the first difference between two conversations."""
    for position, (message, recorded_message) in enumerate(zip(messages, recorded), start=1):
        if message != recorded_message:
            text, recorded_text = text_of(message), text_of(recorded_message)
            if text == recorded_text:  # another field differs, such as the tool calls
                text, recorded_text = str(message), str(recorded_message)
            shared = 0
            for character, recorded_character in zip(text, recorded_text):
                if character != recorded_character:
                    break
                shared += 1
            start = max(0, shared - MAX_QUOTED_CHARS // 4)
            end = start + MAX_QUOTED_CHARS
            return f"message {position} is now {text[start:end]!r}, was {recorded_text[start:end]!r}"
    return f"{len(messages)} messages now, {len(recorded)} then"
