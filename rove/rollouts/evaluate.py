"""Evaluate a model in an environment, generate rollouts, and make a dataset from them."""

from __future__ import annotations

import gc
import json
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from rove.clients.limiter import AdmissionLimiter
from rove.core.checks import Settings
from rove.core.config import convert
from rove.core.errors import ConfigError, TooManyErrorsError
from rove.core.messages import text_of
from rove.core.plain import Identity, JsonObject, Row
from rove.core.protocols import AnyClient, Client, Limits, SamplingParams
from rove.core.ranges import CountOrAll, FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rove.core.records import Outcome, RolloutRecord, Usage
from rove.envs.environment import Environment, EvaluationFunctions
from rove.envs.loading import ForeignEnvironment, as_environment
from rove.envs.options import EvaluationOptions
from rove.rendering.tool_calls import FORMATS, calls_of
from rove.rollouts.export import dataset_row
from rove.rollouts.filters import Filter
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Allowance, Job, plan
from rove.runs.run import Run, are_consecutive
from rove.statistics import EvaluationResult, Price, Tally
from rove.statistics.summary import RewardErrors

T = TypeVar("T", bound=RolloutRecord | Outcome)

MIN_ROLLOUTS_FOR_SHARE = 20
"""Minimum number of finished rollouts for a `max_errors` below 1 (a share) to apply."""


class Options(Settings, frozen=True, kw_only=True):
    """Options for running an evaluation: the keyword arguments of `generate` and `evaluate`.

    Raises:
        ConfigError: a value is out of range, or a budget or a maximum cost is set without a price.
    """

    num_examples: CountOrAll = -1
    """Number of rows from the start of the dataset, or after the skipped rows."""
    skip_examples: NonNegativeInt = 0
    """Number of rows to skip at the start of the dataset, such as rows that were used to choose the model."""
    rollouts_per_example: PositiveInt = 1
    """Number of rollouts per example (group size)."""
    sampling_args: JsonObject = {}
    """Sampling parameters with OpenAI's names; they override the environment's."""
    max_concurrent: PositiveInt | None = None
    """Maximum concurrent rollouts. Default: the client's recommendation."""
    max_scoring: PositiveInt | None = None
    """Maximum number of rollouts scored concurrently; None = no limit."""
    limits: Limits = Limits()
    """Limits of one rollout."""
    price: Price | None = None
    """Price of the model's tokens, for `limits.max_cost`, `budget` and the summary."""
    role_prices: dict[str, Price] = {}
    """Prices of the tokens of model roles, such as {"judge": …}, for the summary and for `budget` in this session."""
    budget: PositiveFloat | None = None
    """Maximum cost of the whole run, including earlier sessions and failed rollouts. When it is spent, no further rollout
    starts; running rollouts are finished."""
    max_errors: PositiveFloat | None = None
    """Stop when more rollouts than this number have failed. A value below 1 is a share of the finished rollouts, which applies
    from the 20th rollout on. Finished rollouts are kept."""
    fail_fast: bool = False
    """Raise at the first failed rollout instead of recording it."""
    seed: NonNegativeInt = 0
    """Random seed; with the same seed, data and answers, the rollouts are the same."""
    train: bool = False
    """Use the training rows instead of the evaluation rows."""
    pass_threshold: FiniteFloat = 1.0
    """Minimum reward of a passing rollout, for pass@k."""

    def __post_init__(self) -> None:
        super().__post_init__()
        SamplingParams.from_args(self.sampling_args)

    def check_price(self) -> None:
        """Check that a limit of the cost comes with a price."""
        if self.price is None and (self.budget is not None or self.limits.max_cost is not None):
            raise ConfigError(
                "a budget or a max_cost needs a price per million tokens: --price.input and --price.output (price in Python)"
            )

    @property
    def last_example(self) -> int:
        """The number of rows of the dataset up to the last row that is evaluated; -1 = all."""
        return -1 if self.num_examples < 0 else self.skip_examples + self.num_examples

    def count_examples(self, env: Environment) -> int | None:
        """Return the number of examples that are evaluated; None if the dataset's length is unknown."""
        rows = env.count_examples(self.last_example, self.train)
        return None if rows is None else max(0, rows - self.skip_examples)


class _Evaluation:
    """A running evaluation: finished rollouts, rollouts left to run, cost and errors."""

    def __init__(self, env: Environment, client: Client, model: str, options: Options, run: Run | None):
        self.env = env
        self.client = client
        self.model = model
        self.options = options
        self.run = run
        options.check_price()
        # Used tokens include those of failed attempts in earlier sessions, which were paid for as well.
        lines, used = run.ledger() if run is not None else ({}, Usage())
        self.finished_lines = {(key, index): line for (_, key, index), line in lines.items() if not line.failed}
        self.price = options.price or Price(0.0, 0.0)
        self.spent = self.price.of(used)
        self.out_of_budget = False
        self._unreported: deque[int] = deque()  # offsets of this plan's finished rollouts in rollouts.jsonl
        self._errors: Counter[str] = Counter()
        self._done = 0

    async def finish(self, read: Callable[[Run, int], T], report: Callable[[RolloutRecord | T], None]) -> None:
        """Run the missing rollouts; `report` receives every record. Records of earlier sessions are read with `read`."""
        options, run = self.options, self.run
        rollouts = run_groups(
            self.env,
            self.client,
            self._missing(),
            model=self.model,
            sampling=SamplingParams.from_args(self.env.sampling_args, options.sampling_args),
            max_concurrent=self._max_concurrent(),
            max_scoring=options.max_scoring,
            allowance=Allowance(options.limits, options.price),
            fail_fast=options.fail_fast,
            keep=self._keep,
        )
        limiter = getattr(self.client, "limiter", None)
        if run is not None and isinstance(limiter, AdmissionLimiter):
            limiter.on_change = lambda change: run.append_limit(change._asdict())
        try:
            with _rare_collections():
                async with self.env.used_in_run(), aclosing(rollouts):  # so that no rollout still runs at the teardown
                    async for record in rollouts:
                        report(record)
                        self._check_errors(record)
                        self._report_kept(read, report, limit=200)  # a limit, since this blocks the event loop
                    self._report_kept(read, report)
        finally:
            if isinstance(limiter, AdmissionLimiter):
                limiter.on_change = None

    def _max_concurrent(self) -> int:
        """Return the maximum number of concurrent rollouts, which is at most the number of rollouts."""
        options = self.options
        max_concurrent = options.max_concurrent or self.client.max_concurrent
        if options.num_examples < 0:
            return max_concurrent
        # `run_groups` starts a task for each: for 8 rollouts of a scripted policy, 256 tasks took a third of the time.
        return min(max_concurrent, options.num_examples * options.rollouts_per_example)

    def _keep(self, record: RolloutRecord, line: bytes | None) -> None:
        self.spent += self.price.of(record.usage)
        for role, price in self.options.role_prices.items():
            self.spent += sum(price.of(step.usage) for step in record.model_roles.get(role, []))
        if self.run is not None:
            self.run.append_rollout(record, line)

    def _missing(self) -> Iterator[list[Job]]:
        """Yield the groups that are left to run (whole groups if they are scored together); store the offsets of finished
        rollouts.
        """
        options, together = self.options, self.env.scoring_rubric.has_group_rewards
        examples = self.env.examples(options.last_example, options.train)
        groups = plan(examples, options.rollouts_per_example, options.seed)
        is_empty = True
        num_unseen = len(self.finished_lines)
        for group in islice(groups, options.skip_examples, None):
            is_empty = False
            missing = [job for job in group if (job.key, job.index) not in self.finished_lines]
            finished = [job for job in group if (job.key, job.index) in self.finished_lines]
            num_unseen -= len(finished)
            lines = [self.finished_lines[job.key, job.index] for job in finished]
            # A group that is scored together is repeated as a whole, also if an interrupted attempt left a part of its lines.
            if together and (missing or not are_consecutive(lines)):
                missing, lines = group, []
            self._unreported.extend(line.offset for line in lines)
            if missing and options.budget is not None and self.spent >= options.budget:
                self.out_of_budget = True
            if self.out_of_budget:
                if num_unseen <= 0:
                    return
                continue  # later groups may have finished rollouts, which count
            if missing:
                if self.run is not None:
                    self.run.reopen()
                yield missing
        if is_empty:
            skipped = f" after the first {options.skip_examples:,}" if options.skip_examples else ""
            raise ConfigError(
                f"the dataset of environment '{self.env.env_id}' has no rows{skipped}; there is nothing to evaluate"
            )

    def _report_kept(
        self, read: Callable[[Run, int], T], report: Callable[[RolloutRecord | T], None], limit: int | None = None
    ) -> None:
        count = len(self._unreported)
        if limit is not None:
            count = min(count, limit)
        for _ in range(count):
            assert self.run is not None
            report(read(self.run, self._unreported.popleft()))

    def not_run(self, done: int) -> int | None:
        """Return the number of planned rollouts that the budget did not allow; None if the dataset's length is unknown."""
        if not self.out_of_budget:
            return 0
        examples = self.options.count_examples(self.env)
        if examples is None:
            return None
        return examples * self.options.rollouts_per_example - done

    def _check_errors(self, record: RolloutRecord) -> None:
        self._done += 1
        limit = self.options.max_errors
        if record.error is None or limit is None:
            return
        self._errors[f"{record.error.phase}: {record.error.type}"] += 1
        failed = self._errors.total()
        max_failed = limit
        if limit < 1:  # a share, which is not meaningful after the first few rollouts
            if self._done < MIN_ROLLOUTS_FOR_SHARE:
                return
            max_failed = limit * self._done
        if failed > max_failed:
            [(most_common_error, count)] = self._errors.most_common(1)
            raise TooManyErrorsError(
                f"{failed} of {self._done} rollouts failed, more than max_errors = {limit:g} allows; "
                f"{count} of them with {most_common_error}; the last one:\n  {record.error.message}\n"
                "What is finished is kept; the same command runs the rest"
            )


@contextmanager
def _rare_collections() -> Generator[None]:
    """Run the garbage collector less often: with a thousand concurrent rollouts it would take a fifth of the time."""
    thresholds = gc.get_threshold()
    if thresholds[0]:  # 0 = the user has turned it off
        gc.set_threshold(max(thresholds[0], 20_000), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


async def generate(
    env: Environment | ForeignEnvironment,
    client: AnyClient,
    model: str = "",
    *,
    on_record: Callable[[RolloutRecord], object] | None = None,
    **options: Unpack[EvaluationOptions],
) -> list[RolloutRecord]:
    """Sample rollouts of a model in an environment.

    Example:
        >>> env = rove.load_environment("tictactoe")
        >>> records = await rove.generate(env, client, num_examples=10, rollouts_per_example=4)

    Args:
        env: A rove environment, or an environment of another library with a method `__rove_environment__`.
        client: Client of the model, or an `openai.AsyncOpenAI` object.
        model: Name of the model, for endpoints that serve several models.
        on_record: Called with every record, including records that are already in the folder, in no particular order.
        options: The fields of `Options`, and `run`: a run folder or a started `Run`, to which finished rollouts are written;
            rollouts already in it are not run again. A folder with another identity is refused (see `run_identity`).

    Returns:
        One record per rollout, ordered by example and position in the group.

    Raises:
        ConfigError: an option is unknown or out of range.
        RunError: the folder cannot be used.
        TooManyErrorsError, RolloutError: see `max_errors` and `fail_fast`.
    """
    records: list[RolloutRecord] = []

    def keep(record: RolloutRecord) -> None:
        records.append(record)
        if on_record is not None:
            on_record(record)

    with _opened(as_environment(env), client, model, options) as evaluation:
        await evaluation.finish(Run.record_at, keep)
    return sorted(records, key=lambda record: (record.example_id, record.rollout_index))


async def evaluate(
    env: Environment | ForeignEnvironment,
    client: AnyClient,
    model: str = "",
    *,
    on_record: Callable[[RolloutRecord | Outcome], object] | None = None,
    **options: Unpack[EvaluationOptions],
) -> EvaluationResult:
    """Evaluate a model in an environment: reward and metrics with 95% intervals over the scored rollouts.

    Texts are not kept in memory. Arguments and errors are those of `generate`; rollouts that are already in the folder are
    passed to `on_record` as `Outcome`.

    Example:
        >>> result = await rove.evaluate(env, client, num_examples=100)
        >>> result.reward.mean, result.reward.low, result.reward.high
    """
    env = as_environment(env)
    with _opened(env, client, model, options) as evaluation:
        settings = evaluation.options
        tally = Tally(price=settings.price, pass_threshold=settings.pass_threshold, role_prices=settings.role_prices)
        scored = rewarded = False
        errors = RewardErrors()

        def count(record: RolloutRecord | Outcome) -> None:
            nonlocal scored, rewarded
            scored = scored or record.scores is not None
            rewarded = rewarded or bool(record.scores and record.scores.rewards)
            tally.add(record)
            errors.add(record)
            if on_record is not None:
                on_record(record)

        await evaluation.finish(Run.outcome_at, count)
        result = tally.result()
        # The cost of the rollouts in the table, and what all sessions have spent, failed attempts included.
        cost = None if result.cost is None else replace(result.cost, spent=evaluation.spent)
        result = replace(
            result,
            not_run=evaluation.not_run(tally.rollouts),
            broken_rewards=errors.broken,
            cost=cost,
            run=evaluation.run,
        )
        if evaluation.run is not None and not evaluation.out_of_budget:  # a summary marks the run as complete
            evaluation.run.finish(result.to_dict())
    if scored and not rewarded:
        name = env.env_id or type(env).__name__
        warnings.warn(
            f"the rubric of {name} has no reward function, so that every reward is 0; add one: rubric.add_reward_func(…), "
            "for a JudgeRubric its `verdict`",
            stacklevel=2,
        )
    return result


def run_identity(env: Environment, client: Client | None, model: str, options: Options) -> Identity:
    """Return the values that must be the same when a run continues: environment (version and code), model (weights), sampling
    parameters.

    The numbers of examples and of rollouts per example may change: missing rollouts are run.
    """
    return {
        **env.identity,
        "model": model,
        **getattr(client, "identity", {}),
        "sampling": msgspec.structs.asdict(SamplingParams.from_args(env.sampling_args, options.sampling_args)),
        "limits": msgspec.structs.asdict(options.limits),
        "price": options.price if options.limits.max_cost is not None else None,
        "seed": options.seed,
        "train": options.train,
    }


def as_model_client(client: AnyClient) -> Client:
    """Return a rove client for an `openai.AsyncOpenAI` object; a rove client is returned as it is."""
    if isinstance(client, Client):
        return client
    from rove.clients.openai import as_client  # loads aiohttp, which scripted and embedded clients do not need

    return as_client(client)


@contextmanager
def _opened(env: Environment, client: AnyClient, model: str, arguments: EvaluationOptions) -> Generator[_Evaluation]:
    values: dict[str, object] = {**arguments}
    run = arguments.get("run")
    values.pop("run", None)
    sampling_names = set(SamplingParams.__struct_fields__) - set(Options.__struct_fields__)
    for name in values.keys() & sampling_names:
        raise ConfigError(
            f"unknown setting '{name}'; it is a sampling parameter: sampling_args={{'{name}': {values[name]!r}}}"
        )
    options = convert(Options, {name: value for name, value in values.items() if value is not None})
    client = as_model_client(client)
    if run is None or isinstance(run, Run):
        yield _Evaluation(env, client, model, options, run)
        return
    with Run(run) as folder:
        config = {"env": env.env_id, "env_args": env.env_args, "model": model, **msgspec.structs.asdict(options)}
        folder.start("eval", config, run_identity(env, client, model, options))
        yield _Evaluation(env, client, model, options, folder)


def make_dataset(
    records: Iterable[RolloutRecord], min_reward: float | None = None, filter: str | None = None
) -> list[Row]:
    """Return scored rollouts as dataset rows: prompt, completion, reward, answer, info, metrics.

    Example:
        >>> rows = rove.make_dataset(records, min_reward=1.0, filter="not is_truncated")

    Args:
        records: The rollouts; failed rollouts are left out.
        min_reward: Minimum reward. Default: no limit.
        filter: Expression that rollouts must fulfill, like "metrics.win > 0 and not is_truncated" (see
            `rove.rollouts.filters.Filter`). Default: none.

    Raises:
        ConfigError: the filter is not a valid expression, or uses an unknown name.
    """
    passes = Filter(filter) if filter is not None else None
    rows: list[Row] = []
    for record in records:
        if record.scores is None or (min_reward is not None and record.scores.reward < min_reward):
            continue
        if passes is None or passes(record):
            rows.append(dataset_row(record, record.scores))
    return rows


def conversation_texts(records: Iterable[RolloutRecord]) -> list[str]:
    """Return one text per rollout, with all messages, tools and tool calls, on which a tokenizer can be trained."""
    [hermes] = [tool_format for tool_format in FORMATS if tool_format.name == "hermes"]
    texts: list[str] = []
    for record in records:
        parts = [json.dumps(tool, ensure_ascii=False) for tool in record.tools or ()]
        for message in [*record.prompt, *record.completion]:
            parts.append(text_of(message))
            if calls := calls_of(message):
                parts.append(hermes.write(calls))
        texts.append("\n".join(parts))
    return texts


Environment.evaluation = EvaluationFunctions(generate, evaluate, make_dataset)
