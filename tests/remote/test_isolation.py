"""Environments in worker processes: the same rollouts as in this process, and no package can break a run."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import in_process_rove, write_environment
from tiers import first_quick

import rove as vf
from rove.core.errors import ModelError, RemoteError, WorkerError
from rove.core.protocols import Request, Response
from rove.remote import IsolatedEnv, venv
from rove.remote.venv import dependencies, make_venv, python_for
from tests.workers.test_workers import children

TALK_SOURCE = '''
import os, random, signal, sys, time
import rove as vf

{at_import}

class Talk(vf.MultiTurnEnv):
    """Says back what it was told, with a number of its own, for three turns."""

    async def setup_state(self, state, **kwargs):
        state["note"] = state["info"]["number"]
        {in_setup}

    async def env_response(self, messages, state, **kwargs):
        number, turns = state["note"], len(state["trajectory"])
        {in_response}
        return f"{{messages[-1].content}} {{number}}"

    @vf.cleanup
    def tidy(self, state):
        number = state["note"]
        {in_cleanup}


def said(completion, state):
    number = state["note"]
    {in_reward}
    return len(completion) / 10


{more}


def load_environment(num_examples: int = 6):
    rows = [{{"question": f"q{{i}}", "info": {{"number": i}}}} for i in range(num_examples)]
    players = {{"echo": lambda messages, state, rng: f"{{len(state['trajectory'])}} {{state['note']}} {{rng.random()}}"}}
    return Talk(dataset=rows, rubric=vf.Rubric([said{functions}]), max_turns=3, policies=players)
'''
CODE_PLACES = ("at_import", "in_setup", "in_response", "in_cleanup", "in_reward", "more", "functions")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    children_before = children()
    yield
    assert children() <= children_before


def package(folder: Path, name: str = "talk", **code: str) -> Path:
    """Write an environment package with these pieces of code and return its parent folder."""
    (folder / name).mkdir(parents=True)
    pieces = {position: "pass" if position.startswith("in_") else "" for position in CODE_PLACES} | code
    (folder / name / f"{name}.py").write_text(TALK_SOURCE.format(**pieces))
    return folder


class Echo:
    """A client that responds with the number of messages and counts its requests by first message."""

    max_concurrent = 64

    def __init__(self) -> None:
        self.request_counts: Counter[str] = Counter()

    async def respond(self, request: Request) -> Response:
        await asyncio.sleep(0.002)
        self.request_counts[request.messages[0]["content"]] += 1
        return Response(vf.AssistantMessage(f"m{len(request.messages)}"))

    async def close(self) -> None:
        pass


def run_isolated(folder: Path, client: Any = None, rollouts: int = 1, **options: Any) -> list[vf.RolloutRecord]:
    env = IsolatedEnv("talk", env_dir=folder, **options)
    try:
        return env.generate_sync(client or Echo(), rollouts_per_example=rollouts)
    finally:
        env.workers.close()


def facts(record: vf.RolloutRecord) -> list[Any]:
    """Return the comparable fields of a record: all but times and the traceback's files."""
    error = record.error and (record.error.phase, record.error.type, record.error.message)
    steps = [(step.prompt, step.completion, step.usage, step.reward) for step in record.steps]
    rollout = [record.prompt, record.completion, steps]
    content = [*rollout, record.tools, record.info, record.answer, list(record.model_roles), record.renderings]
    return [record.example_key, record.seed, content, record.scores, error, record.stop_condition, record.is_truncated]


@pytest.mark.parametrize("name", first_quick(["double_check", "tictactoe", "lookup", "reverse_text"]))
def test_isolated_rollouts_equal_local_ones(name: str) -> None:
    env, plain = IsolatedEnv(name, {"num_examples": 12}), vf.load_environment(name, num_examples=12)
    assert env.identity == plain.identity and env.get_dataset(3) == plain.get_dataset(3)
    assert (env.count_examples(), env.rubric.names) == (plain.count_examples(), plain.scoring_rubric.names)
    for policy in plain.policies:
        records = [
            environment.generate_sync(vf.ScriptedClient(environment.policies[policy]), rollouts_per_example=2)
            for environment in (env, plain)
        ]
        assert list(map(facts, records[0])) == list(map(facts, records[1]))


def test_a_dataset_is_built_once_for_several_readers(tmp_path: Path) -> None:
    env = IsolatedEnv("talk", {"num_examples": 6}, package(tmp_path))
    try:
        first = list(env.examples(3))
        first[0]["info"]["number"] = "changed by its reader"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(env, "call_sync", lambda *_, **__: pytest.fail("the worker is called again"))
            assert [row["info"]["number"] for row in env.examples(3)] == [0, 1, 2]
        assert [row["info"]["number"] for row in env.examples(4)] == [0, 1, 2, 3]
    finally:
        env.close()


def test_isolated_groups_and_their_rewards_equal_local_ones(tmp_path: Path) -> None:
    group_code = (
        "@vf.group_reward\ndef rank(states):\n    return [state['seed'] % 7 + len(states) for state in states]\n"
    )
    package(tmp_path, more=group_code, functions=", rank", in_response="if number == 1: raise ValueError('one')")
    plain = vf.load_environment("talk", tmp_path).generate_sync(Echo(), rollouts_per_example=3)
    records = run_isolated(tmp_path, rollouts=3)
    assert list(map(facts, records)) == list(map(facts, plain))
    assert {record.error and record.error.type for record in records} == {None, "ValueError"}
    assert all("raise ValueError('one')" in record.error.traceback for record in records if record.error)


CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


WORKER_FAILURES = {
    "crash": (CRASH, "SIGSEGV"),
    "exit": ("os._exit(3)", "exit code 3"),
    "hang": ("", "unresponsive for 3 s"),
}


@pytest.mark.parametrize(
    ("end", "hook"),
    [
        *first_quick(
            [(end, position) for end in ("crash", "exit") for position in ("in_response", "in_setup", "in_reward")]
        ),
        pytest.param("hang", "in_response", marks=pytest.mark.broad),
        pytest.param("hang", "in_setup", marks=pytest.mark.slow),
        pytest.param("hang", "in_reward", marks=pytest.mark.slow),
    ],
)
def test_a_rollout_that_kills_its_worker_affects_no_other_rollout(tmp_path: Path, end: str, hook: str) -> None:
    """The other rollouts are unchanged, and the model receives none of their requests twice."""
    code, message = WORKER_FAILURES[end]
    number = "state['note']" if hook == "in_setup" else "number"
    broken = f"while {number} == 2: pass" if end == "hang" else f"if {number} == 2: {code}"
    package(tmp_path / "broken", **{hook: broken})
    package(tmp_path / "fine")
    client = Echo()
    # On a busy machine, a sound worker may not answer for some seconds.
    records = run_isolated(tmp_path / "broken", client, hang_seconds=3.0 if end == "hang" else 30.0)
    fine = vf.load_environment("talk", tmp_path / "fine").generate_sync(Echo())
    failed = [record for record in records if record.error]
    assert [record.info["number"] for record in failed] == [2]
    assert failed[0].error is not None
    assert failed[0].error.type == "WorkerError" and message in failed[0].error.message
    assert [facts(r) for r in records if not r.error] == [facts(r) for r in fine if r.info["number"] != 2]
    assert all(times == 3 for question, times in client.request_counts.items() if question != "q2")
    assert client.request_counts["q2"] <= 3


@pytest.mark.broad
def test_scripted_policies_continue_after_their_worker_died(tmp_path: Path) -> None:
    """They use the rollout's own seeds, and the worker that replays the rollout calls them again."""
    package(tmp_path / "broken", in_response=f"if number == 2: {CRASH}")
    package(tmp_path / "fine")
    records = []
    for folder in ("broken", "fine"):
        env = IsolatedEnv("talk", {"num_examples": 24}, tmp_path / folder)
        records.append(env.generate_sync(vf.ScriptedClient(env.policies["echo"])))
    broken, fine = records
    assert [record.info["number"] for record in broken if record.error] == [2]
    assert [facts(r) for r in broken if not r.error] == [facts(r) for r in fine if r.info["number"] != 2]


@pytest.mark.broad
def test_a_cleanup_that_crashes_fails_its_rollout(tmp_path: Path) -> None:
    records = run_isolated(package(tmp_path, in_cleanup=f"if number == 2: {CRASH}"))
    assert [record.info["number"] for record in records if record.error] == [2]


@pytest.mark.broad
def test_a_crash_in_a_group_keeps_the_rewards_of_the_other_members(tmp_path: Path) -> None:
    group_code = "@vf.group_reward\ndef rank(states):\n    return [len(states)] * len(states)\n"
    package(
        tmp_path, more=group_code, functions=", rank", in_response=f"if number == 1 and state['seed'] % 3 == 0: {CRASH}"
    )
    records = run_isolated(tmp_path, rollouts=4)
    for number in range(6):
        group = [record for record in records if record.info["number"] == number]
        scored = [record for record in group if record.scores]
        assert len(scored) == sum(number != 1 or record.seed % 3 != 0 for record in group)
        assert {record.scores.rewards["rank"] for record in scored if record.scores} == {float(len(scored))}


@pytest.mark.broad
def test_sys_exit_fails_only_its_own_rollout(tmp_path: Path) -> None:
    positions = ["in_setup", "in_response", "in_cleanup", "in_reward"]
    names = {"in_setup": "state['note']"}
    code = {
        position: f"if {names.get(position, 'number')} == {number}: sys.exit('enough')"
        for number, position in enumerate(positions)
    }
    package(tmp_path, **code)
    plain = vf.load_environment("talk", tmp_path).generate_sync(Echo())
    records = run_isolated(tmp_path)
    assert list(map(facts, records)) == list(map(facts, plain))
    assert [record.error and record.error.type for record in records] == ["SystemExit"] * 4 + [None] * 2


@pytest.mark.parametrize(
    ("code", "message"),
    first_quick(
        [
            ("import no_such_module", "No module named 'no_such_module' \\(.*talk.py, line 5\\)"),
            (CRASH, "was ended by SIGSEGV"),
            ("sys.exit(4)", "SystemExit"),
            ("os._exit(5)", "ended with exit code 5"),
            ("while True: time.sleep(1)", "did not load within 1 s"),
        ],
        2,
    ),
    ids=["error", "crash", "exit", "end", "hang"],
)
def test_a_package_that_does_not_load_is_a_config_error(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        IsolatedEnv("talk", env_dir=package(tmp_path, at_import=code), start_seconds=1.0 if "True" in code else 60.0)


@pytest.mark.broad
def test_output_random_state_and_working_directory_stay_in_the_worker(tmp_path: Path) -> None:
    noise = r"print('{\"id\": 1}' * 1000); os.write(1, b'\x00\xff' * 5000); os.write(2, b'\x07'); random.seed(0); os.chdir('/')"
    package(tmp_path / "noisy", at_import=noise, in_response=noise, in_reward=noise, in_setup=noise)
    package(tmp_path / "quiet")
    quiet = vf.load_environment("talk", tmp_path / "quiet").generate_sync(Echo())
    state, folder = random.getstate(), os.getcwd()
    noisy = run_isolated(tmp_path / "noisy")
    assert list(map(facts, noisy)) == list(map(facts, quiet))
    assert (random.getstate(), os.getcwd()) == (state, folder)


@pytest.mark.slow
def test_stdout_of_the_command_contains_only_json(tmp_path: Path) -> None:
    package(tmp_path, at_import="print('garbage', flush=True)", in_response="print('garbage', flush=True)")
    command = [sys.executable, "-m", "rove.cli.main", "eval", "--isolated", "talk", "-m", "scripted:echo"]
    words = ["-n", "3", "-r", "2", "--env-dir", str(tmp_path), "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(vf.__file__).parents[1])}
    done = subprocess.run([*command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 6
    second_run = subprocess.run(
        [*command[:-3], *command[-2:], "talk", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second_run.returncode == 0, second_run.stderr
    assert "already has 6 rollouts" in second_run.stderr  # The run's identity is the same without isolation.


@pytest.mark.broad
def test_errors_of_the_client_are_preserved(tmp_path: Path) -> None:
    class FailingClient(Echo):
        async def respond(self, request: Request) -> Response:
            error = ModelError("no words today")
            error.attempts = ["HTTP 500"]
            raise error

    [record, *_] = run_isolated(package(tmp_path), FailingClient())
    assert record.error is not None
    assert (record.error.phase, record.error.type, record.error.message) == ("model", "ModelError", "no words today")
    assert record.error.attempts == ["HTTP 500"]


@pytest.mark.broad
def test_limits_of_a_rollout_apply_in_a_worker(tmp_path: Path) -> None:
    env = IsolatedEnv("talk", env_dir=package(tmp_path))
    plain = vf.load_environment("talk", tmp_path)
    limits = {"max_turns": 2}
    records = [list(map(facts, environment.generate_sync(Echo(), limits=limits))) for environment in (env, plain)]
    assert records[0] == records[1] and "max_turns_reached" in records[0][0]
    slow = package(tmp_path / "slow", in_response="import asyncio; await asyncio.sleep(60)")
    slow_env = IsolatedEnv("talk", env_dir=slow)
    [record, *_] = slow_env.generate_sync(Echo(), limits={"timeout_seconds": 0.3})
    assert (record.stop_condition, record.is_truncated) == ("timeout_reached", True)
    assert record.scores is not None and record.completion


def test_the_time_limit_of_an_environment_applies_in_a_worker(tmp_path: Path) -> None:
    time_limit = "Talk.time_limit = lambda self, state: 0.3 if state['info']['number'] == 2 else None"
    package(tmp_path, more=time_limit, in_response="import asyncio; await asyncio.sleep(60 if number == 2 else 0)")
    records = run_isolated(tmp_path)
    assert [record.stop_condition for record in records].count("timeout_reached") == 1
    assert records[2].scores is not None and records[2].completion == [vf.AssistantMessage("m1")]


def test_a_nondeterministic_environment_cannot_be_replayed(tmp_path: Path) -> None:
    """Rollout 2 crashes while all are running; the messages of the others depend on the process."""
    code = f"if number == 2 and turns == 2: {CRASH}\n        number = os.getpid()"
    records = run_isolated(package(tmp_path, in_response=code))
    failed = [record.error for record in records if record.error]
    assert failed and all(error.type == "WorkerError" for error in failed)
    assert any("differs from the recorded one" in error.message for error in failed)


@pytest.mark.broad
def test_an_environment_can_be_evaluated_twice(tmp_path: Path) -> None:
    env = IsolatedEnv("talk", env_dir=package(tmp_path))
    assert [len(env.generate_sync(Echo())) for _ in range(2)] == [6, 6]


@pytest.mark.broad
def test_a_worker_and_this_process_use_an_edited_environment(tmp_path: Path) -> None:
    file = package(tmp_path, in_reward="return 0.0") / "talk" / "talk.py"
    for reward in ("0.0", "1.0"):
        file.write_text(file.read_text().replace("return 0.0", f"return {reward}"))
        loaded = vf.load_environment("talk", env_dir=tmp_path).generate_sync(Echo())
        isolated = run_isolated(tmp_path)
        for records in (loaded, isolated):
            assert [record.reward for record in records] == [float(reward)] * 6


@pytest.mark.broad
def test_a_worker_runs_its_preparation_and_has_its_variables(tmp_path: Path) -> None:
    folder = package(tmp_path, at_import="import verifiers; assert os.environ['COLOUR'] == 'red'")
    with pytest.raises(vf.ConfigError, match="No module named 'verifiers'"):
        IsolatedEnv("talk", env_dir=folder)
    env = IsolatedEnv("talk", env_dir=folder, prepare="rove.compat:install_fallback", variables={"COLOUR": "red"})
    env.workers.close()
    assert "COLOUR" not in os.environ


@pytest.mark.broad
def test_packages_for_verifiers_v0_run_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rove = in_process_rove(tmp_path, monkeypatch, capsys)
    constructor = "vf.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}], rubric=vf.Rubric())"
    write_environment(tmp_path, "old", f"import verifiers as vf\n\ndef load_environment():\n    return {constructor}\n")
    unreachable_model = ("-m", "nobody", "-b", "http://127.0.0.1:9/v1", "--max-retries", "0")
    completed = rove("eval", "old", "--env-dir", ".", "--isolated", *unreachable_model, "-r1", "--json")
    result = json.loads(completed.out)
    # The package loads and runs; the model is unreachable.
    assert (result["failed"], result["scored"]) == (1, 0), completed.err


@pytest.mark.broad
def test_calls_outside_of_the_trajectory_are_recorded_separately(tmp_path: Path) -> None:
    """The user simulators of verifiers v0 packages make such calls."""
    code = "await self.asked(state, messages)"
    extra_code = """
async def asked(self, state, messages):
    aside = vf.State(state, trajectory=list(state["trajectory"]))
    said = await self.turn(aside, [vf.UserMessage(f"aside {messages[-1].content}")])
    state["model_roles"].setdefault("user", []).append(aside["trajectory"][-1])

async def run(self, state, turn):
    self.turn = turn
    await vf.MultiTurnEnv.run(self, state, turn)

Talk.asked, Talk.run = asked, run
"""
    plain = vf.load_environment("talk", package(tmp_path, in_response=code, more=extra_code)).generate_sync(Echo())
    records = run_isolated(tmp_path)
    assert not any(record.error for record in records)
    assert [len(record.steps) for record in records] == [3] * 6 == [len(record.steps) for record in plain]
    assert [len(record.model_roles["user"]) for record in records] == [
        len(record.model_roles["user"]) for record in plain
    ]
    assert list(map(facts, records)) == list(map(facts, plain))


@pytest.mark.broad
def test_a_dataset_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    slow = "Talk.examples = lambda self, n=-1, train=False: time.sleep(60)"
    env = IsolatedEnv("talk", env_dir=package(tmp_path, more=slow), rows_seconds=0.5)
    with pytest.raises(WorkerError, match=r"0\.5 s"):
        env.get_dataset(1)
    env.workers.close()


def test_values_that_json_cannot_represent_are_errors(tmp_path: Path) -> None:
    [record, *_] = run_isolated(
        package(tmp_path, in_setup="state['prompt'] = [*state['prompt'], vf.UserMessage({1, 2})]")
    )
    assert record.error is not None and "JSON" in record.error.message


@pytest.mark.parametrize("value", ["float('nan')", "chr(0xD800)"])
def test_not_a_number_and_half_of_a_character_pass_through_a_worker(tmp_path: Path, value: str) -> None:
    changed_rows = f"""
def with_value(self, n=-1, train=False):
    for row in rows_without_value(self, n, train):
        row["info"]["value"] = {value}
        yield row

rows_without_value, Talk.examples = Talk.examples, with_value
"""
    package(tmp_path, more=changed_rows, in_response=f"return str(state['info']['value']) + str({value})")
    records = run_isolated(tmp_path)
    assert [record.error for record in records] == [None] * 6
    assert all(record.completion[1].content == str(eval(value)) * 2 for record in records)


def test_processes_that_loading_started_serve_all_workers(tmp_path: Path) -> None:
    start = "helper = subprocess.Popen(['cat'], stdin=-1, stdout=-1, start_new_session=True)"
    package(tmp_path, more=f"import subprocess\n{start}", in_response="os.kill(helper.pid, 0)")
    assert [record.error for record in run_isolated(tmp_path)] == [None] * 6


def test_a_failing_teardown_ends_the_workers(tmp_path: Path) -> None:
    package(tmp_path, more="@vf.teardown\ndef stop(self):\n    raise RuntimeError('boom')\nTalk.stop = stop")
    env = IsolatedEnv("talk", env_dir=tmp_path)
    with pytest.raises(RemoteError, match="boom"):
        env.generate_sync(Echo())


def wheel(folder: Path, version: str, name: str = "colour", needs: str = "") -> None:
    """Write a package with one module as a wheel."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n\n\ndef show():\n    print(VERSION)\n")
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
            f"Requires-Dist: {needs}\n" if needs else ""
        )
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        scripts = f"[console_scripts]\n{name}-version = {name}:show\n"
        file.writestr(f"{info}/entry_points.txt", scripts)
        file.writestr(f"{info}/RECORD", "")


def test_dependencies_are_found_above_a_package_folder_of_the_same_name(tmp_path: Path) -> None:
    """The layout NAME/NAME/__init__.py, whose pyproject.toml is above the module's folder."""
    requirements = []
    package = tmp_path / "wiki" / "wiki"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "wiki" / "pyproject.toml").write_text('[project]\nname = "wiki"\ndependencies = ["bm25s"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(venv, "make_venv", lambda folder, needed, **options: requirements.append(needed) or "python")
        assert venv.python_for(package / "__init__.py") == "python"
    assert requirements == [["bm25s"]]


@pytest.mark.slow
def test_packages_can_use_different_versions_of_a_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", version)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_BREAK_SYSTEM_PACKAGES", "1")
    for version in ("1.0", "2.0"):
        folder = tmp_path / version
        package(folder, at_import="import colour", in_setup="state['note'] = colour.VERSION")
        project = folder / "talk" / "pyproject.toml"
        project.write_text(f'[project]\nname = "talk"\ndependencies = ["rove", "colour=={version}"]\n')
        python = python_for(folder / "talk" / "talk.py")
        assert python is not None and python.startswith(str(tmp_path / "cache/rove/venvs/talk-"))
        assert python_for(folder / "talk" / "talk.py") == python
        [record, *_] = run_isolated(folder, python=python)
        assert record.completion[1]["content"].endswith(version)
    project.write_text('[project]\nname = "talk"\ndependencies = ["colour==3.0"]\n')
    with pytest.raises(vf.ConfigError, match="colour==3.0") as raised:
        python_for(folder / "talk" / "talk.py")
    assert "--isolated-python" in str(raised.value)
    assert len(list((tmp_path / "cache/rove/venvs").iterdir())) == 2


@pytest.mark.broad
def test_a_virtual_environment_is_created_from_pip_arguments(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "1.0")
    folder = tmp_path / "made" / "here"
    python = make_venv(folder, ["--no-index", "--find-links", str(tmp_path / "wheels"), "colour"])
    script = Path(python).parent / "colour-version"
    assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "1.0\n"
    code = "import colour, msgspec; print(colour.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(folder)
    assert make_venv(folder, ["no-such-package"]) == python  # The existing one is reused.
    with pytest.raises(vf.ConfigError, match="(?s)colour==2.0 cannot be installed:\n.*colour"):
        make_venv(tmp_path / "made" / "other", ["--no-index", "colour==2.0"])
    with pytest.raises(vf.ConfigError, match=r"did not end within 0.01 s"):
        make_venv(tmp_path / "made" / "other", ["--no-index", "colour==2.0"], seconds=0.01)
    (tmp_path / "file").touch()
    with pytest.raises(vf.ConfigError, match="cannot be made"):
        make_venv(tmp_path / "file" / "other", [])
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["here"]


@pytest.mark.slow
def test_stand_in_distributions_satisfy_dependencies(tmp_path: Path) -> None:
    """They also satisfy indirect dependencies on any version in their range; newer requirements are errors."""
    for version in ("1.0", "1.5", "2.0"):
        wheel(tmp_path / "wheels", version)
        wheel(tmp_path / "wheels", version, "shade")
    wheel(tmp_path / "wheels", "1.0", "old", "colour==1.0\nRequires-Dist: shade>=1.0")
    wheel(tmp_path / "wheels", "1.0", "newer", "colour>=2.0")
    stand_ins = {"colour": ("1.0", "1.5"), "shade": ("1.0", "1.5")}
    offline = ["--no-index", "--find-links", str(tmp_path / "wheels")]
    python = make_venv(tmp_path / "old", [*offline, "old"], stand_ins=stand_ins)
    code = "from importlib.metadata import version; print(version('colour'), version('shade')); import colour"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1.0+rove 1.5+rove" and "No module named 'colour'" in done.stderr
    with pytest.raises(vf.ConfigError, match="newer 1.0 depends on colour>=2.0"):
        make_venv(tmp_path / "newer", [*offline, "newer"], stand_ins=stand_ins)


def test_dependencies_of_a_package_exclude_plain_rove(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    assert dependencies(project) == []
    project.write_text(
        '[project]\ndependencies = ["rove>=0.1", "rove[math]", "rovers", "aiohttp>=3; python_version > \'3\'"]\n'
    )
    assert dependencies(project) == ["aiohttp>=3; python_version > '3'", "rove[math]", "rovers"]
    project.write_text('[project]\ndependencies = ["rove"]\n')
    assert python_for(project.with_name("talk.py")) is None
