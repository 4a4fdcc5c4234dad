"""Every setting of `rove rl` and `rove sft` changes something: each is shown by two small runs that differ in it alone."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from commands import environment
from fakes import tiny_model
from rich.console import Console
from setting_tables import setting_names, tables

import rove.cli.training
import rove.models.linear
import rove.models.load
import rove.train.trainer
from rove.cli.rl import run_rl
from rove.cli.sft import run_sft
from rove.core.config import convert
from rove.core.errors import ConfigError, RunError
from rove.runs.run import Run
from rove.train.alerts import ALERTS, AlertLimits
from rove.train.config import EvaluationConfig, RLConfig, SFTConfig
from rove.train.trainer import TrainingError
from tests.train.test_alerts import CASES as ALERT_CASES
from tests.train.test_alerts import LIMITS
from tests.train.test_loggers import Fake
from tests.train.test_sft import lawful

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


class Ran(NamedTuple):
    """What a run left behind."""

    path: Path
    said: str
    error: str
    threads: int
    micro_batches: int
    recomputed: int
    """Forward passes of layers that were left to be computed again."""
    logged: int
    """Calls of the logger's library."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in Run(self.path).metrics()]

    def column(self, name: str) -> list[Any]:
        """A metric of every step."""
        return [m.get(name) for m in self.metrics]

    def names(self, folder: str) -> list[str]:
        """What is in a folder of the run."""
        where = self.path / folder
        return sorted(p.name for p in where.iterdir()) if where.exists() else []

    def measured(self, name: str) -> list[Any]:
        """What was asked and answered in an evaluation."""
        folder = self.path / "evaluations" / name
        lines = [list(Run(step).rollouts()) for step in sorted(folder.iterdir())]
        return [[(r.prompt, r.completion, r.temperature, r.reward) for r in step] for step in lines]


Seen = Callable[[Ran], Any]


def weights(ran: Ran) -> str:
    return hashlib.sha256((ran.path / "final" / "model.safetensors").read_bytes()).hexdigest()


def adapter(ran: Ran) -> str:
    return hashlib.sha256((ran.path / "final" / "adapter_model.safetensors").read_bytes()).hexdigest()


def steps(ran: Ran) -> int:
    return len(ran.metrics)


def played(ran: Ran) -> list[int]:
    """The examples of the groups, in order."""
    return [r.example_id for r in Run(ran.path).rollouts() if r.rollout_index == 0]


def column(name: str) -> Seen:
    return lambda ran: ran.column(name)


def placement(key: str) -> Callable[[Ran], Any]:
    """What the summary has of the evaluation after SFT; None where there was none."""
    return lambda ran: (Run(ran.path).summary() or {}).get("placement", {}).get(key)


def names(folder: str) -> Seen:
    return lambda ran: ran.names(folder)


def alerts(ran: Ran) -> bool:
    return (ran.path / "alerts.jsonl").exists()


class Case(msgspec.Struct, frozen=True):
    """A setting's other value, the settings that it is tried with, and what must differ."""

    value: Any
    base: dict[str, Any] = {}
    seen: Seen = weights


TWICE = {"num_iterations": 2}
GENTLY = {**TWICE, "learning_rate": 1e-3}
TWO = {"steps": 2}
LORA = {"lora.rank": 2}
HELD_OUT = {"env": "opt_letters", "name": "let", "every": 1, "max_tokens": 3, "num_examples": 2}
MEASURED = {"evaluation": [{**HELD_OUT, "env_args": {"flat": 8}}]}
BEST = {**MEASURED, "keep_best": "eval/let/reward/mean"}

RL: dict[str, Case] = {
    "env": Case("opt_unlike"),
    "model": Case("MODEL1"),
    "env_args": Case({"word": "hello"}),
    "steps": Case(2),
    "batch_size": Case(12),
    "rollouts_per_example": Case(2),
    "learning_rate": Case(1e-3),
    "warmup_steps": Case(2),
    "final_lr_fraction": Case(0.9, TWO),
    "lr_backoff": Case(0.5, BEST, column("eval/let/reward/mean")),
    "loss.kind": Case("gspo"),
    "loss.max_ratio": Case(1.001, TWICE),
    "loss.clip_low": Case(1e-3, {"loss.kind": "grpo", **GENTLY}),
    "loss.clip_high": Case(1e-3, {"loss.kind": "grpo", **GENTLY}),
    "loss.aggregation": Case("sequence"),
    "loss.constant": Case(3.0, {"loss.aggregation": "constant"}),
    "advantage_estimator": Case("std"),
    "gamma": Case(0.0, {"env_args": {"judged": True}}),
    "loss.kl_penalty": Case(1.0, TWO),
    "loss.sync_reference_every": Case(1, {"loss.kl_penalty": 1.0, **TWO}),
    "num_iterations": Case(2),
    "loss.importance_cap": Case(1.0, {"loss.kl_penalty": 1.0, **TWO, **TWICE}),
    "loss.entropy_bonus": Case(0.1),
    "loss.entropy_target": Case(1e-6, {"loss.entropy_bonus": 0.1, **TWO}),
    "temperature": Case(1.5),
    "max_tokens": Case(2),
    "curriculum.shuffle": Case(True, {}, played),
    "curriculum.stratify": Case("info.half", {}, played),
    "curriculum.stratify_bins": Case(2, {"curriculum.stratify": "info.number"}, played),
    "curriculum.column": Case("info.number", {}, played),
    "filter.hard_threshold": Case(1.0, {"env_args": {"rows": 2}, **TWO}, column("examples/skipped")),
    "filter.easy_threshold": Case(0.0, {"env_args": {"rows": 2}, **TWO}, column("examples/skipped")),
    "filter.difficulty_window": Case(
        1, {"env_args": {"rows": 4}, "steps": 3, "filter.hard_threshold": 1.0}, column("examples/skipped")
    ),
    "filter.dynamic_sampling_rounds": Case(1, {"env_args": {"flat": 1}}, column("groups/resampled")),
    "max_off_policy_steps": Case(1, TWO, column("off_policy/max")),
    "truncated": Case("zero"),
    "lora.rank": Case(2, {}, names("final")),
    "lora.alpha": Case(8.0, LORA, adapter),
    "lora.dropout": Case(0.5, {**LORA, **TWO}, adapter),
    "lora.targets": Case(["q_proj", "up_proj"], LORA, adapter),
    "micro_batch_tokens": Case(1, {}, lambda ran: ran.micro_batches),
    "activation_checkpointing": Case(True, {}, lambda ran: ran.recomputed),
    "bf16_backward": Case(True),
    "bf16_sampling": Case(True),
    "mixed_precision": Case(True),
    "backend": Case("vllm", {}, lambda ran: ran.error),  # which is not there; more in test_train_samplers
    "vllm": Case({"urls": ["http://127.0.0.1:9"]}, {"backend": "vllm"}, lambda ran: ran.error),
    "threads": Case(2, {}, lambda ran: ran.threads),
    "max_grad_norm": Case(1e-3),
    "max_non_finite_steps": Case(1, {"steps": 3, "loss.kind": "opt_loss:no_number"}, lambda ran: ran.error),
    "weight_decay": Case(0.5),
    "env_dir": Case("ENVS1"),
    "isolation.enabled": Case(True, {}, column("metrics/here")),
    "isolation.python": Case("no/such/python", {}, lambda ran: ran.error),
    "isolation.start_seconds": Case(0.001, {"isolation.enabled": True}, lambda ran: ran.error),
    "isolation.hang_seconds": Case(
        0.05, {"isolation.enabled": True, "env_args": {"stall": 0.3}}, lambda ran: ran.error
    ),
    "ray.address": Case("nowhere", {}, lambda ran: ran.error),
    "ray.actors": Case(0, {}, lambda ran: ran.error),
    "ray.rollouts_per_actor": Case(0, {}, lambda ran: ran.error),
    "run_dir": Case("elsewhere", {}, lambda ran: ran.path.exists()),
    "checkpoint_every": Case(1, TWO, names("checkpoints")),
    "keep_checkpoints": Case(1, {"checkpoint_every": 1, **TWO}, names("checkpoints")),
    "evaluation": Case([HELD_OUT], {}, names("evaluations")),
    "keep_best": Case("eval/let/reward/mean", MEASURED, names("checkpoints")),
    "patience": Case(1, {"steps": 3, **BEST}, steps),
    "target": Case(0.5, {"steps": 3, **BEST}, steps),
    "loggers": Case(["trackio"], {}, lambda ran: ran.logged),
    "alerts": Case({"window": 1, "zero_advantage_groups": 0.1}, {"env_args": {"flat": 1}}, alerts),
    "log_token_stats": Case(0, {}, lambda ran: (ran.path / "tokens").exists()),
    "show_every": Case(1, {}, lambda ran: "step 1" in ran.said),
    "seed": Case(1),
}

SFT: dict[str, Case] = {
    "data": Case("DATA1"),
    "model": Case("MODEL1"),
    "min_reward": Case(0.5),
    "max_examples": Case(12),
    "epochs": Case(2, {}, steps),
    "batch_size": Case(7),
    "learning_rate": Case(1e-3),
    "warmup_steps": Case(2),
    "final_lr_fraction": Case(0.9),
    "validation_fraction": Case(0.4),
    "validate_every": Case(1, {}, column("validation_loss")),
    "patience": Case(1, {**BEST, "epochs": 2}, steps),
    "target": Case(100.0, {"validate_every": 1}, steps),
    "evaluation": Case([HELD_OUT], {}, names("evaluations")),
    "keep_best": Case("eval/let/reward/mean", MEASURED, lambda ran: (Run(ran.path).summary() or {})["best"]["metric"]),
    "loggers": Case(["trackio"], {}, lambda ran: ran.logged),
    "alerts": Case({"window": 1, "grad_norm_factor": 1e-6}, {}, alerts),
    "env": Case("opt_letters", {}, placement("env")),
    "env_args": Case({"word": "hello"}, {"env": "opt_letters"}, placement("env_args")),
    "final_eval_rollouts": Case(0, {"env": "opt_letters"}, placement("env")),
    "env_dir": Case("ENVS1", {"evaluation": [HELD_OUT]}, column("eval/let/reward/mean")),
    "run_dir": Case("elsewhere_too", {}, lambda ran: ran.path.exists()),
    "lora.rank": Case(2, {}, names("final")),
    "lora.alpha": Case(8.0, LORA, adapter),
    "lora.dropout": Case(0.5, {**LORA}, adapter),
    "lora.targets": Case(["q_proj", "up_proj"], LORA, adapter),
    "micro_batch_tokens": Case(1, {}, lambda ran: ran.micro_batches),
    "activation_checkpointing": Case(True, {}, lambda ran: ran.recomputed),
    "bf16_backward": Case(True),
    "mixed_precision": Case(True),
    "threads": Case(2, {}, lambda ran: ran.threads),
    "max_grad_norm": Case(1e-3),
    "max_non_finite_steps": Case(1, {"learning_rate": 1e30, "epochs": 3}, lambda ran: ran.error),
    "weight_decay": Case(0.5),
    "seed": Case(1),
}

EVALUATION: dict[str, Case] = {
    "env": Case("opt_unlike", {}, column("eval/let/reward/mean")),
    "name": Case("other", {}, names("evaluations")),
    "env_args": Case({"word": "hello"}, {}, lambda ran: ran.measured("let")),
    "num_examples": Case(1, {}, lambda ran: ran.measured("let")),
    "rollouts_per_example": Case(2, {}, lambda ran: ran.measured("let")),
    "temperature": Case(1.0, {}, lambda ran: ran.measured("let")),
    "max_tokens": Case(1, {}, lambda ran: ran.measured("let")),
    "every": Case(2, {}, names("evaluations/let")),
    "kind": Case("exhaustive", {"env": "tictactoe"}, column("eval/let/lines")),
    "goals": Case({"never": ["lost"]}, {"env": "tictactoe", "kind": "exhaustive"}, column("eval/let/missed")),
    "isolation.enabled": Case(True, {}, column("eval/let/metrics/here")),
    "isolation.python": Case("no/such/python", {}, lambda ran: ran.error),
    "isolation.start_seconds": Case(0.001, {"isolation.enabled": True}, lambda ran: ran.error),
    "isolation.hang_seconds": Case(
        0.05, {"isolation.enabled": True, "env_args": {"stall": 0.3}}, lambda ran: ran.error
    ),
}


class Workshop:
    """Runs what it is asked for, once: runs without the setting in question are shared."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._ran: dict[str, Ran] = {}
        for i in (0, 1):
            tiny_model(seed=i).save(folder / f"MODEL{i}")
            environment(folder / f"ENVS{i}", "opt_letters", ENVIRONMENT.replace("SIGN", str(1 - 2 * i)))
            with Run(folder / f"DATA{i}") as run:
                run.start("eval", {}, {})
                for n, record in enumerate(lawful(20)[i:]):
                    scores = msgspec.structs.replace(record.scores, reward=n / 20)
                    run.append_rollout(msgspec.structs.replace(record, scores=scores, rollout_index=n))
        environment(folder / "ENVS0", "opt_unlike", ENVIRONMENT.replace("SIGN", "-2"))
        (folder / "opt_loss.py").write_text(LOSS)

    def run(self, kind: str, settings: dict[str, Any]) -> Ran:
        key = repr((kind, sorted(settings.items())))
        if key not in self._ran:
            self._ran[key] = self._anew(kind, settings, self.folder / "runs" / str(len(self._ran)))
        return self._ran[key]

    def _anew(self, kind: str, settings: dict[str, Any], path: Path) -> Ran:
        console = Console(file=io.StringIO(), width=200)
        error = ""
        with pytest.MonkeyPatch.context() as patch, watching(patch) as (batches, again, logger):
            patch.chdir(self.folder)
            patch.syspath_prepend(str(self.folder))
            try:
                if kind == "rl":
                    run_rl(convert(RLConfig, tables({"run_dir": str(path), **settings})), console)
                else:
                    run_sft(convert(SFTConfig, tables({"run_dir": str(path), **settings})), console)
            except (ConfigError, RunError, TrainingError) as raised:
                error = str(raised)
            threads = torch.get_num_threads()
        torch.set_num_threads(1)
        said = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        return Ran(path, said, error, threads, len(batches), len(again), len(logger.calls))


@contextlib.contextmanager
def watching(patch: pytest.MonkeyPatch) -> Any:
    """Counts what leaves no trace in the run folder. A processor's missing bf16 products are computed slowly."""
    batches: list[int] = []
    again: list[int] = []
    logger = Fake("trackio")

    def counted(plain: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return plain(*args, **kwargs)

        return function

    trainer, recompute = rove.train.trainer, rove.models.load
    patch.setattr(trainer, "token_logprobs", counted(trainer.token_logprobs, batches))
    patch.setattr(recompute, "checkpoint", counted(recompute.checkpoint, again))
    patch.setattr(rove.models.linear, "HAS_BF16_PRODUCTS", True)
    patch.setattr(rove.cli.training, "plot_run", lambda *args: None)
    patch.setitem(sys.modules, "trackio", logger)
    yield batches, again, logger


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("options"))


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


def test_every_setting_is_here():
    """A setting that is added needs a case that shows what it does."""
    for config, cases in ((RLConfig, RL), (SFTConfig, SFT), (EvaluationConfig, EVALUATION)):
        elsewhere = {"trust_remote_code"}  # in test_models_remote_code
        assert set(cases) == {*setting_names(config)} - elsewhere, config.__name__
    assert {name for _, _, _, lenient in ALERT_CASES.values() for name in lenient} <= set(ALERT_LIMITS)
    assert set(ALERT_LIMITS) == set(AlertLimits.__struct_fields__)


@pytest.mark.broad
@pytest.mark.parametrize(("kind", "settings"), [("rl", {**SMALL_RL, **TWO}), ("sft", SMALL_SFT)], ids=["rl", "sft"])
def test_two_runs_with_the_same_settings_are_the_same(workshop: Workshop, kind: str, settings: dict[str, Any]):
    """Or what differs between two runs would show nothing."""
    plain = workshop.run(kind, settings)
    again = workshop.run(kind, {**settings, "show_every" if kind == "rl" else "target": 0})
    for seen in (weights, played if kind == "rl" else steps, lambda ran: ran.metrics, names("checkpoints"), alerts):
        assert seen(again) == seen(plain)
    assert again[2:] == plain[2:]


@pytest.mark.broad
@pytest.mark.parametrize("name", RL)
def test_every_setting_of_rl_changes_something(workshop: Workshop, name: str):
    case = RL[name]
    base = {**SMALL_RL, **case.base}
    assert case.seen(workshop.run("rl", {**base, name: case.value})) != case.seen(workshop.run("rl", base))


@pytest.mark.broad
@pytest.mark.parametrize("name", SFT)
def test_every_setting_of_sft_changes_something(workshop: Workshop, name: str):
    case = SFT[name]
    base = {**SMALL_SFT, **case.base}
    assert case.seen(workshop.run("sft", {**base, name: case.value})) != case.seen(workshop.run("sft", base))


@pytest.mark.broad
@pytest.mark.parametrize("name", EVALUATION)
def test_every_setting_of_an_evaluation_changes_something(workshop: Workshop, name: str):
    case = EVALUATION[name]
    both = [tables({**HELD_OUT, **case.base, name: case.value}), tables({**HELD_OUT, **case.base})]
    changed, plain = (workshop.run("rl", {**SMALL_RL, **TWO, "evaluation": [table]}) for table in both)
    assert case.seen(changed) != case.seen(plain)


ALERT_LIMITS: dict[str, tuple[str, Any]] = {
    name: (alert, value) for alert, (_, _, _, lenient) in ALERT_CASES.items() for name, value in lenient.items()
} | {"window": ("ratio_drift", 9), "held_out_measurements": ("held_out_flat", 9)}
"""Limit → an alert that goes off no more with this value of it."""


@pytest.mark.broad
@pytest.mark.parametrize("name", ALERT_LIMITS)
def test_every_limit_of_an_alert_changes_something(name: str):
    alert, value = ALERT_LIMITS[name]
    history = ALERT_CASES[alert][0]
    assert ALERTS[alert](history, LIMITS) is not None
    assert ALERTS[alert](history, msgspec.structs.replace(LIMITS, **{name: value})) is None
