"""Run rollouts of given rows, without a run folder: for trainers and other programs that have their own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Unpack

from msgspec.structs import replace

from rove.core.config import convert
from rove.core.errors import ConfigError, nearest
from rove.core.model_roles import RoleClients
from rove.core.plain import Row
from rove.core.protocols import AnyClient, SamplingParams
from rove.core.records import RolloutRecord
from rove.envs.dataset import build_example
from rove.envs.environment import Environment
from rove.envs.loading import ForeignEnvironment, as_environment
from rove.envs.options import RolloutOptions
from rove.rollouts.evaluate import Options, as_model_client
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Allowance, plan
from rove.utils.event_loop import outside_event_loop, run_async

OPTION_NAMES = sorted(RolloutOptions.__annotations__)


async def run_rollouts(
    env: Environment | ForeignEnvironment,
    rows: Iterable[Mapping[str, object]],
    client: AnyClient,
    model: str = "",
    *,
    on_record: Callable[[RolloutRecord], object] | None = None,
    model_roles: RoleClients | None = None,
    for_training: bool = False,
    first_index: int = 0,
    **options: Unpack[RolloutOptions],
) -> list[RolloutRecord]:
    """Run and score rollouts of these rows, and return their records.

    The rollouts are those of `rove.generate`: the same row, client, seed and options give the same record. Nothing is written
    to disk. A failed rollout is a record with an `error` and without `scores`; it never has a reward of 0.

    Example:
        >>> rows = env.get_dataset(32)
        >>> records = await rove.run_rollouts(env, rows, client, rollouts_per_example=8, for_training=True)
        >>> sequences = [rove.sequences_from_record(record) for record in records if record.error is None]

    The resources of the environment, such as worker processes, are released at the end, unless the call is inside
    `async with env.used_in_run():`. A loop that calls this function in every step should be inside of such a block.

    Args:
        env: A rove environment, or one of another library with a method `__rove_environment__`.
        rows: Rows of `env.get_dataset()` or `env.get_eval_dataset()`, or new ones of the same form (`prompt` or `question`,
            `answer`, `info`). Rows without an integer `example_id` get their position.
        client: Client of the model, or an `openai.AsyncOpenAI` object.
        model: Name of the model, for endpoints that serve several.
        on_record: Called with every record as soon as it is final.
        model_roles: Clients by role that replace the environment's clients, such as {"judge": client}.
        for_training: Fail rollouts whose agent uses sampling parameters for which the recorded log-probabilities cannot be
            trained on.
        first_index: Position of the first rollout of each row in its group, if another call has run the rollouts before it.
        options: See `rove.envs.options.RolloutOptions`.

    Returns:
        One record per rollout, in the order of the rows and of the positions in their groups.

    Raises:
        ConfigError: An option is unknown or out of range, or a row has no prompt.
        RolloutError: See `fail_fast`.
    """
    for name in options:
        if name not in OPTION_NAMES:
            raise ConfigError(f"run_rollouts has no option '{name}'; {nearest(name, OPTION_NAMES)}")
    settings = convert(Options, {name: value for name, value in options.items() if value is not None})
    settings.check_price()
    env = as_environment(env)
    groups = [
        [replace(job, index=first_index + job.index) for job in group]
        for group in plan(_examples(env, rows), settings.rollouts_per_example, settings.seed)
    ]
    rollouts = run_groups(
        env,
        as_model_client(client),
        groups,
        model=model,
        sampling=SamplingParams.from_args(env.sampling_args, settings.sampling_args),
        max_concurrent=settings.max_concurrent,
        max_scoring=settings.max_scoring,
        allowance=Allowance(settings.limits, settings.price),
        fail_fast=settings.fail_fast,
        model_roles=model_roles,
        for_training=for_training,
    )
    records: dict[tuple[str, int], RolloutRecord] = {}
    async with env.used_in_run(), aclosing(rollouts):  # so that no rollout still runs at the teardown
        async for record in rollouts:
            records[record.example_key, record.rollout_index] = record
            if on_record is not None:
                on_record(record)
    return [records[job.key, job.index] for group in groups for job in group]


def run_rollouts_sync(
    env: Environment | ForeignEnvironment,
    rows: Iterable[Mapping[str, object]],
    client: AnyClient,
    model: str = "",
    *,
    on_record: Callable[[RolloutRecord], object] | None = None,
    model_roles: RoleClients | None = None,
    for_training: bool = False,
    first_index: int = 0,
    **options: Unpack[RolloutOptions],
) -> list[RolloutRecord]:
    """Call `run_rollouts` from synchronous code, also in a notebook."""
    return outside_event_loop(
        lambda: run_async(
            run_rollouts(
                env,
                rows,
                client,
                model,
                on_record=on_record,
                model_roles=model_roles,
                for_training=for_training,
                first_index=first_index,
                **options,
            )
        )
    )


def _examples(env: Environment, rows: Iterable[Mapping[str, object]]) -> Iterator[Row]:
    for position, row in enumerate(rows):
        example_id = row.get("example_id")
        if not isinstance(example_id, int):
            example_id = position
        yield build_example(row, example_id, env.system_prompt, env.few_shot, env.message_type)
