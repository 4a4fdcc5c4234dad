"""v0's runs: a group of rollouts, many groups at once, the evaluation rows."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rove.compat.verifiers.clients import ClientConfig, resolve_client
from rove.compat.verifiers.errors import InfraError, InvalidModelResponseError
from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.outputs import GenerateOutputs, make_metadata, push_to_hub, save_results, state_to_output
from rove.compat.verifiers.types import State
from rove.core.errors import ConfigError
from rove.core.records import REWARD_ERRORS
from rove.statistics.reward_errors import broken_reward

if TYPE_CHECKING:
    from rove.compat.verifiers.environment import Environment

LONGEST_PAUSE = 60.0
"""Seconds between two tries of a group."""


async def run_group(
    env: Environment,
    inputs: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    sampling_args: Any = None,
    max_retries: int = 0,
    state_columns: Sequence[str] | None = None,
    env_client: Any = None,
    **ignored: Any,
) -> list[Any]:
    """Play and score the rollouts of one example; their outputs. Nothing that goes wrong in one of them is raised.

    Args:
        max_retries: tries after one in which the endpoint failed.
        state_columns: keys of the states that outputs have, too.
    """
    client = resolve_client(client)
    states = await _played(env, inputs, client, model, sampling_args)
    for attempt in range(max_retries):
        if not any(isinstance(state["error"], (InfraError, InvalidModelResponseError)) for state in states):
            break
        await asyncio.sleep(min(LONGEST_PAUSE, 2**attempt * random.uniform(0.5, 1.5)))
        states = await _played(env, inputs, client, model, sampling_args)
    return [state_to_output(state, state_columns) for state in states]


async def _played(env: Environment, inputs: Any, client: Any, model: str, sampling_args: Any) -> list[State]:
    states = list(await asyncio.gather(*(_rollout(env, row, client, model, sampling_args) for row in inputs)))
    started = time.time()
    try:
        await env.score_states(states)
        await env.clean_up_scored(states)
    except Exception as error:
        for state in states:
            state.update(error=state["error"] or error, reward=0.0, metrics={})
    for state in states:
        state["timing"].scoring.start, state["timing"].scoring.end = started, time.time()
    return states


async def _rollout(env: Environment, row: Any, client: Any, model: str, sampling_args: Any) -> State:
    try:
        return await env.rollout(row, client, model, sampling_args)
    except Exception as error:  # in a stop condition or cleanup
        state = await env.init_state(row, client, model, sampling_args)
        state.update(error=error, is_completed=True, completion=[], stop_condition="has_error")
        return state


async def generate(
    env: Environment,
    inputs: Any,
    client: Any = None,
    model: str | None = None,
    sampling_args: Mapping[str, Any] | None = None,
    max_concurrent: int = -1,
    results_path: str | Path | None = None,
    state_columns: Sequence[str] | None = None,
    save_results: bool = False,
    push_to_hf_hub: bool = False,
    hf_hub_dataset_name: str | None = None,
    independent_scoring: bool = False,
    max_retries: int = 0,
    shuffle: bool = False,
    shuffle_seed: int | None = None,
    on_start: Callable[..., Any] | None = None,
    on_progress: Any = None,
    on_log: Callable[[str], Any] | None = None,
    **ignored: Any,
) -> GenerateOutputs:
    """Play and score rows; equal `example_id`s are a group, unless `independent_scoring`.

    Args:
        client: a `vf.Client`, a `ClientConfig`, an `openai.AsyncOpenAI` or a rove client.
        max_concurrent: groups (or rollouts) at a time; -1 = all.
        results_path: folder of `save_results`.
        on_start, on_progress: told of the rows, and of the outputs so far, the new ones and their means.
    """
    client, model = _known(env, client, model)
    rows = inputs.to_list() if hasattr(inputs, "to_list") else list(inputs)
    sampling = {**deepcopy(env.sampling_args), **(sampling_args or {})}
    groups = [[row] for row in rows] if independent_scoring else _grouped(rows)
    if on_start is not None:
        on_start(rows, groups)
    folder = Path(results_path) if results_path else _new_folder(env.env_id, model)
    known = _about(env, client, model, rows) | {
        "shuffle": shuffle,
        "shuffle_seed": (shuffle_seed or 0) if shuffle else None,
        "sampling_args": sampling,
        "state_columns": list(state_columns or []),
        "path_to_save": folder,
    }
    callbacks = on_progress if isinstance(on_progress, list) else [on_progress] if on_progress else []
    started, outputs = time.time(), []
    options = {"max_retries": max_retries, "state_columns": state_columns}
    async with aclosing(_all_groups(env, client, model, sampling, groups, max_concurrent, options)) as played:
        async for new in played:
            outputs += new
            for told in callbacks:
                told(outputs, new, make_metadata(outputs, started, **known))
    outputs.sort(key=lambda output: output["example_id"])
    _warn_of_broken_rewards(env, outputs)
    results = GenerateOutputs(outputs=outputs, metadata=make_metadata(outputs, started, **known))
    if save_results:
        _save(results, folder, on_log)
    if push_to_hf_hub:
        push_to_hub(results, hf_hub_dataset_name)
    return results


async def _all_groups(
    env: Environment,
    client: Any,
    model: str,
    sampling: Mapping[str, Any],
    groups: Sequence[list[Any]],
    max_concurrent: int,
    options: Mapping[str, Any],
) -> AsyncGenerator[list[Any], None]:
    """The outputs of each group as soon as it is played; several endpoints take turns."""
    clients = [resolve_client(one) for one in client.resolved()] if isinstance(client, ClientConfig) else [client]
    room = asyncio.Semaphore(max_concurrent) if max_concurrent > 0 else nullcontext()

    async def play(number: int, group: list[Any]) -> list[Any]:
        async with room:
            return await env.run_group(group, clients[number % len(clients)], model, sampling, **options)

    tasks = [asyncio.create_task(play(number, group)) for number, group in enumerate(groups)]  # begun in this order
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(client, ClientConfig):
            for one in clients:
                await one.close()


async def evaluate(
    env: Environment,
    client: Any = None,
    model: str | None = None,
    sampling_args: Mapping[str, Any] | None = None,
    num_examples: int = -1,
    rollouts_per_example: int = 1,
    *args: Any,
    shuffle: bool = False,
    shuffle_seed: int | None = None,
    num_samples: int | None = None,
    **options: Any,
) -> GenerateOutputs:
    """`generate` of the evaluation rows.

    Args:
        num_examples: the first so many rows; -1 = all.
        rollouts_per_example: siblings.
    """
    if num_samples is not None:
        outdated("evaluate(num_samples=…)", "call it num_examples")
        num_examples = num_samples
    rows = env.get_eval_dataset()
    if shuffle:
        rows = rows.shuffle(seed=shuffle_seed or 0)
    if num_examples > 0:
        rows = rows.select(range(min(num_examples, len(rows))))
    if rollouts_per_example > 1:
        rows = rows.repeat(rollouts_per_example)
    options |= {"shuffle": shuffle, "shuffle_seed": shuffle_seed}
    return await generate(env, rows, client, model, sampling_args, *args, **options)


def _warn_of_broken_rewards(env: Environment, outputs: Sequence[Mapping[str, Any]]) -> None:
    """Say which functions that count raised in every rollout, so that their mean of 0.0 says nothing."""
    weights = dict(zip(env.rubric._get_reward_func_names(), env.rubric._get_reward_weights(), strict=False))
    errors = {name: said for output in outputs for name, said in (output.get(REWARD_ERRORS) or {}).items()}
    for name, error in errors.items():
        called = [output for output in outputs if name in (output["metrics"] or ())]
        if weights.get(name, 1.0) and all(name in output.get(REWARD_ERRORS, ()) for output in called):
            warnings.warn(broken_reward(name, error), stacklevel=3)


def _known(env: Environment, client: Any, model: str | None) -> tuple[Any, str]:
    """The client and model of a run; as in 0.1.0 they may be the environment's."""
    client = getattr(env, "client", None) if client is None else client
    model = getattr(env, "model", None) if model is None else model
    if client is None or not isinstance(model, str):
        raise ConfigError("a run needs a client and a model; pass client= and model=")
    return client if isinstance(client, ClientConfig) else resolve_client(client), model


def _about(env: Environment, client: Any, model: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What metadata tell of a run beside its options and means."""
    examples = len({row["example_id"] for row in rows})
    return {
        "env_id": env.env_id,
        "env_args": env.env_args,
        "model": model,
        "base_url": _base_url(client),
        "num_examples": examples,
        "rollouts_per_example": len(rows) // examples if examples else 0,
        "pass_threshold": env.pass_threshold,
        "tools": env.tool_defs,
        "version_info": {"vf_version": "0.3.1+rove", "vf_commit": None, "env_version": None, "env_commit": None},
    }


def _grouped(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row["example_id"]].append(row)
    return list(groups.values())


def _base_url(client: Any) -> str:
    if isinstance(client, ClientConfig):
        return ",".join(one.api_base_url for one in client.resolved())
    return str(getattr(getattr(client, "client", None), "base_url", ""))


def _new_folder(env_id: str, model: str) -> Path:
    return Path("outputs") / "evals" / f"{env_id}--{model.replace('/', '--')}" / uuid4().hex[:8]


def _save(results: GenerateOutputs, folder: Path, on_log: Callable[[str], Any] | None) -> None:
    save_results(results, folder)
    if on_log is not None:
        on_log(f"Saved final results to {folder}")
