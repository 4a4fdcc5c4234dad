"""Every setting of `rove eval` has an effect: two small runs that differ only in the setting give different results."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from commands import write_environment
from fault_endpoint import FaultEndpoint, last_text
from rich.console import Console
from setting_tables import nested_tables, setting_names

from rove.core.config import convert
from rove.core.errors import Error
from rove.core.protocols import Limits
from rove.core.records import RolloutRecord
from rove.runs.run import Run
from rove.stages.evaluation import EvalConfig, run_eval
from rove.stages.reporter import ConsoleReporter
from tests.cli.test_main import endpoint

ENVIRONMENT = """
import asyncio
import os
import time

import rove as vf

busy = {"playing": 0, "scoring": 0}

async def peak(what):
    busy[what] += 1
    await asyncio.sleep(0.02)
    most = busy[what]
    await asyncio.sleep(0.02)
    busy[what] -= 1
    return float(most)

def right(completion, answer):
    if answer == BROKEN:
        raise KeyError("the answer key is lost")
    return 0.5 * (completion[0].content == answer)

async def scoring(state):
    return await peak("scoring")

def playing(state):
    return state["peak"]

def process():
    return os.getpid()

class Asks(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["peak"] = await peak("playing")

    async def env_response(self, messages, state, **kwargs):
        await vf.query(state, "and now?", other, role="other")
        if "stall" in state["prompt"][0].content:
            time.sleep(0.5)
        return "and?"

other = vf.ScriptedClient(lambda messages, state, rng: "ask on", "other")

def knows(messages, state, rng):
    return state["answer"]

def guesses(messages, state, rng):
    return str(rng.randrange(9))

def load_environment(word="say"):
    rows = [{"question": f"{word} {n}", "answer": str(n)} for n in range(4)]
    rubric = vf.Rubric([right], [1.0])
    for metric in (scoring, playing, process):
        rubric.add_metric(metric)
    return Asks(
        dataset=rows[::-1], eval_dataset=rows, rubric=rubric, max_turns=2, policies={"knows": knows, "guesses": guesses}
    )
"""


class EvalResult(NamedTuple):
    """Results of an evaluation."""

    summary: dict[str, Any]
    run: Run | None
    output: str
    error: str
    bodies: list[list[dict[str, Any]]]
    """Request bodies that each of the two endpoints received."""
    keys: list[str]
    """API keys of the requests."""

    @property
    def records(self) -> list[RolloutRecord]:
        assert self.run is not None
        return sorted(self.run.rollouts(), key=lambda r: (r.example_id, r.rollout_index))


Observation = Callable[[EvalResult], Any]


def texts(result: EvalResult) -> list[Any]:
    """Return the messages of every rollout."""
    return [(record.prompt, record.completion) for record in result.records]


def request_field(name: str) -> Observation:
    """Return a function that reads a field of every request."""
    return lambda result: [body.get(name) for bodies in result.bodies for body in bodies]


def request_counts(result: EvalResult) -> list[int]:
    return [len(bodies) for bodies in result.bodies]


def metric(name: str) -> Observation:
    return lambda result: result.summary["functions"][name]["mean"]


def count(result: EvalResult) -> int:
    return len(result.records)


class Case(msgspec.Struct, frozen=True):
    """Another value of a setting, the settings to combine it with, and the result that must differ."""

    value: Any
    base: dict[str, Any] = {}
    observe: Observation = texts


REMOTE = {"model": "someone/model", "base_url": "SERVER0", "max_retries": 0}
BROKEN = {"env": "opt_broken"}
PRICE = {"price": {"input": 1.0, "output": 1.0}}
SEQUENTIAL = {"max_concurrent": 1}
STALLED = {"isolation.enabled": True, "env_args": {"word": "stall"}, "num_examples": 1}

CASES: dict[str, Case] = {
    "num_examples": Case(2, {}, count),
    "rollouts_per_example": Case(2, {}, count),
    "sampling_args": Case({"top_p": 0.5}, REMOTE, request_field("top_p")),
    "max_concurrent": Case(1, {}, metric("playing")),
    "max_scoring": Case(1, {}, metric("scoring")),
    "limits": Case({"max_turns": 1}),
    "price": Case({"input": 1.0, "output": 2.0}, {}, lambda result: result.summary.get("cost")),
    "role_prices": Case({"other": {"input": 1.0, "output": 2.0}}, {}, lambda result: result.summary["model_roles"]),
    "budget": Case(1e-9, {**PRICE, **SEQUENTIAL}, count),
    "max_errors": Case(1.0, {**BROKEN, **SEQUENTIAL}, lambda result: result.error),
    "fail_fast": Case(True, BROKEN, lambda result: result.error),
    "seed": Case(1, {"model": "scripted:guesses"}),
    "train": Case(True),
    "pass_threshold": Case(0.5, {}, lambda result: result.summary["pass@k"]),
    "env": Case("opt_broken", {}, lambda result: result.summary["failed"]),
    "model": Case("scripted:guesses"),
    "env_args": Case({"word": "tell"}),
    "max_tokens": Case(7, REMOTE, request_field("max_tokens")),
    "temperature": Case(0.5, REMOTE, request_field("temperature")),
    "base_url": Case("SERVER1", REMOTE, request_counts),
    "endpoints": Case("1.toml", {"model": "alias", "endpoints": "0.toml"}, request_counts),
    "api_key_var": Case("OTHER_KEY", REMOTE, lambda result: result.keys),
    "timeout": Case(0.2, {**REMOTE, "timeout": 0.1, "env_args": {"word": "hang"}}, lambda result: result.output),
    "max_retries": Case(1, {**REMOTE, "env_args": {"word": "fail"}, "num_examples": 1}, request_counts),
    "env_dir": Case("envs1", {}, lambda result: result.summary["failed"]),
    "isolation.enabled": Case(True, {}, metric("process")),
    "isolation.python": Case("no/such/python", {}, lambda result: result.error),
    "isolation.start_seconds": Case(0.001, {"isolation.enabled": True}, lambda result: result.error),
    "isolation.hang_seconds": Case(0.1, STALLED, lambda result: result.summary["failed"]),
    "ray.address": Case("nowhere", {}, lambda result: result.error),
    "ray.actors": Case(0, {}, lambda result: result.error),
    "ray.rollouts_per_actor": Case(0, {}, lambda result: result.error),
    "run_dir": Case("elsewhere", {}, lambda result: result.run and result.run.path.name),
    "save": Case(False, {}, lambda result: result.run is None),
    "overwrite": Case(True, {"run_dir": "begun"}, lambda result: "already has 4 rollouts" in result.output),
}

LIMITS: dict[str, Case] = {
    "max_turns": Case(1),
    "max_total_tokens": Case(1),
    "max_cost": Case(1e-9, PRICE),
    "timeout_seconds": Case(0.01, {"max_errors": 9}, lambda result: result.summary["errors"]),
}


class EvalRunner:
    """A folder with environments and endpoint files, and two endpoints."""

    def __init__(self, folder: Path, servers: list[FaultEndpoint]):
        self.folder = folder
        self.servers = servers
        self._runs = 0
        write_environment(folder / "envs0", "opt_quiz", ENVIRONMENT.replace("BROKEN", '"none"'))
        write_environment(folder / "envs0", "opt_broken", ENVIRONMENT.replace("BROKEN", "answer"))
        write_environment(folder / "envs1", "opt_quiz", ENVIRONMENT.replace("BROKEN", '"0"'))
        for i, server in enumerate(servers):
            table = f'[[endpoint]]\nendpoint_id = "alias"\nmodel = "m"\nurl = "{server.base_url}"\nkey = "OTHER_KEY"\n'
            (folder / f"{i}.toml").write_text(table)

    def run(self, settings: dict[str, Any]) -> EvalResult:
        """Run an evaluation, in a new run folder unless the settings name one."""
        self._runs += 1
        defaults = {"env": "opt_quiz", "model": "scripted:knows", "env_dir": "envs0", "run_dir": f"run{self._runs}"}
        settings = {**defaults, "num_examples": 4, "rollouts_per_example": 1, **settings}
        if settings.get("base_url") in ("SERVER0", "SERVER1"):
            settings["base_url"] = self.servers[int(settings["base_url"][-1])].base_url
        for server in self.servers:
            server.bodies.clear()
            server.headers.clear()
        console = Console(file=io.StringIO(), width=300)
        summary, run, error = {}, None, ""
        try:
            result, run = run_eval(convert(EvalConfig, nested_tables(settings)), ConsoleReporter(console))
            summary = result.to_dict()
        except Error as raised:
            error = str(raised)
        output = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
        keys = [headers["Authorization"] for server in self.servers for headers in server.headers]
        return EvalResult(summary, run, output, error, [list(server.bodies) for server in self.servers], keys)


def fault(number: int, body: dict[str, Any]) -> str:
    return {"hang": "hang", "fail": "500"}.get(last_text(body).split()[0], "ok")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalRunner]:
    with endpoint(fault) as first_endpoint, endpoint(fault) as second_endpoint, pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("options")
        patch.chdir(folder)
        patch.setenv("OPENAI_API_KEY", "sk-openai")
        patch.setenv("OTHER_KEY", "sk-other")
        prepared = EvalRunner(folder, [first_endpoint, second_endpoint])
        prepared.run({"run_dir": "begun"})
        yield prepared


def test_every_setting_has_a_case():
    """A new setting needs a case that shows its effect."""
    tested_elsewhere = {
        "trust_remote_code",
        "device",
        "skip_examples",
        "chat_template",
        "template_args",
    }  # tests/models, tests/rollouts/test_evaluate.py and tests/train/test_initial_model.py
    assert set(CASES) == {*setting_names(EvalConfig)} - tested_elsewhere
    assert list(LIMITS) == list(Limits.__struct_fields__)


def test_two_runs_with_equal_settings_are_equal(runner: EvalRunner):
    """Otherwise a difference between two runs would prove nothing."""
    for base in ({}, REMOTE):
        first_run, second_run = runner.run(base), runner.run(base)
        for measure in (
            texts,
            request_counts,
            count,
            lambda result: (result.error, result.keys, result.summary["pass@k"]),
        ):
            assert measure(first_run) == measure(second_run)


@pytest.mark.broad
@pytest.mark.parametrize("name", CASES)
def test_every_setting_has_an_effect(runner: EvalRunner, name: str):
    case = CASES[name]
    plain, changed = runner.run(case.base), runner.run({**case.base, name: case.value})
    assert not plain.error
    assert case.observe(changed) != case.observe(plain)


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_has_an_effect(runner: EvalRunner, name: str):
    case = LIMITS[name]
    plain, changed = runner.run(case.base), runner.run({**case.base, "limits": {name: case.value}})
    assert not plain.error
    assert case.observe(changed) != case.observe(plain)
