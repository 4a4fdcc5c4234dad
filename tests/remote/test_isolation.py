"""Environments in worker processes: the same rollouts as here, and nothing that a package does can hurt a run."""

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
from commands import environment, in_this_process
from tiers import first_quick

import rove as vf
from rove.core.errors import ModelError, WorkerError
from rove.core.protocols import Request, Response
from rove.remote import IsolatedEnv, venv
from rove.remote.venv import dependencies, make_venv, python_for
from tests.workers.test_workers import children

TALK = '''
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
PLACES = ("at_import", "in_setup", "in_response", "in_cleanup", "in_reward", "more", "functions")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def package(folder: Path, name: str = "talk", **code: str) -> Path:
    """An environment package with pieces of code in it; returns where it lies."""
    (folder / name).mkdir(parents=True)
    pieces = {place: "pass" if place.startswith("in_") else "" for place in PLACES} | code
    (folder / name / f"{name}.py").write_text(TALK.format(**pieces))
    return folder


class Echo:
    """Says the last message and how often it was asked in this rollout; counts its answers."""

    max_concurrent = 64

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def respond(self, request: Request) -> Response:
        await asyncio.sleep(0.002)
        self.asked[request.messages[0]["content"]] += 1
        return Response(vf.AssistantMessage(f"m{len(request.messages)}"))

    async def close(self) -> None:
        pass


def played(folder: Path, client: Any = None, rollouts: int = 1, **options: Any) -> list[vf.RolloutRecord]:
    env = IsolatedEnv("talk", env_dir=folder, **options)
    try:
        return env.generate_sync(client or Echo(), rollouts_per_example=rollouts)
    finally:
        env.workers.close()


def facts(record: vf.RolloutRecord) -> list[Any]:
    """All of a record but times and the traceback's files."""
    error = record.error and (record.error.phase, record.error.type, record.error.message)
    steps = [(step.prompt, step.completion, step.usage, step.reward) for step in record.steps]
    shown = [record.prompt, record.completion, steps]
    said = [*shown, record.tools, record.info, record.answer, list(record.model_roles), record.renderings]
    return [record.example_key, record.seed, said, record.scores, error, record.stop_condition, record.is_truncated]


@pytest.mark.parametrize("name", first_quick(["double_check", "tictactoe", "lookup", "reverse_text"]))
def test_examples_are_played_as_they_are_here(name: str) -> None:
    env, plain = IsolatedEnv(name, {"num_examples": 12}), vf.load_environment(name, num_examples=12)
    assert env.identity == plain.identity and env.get_dataset(3) == plain.get_dataset(3)
    assert (env.count_examples(), env.rubric.names) == (plain.count_examples(), plain.rubric.names)
    for player in plain.policies:
        records = [
            one.generate_sync(vf.ScriptedClient(one.policies[player]), rollouts_per_example=2) for one in (env, plain)
        ]
        assert list(map(facts, records[0])) == list(map(facts, records[1]))


def test_groups_and_their_rewards_are_as_they_are_here(tmp_path: Path) -> None:
    more = "@vf.group_reward\ndef rank(states):\n    return [state['seed'] % 7 + len(states) for state in states]\n"
    package(tmp_path, more=more, functions=", rank", in_response="if number == 1: raise ValueError('one')")
    plain = vf.load_environment("talk", tmp_path).generate_sync(Echo(), rollouts_per_example=3)
    records = played(tmp_path, rollouts=3)
    assert list(map(facts, records)) == list(map(facts, plain))
    assert {record.error and record.error.type for record in records} == {None, "ValueError"}
    assert all("raise ValueError('one')" in record.error.traceback for record in records if record.error)


CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


ENDS = {"crash": (CRASH, "SIGSEGV"), "exit": ("os._exit(3)", "exit code 3"), "hang": ("", "unresponsive for 3 s")}


@pytest.mark.parametrize(
    ("end", "place"),
    [
        *first_quick(
            [(end, place) for end in ("crash", "exit") for place in ("in_setup", "in_response", "in_reward")], 3
        ),
        pytest.param("hang", "in_response", marks=pytest.mark.broad),
        pytest.param("hang", "in_setup", marks=pytest.mark.slow),
        pytest.param("hang", "in_reward", marks=pytest.mark.slow),
    ],
)
def test_a_rollout_that_ends_its_worker_hurts_no_other(tmp_path: Path, end: str, place: str) -> None:
    """The other rollouts have what they had alone, and the model is asked nothing twice."""
    code, told = ENDS[end]
    number = "state['note']" if place == "in_setup" else "number"
    broken = f"while {number} == 2: pass" if end == "hang" else f"if {number} == 2: {code}"
    package(tmp_path / "broken", **{place: broken})
    package(tmp_path / "fine")
    client = Echo()
    records = played(tmp_path / "broken", client, hang_seconds=3.0)
    fine = played(tmp_path / "fine")
    failed = [record for record in records if record.error]
    assert [record.info["number"] for record in failed] == [2]
    assert failed[0].error is not None
    assert failed[0].error.type == "WorkerError" and told in failed[0].error.message
    assert [facts(r) for r in records if not r.error] == [facts(r) for r in fine if r.info["number"] != 2]
    assert all(times == 3 for question, times in client.asked.items() if question != "q2")
    assert client.asked["q2"] <= 3


@pytest.mark.broad
def test_players_of_the_package_go_on_where_their_worker_died(tmp_path: Path) -> None:
    """They draw from the rollout's own seeds, and are asked again by the worker that plays it again."""
    package(tmp_path / "broken", in_response=f"if number == 2: {CRASH}")
    package(tmp_path / "fine")
    records = []
    for folder in ("broken", "fine"):
        env = IsolatedEnv("talk", {"num_examples": 24}, tmp_path / folder)
        records.append(env.generate_sync(vf.ScriptedClient(env.policies["echo"])))
    broken, fine = records
    assert [record.info["number"] for record in broken if record.error] == [2]
    assert [facts(r) for r in broken if not r.error] == [facts(r) for r in fine if r.info["number"] != 2]


def test_a_cleanup_that_crashes_fails_its_rollout(tmp_path: Path) -> None:
    records = played(package(tmp_path, in_cleanup=f"if number == 2: {CRASH}"))
    assert [record.info["number"] for record in records if record.error] == [2]


@pytest.mark.broad
def test_a_crash_among_siblings_leaves_the_group_its_rewards(tmp_path: Path) -> None:
    more = "@vf.group_reward\ndef rank(states):\n    return [len(states)] * len(states)\n"
    package(tmp_path, more=more, functions=", rank", in_response=f"if number == 1 and state['seed'] % 3 == 0: {CRASH}")
    records = played(tmp_path, rollouts=4)
    for number in range(6):
        group = [record for record in records if record.info["number"] == number]
        alive = [record for record in group if record.scores]
        assert len(alive) == sum(number != 1 or record.seed % 3 != 0 for record in group)
        assert {record.scores.rewards["rank"] for record in alive if record.scores} == {float(len(alive))}


@pytest.mark.parametrize("place", ["in_setup", "in_response", "in_cleanup", "in_reward"])
def test_exit_is_a_failure_of_its_rollout_alone(tmp_path: Path, place: str) -> None:
    number = "state['note']" if place == "in_setup" else "number"
    package(tmp_path, **{place: f"if {number} == 2: sys.exit('enough')"})
    plain = vf.load_environment("talk", tmp_path).generate_sync(Echo())
    records = played(tmp_path)
    assert list(map(facts, records)) == list(map(facts, plain))
    assert [record.error and record.error.type for record in records] == [None] * 2 + ["SystemExit"] + [None] * 3


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("sys.exit(4)", "SystemExit"),
        (CRASH, "was ended by SIGSEGV"),
        ("os._exit(5)", "ended with exit code 5"),
        ("while True: time.sleep(1)", "did not load within 1 s"),
        ("import no_such_module", "No module named 'no_such_module' \\(.*talk.py, line 5\\)"),
    ],
    ids=["exit", "crash", "end", "hang", "error"],
)
def test_a_package_that_does_not_load_is_a_wrong_setting(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises(vf.ConfigError, match=told):
        IsolatedEnv("talk", env_dir=package(tmp_path, at_import=code), start_seconds=1.0 if "True" in code else 60.0)


def test_prints_and_seeds_stay_there(tmp_path: Path) -> None:
    noise = r"print('{\"id\": 1}' * 1000); os.write(1, b'\x00\xff' * 5000); os.write(2, b'\x07'); random.seed(0); os.chdir('/')"
    package(tmp_path / "noisy", at_import=noise, in_response=noise, in_reward=noise, in_setup=noise)
    package(tmp_path / "quiet")
    state, folder = random.getstate(), os.getcwd()
    noisy, quiet = played(tmp_path / "noisy"), played(tmp_path / "quiet")
    assert list(map(facts, noisy)) == list(map(facts, quiet))
    assert (random.getstate(), os.getcwd()) == (state, folder)


@pytest.mark.broad
def test_stdout_of_the_command_is_json_alone(tmp_path: Path) -> None:
    package(tmp_path, at_import="print('garbage', flush=True)", in_response="print('garbage', flush=True)")
    command = [sys.executable, "-m", "rove.cli.main", "eval", "--isolated", "talk", "-m", "scripted:echo"]
    words = ["-n", "3", "-r", "2", "--env-dir", str(tmp_path), "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(vf.__file__).parents[1])}
    done = subprocess.run([*command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 6
    again = subprocess.run(
        [*command[:-3], *command[-2:], "talk", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert "already has 6 rollouts" in again.stderr  # the identity is the same without isolation


def test_what_the_client_raises_is_told_as_it_was(tmp_path: Path) -> None:
    class Failing(Echo):
        async def respond(self, request: Request) -> Response:
            error = ModelError("no words today")
            error.attempts = ["HTTP 500"]
            raise error

    [record, *_] = played(package(tmp_path), Failing())
    assert record.error is not None
    assert (record.error.phase, record.error.type, record.error.message) == ("model", "ModelError", "no words today")
    assert record.error.attempts == ["HTTP 500"]


@pytest.mark.broad
def test_limits_of_a_rollout_hold(tmp_path: Path) -> None:
    env = IsolatedEnv("talk", env_dir=package(tmp_path))
    plain = vf.load_environment("talk", tmp_path)
    limits = {"max_turns": 2}
    records = [list(map(facts, one.generate_sync(Echo(), limits=limits))) for one in (env, plain)]
    assert records[0] == records[1] and "max_turns_reached" in records[0][0]
    slow = package(tmp_path / "slow", in_response="import asyncio; await asyncio.sleep(60)")
    slow_env = IsolatedEnv("talk", env_dir=slow)
    [record, *_] = slow_env.generate_sync(Echo(), limits={"timeout_seconds": 0.3})
    assert (record.stop_condition, record.is_truncated) == ("timeout_reached", True)
    assert record.scores is not None and record.completion


def test_the_time_that_an_environment_gives_its_rollouts_holds(tmp_path: Path) -> None:
    own = "Talk.time_limit = lambda self, state: 0.3 if state['info']['number'] == 2 else None"
    package(tmp_path, more=own, in_response="import asyncio; await asyncio.sleep(60 if number == 2 else 0)")
    records = played(tmp_path)
    assert [record.stop_condition for record in records].count("timeout_reached") == 1
    assert records[2].scores is not None and records[2].completion == [vf.AssistantMessage("m1")]


def test_an_environment_that_does_not_repeat_itself_cannot_be_played_again(tmp_path: Path) -> None:
    """RemoteRollout 2 crashes once all are under way; what the others say depends on the process."""
    code = f"if number == 2 and turns == 2: {CRASH}\n        number = os.getpid()"
    records = played(package(tmp_path, in_response=code))
    failed = [record.error for record in records if record.error]
    assert failed and all(error.type == "WorkerError" for error in failed)
    assert any("differs from the recorded one" in error.message for error in failed)


@pytest.mark.broad
def test_the_next_run_in_the_same_environment_starts_anew(tmp_path: Path) -> None:
    env = IsolatedEnv("talk", env_dir=package(tmp_path))
    assert [len(env.generate_sync(Echo())) for _ in range(2)] == [6, 6]


def test_a_worker_is_prepared(tmp_path: Path) -> None:
    folder = package(tmp_path, at_import="import verifiers; assert os.environ['COLOUR'] == 'red'")
    with pytest.raises(vf.ConfigError, match="No module named 'verifiers'"):
        IsolatedEnv("talk", env_dir=folder)
    env = IsolatedEnv("talk", env_dir=folder, prepare="rove.compat:install_fallback", variables={"COLOUR": "red"})
    env.workers.close()
    assert "COLOUR" not in os.environ


@pytest.mark.broad
def test_packages_for_v0_are_evaluated_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rove = in_this_process(tmp_path, monkeypatch, capsys)
    made = "vf.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}], rubric=vf.Rubric())"
    environment(tmp_path, "old", f"import verifiers as vf\n\ndef load_environment():\n    return {made}\n")
    nobody = ("-m", "nobody", "-b", "http://127.0.0.1:9/v1", "--max-retries", "0")
    done = rove("eval", "old", "--env-dir", ".", "--isolated", *nobody, "-r1", "--json")
    told = json.loads(done.out)
    assert (told["failed"], told["scored"]) == (1, 0), done.err  # loaded and played, and nobody answered


def test_calls_beside_the_trajectory_stay_beside_it(tmp_path: Path) -> None:
    """As the users of v0 packages that a model plays, too."""
    code = "await self.asked(state, messages)"
    more = """
async def asked(self, state, messages):
    aside = vf.State(state)
    aside["trajectory"] = list(state["trajectory"])
    said = await self.turn(aside, [vf.UserMessage(f"aside {messages[-1].content}")])
    state["model_roles"].setdefault("user", []).append(aside["trajectory"][-1])

async def run(self, state, turn):
    self.turn = turn
    await vf.MultiTurnEnv.run(self, state, turn)

Talk.asked, Talk.run = asked, run
"""
    plain = vf.load_environment("talk", package(tmp_path, in_response=code, more=more)).generate_sync(Echo())
    records = played(tmp_path)
    assert not any(record.error for record in records)
    assert [len(record.steps) for record in records] == [3] * 6 == [len(record.steps) for record in plain]
    assert [len(record.model_roles["user"]) for record in records] == [
        len(record.model_roles["user"]) for record in plain
    ]
    assert list(map(facts, records)) == list(map(facts, plain))


def test_rows_that_take_too_long_are_told(tmp_path: Path) -> None:
    slow = "Talk.examples = lambda self, n=-1, train=False: time.sleep(60)"
    env = IsolatedEnv("talk", env_dir=package(tmp_path, more=slow), rows_seconds=0.5)
    with pytest.raises(WorkerError, match=r"0\.5 s"):
        env.get_dataset(1)
    env.workers.close()


def test_what_json_cannot_hold_is_told(tmp_path: Path) -> None:
    [record, *_] = played(package(tmp_path, in_setup="state['prompt'] = [*state['prompt'], vf.UserMessage({1, 2})]"))
    assert record.error is not None and "JSON" in record.error.message


def wheel(folder: Path, version: str, name: str = "colour", needs: str = "") -> None:
    """A package of one module, as a wheel."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        info = f"{name}-{version}.dist-info"
        told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
            f"Requires-Dist: {needs}\n" if needs else ""
        )
        file.writestr(f"{info}/METADATA", told)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_what_a_package_in_a_folder_of_its_name_declares_counts(tmp_path: Path) -> None:
    """The layout NAME/NAME/__init__.py, whose pyproject.toml lies above the module's folder."""
    asked = []
    package = tmp_path / "wiki" / "wiki"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "wiki" / "pyproject.toml").write_text('[project]\nname = "wiki"\ndependencies = ["bm25s"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(venv, "make_venv", lambda folder, needed, **rest: asked.append(needed) or "python")
        assert venv.python_for(package / "__init__.py") == "python"
    assert asked == [["bm25s"]]


@pytest.mark.broad
def test_packages_that_want_different_versions_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        [record, *_] = played(folder, python=python)
        assert record.completion[1]["content"].endswith(version)
    project.write_text('[project]\nname = "talk"\ndependencies = ["colour==3.0"]\n')
    with pytest.raises(vf.ConfigError, match="colour==3.0") as raised:
        python_for(folder / "talk" / "talk.py")
    assert "--isolated-python" in str(raised.value)
    assert len(list((tmp_path / "cache/rove/venvs").iterdir())) == 2


@pytest.mark.broad
def test_a_virtual_environment_from_arguments_of_pip(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "1.0")
    folder = tmp_path / "made" / "here"
    python = make_venv(folder, ["--no-index", "--find-links", str(tmp_path / "wheels"), "colour"])
    asked = "import colour, msgspec; print(colour.__file__)"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(folder)
    assert make_venv(folder, ["no-such-package"]) == python  # as it is
    with pytest.raises(vf.ConfigError, match="(?s)colour==2.0 cannot be installed:\n.*colour"):
        make_venv(tmp_path / "made" / "other", ["--no-index", "colour==2.0"])
    with pytest.raises(vf.ConfigError, match=r"did not end within 0.01 s"):
        make_venv(tmp_path / "made" / "other", ["--no-index", "colour==2.0"], seconds=0.01)
    (tmp_path / "file").touch()
    with pytest.raises(vf.ConfigError, match="cannot be made"):
        make_venv(tmp_path / "file" / "other", [])
    assert [one.name for one in (tmp_path / "made").iterdir()] == ["here"]


@pytest.mark.broad
def test_other_distributions_stand_in(tmp_path: Path) -> None:
    """Also where what is installed asks for them, in whichever version; what is newer than they are cannot be met."""
    for version in ("1.0", "1.5", "2.0"):
        wheel(tmp_path / "wheels", version)
        wheel(tmp_path / "wheels", version, "shade")
    wheel(tmp_path / "wheels", "1.0", "old", "colour==1.0\nRequires-Dist: shade>=1.0")
    wheel(tmp_path / "wheels", "1.0", "newer", "colour>=2.0")
    stand_ins = {"colour": ("1.0", "1.5"), "shade": ("1.0", "1.5")}
    offline = ["--no-index", "--find-links", str(tmp_path / "wheels")]
    python = make_venv(tmp_path / "old", [*offline, "old"], stand_ins=stand_ins)
    asked = "from importlib.metadata import version; print(version('colour'), version('shade')); import colour"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1.0+rove 1.5+rove" and "No module named 'colour'" in done.stderr
    with pytest.raises(vf.ConfigError, match="newer 1.0 depends on colour>=2.0"):
        make_venv(tmp_path / "newer", [*offline, "newer"], stand_ins=stand_ins)


def test_what_a_package_needs(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    assert dependencies(project) == []
    project.write_text(
        '[project]\ndependencies = ["rove>=0.1", "rove[math]", "rovers", "aiohttp>=3; python_version > \'3\'"]\n'
    )
    assert dependencies(project) == ["aiohttp>=3; python_version > '3'", "rove[math]", "rovers"]
    project.write_text('[project]\ndependencies = ["rove"]\n')
    assert python_for(project.with_name("talk.py")) is None
