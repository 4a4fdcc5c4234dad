"""Evaluate a model in an environment, generate rollouts, make a dataset of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from rove.envs.environment import Environment
from rove.messages import text_of
from rove.protocols import Client, Sampling
from rove.records import RolloutRecord
from rove.rollout import Job, plan, run_groups
from rove.runs import Run
from rove.statistics import Tally

OnRecord = Callable[[RolloutRecord], None]


async def generate(
    env: Environment,
    client: Client,
    model: str = "",
    *,
    num_examples: int = -1,
    rollouts_per_example: int = 1,
    sampling_args: Mapping[str, Any] | None = None,
    max_concurrent: int | None = None,
    seed: int = 0,
    train: bool = False,
    fail_fast: bool = False,
    run: Run | None = None,
    on_record: OnRecord | None = None,
) -> list[RolloutRecord]:
    """Roll a model out in an environment.

    Args:
        model: name of the model, for endpoints that serve several.
        num_examples: the first so many rows of the dataset; -1 = all.
        rollouts_per_example: siblings per example.
        sampling_args: under OpenAI's names; they go over the environment's own.
        max_concurrent: rollouts at a time; what the client likes when not given.
        seed: of everything random; the same seed, data and answers give the same rollouts.
        train: use the training rows instead of the evaluation rows.
        fail_fast: raise at the first failed rollout instead of recording it.
        run: a started run folder; every finished rollout is kept there, and those already kept are not run again.
        on_record: called with every record, those already kept first.

    Returns:
        one record per rollout, in the order of examples and siblings.
    """
    if not isinstance(client, Client):
        client = importlib.import_module("rove.clients.openai").as_client(client)
    examples = (env.get_dataset if train else env.get_eval_dataset)(num_examples)
    groups = plan(examples, rollouts_per_example, seed)
    kept = run.finished() if run is not None else {}
    missing = _missing(groups, kept.keys(), together=env.rubric.has_group_rewards)
    again = {(job.key, job.index) for group in missing for job in group}
    done = {(job.key, job.index) for group in groups for job in group} - again
    records = {key: record for key, record in kept.items() if key in done}
    if run is not None and again:
        run.reopen()
    for record in records.values():
        if on_record is not None:
            on_record(record)
    sampling = Sampling.from_args(env.sampling_args, sampling_args)
    rollouts = run_groups(
        env, client, missing, model=model, sampling=sampling, max_concurrent=max_concurrent, fail_fast=fail_fast
    )
    try:
        async with aclosing(rollouts):  # so that no rollout still runs when the environment is torn down
            async for record in rollouts:
                if run is not None:
                    run.append_rollout(record)
                records[record.example_key, record.rollout_index] = record
                if on_record is not None:
                    on_record(record)
    finally:
        await env.tear_down()
    return [records[job.key, job.index] for group in groups for job in group]


def _missing(groups: list[list[Job]], kept: Container[tuple[str, int]], together: bool) -> list[list[Job]]:
    """The jobs still to run; a group that is scored together is run together."""
    if together:
        return [group for group in groups if any((job.key, job.index) not in kept for job in group)]
    return [[job for job in group if (job.key, job.index) not in kept] for group in groups]


async def evaluate(env: Environment, client: Client, model: str = "", **options: Any) -> dict[str, Any]:
    """`generate`, summed up: reward and metrics with 95 % intervals over the scored rollouts, failures counted apart.

    Args:
        options: those of `generate`.

    Returns:
        a summary (see `rove.statistics.Tally.summary`).
    """
    tally = Tally()
    for record in await generate(env, client, model, **options):
        tally.add(record)
    summary = tally.summary()
    run = options.get("run")
    if run is not None:
        run.finish(summary)
    return summary


def make_dataset(records: Iterable[RolloutRecord], min_reward: float | None = None) -> list[dict[str, Any]]:
    """Scored rollouts as dataset rows: prompt, completion, reward, answer, info, metrics.

    Args:
        min_reward: leave out those below.
    """
    rows: list[dict[str, Any]] = []
    for record in records:
        if record.scores is None or (min_reward is not None and record.scores.reward < min_reward):
            continue
        rows.append(
            {
                "prompt": [dict(m) for m in record.prompt],
                "completion": [dict(m) for m in record.completion],
                "reward": record.scores.reward,
                "answer": record.answer,
                "info": record.info,
                "metrics": {**record.scores.rewards, **record.scores.metrics},
            }
        )
    return rows


def all_text(records: Iterable[RolloutRecord]) -> list[str]:
    """Every message of the rollouts as text: what a tokenizer is trained on."""
    return [text_of(message) for record in records for message in [*record.prompt, *record.completion]]
