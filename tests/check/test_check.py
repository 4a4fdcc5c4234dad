"""`rove.check`: detecting what packages are written for and what they need, and running them in isolated environments."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commands import write_environment
from tiers import each_row, first_quick

from rove.check.checker import Report, check, unset_keys
from rove.check.package_files import module_of, packages_in, texts_of
from rove.check.report import as_json, as_markdown
from rove.check.rollouts import PROBE_POLICIES, CheckLimits, Failure, RolloutResults
from rove.check.rules import GONE, RULES, V1, deviations, generation
from rove.compat.source_reader import read
from rove.compat.verifiers.release import newest_allowed
from rove.core.errors import ConfigError
from rove.core.messages import UserMessage
from rove.core.records import TrajectoryStep
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_value
from rove.tools.tool import make_tool

ROOT = Path(__file__).resolve().parents[2]
QUICK_LIMITS = CheckLimits(start_seconds=60.0, hang_seconds=5.0, play_seconds=60.0)
ENV_SOURCE = """
import verifiers as vf
{top}

def load_environment({arguments}):
    {load}
    def right(completion, answer):
        {reward}
        return float(answer in completion[-1]["content"])
    rows = [{{"question": "2+2?", "answer": "4"}}, {{"question": "3+3?", "answer": "6"}}]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))
"""


def env(top: str = "", load: str = "pass", reward: str = "pass", arguments: str = "**kwargs") -> str:
    return ENV_SOURCE.format(top=top, load=load, reward=reward, arguments=arguments)


def check_module(folder: Path, source: str, **limits: float) -> Report:
    """Check a module with this source and return the report."""
    (folder / "one.py").write_text(source)
    [package] = packages_in(str(folder / "one.py"))
    check_limits = CheckLimits(start_seconds=limits.get("start", 60.0), hang_seconds=5.0, play_seconds=60.0)
    return check(package, limited=check_limits)


def wheel(folder: Path, name: str, source: str, *needs: str) -> Path:
    """Write a package with one module as a wheel."""
    file = folder / f"{name}-0.1.0-py3-none-any.whl"
    requirements = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", source)
        info = f"{name}-0.1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n{requirements}")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


# Reading

VF = "import verifiers as vf\n"
FEATURE_CASES = [
    (VF, "G3", ""),
    ("from verifiers import *\nclass E(MultiTurnEnv):\n    def env_response(self, m, state): return m, 1", "G3", ""),
    (VF + "class E(vf.MultiTurnEnv):\n    def is_completed(self, messages, state): ...", "G0", "is_completed"),
    (VF + "class E(vf.MultiTurnEnv):\n    async def is_completed(self, messages, state): ...", "G1", "is_completed"),
    (VF + "def f(rubric):\n    return float('yes' in rubric.judge(p, c, a, s))", "G0", "without `await`"),
    (VF + "async def f(judge): return 'yes' in await judge(p, c, a, s)\ndef g(judge): return judge(p)", "G3", ""),
    (VF + "class R(vf.Rubric):\n    def __init__(self):\n        self.reward_funcs = [f]", "G1", "reward_funcs"),
    (
        VF + "class R(vf.Rubric):\n    async def score_rollout(self, prompt, completion, **kwargs): ...",
        "G1",
        "score_rollout",
    ),
    (VF + "class R(vf.Rubric):\n    async def score_rollout(self, state): ...", "G3", ""),
    (VF + "def f(call): return call.function.name", "G2", "call.function.name"),
    (VF + "def f(message): return 'tool_calls' in message", "G2", "call.function.name"),
    (
        VF + "class E(vf.StatefulToolEnv):\n    def update_tool_args(self, tool_args, messages, state): ...",
        "G1",
        "update_tool_args",
    ),
    (
        VF + "class E(vf.StatefulToolEnv):\n    def update_tool_args(self, tool_name, tool_args, messages, state): ...",
        "G3",
        "",
    ),
    ("from verifiers.utils.tools import calculator", "G1", "verifiers.utils.tools"),
    (VF + "class Game:\n    def is_completed(self, messages, state): ...", "G3", ""),
    (
        VF + "class E(vf.ToolEnv):\n    def env_response(self, m, state):\n        return [], state",
        "G1",
        "(messages, state)",
    ),
    (
        VF + "class E(vf.ToolEnv):\n    def env_response(self, m, state):\n        return {}, state",
        "G0",
        "(messages, state)",
    ),
    (
        VF + "class E(vf.ToolEnv):\n    def env_response(self, m, state):\n"
        "        def f(state):\n            return 1, state\n        return []",
        "G3",
        "",
    ),
    (VF + "vf.SingleTurnEnv(dataset=d, oai_tools=[])", "G2", "oai_tools"),
    (VF + "def f(state): return len(state['responses'])", "G1", 'state["turn"]'),
    (VF + "def f(state): return state.get('turn', 0)", "G1", 'state["turn"]'),
    (VF + "results = env.evaluate_sync(c, 'm')\nprint(results['reward'])", "G2", 'results["reward"]'),
    ("from verifiers.rubrics.tool_rubric import ToolRubric", "G1", "ToolRubric"),
    (VF + "env = vf.DoubleCheckEnv()", "G0", "DoubleCheckEnv"),
    (VF + "def f(): ...\nvf.Rubric(f)", "G0", "Rubric(func, func)"),
    (VF + "vf.Rubric([f], [1.0])", "G3", ""),
    (VF + "vf.SingleTurnEnv(d, p, r)", "G0", "SingleTurnEnv(dataset"),
    (
        VF + "class E(vf.MultiTurnEnv):\n    def __init__(self, c):\n        super().__init__(client=c)",
        "G0",
        "client=…",
    ),
    (VF + "class P(vf.Parser):\n    def __init__(self, c):\n        super().__init__(client=c)", "G3", ""),
    (VF + "vf.GRPOTrainer(model=m)", "G2", "GRPOTrainer"),
    (VF + "vf.SmolaToolEnv(tools=[])", "G0", ""),
    (VF + "rows = [{'question': 'q', 'task': 't'}]", "G2", "a column `task`"),
    (VF + "vf.JudgeRubric(judge_client=c)", "G3", "JudgeRubric"),
    (VF + "vf.Rubric(funcs=[functools.partial(f, 1)])", "G3", "`partial`s"),
    (VF + "def look(where: dict): ...\nvf.ToolEnv(tools=[look])", "G3", "tools with `dict`"),
    (VF + "def look(where: str): ...\nvf.ToolEnv(tools=[look])", "G3", ""),
    (VF + "async def f(self, state): await self.get_model_response(state, [])", "G3", "get_model_response"),
    (VF + "state['trajectory'][-1]['reward'] = 1.0", "G3", "rewards of turns"),
    (VF + "trajectory_step['reward'] = 1.0", "G3", "rewards of turns"),
    (VF + "state['reward'] = row['reward'] = 1.0", "G3", ""),
    (VF + "vf.SingleTurnEnv(message_type='completion', dataset=d)", "G3", "prompts that are strings"),
    (VF + "vf.SingleTurnEnv(dataset=d, sampling_args={'max_tokens': 5})", "G3", "sampling arguments"),
    (VF + "raw = state['client'].client\nclient.client.close()", "G3", "`client.client`"),
    ("from verifiers.envs.sandbox_env import SandboxEnv", "G3", "`SandboxEnv`"),
    ("import rove.compat.verifiers as vf\nvf.MCPEnv()", "G3", "`MCPEnv`"),
    ("import verifiers.v1 as vf\nclass T(vf.Taskset): ...", "verifiers v1", ""),
    ("import rove as vf\nclass E(vf.MultiTurnEnv): ...", "rove", ""),
    ("import json", "neither", ""),
    ("def broken(:", "neither", ""),
]


@each_row(("source", "written_for", "row"), FEATURE_CASES)
def test_the_generation_and_deviations_of_a_package_are_detected(source: str, written_for: str, row: str) -> None:
    features = read({"one.py": source}).features
    assert generation(features) == written_for
    texts = [deviation.text for deviation in deviations(features)]
    assert len(texts) == bool(row), texts
    assert not row or row in texts[0]


@each_row(
    ("requirement", "written_for"),
    [
        ("verifiers==0.1.2.post1", "G0"),
        ("verifiers<0.1.8", "G1"),
        ("verifiers[all]~=0.1.8", "G3"),
        ("verifiers<=0.1.10", "G2"),
        ("verifiers>=0.1.2", "G3"),
        ("verifiers>=0.4", "G3"),
        ("verifiers @ git+https://example.com/v", "G3"),
        ("not a requirement", "G3"),
    ],
)
def test_a_requirement_determines_the_generation(requirement: str, written_for: str) -> None:
    assert generation(read({"one.py": VF}).features, newest_allowed(["numpy", requirement])) == written_for


def test_every_rule_uses_features_that_are_recorded() -> None:
    """Features of rules are not misspelled: a case above, a rollout or the mere use of a name records each of them."""
    features = set().union(*(read({"one.py": source}).features for source, _, _ in FEATURE_CASES))
    unmatched = [rule.features for rule in RULES if not features & set(rule.features)]
    # Features that the mere use of a name or keyword records.
    kinds = ("name:", "keyword:", "attribute:", "rollout:")
    assert all(name.startswith((*kinds, "key:", "module:", "client_type:")) for names in unmatched for name in names)
    assert all(name.startswith("name:") for name in GONE)


def test_deviations_are_documented() -> None:
    page = (ROOT / "docs/compat.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines() if line.startswith("| ")
    ]
    words = {cells[0]: " ".join(cells[1:]) for cells in rows}
    for rule in RULES:
        assert rule.behavior in words[rule.difference], rule


def test_used_names_are_recorded_with_their_paths() -> None:
    source = """
import verifiers as vf, verifiers.types
import rove as r
from verifiers.parsers.xml_parser import XMLParser as P
vf.Rubric.add_reward_func; vf.utils.data_utils.extract_boxed_answer("x"); verifiers.types.State; r.ToolEnv; other.Thing
"""
    names = read({"one.py": source}).names
    assert names["verifiers"] == {
        *("Rubric", "utils.data_utils.extract_boxed_answer", "types.State", "parsers.xml_parser.XMLParser"),
    }
    assert names["rove"] == {"ToolEnv"}


def test_keys_are_recorded_as_required_or_optional() -> None:
    source = """
import os, verifiers as vf
from openai import AsyncOpenAI
KEY = "OF_MODULE"
def load_environment(key_var: str = "OF_ARGUMENT", *, other: str = "OF_KEYWORD"):
    os.environ["PLAIN"], os.getenv(KEY), os.environ.get(key_var, "x"), os.environ[other]
    os.environ["WRITTEN"] = "x"
    os.environ.pop("POPPED"), os.environ.setdefault("SET", ""), Judge(api_key_var="NAMED")
    vf.ensure_keys(["FIRST", key_var])
    AsyncOpenAI(base_url="u"); AsyncOpenAI(api_key="k"); vf.JudgeRubric(judge_client=c); AsyncOpenAI(**options)
"""
    assert read({"one.py": source}).keys == {
        **dict.fromkeys(["PLAIN", "OF_KEYWORD", "FIRST", "OF_ARGUMENT", "OPENAI_API_KEY"], True),
        **dict.fromkeys(["OF_MODULE", "POPPED", "SET", "NAMED"], False),
    }


def test_long_expressions_are_read_and_too_deep_ones_reported() -> None:
    texts = {"sum.py": "x = getenv('A') + " + "1 + " * 1000 + "1", "deep.py": "x = " + "a." * 20_000 + "b"}
    reading = read(texts)
    assert (reading.keys, list(reading.broken)) == ({"A": False}, ["deep.py"])


@pytest.mark.parametrize(
    "source", ["import verifiers.v1 as vf", "from verifiers import v1", "import verifiers as vf\nvf.v1.Task"]
)
def test_every_form_of_importing_v1_is_detected(source: str) -> None:
    assert generation(read({"one.py": source}).features) == V1


def test_imports_of_other_packages_are_recorded() -> None:
    texts = {
        "pack/__init__.py": "import json, numpy.linalg\nfrom pack.inner import x\nfrom . import y\nimport verifiers, rove",
        "pack/inner.py": "try:\n    import torch\nexcept ImportError:\n    torch = None\ndef f():\n    import pandas",
        "pack/broken.py": "def (",
    }
    reading = read(texts)
    assert reading.imports == {"numpy": True, "torch": False, "pandas": True}
    assert list(reading.broken) == ["pack/broken.py"]


# Probe policies


def test_example_values_match_the_schemas_of_tools() -> None:
    def every(a: int, b: str, c: list[int], d: bool, e: float | None, f: dict[str, int], g: str = "x") -> str:
        """Takes all there is."""
        return "taken"

    tool = make_tool(every)
    tool.check_call(example_value(tool.definition["function"]["parameters"]))
    assert example_value({"enum": ["left", "right"]}) == "left" and example_value({"type": ["integer", "null"]}) == 1
    assert example_value({"anyOf": [{"type": "array", "minItems": 1, "items": {"const": 5}}]}) == [5]


def test_probe_policies_follow_the_prompts_format() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    messages = [UserMessage("Write <think>…</think><move>…</move>.")]
    state = State(input={"answer": "4"}, trajectory=[])
    bookkeeping(state).tools = [tool]
    assert PROBE_POLICIES["answer"](messages, state, None) == "<think>scripted</think>\n<move>4</move>"
    assert PROBE_POLICIES["answer"]([UserMessage("2+2?")], state, None).endswith("\\boxed{4}")
    assert PROBE_POLICIES["bare"](messages, state, None) == "4"
    assert PROBE_POLICIES["tools"](messages, state, None)["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": "{}",
    }
    bookkeeping(state).trajectory.append(TrajectoryStep([], []))
    assert "<move>4</move>" in PROBE_POLICIES["tools"](messages, state, None)


# Inputs


def test_packages_are_found_in_folders_files_archives_and_by_name(tmp_path: Path) -> None:
    write_environment(tmp_path, "folder", env())
    (tmp_path / "single.py").write_text(env())
    (tmp_path / "helper.py").write_text("x = 1\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").touch()
    wheel(tmp_path, "packed", env())
    with tarfile.open(tmp_path / "sent-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "single.py", "sent-1.0/single.py")
        archive.add(tmp_path / "single.py", "sent-1.0/tests/test_it.py")
    (tmp_path / "notes").mkdir()
    packages = {package.name: package for package in packages_in(str(tmp_path))}
    kinds = {name: package.kind for name, package in packages.items()}
    assert kinds == {"folder": "module", "packed": "wheel", "project": "project", "sent": "sdist", "single": "module"}
    assert list(texts_of(packages["sent"])) == ["single.py"] == list(texts_of(packages["single"]))
    assert list(texts_of(packages["packed"])) == ["packed.py"] and list(texts_of(packages["folder"])) == ["folder.py"]
    [named] = packages_in("single", env_dir=str(tmp_path))
    assert (named.kind, named.path, named.env_dir) == ("module", tmp_path / "single.py", tmp_path)
    [bundled] = packages_in("wiki-search")
    assert bundled.kind == "project" and "wiki_search/__init__.py" in texts_of(bundled)
    with pytest.raises(ConfigError, match="is not an environment package and contains none"):
        packages_in(str(tmp_path / "notes"))
    with pytest.raises(ConfigError, match="no such file: no_such_thing; no environment 'no_such_thing'"):
        packages_in("no_such_thing")
    (tmp_path / "torn-1.0.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="cannot be read"):
        texts_of(packages_in(str(tmp_path / "torn-1.0.tar.gz"))[0])


def test_the_module_with_load_environment_is_found(tmp_path: Path) -> None:
    [package] = packages_in(str(wheel(tmp_path, "my_env", env())))
    loader = "def load_environment(): ..."
    assert module_of(package, {"my_env/__init__.py": loader, "a.py": loader}) == "my_env"
    assert module_of(package, {"my_env.py": "", "b/__init__.py": "from b.env import load_environment"}) == "b"
    with pytest.raises(ConfigError, match="none of its modules defines load_environment"):
        module_of(package, {"my_env.py": "", "my_env/inner/env.py": loader})


# Verdicts

VERDICT_CASES = {
    "crash": (env("import ctypes; ctypes.string_at(0)"), "cannot run: environment 'one' did not load: .* SIGSEGV"),
    "exit": (env("import sys; sys.exit(3)"), "cannot run: environment 'one' did not load: SystemExit: 3"),
    "garbage": (env("import os; os.write(1, b'\\x00\\xff' * 9999); print('[]')", "print('{')"), "runs unchanged"),
    "variable": (env("import os", "os.environ['MY_SERVICE']"), "needs the key MY_SERVICE"),
    "module": (env("import pandas_of_nobody"), "needs the module pandas_of_nobody, which it does not install"),
    "argument": (env(arguments="path"), r"needs the argument 'path' \(-a\)"),
    "nothing": (env(load="return"), "cannot run: load_environment.* returned a NoneType"),
    "not here": (
        VF + "def load_environment():\n    return vf.CliAgentEnv()\n",
        r"cannot run: .*use rove\.AgentEnv",
    ),
    "no path": (
        env("import verifiers.envs.composable"),
        "cannot run: rove does not provide verifiers.envs.composable",
    ),
    "broken": (VF + "def load_environment(:", r"cannot run: .*SyntaxError: invalid syntax \(one.py, line 2\)"),
    "offline": (env(load="raise ConnectionError('Couldn\\'t reach the hub')"), "needs the network: .*Couldn't reach"),
    "reward": (
        env(reward="raise KeyError('four')"),
        "cannot run: its reward is broken: right raised in every rollout, which counts as 0.0: KeyError: 'four'",
    ),
    "data": (
        env(load="open('data/rows.json')"),
        r"needs data: .*FileNotFoundError: .*No such file or directory: 'data/rows\.json'",
    ),
    "no data set": (env(load="raise ValueError('Dataset x/y doesn\\'t exist on the Hub')"), "needs data: .*x/y"),
    "reward without data": (env(reward="open('gold.json')"), "needs data: .*'gold.json'"),
    "harbor": (
        env("from verifiers.envs.experimental.harbor_env import HarborEnv"),
        r"cannot run: .*rove\.compat has no 'HarborEnv': .*use rove\.AgentEnv",
    ),
    "browser": (env("from verifiers import BrowserEnv"), "cannot run: .*no 'BrowserEnv': .*vf.MCPEnv"),
    "later": (
        env(reward="import ctypes; ctypes.string_at(0)"),
        "cannot run: every rollout failed: WorkerError: .*SIGSEGV",
    ),
    "no rows": (env().replace("rows = ", "rows = [] and "), "cannot run: its dataset cannot be read: .* has no rows"),
    "v1": (
        "import verifiers.v1 as vf\nvf.Taskset",
        "cannot run: it is written for verifiers v1, which has another API",
    ),
}
QUICK_CASES = ("crash", "broken", "v1")
BROAD_CASES = ("garbage", "module", "not here", "reward", "data", "harbor")


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in QUICK_CASES else [pytest.mark.broad if name in BROAD_CASES else pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in VERDICT_CASES])
def test_every_package_gets_a_verdict(name: str, tmp_path: Path) -> None:
    source, verdict = VERDICT_CASES[name]
    report = check_module(tmp_path, source)
    assert re.fullmatch(f"{verdict}.*", report.verdict), report.verdict
    assert str(tmp_path) not in json.dumps(as_json([report]))


@pytest.mark.broad
@pytest.mark.parametrize("name", first_quick(["random", "math"], broad=0))
def test_a_package_may_have_the_name_of_a_standard_library_module(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(env(f"import {name} as real", "assert not hasattr(real, 'load_environment')"))
    [package] = packages_in(str(tmp_path / f"{name}.py"))
    assert check(package, limited=QUICK_LIMITS).verdict == "runs unchanged"


@pytest.mark.slow
def test_an_installed_package_may_have_the_name_of_a_standard_library_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    [package] = packages_in(str(wheel(tmp_path, "math", env("import math", "math.ceil(0.5)"))))
    assert check(package, limited=QUICK_LIMITS).verdict == "runs unchanged"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason"),
    [(env("while True: pass"), "did not load within 2 s"), (env(reward="while True: pass"), "unresponsive for 5 s")],
    ids=["import", "reward"],
)
def test_a_package_that_hangs_is_stopped(source: str, reason: str, tmp_path: Path) -> None:
    report = check_module(tmp_path, source, start=2.0 if "load" in reason else 60.0)
    assert report.status == "cannot run" and reason in report.why


@each_row(
    ("error", "names"),
    [
        ("KeyError: 'MY_SERVICE'", ["MY_SERVICE"]),
        ("set the environment variable MY_API_KEY", ["MY_API_KEY"]),
        ("no API key: set ANOTHER_TOKEN or pass api_key", ["ANOTHER_TOKEN"]),
        ("MODEL_TOKEN is missing", ["MODEL_TOKEN"]),  # the package reads it
        ("ValueError: EOS_TOKEN is not in the vocabulary", []),
        ("sqlite3.IntegrityError: PRIMARY_KEY must be unique", []),
    ],
)
def test_names_of_unset_keys_in_errors(error: str, names: list[str]) -> None:
    assert unset_keys(Report("package", keys={"MODEL_TOKEN": "not set"}), error) == names


@pytest.mark.broad
def test_a_missing_key_is_reported_and_replaced_by_a_placeholder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIONAL_URL", "http://somewhere")
    top = "import os\nurl = os.getenv('OPTIONAL_URL'), os.getenv('OTHER_URL')"
    report = check_module(tmp_path, env(top, "vf.ensure_keys(['FIRST_KEY', 'SECOND'])", "raise ValueError('one')"))
    assert report.verdict == "needs the keys FIRST_KEY, SECOND"
    assert report.keys == {
        **dict.fromkeys(["FIRST_KEY", "SECOND"], "not set"),
        **{"OPTIONAL_URL": "set", "OTHER_URL": "not set, optional"},
    }
    assert report.placeholders == ["FIRST_KEY", "SECOND"]
    assert report.rollouts.rollouts == 8 and report.rollouts.rewards["answer"] == 0.0
    assert report.rollouts.swallowed == ["right: one"]
    assert report.names == {"verifiers": ["Rubric", "SingleTurnEnv", "ensure_keys"]}


@pytest.mark.broad
def test_a_wheel_is_checked_in_its_own_environment_with_a_stand_in_for_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package requires an early version of verifiers and is written for it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    game = """
import verifiers as vf

class Game(vf.MultiTurnEnv):
    async def is_completed(self, messages, state, **kwargs):
        return len(state["responses"]) == 2

    async def env_response(self, messages, state, **kwargs):
        if "4" not in messages[-1]["content"]:
            raise KeyError("four")
        return {"role": "user", "content": "again"}, state

def load_environment():
    import importlib.metadata
    assert importlib.metadata.version("verifiers") == "0.1.5+rove"
    return Game(dataset=[{"question": "2+2?", "answer": "4"}], rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
"""
    [package] = packages_in(str(wheel(tmp_path, "game", game, "verifiers==0.1.5", "extra-thing; extra == 'more'")))
    steps: list[str] = []
    report = check(package, limited=QUICK_LIMITS, on_stage=steps.append)
    assert (report.status, report.generation) == ("runs with deviations", "G0"), report
    assert steps == ["reading", "building", "installing", "running rollouts"]
    assert report.rollouts.failures == [Failure("rollout", "KeyError", "'four'", 2)] and report.rollouts.rollouts == 4
    whats = [deviation.text for deviation in report.deviations]
    assert any(name.startswith("an `is_completed(messages, state)`") for name in whats)
    assert "an exception in environment code that is not a `vf.Error`" in whats and "rollouts with an error" in whats


@pytest.mark.slow
def test_projects_are_built_and_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip's way to disable build isolation
    build_settings = (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[tool.hatch.build]\nonly-include'
    )
    for name, needs in {"fine": "verifiers>=0.1.5", "newer": "verifiers>=0.4", "gone": "of-nobody==9"}.items():
        write_environment(tmp_path, name, env())
        project = f'[project]\nname = "{name}"\nversion = "1.0"\ndependencies = ["{needs}"]\n{build_settings} = ["{name}.py"]\n'
        (tmp_path / name / "pyproject.toml").write_text(project)
    write_environment(tmp_path, "torn", env())
    (tmp_path / "torn" / "pyproject.toml").write_text("[project\n")
    verdicts = {package.name: check(package, limited=QUICK_LIMITS).verdict for package in packages_in(str(tmp_path))}
    assert verdicts["fine"] == "runs unchanged"
    assert "it requires verifiers other than 0.1.0 to 0.3.1" in verdicts["newer"]
    assert "newer 1.0 depends on verifiers>=0.4" in verdicts["newer"]
    assert "No matching distribution found for of-nobody==9" in verdicts["gone"]
    assert verdicts["torn"].startswith("cannot run: it cannot be built: ")
    assert sorted(path.name for path in (tmp_path / "fine").iterdir()) == ["fine.py", "pyproject.toml"]


def test_an_internal_error_of_the_check_is_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: Any) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr("rove.check.checker.read", breaks)
    assert check_module(tmp_path, env()).verdict == "cannot run: the check itself failed: RuntimeError: oh"


# The matrix


def test_the_matrix_lists_verdicts_and_deviations() -> None:
    rollouts = RolloutResults(
        ["answer"], rollouts=2, failed=1, rewards={"answer": 0.5}, failures=[Failure("scoring", "E", "a|b\nc")]
    )
    two_deviations = deviations(["name:JudgeRubric", "name:MCPEnv"])
    fine = Report("fine", generation="rove", names={"rove": ["Rubric"]})
    odd = Report(
        "odd", "runs with deviations", "", "G1", {"verifiers": ["Rubric"]}, deviations=two_deviations, rollouts=rollouts
    )
    lost = Report(
        "lost", "needs", "the key K", "G3", {"verifiers": ["Rubric"]}, deviations=two_deviations[1:], placeholders=["K"]
    )
    page = as_markdown([fine, odd, lost])
    assert " 3 packages, with these verdicts: runs unchanged (1), runs with deviations (1), needs (1).\n" in page
    assert "| fine | rove | runs unchanged | 0 |  |  |  |\n" in page
    assert r"| odd | G1 | runs with deviations | 2, 1 failed | answer 0.5 | 1, 2 | 1 × scoring: E: a\|b c |" in page
    assert "| lost | G3 | needs the key K | 0 |  | 2 | rollouts used placeholder values for K |\n" in page
    assert f"| 2 | `MCPEnv` | {two_deviations[1].remedy} |\n" in page and "`Rubric` 2." in page
    document = as_json([fine, odd, lost])
    assert [package["verdict"] for package in document["packages"]] == [
        "runs unchanged",
        "runs with deviations",
        "needs the key K",
    ]
    assert not document["all_run"] and as_json([fine, odd])["all_run"]


def test_the_matrix_in_the_documentation_has_every_package() -> None:
    page = (ROOT / "docs/compat_matrix.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[2] for line in page.splitlines() if line.startswith("| ")}
    names = [path.stem for path in (ROOT / "tests/compat_packages").glob("*.py")]
    names += [path.parent.name for path in (ROOT / "environments").glob("*/pyproject.toml")]
    assert len(names) >= 28
    assert rows["judge_qa"] == (
        "needs the network: RuntimeError: judge model 'judge' could not be called: Connection error."
    )
    assert rows["group_rank"].startswith("cannot run: its reward is broken: broken raised in every rollout, which")
    assert all(
        rows[name] in ("runs unchanged", "runs with deviations") for name in {*names} - {"judge_qa", "group_rank"}
    )
    assert "/tmp" not in page and str(ROOT) not in page
