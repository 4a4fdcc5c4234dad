"""Environments of other libraries by name: "LIBRARY:NAME"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_envs import scripted_client

import rove as vf
from rove.core.errors import ConfigError
from rove.envs import loading
from rove.envs.libraries import LIBRARIES, find_library
from rove.runs.provenance import risky_settings
from rove.stages.request import TrainRequest

REWARDS = """
def accuracy(completions, solution, **kwargs):
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(text == expected) for text, expected in zip(texts, solution)]


def short(completions):
    return [0.5 for _ in completions]
"""


@pytest.fixture
def reward_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with reward functions, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "library_rewards.py").write_text(REWARDS, encoding="utf-8")
    return "library_rewards"


def write_rows(path: str, as_text: bool, count: int = 20) -> str:
    lines: list[str] = []
    for number in range(count):
        question = f"{number} + 1?"
        prompt = question if as_text else [{"role": "user", "content": question}]
        lines.append(json.dumps({"prompt": prompt, "solution": str(number + 1)}))
    Path(path).write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("as_text", [False, True])
def test_reward_functions_of_trl(reward_module: str, as_text: bool) -> None:
    name = f"trl:{reward_module}:accuracy,{reward_module}:short"
    arguments = {"data": write_rows("rows.jsonl", as_text), "weights": [1.0, 2.0]}
    env = vf.load_environment(name, **arguments)
    assert env.message_type == ("completion" if as_text else "chat")
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (18, 2)
    assert "2 are held out" in env.split_description
    rows = env.get_dataset()
    right = [record.reward for record in vf.run_rollouts_sync(env, rows, scripted_client(rows[3]["solution"]))]
    assert sorted(right) == [1.0] * 17 + [2.0]  # type: ignore[type-var]
    version = loading.environment_version(name, None, arguments)
    assert env.identity["env"] == version and version.startswith(f"{name}#")
    assert "held_out" in loading.environment_arguments(name)
    write_rows("rows.jsonl", as_text, 21)
    assert loading.environment_version(name, None, arguments) != version
    whole = vf.load_environment(name, data="rows.jsonl", eval_data=write_rows("other.jsonl", as_text, 3))
    assert (len(whole.get_dataset()), len(whole.get_eval_dataset())) == (21, 3)


def test_reward_functions_of_trl_get_the_columns_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "column_rewards.py").write_text(
        "def same(completions, answer, info, **kwargs):\n"
        "    assert 'example_id' not in kwargs\n"
        "    return [float(a == 7 and i == 'easy') for a, i in zip(answer, info)]\n"
    )
    rows = [{"prompt": f"{number}", "answer": 7, "info": "easy"} for number in range(3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = vf.load_environment("trl:column_rewards:same", data=str(tmp_path / "rows.jsonl"), held_out=0.0)
    records = vf.run_rollouts_sync(env, env.get_dataset(), scripted_client("a"))
    assert [(record.reward, record.answer, record.info) for record in records] == [(1.0, "7", {})] * 3


def test_rows_that_reward_functions_of_trl_cannot_use(reward_module: str) -> None:
    name = f"trl:{reward_module}:accuracy"
    with pytest.raises(ConfigError, match=f"environment '{name}' needs the argument 'data'; give it with -a"):
        vf.load_environment(name)
    with pytest.raises(ConfigError, match="library_rewards has no 'acuracy'; did you mean 'accuracy'"):
        vf.load_environment(f"trl:{reward_module}:acuracy", data="rows.jsonl")
    with pytest.raises(ConfigError, match="has its 'reward_funcs' in its name; leave out the argument"):
        vf.load_environment(name, reward_funcs="accuracy", data="rows.jsonl")
    Path("bad.jsonl").write_text('{"question": "a"}\n', encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"bad.jsonl, row 1 \(line 1\): the column 'prompt' is None; expected a text or"
    ):
        vf.load_environment(name, data="bad.jsonl")
    Path("mixed.jsonl").write_text(
        '{"prompt": "a"}\n{"prompt": [{"role": "user", "content": "b"}]}\n', encoding="utf-8"
    )
    with pytest.raises(
        ConfigError, match="mixed.jsonl has prompts that are texts and prompts that are lists of messages"
    ):
        vf.load_environment(name, data="mixed.jsonl", held_out=0.0)
    Path("empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="empty.jsonl has no rows"):
        vf.load_environment(name, data="empty.jsonl")
    with pytest.raises(ConfigError, match="held_out is 1.5; expected a fraction from 0 to below 1"):
        vf.load_environment(name, data="mixed.jsonl", held_out=1.5)


def test_names() -> None:
    for library in LIBRARIES.values():
        assert library.file.is_file() and library.environment in library.file.read_text("utf-8")
    assert find_library("tictactoe") is None and find_library("owner/name@0.1") is None
    assert find_library("C:\\rows.csv") is None and find_library("a:b/rows.jsonl") is None
    with pytest.raises(ConfigError, match="names the library 'xx', which"):
        find_library("x" * 2 + ":" + "y" * 5000)
    assert loading.environment_file("gym:FrozenLake-v1").name == "gym.py"
    assert loading.find_external_environment("openenv:http://127.0.0.1:1") is None
    with pytest.raises(ConfigError, match="names the library 'gymm', which rove does not know; did you mean 'gym'"):
        vf.load_environment("gymm:FrozenLake-v1")
    with pytest.raises(ConfigError, match="Reward functions written for TRL are trl:package.module:function"):
        vf.load_environment("module:reward")
    with pytest.raises(ConfigError, match="'openenv:' ends after the colon; expected the URL of a server"):
        vf.load_environment("openenv:")
    # Settings of other people's runs must not name servers or functions without a question.
    assert risky_settings({"env": "openenv:http://127.0.0.1:8000"}) and risky_settings({"env": "trl:os:system"})
    names = {TrainRequest(env).folder_name(0) for env in ("openenv:http://127.0.0.1:8000", "gym:FrozenLake-v1")}
    assert len(names) == 2 and not any(set(":/") & set(name) for name in names)


def test_a_server_that_does_not_respond_is_reported_when_the_environment_is_loaded() -> None:
    with pytest.raises(ConfigError, match="no OpenEnv server responds at http://127.0.0.1:9 .*start it first"):
        vf.load_environment("openenv:http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="the URL of the OpenEnv server is 'localhost:9'; expected http://HOST:PORT"):
        vf.load_environment("openenv:localhost:9")
