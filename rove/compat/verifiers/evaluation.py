"""v0's evaluation: groups of rollouts, their outputs, and means over the outputs."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from copy import deepcopy
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from packaging.version import Version

from rove.compat.verifiers.clients import ClientConfig, resolve_client
from rove.compat.verifiers.data import make_table
from rove.compat.verifiers.errors import InfraError, InvalidModelResponseError, error_data
from rove.compat.verifiers.messages import plain, sanitize_tool_calls
from rove.compat.verifiers.release import fixed, outdated
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.saved_results import append_outputs, saved_outputs, without_saved, write_results
from rove.compat.verifiers.types import RolloutOutput, SamplingArgs, State, Tool
from rove.core.errors import ConfigError
from rove.core.records import REWARD_ERRORS
from rove.statistics.summary import broken_reward
from rove.utils.event_loop import in_event_loop
from rove.utils.systems import allowed_name

MAX_RETRY_DELAY_S = 60.0
_ASYNC = Version("0.1.3")
"""First release in which `evaluate` is asynchronous."""
_MEAN_SUFFIX = "_avg"
"""Suffix of the keys under which the README of 0.1.0 reads means, such as "rewards_avg"."""
_COLUMNS = frozenset({"prompt", "completion", "answer", "info", "task", "state", "reward", "metrics", "example_id"})
"""Columns that `results[...]` has even if no output has them."""


class EvaluableEnvironment(ABC):
    """The part of `Environment` that evaluates: it needs only the attributes and methods declared here."""

    env_id: str
    env_args: dict[str, Any]
    message_type: str
    sampling_args: dict[str, Any]
    rubric: Rubric
    pass_threshold: float
    tool_defs: list[Tool] | None
    written_for: Version
    dataset_source: Callable[[], Any] | None
    eval_dataset_source: Callable[[], Any] | None
    client: Any = None
    """Client and `model` that a run uses by default, as in 0.1.0."""
    model: str | None = None
    max_turns: int = -1

    @abstractmethod
    def build_dataset(self) -> Any:
        """Return the training rows; None if there are none."""

    @abstractmethod
    def build_eval_dataset(self) -> Any:
        """Return the evaluation rows; None if there are none."""

    @abstractmethod
    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` training rows."""

    @abstractmethod
    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` evaluation rows."""

    @abstractmethod
    async def init_state(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Return the initial state of a rollout."""

    @abstractmethod
    async def rollout(self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Run one rollout without scoring it."""

    async def run_row(self, row: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None) -> State:
        """Run one rollout of a row without scoring it; the package's own `rollout` may take any of v0's forms of arguments."""
        return await self.rollout(row, client, model, sampling_args)

    @abstractmethod
    async def score_states(self, states: list[State], independently: bool = False) -> None:
        """Score the finished rollouts of one example, as a group or each one independently."""

    @abstractmethod
    async def clean_up_scored(self, states: list[State]) -> None:
        """Run the rubric's `@cleanup` methods."""

    @abstractmethod
    async def _teardown(self) -> None: ...

    def env_route(self, row: Mapping[str, Any]) -> list[str]:
        """Return the names of the group members that lead to a row's environment; empty outside of groups."""
        return []

    def member_of(self, state: State) -> EvaluableEnvironment:
        """Return the environment that a rollout ran in: in a group, the innermost member."""
        return self

    async def run_rollout(
        self, input: Any, client: Any, model: str, sampling_args: Any = None, *args: Any, **options: Any
    ) -> Any:
        """Run one rollout and score it with the rubric's `score_rollout`; see `run_group`."""
        options["independent_scoring"] = True
        [output] = await self.run_group([input], client, model, sampling_args, *args, **options)
        return output

    async def run_group(
        self,
        group_inputs: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: Any = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        env_client: Any = None,
        independent_scoring: bool = False,
        **ignored: Any,
    ) -> list[Any]:
        """Run and score the rollouts of one example. Errors in a rollout are recorded in its output, not raised.

        Args:
            max_retries: retries of a group in which the endpoint failed.
            state_columns: keys of the states to include in the outputs.
            independent_scoring: call the rubric's `score_rollout`, not its `score_group`.
        """
        client = resolve_client(client)
        states = await self._run_states(group_inputs, client, model, sampling_args, independent_scoring)
        for attempt in range(max_retries):
            if not any(isinstance(state["error"], (InfraError, InvalidModelResponseError)) for state in states):
                break
            await asyncio.sleep(min(MAX_RETRY_DELAY_S, 2**attempt * random.uniform(0.5, 1.5)))
            states = await self._run_states(group_inputs, client, model, sampling_args, independent_scoring)
        return [state_to_output(state, state_columns) for state in states]

    async def _run_states(
        self, rows: Any, client: Any, model: str, sampling_args: Any, independently: bool
    ) -> list[State]:
        states = list(await asyncio.gather(*(self._run_state(row, client, model, sampling_args) for row in rows)))
        started = time.time()
        # In v0 an exception of a rubric ends the whole run; here it fails only this example (docs/decisions/compat.md).
        try:
            await self.score_states(states, independently)
            await self.clean_up_scored(states)
        except Exception as error:
            for state in states:
                state.update(error=state["error"] or error, reward=0.0, metrics={})
        for state in states:
            scoring = state["timing"].scoring
            scoring.start = started
            scoring.end = time.time()
        return states

    async def _run_state(self, row: Any, client: Any, model: str, sampling_args: Any) -> State:
        # The loop stores errors in the state. What arrives here was raised in a stop condition or cleanup.
        try:
            return await self.run_row(row, client, model, sampling_args)
        except Exception as error:
            state = await self.init_state(row, client, model, sampling_args)
            state.update(error=error, is_completed=True, completion=[], stop_condition="has_error")
            return state

    async def generate(
        self,
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
        """Run and score rows; rows with equal `example_id` form a group, unless `independent_scoring`.

        With `save_results`, the outputs of each group are written as soon as it has finished.

        Args:
            client: a `vf.Client`, a `ClientConfig`, an `openai.AsyncOpenAI` or a rove client.
            max_concurrent: maximum groups (or rollouts) at a time; -1 = no limit.
            results_path: folder for `save_results`. If results were saved there, their rollouts are kept and only
                missing rollouts run.
            on_start: called with the rows and the groups.
            on_progress: called with all outputs so far, the new outputs, and the metadata.

        Raises:
            ValueError: the saved results belong to another environment or model, or have more rows.
        """
        client, model = self._client_and_model(client, model)
        rows = inputs.to_list() if hasattr(inputs, "to_list") else list(inputs)
        sampling = {**deepcopy(self.sampling_args), **(sampling_args or {})}
        groups = [[row] for row in rows] if independent_scoring else _group_by_example(rows)
        if on_start is not None:
            on_start(rows, groups)
        folder = Path(results_path) if results_path else _new_folder(self.env_id, model)
        metadata = self._run_metadata(client, model, rows) | {
            "shuffle": shuffle,
            "shuffle_seed": (shuffle_seed or 0) if shuffle else None,
            "sampling_args": sampling,
            "state_columns": list(state_columns or []),
            "path_to_save": folder,
        }
        callbacks = on_progress if isinstance(on_progress, list) else [on_progress]
        started = time.time()
        # Without `results_path` the folder is new, and has no results.
        outputs = saved_outputs(folder, metadata) if results_path else []
        groups = without_saved(groups, outputs)
        options = {
            "max_retries": max_retries,
            "state_columns": state_columns,
            "independent_scoring": independent_scoring,
        }
        # Before the first request: a folder that cannot be written is reported, and a run that is killed can be resumed.
        if save_results:
            write_results({"outputs": outputs, "metadata": make_metadata(outputs, started, **metadata)}, folder)
        try:
            async with aclosing(self._run_groups(client, model, sampling, groups, max_concurrent, options)) as finished:
                async for new in finished:
                    outputs += new
                    if save_results:
                        append_outputs(new, folder)
                    for callback in filter(None, callbacks):
                        callback(outputs, new, make_metadata(outputs, started, **metadata))
        finally:
            # Groups finish in any order, and saved outputs come first; v0's results are in the order of the rows.
            outputs.sort(key=lambda output: output["example_id"])
            results = GenerateOutputs(outputs=outputs, metadata=make_metadata(outputs, started, **metadata))
            if save_results:
                write_results(results, folder)
        self._warn_of_broken_rewards(outputs)
        if save_results and on_log is not None:
            on_log(f"Saved final results to {folder}")
        if push_to_hf_hub:
            push_to_hub(results, hf_hub_dataset_name)
        return results

    async def _run_groups(
        self,
        client: Any,
        model: str,
        sampling: Mapping[str, Any],
        groups: Sequence[list[Any]],
        max_concurrent: int,
        options: Mapping[str, Any],
    ) -> AsyncGenerator[list[Any], None]:
        """Yield the outputs of each group as soon as it has finished; groups alternate between several endpoints."""
        clients = [client]
        if isinstance(client, ClientConfig):
            clients = [resolve_client(config) for config in client.resolved()]
        slots = asyncio.Semaphore(max_concurrent) if max_concurrent > 0 else nullcontext()

        async def run(index: int, group: list[Any]) -> list[Any]:
            async with slots:
                return await self.run_group(group, clients[index % len(clients)], model, sampling, **options)

        tasks = [asyncio.create_task(run(index, group)) for index, group in enumerate(groups)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # A client that the caller passed may be in use elsewhere; only those that were created here are closed.
            if isinstance(client, ClientConfig):
                for endpoint in clients:
                    await endpoint.close()

    def evaluate(self, *args: Any, **options: Any) -> Any:
        """Run and score the evaluation rows; see `generate` for the other arguments.

        Returns an awaitable of the results; but if the calling package or script is written for 0.1.0 to 0.1.2 and no
        event loop runs, the results themselves.

        Args:
            client, model, sampling_args: see `generate`.
            num_examples: number of rows, from the first one; -1 = all.
            rollouts_per_example: rollouts of each row.
        """
        evaluation = self._evaluate(*args, **options)
        # A notebook runs an event loop, in which `asyncio.run` would fail; its cells await the evaluation.
        if self.written_for >= _ASYNC or in_event_loop():
            return evaluation
        outdated("evaluate() without await", "call evaluate_sync, or await it")
        return asyncio.run(evaluation)

    async def _evaluate(
        self,
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
        if num_samples is not None:
            outdated("evaluate(num_samples=…)", "call it num_examples")
            num_examples = num_samples
        rows = self.evaluation_rows()
        if shuffle:
            rows = rows.shuffle(seed=shuffle_seed or 0)
        if num_examples > 0:
            rows = rows.select(range(min(num_examples, len(rows))))
        if rollouts_per_example > 1:
            rows = rows.repeat(rollouts_per_example)
        options |= {"shuffle": shuffle, "shuffle_seed": shuffle_seed}
        return await self.generate(rows, client, model, sampling_args, *args, **options)

    def evaluation_rows(self) -> Any:
        """Return the evaluation rows, or the training rows if there are none, as the package's own methods return them."""
        return self.get_dataset() if self.build_eval_dataset() is None else self.get_eval_dataset()

    def generate_sync(self, inputs: Any, client: Any = None, *args: Any, **options: Any) -> Any:
        """Run `generate` from synchronous code."""
        return asyncio.run(self.generate(inputs, client, *args, **options))

    def evaluate_sync(self, client: Any = None, model: str | None = None, *args: Any, **options: Any) -> Any:
        """Run `evaluate` from synchronous code."""
        return asyncio.run(self._evaluate(client, model, *args, **options))

    def _warn_of_broken_rewards(self, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Warn of weighted functions that raised in every rollout: their mean of 0.0 is meaningless."""
        names, weights = self.rubric._get_reward_func_names(), self.rubric._get_reward_weights()
        weight_of = dict(zip(names, weights, strict=False))
        errors: dict[str, str] = {}
        for output in outputs:
            errors.update(output.get(REWARD_ERRORS) or {})
        for name, error in errors.items():
            # Functions of another member of a group were not called, and have not failed.
            called = [output for output in outputs if name in (output["metrics"] or ())]
            always_fails = all(name in output.get(REWARD_ERRORS, ()) for output in called)
            if weight_of.get(name, 1.0) and always_fails:
                warnings.warn(broken_reward(name, error), stacklevel=3)

    def _client_and_model(self, client: Any, model: str | None) -> tuple[Any, str]:
        client = self.client if client is None else client
        model = self.model if model is None else model
        if client is None or not isinstance(model, str):
            raise ConfigError("a run needs a client and a model; pass client= and model=")
        return client if isinstance(client, ClientConfig) else resolve_client(client), model

    def _run_metadata(self, client: Any, model: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        examples = len({row["example_id"] for row in rows})
        return {
            "env_id": self.env_id,
            "env_args": self.env_args,
            "model": model,
            "base_url": _base_url(client),
            "num_examples": examples,
            "rollouts_per_example": len(rows) // examples if examples else 0,
            "pass_threshold": self.pass_threshold,
            "tools": self.tool_defs,
            "version_info": {"vf_version": "0.3.1+rove", "vf_commit": None, "env_version": None, "env_commit": None},
        }


def _group_by_example(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row["example_id"]].append(row)
    return list(groups.values())


def _base_url(client: Any) -> str:
    if isinstance(client, ClientConfig):
        return ",".join(config.api_base_url for config in client.resolved())
    return str(getattr(getattr(client, "client", None), "base_url", ""))


def _new_folder(env_id: str, model: str) -> Path:
    name = f"{env_id}--{model.replace('/', '--')}"
    return Path("outputs") / "evals" / allowed_name(name) / uuid4().hex[:8]


class UsageTracker:
    """Counts the input and output tokens of a rollout while it runs; `usage` is a live view of the totals."""

    def __init__(self) -> None:
        self._totals = {"input_tokens": 0.0, "output_tokens": 0.0}
        self._has_usage = False
        self.usage: Mapping[str, float] = MappingProxyType(self._totals)

    # Packages deep-copy states, and a read-only view cannot be copied; the copy belongs to the same rollout.
    def __deepcopy__(self, memo: Any) -> UsageTracker:
        return self

    def increment(self, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Add tokens; endpoints may report None."""
        added = {"input_tokens": float(input_tokens or 0), "output_tokens": float(output_tokens or 0)}
        if min(added.values()) < 0:
            raise ValueError("Token usage increments must be non-negative.")
        self._has_usage = True
        for name, count in added.items():
            self._totals[name] += count

    def snapshot(self) -> dict[str, float] | None:
        """Return the totals; None if no usage has been reported."""
        return dict(self._totals) if self._has_usage else None


def context_tokens(trajectory: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the numbers of generated and of other tokens in the last turn's context."""
    responses = [step.get("response") or {} for step in trajectory]
    usages = [response["usage"] for response in responses if response.get("usage") is not None]
    generated = sum(usage["completion_tokens"] for usage in usages)
    context = usages[-1]["prompt_tokens"] + usages[-1]["completion_tokens"] if usages else 0
    # Below 0 if a package shortens the conversation between turns.
    return {"final_output_tokens": generated, "final_input_tokens": max(0, context - generated)}


def state_to_output(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """Convert a scored state to an output. Metrics are top-level fields and override other fields, as in v0.

    With ROVE_COMPAT=fixed they do not override.
    """
    output = RolloutOutput(
        example_id=state["example_id"],
        prompt=state.get("prompt"),
        completion=state.get("completion"),
        answer=state.get("answer", ""),
        info=state.get("info", {}),
        reward=state.get("reward"),
        error=None,
        timing=state["timing"].model_dump(),
        is_completed=state.get("is_completed", False),
        is_truncated=state.get("is_truncated", False),
        stop_condition=state.get("stop_condition"),
        metrics=state.get("metrics"),
        tool_defs=state.get("tool_defs"),
    )
    usage = _usage(state)
    if usage is not None:
        output["token_usage"] = {**usage, **context_tokens(state.get("trajectory") or [])}
    for name in ("prompt", "completion"):
        if output[name] is not None:
            output[name] = sanitize_tool_calls(output[name])
    if state.get("error") is not None:
        output["error"] = error_data(state["error"])
        output["error_chain"] = output["error"]["error_chain_repr"]
        output["long_error_chain"] = output["error"]["error_chain_str"]
    for name in ("answer", "info"):
        if not output[name]:
            del output[name]
    # A metric named "reward" replaces the reward in v0's results, and published means were computed from these.
    for name, value in (state.get("metrics") or {}).items():
        if not (fixed() and name in output):
            output[name] = value
    columns: dict[str, Any] = {}
    for name in state_columns or ():
        value = state.get(name)
        columns[name] = value.snapshot() if isinstance(value, UsageTracker) else plain(value)
    return RolloutOutput({**output, **reward_errors(state), **columns})


def reward_errors(state: State) -> dict[str, Any]:
    """Return the exceptions of reward functions as a field for an output or a record's `extras`; empty without exceptions."""
    if not state.get(REWARD_ERRORS):
        return {}
    return {REWARD_ERRORS: dict(state[REWARD_ERRORS])}


def _usage(state: State) -> dict[str, float] | None:
    """Return the tokens of a rollout; a state that the package created itself may have them as a plain dict."""
    tracker = state.get("usage_tracker")
    if isinstance(tracker, UsageTracker):
        return tracker.snapshot()
    for key in ("token_usage", "usage"):
        usage = state.get(key)
        if isinstance(usage, Mapping):
            return dict(usage)
    return None


class GenerateOutputs(dict[str, Any]):
    """`outputs` and `metadata`.

    Columns can also be read as packages for 0.1.2 to 0.1.10 do: `results["reward"]`, `results.reward`.
    """

    def __missing__(self, key: str) -> Any:
        outputs = self["outputs"]
        if key.endswith(_MEAN_SUFFIX):
            return self._mean_of(key)
        is_column = key in _COLUMNS or any(key in output for output in outputs)
        if not is_column:
            raise KeyError(f"{key!r}; results have 'outputs' and 'metadata', and the columns {sorted(_COLUMNS)}")
        outdated(f"results[{key!r}]", f"read [output[{key!r}] for output in results['outputs']]")
        if key == "metrics":
            return _metric_columns(outputs)
        return [output.get(key) for output in outputs]

    def _mean_of(self, key: str) -> float:
        """Return the mean reward for "rewards_avg", and the mean of metric NAME for "NAME_avg"."""
        name = key.removesuffix(_MEAN_SUFFIX)
        metadata = self["metadata"]
        if name in ("reward", "rewards"):
            mean = metadata["avg_reward"]
        elif name in metadata["avg_metrics"]:
            mean = metadata["avg_metrics"][name]
        else:
            raise KeyError(f"{key!r}; means are rewards_avg, and <metric>_avg of {sorted(metadata['avg_metrics'])}")
        outdated(f"results[{key!r}]", "read results['metadata']['avg_reward'] or ['avg_metrics']")
        return mean

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None


def _metric_columns(outputs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each metric; None for outputs without it."""
    metrics = [output["metrics"] or {} for output in outputs]
    names: dict[str, None] = {}
    for values in metrics:
        names.update(dict.fromkeys(values))
    return {name: [values.get(name) for values in metrics] for name in names}


GenerateMetadata = dict[str, Any]


def make_metadata(outputs: Sequence[Mapping[str, Any]], started: float, **run: Any) -> GenerateMetadata:
    """Return the means over outputs, together with the metadata of the run."""
    rewards = [output["reward"] or 0.0 for output in outputs]
    values: dict[str, list[float]] = defaultdict(list)
    for output in outputs:
        for name, value in (output["metrics"] or {}).items():
            values[name].append(value)
    pass_at_k, pass_all_k = _pass_at_k(outputs, run["rollouts_per_example"], run["pass_threshold"])
    return {
        **run,
        "date": datetime.now(UTC).isoformat(),
        "time": time.time() - started,
        "avg_reward": _mean(rewards),
        "avg_metrics": {name: _mean(numbers) for name, numbers in values.items()},
        "avg_error": _mean([float(output.get("error") is not None) for output in outputs]),
        "pass_at_k": pass_at_k,
        "pass_all_k": pass_all_k,
        "usage": _mean_usage([output["token_usage"] for output in outputs if "token_usage" in output]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _mean_usage(usages: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not usages:
        return None
    return {name: _mean([usage[name] for usage in usages]) for name in usages[0]}


def _pass_at_k(
    outputs: Sequence[Mapping[str, Any]], n: int, threshold: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the unbiased estimates of pass@k and pass^k, for powers of two up to the rollouts per example."""
    num_passed: list[int] = []
    for group in _group_by_example(outputs):
        passed = [output for output in group if (output["reward"] or 0.0) >= threshold]
        # As in v0, an example with missing rollouts does not count.
        if len(group) == n:
            num_passed.append(len(passed))
    any_of: dict[str, float] = {}
    all_of: dict[str, float] = {}
    if n <= 1 or not num_passed:
        return any_of, all_of
    for k in (2**power for power in range(n.bit_length())):
        any_of[str(k)] = _mean([1.0 - comb(n - passed, k) / comb(n, k) for passed in num_passed])
        all_of[str(k)] = _mean([comb(passed, k) / comb(n, k) for passed in num_passed])
    return any_of, all_of


def make_dataset(
    results: Mapping[str, Any],
    push_to_hub: bool = False,
    hub_name: str | None = None,
    state_columns: Sequence[str] = (),
    extra_columns: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Return the outputs as a dataset, and upload it if `push_to_hub` is true, as releases before 0.1.9 do.

    The dataset has all columns of the results. Columns of the states are in the results if `evaluate` was asked for them.

    Args:
        push_to_hub: whether to upload the dataset to the Hugging Face hub. Releases from 0.1.3 on call it `push_to_hf_hub`.
        hub_name: name of the dataset on the hub. Releases from 0.1.3 on call it `hf_hub_dataset_name`.
        state_columns: keys of the states to include; a missing one is skipped with a warning.
        extra_columns: further columns; a missing one is skipped with a warning.
        options: the newer names; anything else is ignored with a warning.
    """
    push_to_hub = options.pop("push_to_hf_hub", push_to_hub)
    hub_name = options.pop("hf_hub_dataset_name", hub_name)
    if push_to_hub and not hub_name:
        raise ConfigError("hub_name is missing; give the name of the dataset on the Hugging Face hub")
    if options:
        warnings.warn(f"make_dataset ignores {', '.join(options)}", stacklevel=2)
    rows = [plain(output) for output in results["outputs"]]
    for name in (*state_columns, *extra_columns):
        if not any(name in row for row in rows):
            advice = f"columns of the states must be in evaluate(state_columns=[{name!r}])"
            warnings.warn(f"make_dataset skips {name!r}, which is not in the results; {advice}", stacklevel=2)
    dataset = make_table(rows)
    if push_to_hub:
        dataset.push_to_hub(hub_name)
    return dataset


def push_to_hub(results: GenerateOutputs, name: str | None) -> None:
    """Upload the outputs as a dataset to the Hugging Face hub."""
    metadata = results["metadata"]
    if not name:
        sizes = f"n{metadata['num_examples']}_r{metadata['rollouts_per_example']}"
        name = f"{metadata['env_id']}_{metadata['model']}_{sizes}".replace("/", "_")
    datasets = importlib.import_module("datasets")
    # Outputs contain objects of packages, for which Arrow has no type; as JSON they are text.
    rows = [json.loads(json.dumps(plain(output), default=str)) for output in results["outputs"]]
    datasets.Dataset.from_list(rows).push_to_hub(name)


save_results = write_results
"""The function's name in v0."""
