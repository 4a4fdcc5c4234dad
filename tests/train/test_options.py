"""Every setting of `rove rl` and `rove sft` has an effect: two small runs that differ only in it must differ."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from commands import write_environment
from fakes import tiny_model
from rich.console import Console
from setting_tables import nested_tables, setting_names
from tiers import some_broad

import rove.models.linear
import rove.models.load
import rove.stages.results
import rove.train.trainer
from rove.core.config import convert
from rove.core.errors import ConfigError, RunError
from rove.runs.run import Run
from rove.stages.reporter import ConsoleReporter
from rove.stages.rl import run_rl
from rove.stages.sft import run_sft
from rove.train.alerts import ALERTS, AlertLimits
from rove.train.config import EvaluationConfig, RLConfig, SFTConfig
from rove.train.trainer import TrainingError
from tests.train.test_alerts import CASES as ALERT_CASES
from tests.train.test_alerts import LIMITS
from tests.train.test_loggers import Fake
from tests.train.test_sft import learnable_rollouts

ENVIRONMENT = """
import sys, time
import rove as vf

def here():
    return float("pytest" in sys.modules)

def letters(completion, info):
    if info["flat"]:
        return 0.5
    text = "".join(m["content"] for m in completion if m["role"] == "assistant")
    return SIGN * sum("a" <= c <= "z" for c in text) / max(1, len(text))

class Asks(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        time.sleep(self.stall)

    async def env_response(self, messages, state, **kwargs):
        step = state["trajectory"][-1]
        if state["info"]["judged"]:
            step["reward"] = float(len(step.completion[-1].content))
        return "you say"

def load_environment(word="say", rows=8, flat=0, judged=False, stall=0.0):
    rows = [
        {"question": f"{word} {n}", "info": {"number": 8 - n, "half": n // 4, "flat": n < flat, "judged": judged}}
        for n in range(rows)
    ]
    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    rubric.add_metric(here)
    env = Asks(dataset=rows, eval_dataset=rows[:4], rubric=rubric, max_turns=2)
    env.stall = stall
    return env
"""

LOSS = """
def no_number(logprobs, tokens):
    return logprobs * float("nan")
"""


class RunResult(NamedTuple):
    """The results of a run."""

    path: Path
    output: str
    error: str
    threads: int
    micro_batches: int
    recomputed: int
    """Calls of the activation checkpointing function."""
    logged: int
    """Calls of the logger's library."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in Run(self.path).metrics()]

    def metric_column(self, name: str) -> list[Any]:
        """Return a metric of every step."""
        return [m.get(name) for m in self.metrics]

    def file_names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the run."""
        path = self.path / folder
        return sorted(p.name for p in path.iterdir()) if path.exists() else []

    def measured(self, name: str) -> list[Any]:
        """Return prompts, completions, temperatures and rewards of an evaluation, by step."""
        folder = self.path / "evaluations" / name
        rollouts_by_step = [list(Run(step).rollouts()) for step in sorted(folder.iterdir())]
        return [[(r.prompt, r.completion, r.temperature, r.reward) for r in step] for step in rollouts_by_step]


Observation = Callable[[RunResult], Any]


def weights_hash(result: RunResult) -> str:
    return hashlib.sha256((result.path / "final" / "model.safetensors").read_bytes()).hexdigest()


def adapter_hash(result: RunResult) -> str:
    return hashlib.sha256((result.path / "final" / "adapter_model.safetensors").read_bytes()).hexdigest()


def step_count(result: RunResult) -> int:
    return len(result.metrics)


def example_ids(result: RunResult) -> list[int]:
    """Return the example ids of the groups, in order."""
    return [r.example_id for r in Run(result.path).rollouts() if r.rollout_index == 0]


def metric_column(name: str) -> Observation:
    return lambda result: result.metric_column(name)


def final_evaluation(key: str) -> Callable[[RunResult], Any]:
    """Return a function that reads a value of the evaluation after SFT from the summary, None without such an evaluation."""
    return lambda result: (Run(result.path).summary() or {}).get("placement", {}).get(key)


def file_names(folder: str) -> Observation:
    return lambda result: result.file_names(folder)


def has_alerts(result: RunResult) -> bool:
    return (result.path / "alerts.jsonl").exists()


class Case(msgspec.Struct, frozen=True):
    """The changed value of a setting, the other settings of both runs, and the result that must differ."""

    value: Any
    base: dict[str, Any] = {}
    observe: Observation = weights_hash


TWO_ITERATIONS = {"num_iterations": 2}
TWO_SLOW_ITERATIONS = {**TWO_ITERATIONS, "learning_rate": 1e-3}
TWO_STEPS = {"steps": 2}
LORA = {"lora.rank": 2}
HELD_OUT = {"env": "opt_letters", "name": "let", "every": 1, "max_tokens": 3, "num_examples": 2}
WITH_EVALUATION = {"evaluation": [{**HELD_OUT, "env_args": {"flat": 8}}]}
WITH_KEEP_BEST = {**WITH_EVALUATION, "keep_best": "eval/let/reward/mean"}

RL_CASES: dict[str, Case] = {
    "env": Case("opt_unlike"),
    "model": Case("MODEL1"),
    "env_args": Case({"word": "hello"}),
    "steps": Case(2),
    "batch_size": Case(12),
    "rollouts_per_example": Case(2),
    "learning_rate": Case(1e-3),
    "warmup_steps": Case(2),
    "final_lr_fraction": Case(0.9, TWO_STEPS),
    "lr_backoff": Case(0.5, WITH_KEEP_BEST, metric_column("eval/let/reward/mean")),
    "loss.kind": Case("gspo"),
    "loss.max_ratio": Case(1.001, TWO_ITERATIONS),
    "loss.clip_low": Case(1e-3, {"loss.kind": "grpo", **TWO_SLOW_ITERATIONS}),
    "loss.clip_high": Case(1e-3, {"loss.kind": "grpo", **TWO_SLOW_ITERATIONS}),
    "loss.aggregation": Case("sequence"),
    "loss.constant": Case(3.0, {"loss.aggregation": "constant"}),
    "advantage_estimator": Case("std"),
    "gamma": Case(0.0, {"env_args": {"judged": True}}),
    "loss.kl_penalty": Case(1.0, TWO_STEPS),
    "loss.sync_reference_every": Case(1, {"loss.kl_penalty": 1.0, **TWO_STEPS}),
    "num_iterations": Case(2),
    "loss.importance_cap": Case(1.0, {"loss.kl_penalty": 1.0, **TWO_STEPS, **TWO_ITERATIONS}),
    "loss.entropy_bonus": Case(0.1),
    "loss.entropy_target": Case(1e-6, {"loss.entropy_bonus": 0.1, **TWO_STEPS}),
    "temperature": Case(1.5),
    "max_tokens": Case(2),
    "curriculum.shuffle": Case(True, {}, example_ids),
    "curriculum.stratify": Case("info.half", {}, example_ids),
    "curriculum.stratify_bins": Case(2, {"curriculum.stratify": "info.number"}, example_ids),
    "curriculum.column": Case("info.number", {}, example_ids),
    "filter.hard_threshold": Case(1.0, {"env_args": {"rows": 2}, **TWO_STEPS}, metric_column("examples/skipped")),
    "filter.easy_threshold": Case(0.0, {"env_args": {"rows": 2}, **TWO_STEPS}, metric_column("examples/skipped")),
    "filter.difficulty_window": Case(
        1, {"env_args": {"rows": 4}, "steps": 3, "filter.hard_threshold": 1.0}, metric_column("examples/skipped")
    ),
    "filter.dynamic_sampling_rounds": Case(1, {"env_args": {"flat": 1}}, metric_column("groups/resampled")),
    "max_off_policy_steps": Case(1, TWO_STEPS, metric_column("off_policy/max")),
    "truncated": Case("zero"),
    "lora.rank": Case(2, {}, file_names("final")),
    "lora.alpha": Case(8.0, LORA, adapter_hash),
    "lora.dropout": Case(0.5, {**LORA, **TWO_STEPS}, adapter_hash),
    "lora.targets": Case(["q_proj", "up_proj"], LORA, adapter_hash),
    "micro_batch_tokens": Case(1, {}, lambda result: result.micro_batches),
    "activation_checkpointing": Case(True, {}, lambda result: result.recomputed),
    "bf16_backward": Case(True),
    "bf16_sampling": Case(True),
    "mixed_precision": Case(True),
    "backend": Case("vllm", {}, lambda result: result.error),  # no server is there; see also test_backends.py
    "vllm": Case({"urls": ["http://127.0.0.1:9"]}, {"backend": "vllm"}, lambda result: result.error),
    "threads": Case(2, {}, lambda result: result.threads),
    "max_grad_norm": Case(1e-3),
    "max_non_finite_steps": Case(1, {"steps": 3, "loss.kind": "opt_loss:no_number"}, lambda result: result.error),
    "weight_decay": Case(0.5),
    "env_dir": Case("ENVS1"),
    "isolation.enabled": Case(True, {}, metric_column("metrics/here")),
    "isolation.python": Case("no/such/python", {}, lambda result: result.error),
    "isolation.start_seconds": Case(0.001, {"isolation.enabled": True}, lambda result: result.error),
    "isolation.hang_seconds": Case(
        0.05, {"isolation.enabled": True, "env_args": {"stall": 0.3}}, lambda result: result.error
    ),
    "ray.address": Case("nowhere", {}, lambda result: result.error),
    "ray.actors": Case(0, {}, lambda result: result.error),
    "ray.rollouts_per_actor": Case(0, {}, lambda result: result.error),
    "run_dir": Case("elsewhere", {}, lambda result: result.path.exists()),
    "checkpoint_every": Case(1, TWO_STEPS, file_names("checkpoints")),
    "keep_checkpoints": Case(1, {"checkpoint_every": 1, **TWO_STEPS}, file_names("checkpoints")),
    "evaluation": Case([HELD_OUT], {}, file_names("evaluations")),
    "keep_best": Case("eval/let/reward/mean", WITH_EVALUATION, file_names("checkpoints")),
    "patience": Case(1, {"steps": 3, **WITH_KEEP_BEST}, step_count),
    "target": Case(0.5, {"steps": 3, **WITH_KEEP_BEST}, step_count),
    "max_minutes": Case(1e-6, TWO_STEPS, step_count),
    "loggers": Case(["trackio"], {}, lambda result: result.logged),
    "alerts": Case({"window": 1, "zero_advantage_groups": 0.1}, {"env_args": {"flat": 1}}, has_alerts),
    "log_token_stats": Case(0, {}, lambda result: (result.path / "tokens").exists()),
    "show_every": Case(1, {}, lambda result: "step 1" in result.output),
    "seed": Case(1),
}

SFT_CASES: dict[str, Case] = {
    "data": Case("DATA1"),
    "model": Case("MODEL1"),
    "min_reward": Case(0.5),
    "max_examples": Case(12),
    "loss_on": Case("first", {}, lambda result: result.error),  # its effect: tests/train/test_sft_data.py
    "max_length": Case(7),
    # All conversations are longer, so none is left. Its other effects: tests/train/test_sft_data.py
    "overlong": Case("drop", {"max_length": 7}, lambda result: result.error),
    "epochs": Case(2, {}, step_count),
    "batch_size": Case(7),
    "learning_rate": Case(1e-3),
    "warmup_steps": Case(2),
    "final_lr_fraction": Case(0.9),
    "validation_fraction": Case(0.4),
    "validate_every": Case(1, {}, metric_column("validation_loss")),
    "patience": Case(1, {**WITH_KEEP_BEST, "epochs": 2}, step_count),
    "target": Case(100.0, {"validate_every": 1}, step_count),
    "max_minutes": Case(1e-6, {"epochs": 2}, step_count),
    "evaluation": Case([HELD_OUT], {}, file_names("evaluations")),
    "keep_best": Case(
        "eval/let/reward/mean", WITH_EVALUATION, lambda result: (Run(result.path).summary() or {})["best"]["metric"]
    ),
    "loggers": Case(["trackio"], {}, lambda result: result.logged),
    "alerts": Case({"window": 1, "grad_norm_factor": 1e-6}, {}, has_alerts),
    "env": Case("opt_letters", {}, final_evaluation("env")),
    "env_args": Case({"word": "hello"}, {"env": "opt_letters"}, final_evaluation("env_args")),
    "final_eval_rollouts": Case(0, {"env": "opt_letters"}, final_evaluation("env")),
    "env_dir": Case("ENVS1", {"evaluation": [HELD_OUT]}, metric_column("eval/let/reward/mean")),
    "run_dir": Case("elsewhere_too", {}, lambda result: result.path.exists()),
    "lora.rank": Case(2, {}, file_names("final")),
    "lora.alpha": Case(8.0, LORA, adapter_hash),
    "lora.dropout": Case(0.5, {**LORA}, adapter_hash),
    "lora.targets": Case(["q_proj", "up_proj"], LORA, adapter_hash),
    "micro_batch_tokens": Case(1, {}, lambda result: result.micro_batches),
    "activation_checkpointing": Case(True, {}, lambda result: result.recomputed),
    "bf16_backward": Case(True),
    "mixed_precision": Case(True),
    "threads": Case(2, {}, lambda result: result.threads),
    "max_grad_norm": Case(1e-3),
    "max_non_finite_steps": Case(1, {"learning_rate": 1e30, "epochs": 3}, lambda result: result.error),
    "weight_decay": Case(0.5),
    "seed": Case(1),
}

EVALUATION_CASES: dict[str, Case] = {
    "env": Case("opt_unlike", {}, metric_column("eval/let/reward/mean")),
    "name": Case("other", {}, file_names("evaluations")),
    "env_args": Case({"word": "hello"}, {}, lambda result: result.measured("let")),
    "num_examples": Case(1, {}, lambda result: result.measured("let")),
    "rollouts_per_example": Case(2, {}, lambda result: result.measured("let")),
    "temperature": Case(1.0, {}, lambda result: result.measured("let")),
    "max_tokens": Case(1, {}, lambda result: result.measured("let")),
    "every": Case(2, {}, file_names("evaluations/let")),
    "kind": Case("exhaustive", {"env": "tictactoe"}, metric_column("eval/let/lines")),
    "goals": Case({"never": ["lost"]}, {"env": "tictactoe", "kind": "exhaustive"}, metric_column("eval/let/missed")),
    "isolation.enabled": Case(True, {}, metric_column("eval/let/metrics/here")),
    "isolation.python": Case("no/such/python", {}, lambda result: result.error),
    "isolation.start_seconds": Case(0.001, {"isolation.enabled": True}, lambda result: result.error),
    "isolation.hang_seconds": Case(
        0.05, {"isolation.enabled": True, "env_args": {"stall": 0.3}}, lambda result: result.error
    ),
}


class TrainingRunner:
    """Run training and cache the results: cases with the same settings share a run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._results: dict[str, RunResult] = {}
        for i in (0, 1):
            tiny_model(seed=i).save(folder / f"MODEL{i}")
            write_environment(folder / f"ENVS{i}", "opt_letters", ENVIRONMENT.replace("SIGN", str(1 - 2 * i)))
            with Run(folder / f"DATA{i}") as run:
                run.start("eval", {}, {})
                for n, record in enumerate(learnable_rollouts(20)[i:]):
                    scores = msgspec.structs.replace(record.scores, reward=n / 20)
                    run.append_rollout(msgspec.structs.replace(record, scores=scores, rollout_index=n))
        write_environment(folder / "ENVS0", "opt_unlike", ENVIRONMENT.replace("SIGN", "-2"))
        (folder / "opt_loss.py").write_text(LOSS)

    def run(self, kind: str, settings: dict[str, Any]) -> RunResult:
        key = repr((kind, sorted(settings.items())))
        if key not in self._results:
            self._results[key] = self._train(kind, settings, self.folder / "runs" / str(len(self._results)))
        return self._results[key]

    def _train(self, kind: str, settings: dict[str, Any], path: Path) -> RunResult:
        console = Console(file=io.StringIO(), width=200)
        reporter = ConsoleReporter(console)
        error = ""
        with pytest.MonkeyPatch.context() as patch, count_calls(patch) as (batches, recomputed, logger):
            patch.chdir(self.folder)
            patch.syspath_prepend(str(self.folder))
            try:
                if kind == "rl":
                    run_rl(convert(RLConfig, nested_tables({"run_dir": str(path), **settings})), reporter)
                else:
                    run_sft(convert(SFTConfig, nested_tables({"run_dir": str(path), **settings})), reporter)
            except (ConfigError, RunError, TrainingError) as raised:
                error = str(raised)
            threads = torch.get_num_threads()
        torch.set_num_threads(1)
        output = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        return RunResult(path, output, error, threads, len(batches), len(recomputed), len(logger.calls))


@contextlib.contextmanager
def count_calls(patch: pytest.MonkeyPatch) -> Any:
    """Count calls that leave no trace in the run folder. Bf16 products are enabled, also on a CPU without them."""
    batches: list[int] = []
    recomputed: list[int] = []
    logger = Fake("trackio")

    def counted(plain: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return plain(*args, **kwargs)

        return function

    trainer, recompute = rove.train.trainer, rove.models.load
    patch.setattr(trainer, "token_logprobs", counted(trainer.token_logprobs, batches))
    patch.setattr(recompute, "checkpoint", counted(recompute.checkpoint, recomputed))
    patch.setattr(rove.models.linear, "HAS_BF16_PRODUCTS", True)
    patch.setattr(rove.stages.results, "figure_of", lambda *args: SimpleNamespace(savefig=lambda *a, **b: None))
    patch.setitem(sys.modules, "trackio", logger)
    yield batches, recomputed, logger


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TrainingRunner:
    return TrainingRunner(tmp_path_factory.mktemp("options"))


SMALL = {"model": "MODEL0", "env_dir": "ENVS0", "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 1, "threads": 1}
SMALL_RL = {
    **SMALL,
    "env": "opt_letters",
    "steps": 1,
    "rollouts_per_example": 4,
    "max_tokens": 4,
    "checkpoint_every": 9,
}
SMALL_SFT = {**SMALL, "data": "DATA0", "epochs": 1, "validate_every": 2}


def test_every_setting_has_a_case():
    """A new setting needs a case that shows its effect."""
    for config, cases in ((RLConfig, RL_CASES), (SFTConfig, SFT_CASES), (EvaluationConfig, EVALUATION_CASES)):
        tested_elsewhere = {
            "trust_remote_code",
            "device",
            "skip_examples",
            "chat_template",
            "template_args",
            "equal_best",
        }  # tests/models, tests/rollouts/test_evaluate.py, tests/train/test_initial_model.py and tests/train/test_evaluation.py
        assert set(cases) == {*setting_names(config)} - tested_elsewhere, config.__name__
    assert {name for _, _, _, lenient in ALERT_CASES.values() for name in lenient} <= set(ALERT_LIMITS)
    assert set(ALERT_LIMITS) == set(AlertLimits.__struct_fields__)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("kind", "settings"), [("rl", {**SMALL_RL, **TWO_STEPS}), ("sft", SMALL_SFT)], ids=["rl", "sft"]
)
def test_two_runs_with_the_same_settings_are_equal(runner: TrainingRunner, kind: str, settings: dict[str, Any]):
    """Otherwise a difference between two runs would prove nothing."""
    first = runner.run(kind, settings)
    second = runner.run(kind, {**settings, "show_every" if kind == "rl" else "target": 0})
    for observe in (
        weights_hash,
        example_ids if kind == "rl" else step_count,
        lambda result: result.metrics,
        file_names("checkpoints"),
        has_alerts,
    ):
        assert observe(second) == observe(first)
    assert second[2:] == first[2:]


@pytest.mark.parametrize("name", some_broad(RL_CASES, 6))
def test_every_rl_setting_changes_the_run(runner: TrainingRunner, name: str):
    case = RL_CASES[name]
    base = {**SMALL_RL, **case.base}
    assert case.observe(runner.run("rl", {**base, name: case.value})) != case.observe(runner.run("rl", base))


@pytest.mark.parametrize("name", some_broad(SFT_CASES, 6))
def test_every_sft_setting_changes_the_run(runner: TrainingRunner, name: str):
    case = SFT_CASES[name]
    base = {**SMALL_SFT, **case.base}
    assert case.observe(runner.run("sft", {**base, name: case.value})) != case.observe(runner.run("sft", base))


@pytest.mark.parametrize("name", some_broad(EVALUATION_CASES, 4))
def test_every_evaluation_setting_changes_the_run(runner: TrainingRunner, name: str):
    case = EVALUATION_CASES[name]
    evaluation_tables = [
        nested_tables({**HELD_OUT, **case.base, name: case.value}),
        nested_tables({**HELD_OUT, **case.base}),
    ]
    changed, default = (
        runner.run("rl", {**SMALL_RL, **TWO_STEPS, "evaluation": [table]}) for table in evaluation_tables
    )
    assert case.observe(changed) != case.observe(default)


ALERT_LIMITS: dict[str, tuple[str, Any]] = {
    name: (alert, value) for alert, (_, _, _, lenient) in ALERT_CASES.items() for name, value in lenient.items()
} | {"window": ("ratio_drift", 9), "held_out_measurements": ("held_out_flat", 9)}
"""Limit → (alert, value of the limit that suppresses the alert)."""


@pytest.mark.broad
@pytest.mark.parametrize("name", ALERT_LIMITS)
def test_every_alert_limit_can_suppress_its_alert(name: str):
    alert, value = ALERT_LIMITS[name]
    history = ALERT_CASES[alert][0]
    assert ALERTS[alert](history, LIMITS) is not None
    assert ALERTS[alert](history, msgspec.structs.replace(LIMITS, **{name: value})) is None
