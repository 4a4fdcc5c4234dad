"""What v0 keeps of rollouts: one output each, and their means as metadata."""

from __future__ import annotations

import importlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from typing import Any

from rove.compat.verifiers.data import make_table
from rove.compat.verifiers.errors import error_data
from rove.compat.verifiers.messages import sanitize_tool_calls
from rove.compat.verifiers.mode import fixed, outdated
from rove.compat.verifiers.models import plain
from rove.compat.verifiers.types import RolloutOutput, State
from rove.compat.verifiers.usage import UsageTracker, context_tokens
from rove.core.records import REWARD_ERRORS

_COLUMNS = frozenset({"prompt", "completion", "answer", "info", "task", "state", "reward", "metrics", "example_id"})


def state_to_output(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """A scored state as an output, metrics among the other fields; they win, as in v0 (not with ROVE_COMPAT=fixed)."""
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
    for name, value in (state.get("metrics") or {}).items():
        if not (fixed() and name in output):
            output[name] = value
    return RolloutOutput({**output, **_reward_errors(state), **_state_columns(state, state_columns or ())})


def _reward_errors(state: State) -> dict[str, Any]:
    return {REWARD_ERRORS: dict(state[REWARD_ERRORS])} if state.get(REWARD_ERRORS) else {}


def _state_columns(state: State, names: Sequence[str]) -> dict[str, Any]:
    values = {name: state.get(name) for name in names}
    return {name: one.snapshot() if isinstance(one, UsageTracker) else plain(one) for name, one in values.items()}


def _usage(state: State) -> dict[str, float] | None:
    """The tokens of a rollout; of a state that the package made itself, what it tells."""
    tracker = state.get("usage_tracker")
    if isinstance(tracker, UsageTracker):
        return tracker.snapshot()
    return next((dict(state[key]) for key in ("token_usage", "usage") if isinstance(state.get(key), Mapping)), None)


class GenerateOutputs(dict[str, Any]):
    """`outputs` and `metadata`. Columns, as packages for 0.1.2 to 0.1.10 read them, are understood: `results["reward"]`,
    `results.reward`."""

    def __missing__(self, key: str) -> Any:
        outputs = self["outputs"]
        if key not in _COLUMNS and not any(key in output for output in outputs):
            raise KeyError(f"{key!r}; results have 'outputs' and 'metadata', and the columns {sorted(_COLUMNS)}")
        outdated(f"results[{key!r}]", f"read [output[{key!r}] for output in results['outputs']]")
        if key == "metrics":
            names = dict.fromkeys(name for output in outputs for name in output["metrics"] or {})
            return {name: [(output["metrics"] or {}).get(name) for output in outputs] for name in names}
        return [output.get(key) for output in outputs]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()


GenerateMetadata = dict[str, Any]


def make_metadata(outputs: Sequence[Mapping[str, Any]], started: float, **known: Any) -> GenerateMetadata:
    """The means over outputs, beside what is `known` of the run."""
    rewards = [output["reward"] or 0.0 for output in outputs]
    values: dict[str, list[float]] = defaultdict(list)
    for output in outputs:
        for name, value in (output["metrics"] or {}).items():
            values[name].append(value)
    usages = [output["token_usage"] for output in outputs if "token_usage" in output]
    passed, passed_all = _pass_at_k(outputs, known["rollouts_per_example"], known["pass_threshold"])
    return {
        **known,
        "date": datetime.now(UTC).isoformat(),
        "time": time.time() - started,
        "avg_reward": _mean(rewards),
        "avg_metrics": {name: _mean(some) for name, some in values.items()},
        "avg_error": _mean([float(output.get("error") is not None) for output in outputs]),
        "pass_at_k": passed,
        "pass_all_k": passed_all,
        "usage": {name: _mean([usage[name] for usage in usages]) for name in usages[0]} if usages else None,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _pass_at_k(
    outputs: Sequence[Mapping[str, Any]], n: int, threshold: float
) -> tuple[dict[str, float], dict[str, float]]:
    groups: dict[Any, list[bool]] = defaultdict(list)
    for output in outputs:
        groups[output["example_id"]].append((output["reward"] or 0.0) >= threshold)
    full = [group for group in groups.values() if len(group) == n]
    sizes = [2**power for power in range(n.bit_length()) if 2**power <= n]
    any_of, all_of = {}, {}
    for k in sizes if n > 1 and full else []:
        any_of[str(k)] = _mean([1.0 - comb(n - sum(group), k) / comb(n, k) for group in full])
        all_of[str(k)] = _mean([comb(sum(group), k) / comb(n, k) for group in full])
    return any_of, all_of


def make_dataset(results: Mapping[str, Any], **ignored: Any) -> Any:
    """The outputs as a dataset."""
    return make_table([plain(output) for output in results["outputs"]])


def save_results(results: GenerateOutputs, folder: Path) -> None:
    """Write `results.jsonl` and `metadata.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [
        {name: value for name, value in plain(output).items() if name != "trajectory"} for output in results["outputs"]
    ]
    lines = [json.dumps(output, default=str) for output in kept]
    (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "metadata.json").write_text(
        json.dumps(plain(results["metadata"]), default=str, indent=2), encoding="utf-8"
    )


def push_to_hub(results: GenerateOutputs, name: str | None) -> None:
    """Publish the outputs as a dataset on the Hugging Face hub, as was asked."""
    metadata = results["metadata"]
    usual = f"{metadata['env_id']}_{metadata['model']}_n{metadata['num_examples']}_r{metadata['rollouts_per_example']}"
    datasets = importlib.import_module("datasets")
    rows = [json.loads(json.dumps(plain(output), default=str)) for output in results["outputs"]]
    datasets.Dataset.from_list(rows).push_to_hub(name or usual.replace("/", "_"))
