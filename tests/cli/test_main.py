"""The commands: what they print, store and refuse, and their exit status."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import Rove, in_process_rove, rollout_lines, write_environment
from fault_endpoint import FaultEndpoint, last_text
from tiers import first_quick

from rove.cli.main import GC_THRESHOLDS, cli
from rove.envs.dataset import example_key
from rove.envs.loading import load_environment
from rove.runs.run import Run
from rove.utils.event_loop import run_async

SMALL = ("tictactoe", "-m", "scripted:teacher", "-n", "5", "-r", "2")


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@contextmanager
def endpoint(*args: Any, **options: Any) -> Iterator[FaultEndpoint]:
    """Run a `FaultEndpoint` in another thread, so that a command can run in this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    server = FaultEndpoint(*args, **options)
    try:
        wait_for(server.__aenter__())
        try:
            yield server
        finally:
            wait_for(server.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("words", [(), ("eval",), ("rl",), ("hub",), ("hub", "key"), ("compare",)])
def test_help_lists_the_options_of_every_command(rove: Rove, words: tuple[str, ...]):
    for _ in range(2):
        options = [line[2:12].rstrip() for line in rove(*words, "--help").out.splitlines()]
        assert [option for option in options if option in ("--yes", "--compat")] == ["--yes", "--compat"]


def test_help_lists_the_commands(rove: Rove):
    with_flag, bare = rove("--help"), rove()
    assert with_flag.status == bare.status == 0
    assert with_flag.out == bare.out
    for name in ("init", "eval", "model", "sft", "rl", "play", "demo"):
        assert f"\n  {name} " in with_flag.out
        assert "Usage: rove " + name in rove(name, "--help").out


def test_version(rove: Rove):
    assert rove("--version").out == "rove 0.1.0\n"


# Refusals: exit status 2, one readable line, nothing run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evl"], "no command 'evl'; did you mean 'eval'?"),
        (["model", "nwe"], "Did you mean 'new'?"),
        (["play", "tictactoe", "--wach"], "Did you mean '--watch'?"),
        (["eval", *SMALL, "--jsn"], "unknown setting 'jsn'; did you mean 'json'?"),
        (["eval", *SMALL, "--num-exampls", "3"], "unknown setting 'num_exampls'; did you mean 'num_examples'?"),
        (["eval", *SMALL, "-x", "3"], "unknown flag '-x'; see --help"),
        (["eval", *SMALL, "--seed", "five"], "seed is 'five'; expected an integer"),
        (
            ["eval", *SMALL, "-n", "five"],
            "Invalid value for '-n' / '--num-examples': five; expected an integer, 1 or more, or -1 for all",
        ),
        (["eval", *SMALL, "-n", "0"], "num_examples is 0; expected an integer, 1 or more, or -1 for all"),
        (
            ["eval", *SMALL, "-r", "0"],
            "Invalid value for '-r' / '--rollouts-per-example': 0; expected an integer, 1 or more",
        ),
        (["eval", *SMALL, "-c", "0"], "Invalid value for '-c' / '--max-concurrent': 0; expected an integer, 1 or more"),
        (["eval", *SMALL, "reverse_text"], "unexpected argument 'reverse_text'"),
        (["eval", *SMALL, "-a", "nope"], "-a takes a JSON object like '{\"seed\": 1}', got 'nope'"),
        (["eval", *SMALL, "-a", "[1]"], "-a takes a JSON object like '{\"seed\": 1}', got '[1]'"),
        (["eval", *SMALL, "-a", '{"sed": 1}'], "environment 'tictactoe' has no argument 'sed'; did you mean 'seed'?"),
        (["eval", "tictactoo", "-m", "scripted:teacher"], "did you mean 'tictactoe'?"),
        (["eval", "tictactoe", "-m", "scripted:teachr"], "has no scripted policy 'teachr'; did you mean 'teacher'?"),
        (["eval", "tictactoe", "-m", "models/none"], "model folder models/none does not exist"),
        (["eval", "tictactoe"], "missing setting: model"),
        (["eval"], "missing settings: env, model"),
        (["rl", "tictactoe", "-m", "x", "--stepz", "3"], "unknown setting 'stepz'; did you mean 'steps'?"),
        (["rl", "tictactoe", "-m", "x", "--batch-size", "9"], "expected a multiple of rollouts_per_example (8)"),
        (["sft", "--data", "x", "-m", "y", "--epochz", "3"], "unknown setting 'epochz'; did you mean 'epochs'?"),
        (
            ["model", "new", "--env", "tictactoe", "--arch", "llma"],
            "unknown architecture 'llma'; did you mean 'llama'?",
        ),
        (["play", "tictactoe", "--watch"], "--watch needs a model"),
        (["demo", "reverse_text"], "environment 'reverse_text' has no demo"),
        (["init", "My Task"], "cannot be a package name"),
        (["init", "json"], "would hide a module that Python or rove needs"),
        (["init", "my-task", "--tools", "--mcp"], "--tools and --mcp exclude each other; choose one"),
    ],
)
def test_invalid_commands_are_refused_with_a_message(rove: Rove, words: list[str], message: str):
    done = rove(*words)
    assert done.status == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not Path("runs").exists()


def test_an_unknown_model_is_refused_with_what_is_missing(rove: Rove):
    done = rove("eval", "tictactoe", "-m", "gpt-5-mini")
    assert done.status == 2
    assert "no API key for https://api.openai.com/v1: set OPENAI_API_KEY" in done.err
    assert "'gpt-5-mini' is neither a folder nor a scripted policy (scripted:optimal, scripted:random," in done.err


def test_sft_refuses_data_that_is_no_run_folder(rove: Rove):
    done = rove("sft", "--data", "runs/none", "-m", "models/none")
    assert done.status == 1
    assert done.err == "error: runs/none is not a run folder: it does not exist\n"


# Evaluation


def test_json_output_is_alone_on_stdout(rove: Rove):
    done = rove("eval", *SMALL, "--json")
    assert done.status == 0
    summary = json.loads(done.out)
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (10, 10, 0)
    assert set(summary["functions"]) == {"win", "format", "invalid_move", "won", "drawn", "lost", "num_turns"}
    assert "10/10" in done.err
    stored = json.loads((Path(summary.pop("run")) / "summary.json").read_bytes())
    assert stored == summary


def test_text_output_shows_the_result_and_the_next_command(rove: Rove):
    done = rove("eval", *SMALL)
    assert done.status == 0
    assert done.err == ""
    assert "10 of 10 rollouts scored" in done.out
    assert "rove play tictactoe -m scripted:teacher" in done.out
    assert max(map(len, done.out.splitlines())) <= 200


def test_repeating_a_command_runs_nothing(rove: Rove):
    first = json.loads(rove("eval", *SMALL, "--json").out)
    lines_before = rollout_lines(first["run"])
    assert len(lines_before) == 10
    assert json.loads(rove("eval", *SMALL, "--json").out) == first
    assert rollout_lines(first["run"]) == lines_before


def test_more_examples_run_only_the_new_ones(rove: Rove):
    first = json.loads(rove("eval", *SMALL, "--json").out)
    lines_before = rollout_lines(first["run"])
    more_payload = json.loads(rove("eval", *SMALL[:3], "-n", "7", "-r", "3", "--json").out)
    assert (more_payload["rollouts"], more_payload["run"]) == (21, first["run"])
    lines_after = rollout_lines(first["run"])
    assert lines_after[:10] == lines_before
    rollout_keys = [(r.example_key, r.rollout_index) for r in Run(first["run"]).rollouts()]
    assert len(rollout_keys) == len(set(rollout_keys)) == 21


def test_another_setting_starts_another_run(rove: Rove):
    first = json.loads(rove("eval", *SMALL, "--json").out)["run"]
    second = json.loads(rove("eval", *SMALL, "--seed", "1", "--json").out)["run"]
    assert first != second
    assert len(rollout_lines(first)) == len(rollout_lines(second)) == 10


def test_another_setting_in_the_same_folder_is_refused_with_the_differences(rove: Rove):
    rove("eval", *SMALL, "--run-dir", "runs/mine")
    lines_before = rollout_lines("runs/mine")
    done = rove("eval", *SMALL, "--run-dir", "runs/mine", "-T", "0.5", "--env_args.num_groups", "2")
    assert done.status == 1
    assert done.err.splitlines() == [
        "error: runs/mine holds a different run; differences:",
        "  env_args.num_groups: was None, now 2",
        "  sampling.temperature: was None, now 0.5",
        "Pass another --run-dir, or --overwrite to delete the old run (run_dir and overwrite in Python)",
    ]
    assert rollout_lines("runs/mine") == lines_before
    assert rove("eval", *SMALL, "--run-dir", "runs/mine", "-T", "0.5", "--overwrite").status == 0
    assert len(rollout_lines("runs/mine")) == 10
    assert rollout_lines("runs/mine") != lines_before


def test_a_run_folders_config_repeats_the_run(rove: Rove):
    first = json.loads(rove("eval", *SMALL, "--overwrite", "--seed", "4", "--json").out)
    lines_before = rollout_lines(first["run"])
    second_payload = json.loads(rove("eval", "@", f"{first['run']}/config.toml", "--json").out)
    assert second_payload == first
    assert rollout_lines(first["run"]) == lines_before
    assert "overwrite" not in tomllib.loads(Path(first["run"], "config.toml").read_text())["config"]


def test_settings_come_from_a_file_and_flags_take_precedence(rove: Rove):
    Path("mine.toml").write_text('env = "tictactoe"\nmodel = "scripted:random"\nnum_examples = 2\n')
    done = rove("eval", "@", "mine.toml", "-m", "scripted:optimal", "--rollouts_per_example=1", "--no-save", "--json")
    assert done.status == 0
    assert "scripted:optimal" in done.err
    assert json.loads(done.out)["rollouts"] == 2


def test_no_save_writes_no_files(rove: Rove):
    done = rove("eval", *SMALL, "--no-save", "--json")
    assert json.loads(done.out)["run"] is None
    assert list(Path().iterdir()) == []


def test_training_examples_differ_from_evaluation_examples(rove: Rove):
    runs = [json.loads(rove("eval", *SMALL, *options, "--json").out)["run"] for options in ([], ["--train"])]
    keys = [{r.example_key for r in Run(run).rollouts()} for run in runs]
    assert keys[0].isdisjoint(keys[1])


# Endpoint faults


def reversed_reply(body: dict[str, Any]) -> str:
    return f"<reversed_text>{last_text(body)[::-1]}</reversed_text>"


def remote(server: FaultEndpoint, *words: str) -> tuple[str, ...]:
    return ("eval", "reverse_text", "-b", server.base_url, "-m", "someone/model", "-r", "1", "--json", *words)


def test_requests_to_a_busy_endpoint_are_retried(rove: Rove):
    with endpoint(["429", "429"], reversed_reply) as server:
        done = rove(*remote(server, "-n", "3"))
    summary = json.loads(done.out)
    assert (done.status, summary["scored"], summary["failed"]) == (0, 3, 0)
    assert summary["functions"]["exact"]["mean"] == 1.0
    assert server.num_requests == 5
    assert {body["model"] for body in server.bodies} == {"someone/model"}
    assert summary["prompt_tokens"] == 9


def test_endpoint_failures_are_counted_separately_from_rewards(rove: Rove):
    with endpoint("500") as server:
        done = rove(*remote(server, "-n", "3", "--max-retries", "1"))
    assert done.status == 1  # no rollout was scored
    summary = json.loads(done.out)
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (3, 0, 3)
    assert summary["reward"]["mean"] is None
    assert summary["errors"] == {"model: InfraError": 3}
    assert server.num_requests == 6
    assert "first failure, in model: InfraError: no answer from" in done.err
    assert "HTTP 500" in done.err
    for record in Run(summary["run"]).rollouts():
        assert record.scores is None
        assert record.error is not None
        assert len(record.error.attempts) == 2


@pytest.mark.broad
def test_a_fault_fails_only_its_own_rollout_and_a_repeat_retries_it(rove: Rove):
    bad: dict[str, str] = {}

    def fault(number: int, body: dict[str, Any]) -> str:
        kinds = ("ok", "500", "garbage", "hang", "close", "aborted")
        return bad.setdefault(last_text(body), kinds[len(bad) % len(kinds)])

    with endpoint(fault, reversed_reply) as server:
        words = remote(server, "-n", "6", "-c", "1", "--max_retries", "1", "--timeout", "0.3")
        done = rove(*words)
        first = json.loads(done.out)
        assert (done.status, first["scored"], first["failed"]) == (0, 1, 5)
        assert first["reward"]["mean"] == pytest.approx(1.2)
        assert sum(first["errors"].values()) == 5
        assert {label.split(":")[0] for label in first["errors"]} == {"model"}
        requests_before = server.num_requests
        server.faults = "ok"
        repeated = rove(*[word for word in words if word != "--json"])
        second = Run(first["run"]).summary()
    assert server.num_requests == requests_before + 5
    assert second is not None
    assert (second["scored"], second["failed"]) == (6, 0)
    assert "6 of 6 rollouts scored" in repeated.out
    assert "failure" not in repeated.out


def test_text_output_names_the_failures(rove: Rove):
    with endpoint("500") as server:
        done = rove(*(word for word in remote(server, "-n", "2", "--max-retries", "0") if word != "--json"))
    assert done.status == 1
    assert "0 of 2 rollouts scored; 2 failed (2 × model: InfraError)" in done.out
    assert "first failure, in model: InfraError: no answer from" in done.out


def test_fail_fast_stops_at_the_first_failure(rove: Rove):
    with endpoint("500") as server:
        done = rove(*remote(server, "-n", "3", "-c", "1", "--max-retries", "0", "--fail-fast"))
    assert (done.status, done.out, server.num_requests) == (1, "", 1)
    assert "error: model: InfraError" in done.err


def test_a_named_key_is_required_and_sent_instead_of_the_default_key(rove: Rove, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with endpoint("ok") as server:
        done = rove(*remote(server, "-n", "1", "-k", "OTHER_KEY"))
        assert (done.status, server.num_requests) == (2, 0)
        assert "environment variable OTHER_KEY is not set" in done.err
        monkeypatch.setenv("OTHER_KEY", "sk-other")
        assert rove(*remote(server, "-n", "1", "-k", "OTHER_KEY")).status == 0
        assert server.headers[0]["Authorization"] == "Bearer sk-other"


# User environments

FLAWED = """
import rove as vf

def right(completion, answer):
    if answer == "2":
        raise KeyError("the answer key is lost")
    return float(completion[-1].content == answer)

def knows(messages, state, rng):
    return state["answer"]

def load_environment(num_examples: int = 4, seed: int = 0):
    rows = [{"question": f"[bold]{i}[/red]?", "answer": str(i)} for i in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([right], [1.0]), policies={"knows": knows})
"""


def test_a_reward_function_that_raises_fails_its_rollout_only(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "mine", "flawed", FLAWED)
    done = rove("eval", "flawed", "-m", "scripted:knows", "--env_dir", "mine", "-n", "4", "-r", "2", "--json")
    assert done.status == 0
    summary = json.loads(done.out)
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (8, 6, 2)
    assert summary["reward"]["mean"] == 1.0
    assert summary["errors"] == {"reward right: KeyError": 2}
    assert "first failure, in reward right: KeyError: 'the answer key is lost'" in done.err
    failed = [record for record in Run(summary["run"]).rollouts() if record.error is not None]
    assert [(record.answer, record.scores) for record in failed] == [("2", None)] * 2
    assert all(record.error and "the answer key is lost" in record.error.traceback for record in failed)


def test_text_like_markup_is_printed_literally(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "mine", "flawed", FLAWED)
    done = rove("play", "flawed", "--env-dir", "mine", "-a", '{"num_examples": 1}', stdin="[/green]\n")
    assert done.status == 0
    assert "[bold]0[/red]?" in done.out


@pytest.mark.parametrize(
    ("kind", "rows", "tools"),
    [
        ("", (100, 100), set()),
        pytest.param("--multi-turn", (80, 20), set(), marks=pytest.mark.broad),
        pytest.param("--tools", (100, 100), {"price_calls", "multiply_calls"}, marks=pytest.mark.broad),
        pytest.param("--mcp", (100, 100), {"find_calls"}, marks=pytest.mark.broad),
    ],
)
def test_a_new_environment_works_immediately(rove: Rove, kind: str, rows: tuple[int, int], tools: set[str]):
    created = rove("init", "my-task", *[kind][: len(kind)])
    assert created.status == 0
    assert "rove eval my_task -m scripted:oracle" in created.out
    assert "rove build environments/my_task" in created.out
    project = tomllib.loads(Path("environments/my_task/pyproject.toml").read_text())["project"]
    assert project["entry-points"]["rove.environments"] == {"my-task": "my_task"}
    summary = json.loads(rove("eval", "my-task", "-m", "scripted:oracle", "-n", "4", "--json").out)
    assert (summary["scored"], summary["failed"]) == (12, 0)
    assert summary["reward"]["mean"] >= 1.0
    assert {
        name for name, statistics in summary["functions"].items() if statistics["mean"] and "calls" in name
    } >= tools
    training = rove("eval", "my_task", "-m", "scripted:oracle", "--train", "-n", "-1", "-r", "1", "--json")
    assert json.loads(training.out)["scored"] == rows[0]
    env = load_environment("my-task")
    trained, held_out = ({example_key(row) for row in rows} for rows in (env.get_dataset(), env.get_eval_dataset()))
    assert (len(trained), len(held_out)) == rows
    assert not trained & held_out
    second_run = rove("init", "my-task")
    assert second_run.status == 2
    assert "already exists" in second_run.err


@pytest.mark.broad
@pytest.mark.parametrize("kind", first_quick(["", "--multi-turn", "--tools", "--mcp"], broad=0))
def test_a_new_environment_has_tests_that_pass(rove: Rove, kind: str):
    assert rove("init", "my-task", *[kind][: len(kind)]).status == 0
    # The settings of the repository around the package do not apply to its tests.
    Path("pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--strict-config"\nunknown_setting = 1\n')
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "environments/my_task"]
    tested = subprocess.run(pytest_run, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout


# rove play

MOVES = "".join(f"{square}\n" for square in range(9)) * 5


def test_a_person_plays_against_a_model(rove: Rove):
    done = rove("play", "tictactoe", "-m", "scripted:teacher", "--seed", "1", stdin="what?\n" + MOVES)
    assert done.status == 0
    assert "'what?' is not a legal move" in done.out
    assert "scripted:teacher <think>" in done.out
    assert "reward of the model: " in done.out
    assert any(end in done.out for end in ("You win.", "You lose.", "Draw."))
    assert "the same game again: --seed 1" in done.out
    assert rove("play", "tictactoe", "-m", "scripted:teacher", "--seed", "1", stdin="what?\n" + MOVES).out == done.out
    isolated = rove("play", "tictactoe", "-m", "scripted:teacher", "--seed", "1", "--isolated", stdin="what?\n" + MOVES)
    assert isolated.out == done.out


def test_a_person_takes_the_models_role(rove: Rove):
    moves = "".join(f"<think>{n}</think><move>{n}</move>\n" for n in (4, 0, 1, 2, 3, 5, 6, 7, 8))
    done = rove("play", "tictactoe", "--seed", "1", stdin=moves)
    assert done.status == 0
    assert "Play X in tic-tac-toe" in done.out
    assert "you> " in done.out
    assert "your reward: " in done.out


def test_a_person_watches(rove: Rove):
    done = rove("play", "tictactoe", "-m", "scripted:optimal", "--watch", "--seed", "1")
    assert done.status == 0
    assert "your move" not in done.out
    assert "scripted:optimal <think>" in done.out
    assert "reward of the model: " in done.out


def test_without_a_second_role_the_person_watches(rove: Rove):
    done = rove("play", "reverse_text", "-m", "scripted:oracle", "--seed", "1")
    assert done.status == 0
    assert "'reverse_text' has no second role" in done.out
    assert "reward of the model: 1.20" in done.out


def test_requests_to_an_endpoint_contain_the_model_name(rove: Rove):
    with endpoint("ok", reversed_reply) as server:
        done = rove("play", "reverse_text", "-b", server.base_url, "-m", "someone/model", "--watch")
    assert done.status == 0
    assert server.bodies[0]["model"] == "someone/model"


def test_the_end_of_input_ends_the_game_without_a_traceback(rove: Rove):
    done = rove("play", "tictactoe", "--seed", "1", stdin="<move>4</move>\n")
    assert done.status == 130
    assert done.err.strip() == "stopped; play the same game again: --seed 1"


# Ctrl-C


class LoggedCoroutines:
    """Coroutines that log how they ended."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def wait(self) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise

    async def wait_with_helper(self) -> None:
        helper = asyncio.create_task(self.wait())
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await helper
        finally:
            self.log.append("clean")

    async def work(self) -> None:
        helper = asyncio.create_task(self.wait())
        await asyncio.sleep(0)
        try:
            signal.raise_signal(signal.SIGINT)
            self.log.append("went on")
        finally:
            helper.cancel()
            await asyncio.wait([helper])
            self.log.append("clean")


@pytest.mark.parametrize("work", ["wait_with_helper", "work"])
def test_ctrl_c_stops_waiting_and_running_coroutines_after_their_cleanup(work: str):
    watched, first_handler = LoggedCoroutines(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_async(getattr(watched, work)())
    assert watched.log == ["cancelled", "clean"]
    assert signal.getsignal(signal.SIGINT) is first_handler


def test_run_async_returns_the_result_or_raises_the_error():
    async def answer(value: int) -> int:
        return 1 // value

    assert run_async(answer(1)) == 1
    with pytest.raises(ZeroDivisionError):
        run_async(answer(0))


def test_ctrl_c_prints_that_the_same_command_continues(rove: Rove, tmp_path: Path):
    source = FLAWED.replace('return state["answer"]', "import signal; signal.raise_signal(signal.SIGINT)")
    write_environment(tmp_path / "environments", "flawed", source)
    done = rove("eval", "flawed", "-m", "scripted:knows")
    assert done.status == 130
    assert done.err == "\nstopped; repeat the command to continue\n"
    [run] = Path("runs").iterdir()
    assert json.loads((run / "stopped.json").read_text()) == {
        "why": "interrupted by the user",
        "rollouts": 0,
        "resume": f"rove eval --resume {run}",
    }


def test_a_failed_start_leaves_no_run_folder(rove: Rove, tmp_path: Path):
    empty = FLAWED.replace("num_examples: int = 4", "num_examples: int = 0")
    write_environment(tmp_path / "environments", "flawed", empty)
    done = rove("eval", "flawed", "-m", "scripted:knows")
    assert done.status != 0
    assert not Path("runs").exists()


# New models


@pytest.mark.parametrize(
    "arch", ["llama", pytest.param("lfm2", marks=pytest.mark.broad), pytest.param("qwen3", marks=pytest.mark.slow)]
)
def test_a_new_model_produces_valid_rollouts_without_wins(rove: Rove, arch: str):
    created = rove("model", "new", "--env", "tictactoe", "--arch", arch, "--games", "20", "-o", "models/mine", "--json")
    assert created.status == 0
    assert json.loads(created.out)["path"] == "models/mine"
    assert sorted(os.listdir("models")) == ["mine"]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(os.listdir("models/mine"))
    summary = json.loads(rove("eval", "tictactoe", "-m", "models/mine", "-n", "3", "-r", "2", "-t", "6", "--json").out)
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (6, 6, 0)
    assert summary["functions"]["win"]["mean"] == 0.0
    for record in Run(summary["run"]).rollouts():
        assert record.steps
        for step in record.steps:
            assert step.tokens is not None
            assert 1 <= len(step.tokens.completion_ids) <= 6


def test_a_new_model_folder_is_written_atomically(rove: Rove):
    new = ("model", "new", "--env", "reverse_text", "--games", "5", "-o", "models/mine")
    draft = Path("models/.mine.draft")  # a killed process leaves this folder
    draft.mkdir(parents=True)
    (draft / "config.json").write_text("{")
    (draft / "junk").touch()
    created = rove(*new)
    assert (created.status, "random weights of seed 0" in created.out) == (0, True)
    assert "rove eval reverse_text -m scripted:NAME --train -n 1000; NAME is " in created.out
    assert sorted(os.listdir("models")) == ["mine"]
    assert "junk" not in os.listdir("models/mine")
    refused = rove(*new)
    assert refused.status == 2
    assert "models/mine is not empty" in refused.err


def test_a_new_model_for_an_environment_without_policies_needs_a_teacher(rove: Rove):
    Path("tasks").mkdir()
    Path("tasks/bare.py").write_text(
        "import rove as vf\n"
        "def load_environment(count: int = 1):\n"
        "    return vf.SingleTurnEnv(dataset=[{'question': 'how?'}] * count, rubric=vf.Rubric([lambda: 1.0]))\n"
    )
    created = rove(
        "model", "new", "bare", "--env-dir", "tasks", "-a", '{"count": 2}', "--seed", "3", "-o", "models/bare"
    )
    assert (created.status, "random weights of seed 3" in created.out) == (0, True)
    env = "bare --env-dir tasks -a '{\"count\": 2}'"
    assert f"rove eval {env} -m MODEL --train -n 1000; MODEL is a teacher" in created.out
    assert "scripted:" not in created.out


@pytest.mark.broad
def test_an_edited_environment_starts_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
import rove as vf
def load_environment():
    return vf.SingleTurnEnv(
        dataset=[{"question": "?"}], rubric=vf.Rubric([right], [WEIGHT]), policies={"p": lambda messages, state, rng: "x"}
    )
def right():
    return 1.0
"""
    file = tmp_path / "environments" / "edited.py"
    file.parent.mkdir()
    rewards = []
    for weight in ("1.0", "0.25"):
        file.write_text(code.replace("WEIGHT", weight))
        command = [sys.executable, "-m", "rove.cli.main", "eval", "edited", "-m", "scripted:p", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rewards.append(json.loads(done.stdout)["reward"]["mean"])
    assert rewards == [1.0, 0.25]


@pytest.mark.parametrize(("rank", "is_reported"), [("0", True), ("1", False)])
def test_config_errors_are_reported_once_per_node(
    rove: Rove, monkeypatch: pytest.MonkeyPatch, rank: str, is_reported: bool
):
    monkeypatch.setenv("LOCAL_RANK", rank)  # as torchrun does
    done = rove("rl", "tictactoe", "-m", "x", "--stepz", "3")
    assert (done.status, "unknown setting 'stepz'" in done.err) == (2, is_reported)


def test_every_command_sets_the_garbage_collection_thresholds():
    first_thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        CliRunner().invoke(cli, ["rl", "--help"])
        assert gc.get_threshold() == GC_THRESHOLDS
    finally:
        gc.set_threshold(*first_thresholds)


def test_a_person_can_call_tools(rove: Rove, monkeypatch: pytest.MonkeyPatch):
    lines = iter(['<tool_call>{"name": "answer", "arguments": {"room": "attic"}}</tool_call>'])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    done = rove("play", "lookup", "--seed", "1")
    assert done.status == 0
    assert 'call one: <tool_call>{"name": "NAME"' in done.out
    assert "answer_calls 1" in done.out.replace("\n", " ")
    assert '→ answer({"room": ' in rove("play", "lookup", "-m", "scripted:solver", "--seed", "1").out
