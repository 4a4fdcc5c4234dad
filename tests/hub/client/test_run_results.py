"""Published results of a run: metrics, settings and rollouts of the package's code, without secrets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hubs import code, publish
from packages import put_wheel, wheel_files, with_record
from tiers import each_row

import rove
from rove.core.errors import RunError
from rove.core.masking import without_secrets
from rove.hub.client.run_results import code_digest, collect_results
from rove.hub.package.manifest import Manifest, read_manifest
from rove.rollouts.evaluate import Options, run_identity
from rove.runs.run import Run

KEY = "sk-proj-abcdefghij0123456789"


@pytest.fixture
def package(tmp_path: Path) -> tuple[Manifest, Path]:
    folder = publish(tmp_path / "hub")
    return read_manifest((folder / "manifest.json").read_bytes()), next(folder.glob("*.whl"))


def _leaky_policy(messages: Any, state: Any, rng: Any) -> str:
    """Return the correct answer, once with a key in front of it."""
    return f"{KEY} 2" if state["answer"] == "2" else state["answer"]


def evaluate_package(tmp_path: Path, name: str = "run", source: bytes | None = None, **config: Any) -> Path:
    """Evaluate the package's code as a module in a folder and return the run's path."""
    env_dir = tmp_path / f"{name}-envs"
    env_dir.mkdir()
    (env_dir / "doubling.py").write_bytes(source or code())
    env = rove.load_environment("doubling", env_dir, num_examples=6)
    client = rove.ScriptedClient(_leaky_policy)
    run = Run(tmp_path / name)
    run.start(
        "eval", {"env": "doubling", "model": "scripted:oracle", **config}, run_identity(env, client, "m", Options())
    )
    asyncio.run(rove.evaluate(env, client, "m", run=run))
    run.close()
    return run.path


def test_published_results_contain_metrics_settings_and_rollouts_from_worst_to_best(
    tmp_path: Path, package: tuple[Manifest, Path]
) -> None:
    config = {
        "env_args": {"num_examples": 6, "judge_api_key": "abc"},
        "base_url": "http://me:pw@intern/v1",
        "run_dir": "/home/me",
    }
    published = collect_results(evaluate_package(tmp_path, **config), *package)
    assert (
        published["model"] == "scripted:oracle"
        and published["content"] == package[0].content
        and len(published["sha256"]) == 64
    )
    assert published["summary"]["scored"] == 6 and published["summary"]["reward"]["mean"] == pytest.approx(5 / 6)
    assert published["settings"] == {"env": "doubling", "env_args": {"num_examples": 6, "judge_api_key": "***"}}
    assert [example["scores"]["reward"] for example in published["examples"]] == [0.0, 1.0, 1.0]
    assert published["examples"][0]["completion"][0]["content"] == "*** 2"
    text = json.dumps(published)
    assert KEY not in text and "/home/me" not in text and "intern" not in text


def test_only_a_complete_evaluation_of_the_same_code_is_published(
    tmp_path: Path, package: tuple[Manifest, Path]
) -> None:
    with pytest.raises(RunError, match="whose code differs from doubling 1.0; evaluate the current version"):
        collect_results(evaluate_package(tmp_path, "other", code(weight=0.5)), *package)
    path = evaluate_package(tmp_path)
    Run(path).reopen()
    with pytest.raises(RunError, match="is not complete; run the same `rove eval` command again"):
        collect_results(path, *package)
    file = path / "config.toml"
    file.write_text(file.read_text().replace('kind = "eval"', 'kind = "rl"'))
    with pytest.raises(RunError, match="is a run of `rove rl`"):
        collect_results(path, *package)


def test_the_code_digest_of_a_wheel_equals_that_of_the_loaded_package(tmp_path: Path) -> None:
    files = {"deep/__init__.py": code() + b"from deep import more\n", "deep/more.py": b"X = 1\n"}
    wheel = put_wheel(tmp_path, with_record(wheel_files("deep", "1.0", files)), "deep-1.0-py3-none-any.whl")
    env_dir = tmp_path / "envs"
    for name, content in files.items():
        (env_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (env_dir / name).write_bytes(content)
    assert rove.load_environment("deep", env_dir).identity["env"].endswith("#" + code_digest(wheel, "deep"))


@each_row(
    ("value", "masked"),
    [
        ({"api_key": "x", "HF_TOKEN": "y", "password": "z"}, {"api_key": "***", "HF_TOKEN": "***", "password": "***"}),
        (
            {"max_tokens": 5, "example_keys": "a", "tokens": "many"},
            {"max_tokens": 5, "example_keys": "a", "tokens": "many"},
        ),
        (["Bearer abcdefgh1234", f"a {KEY}."], ["Bearer ***", "a ***."]),
        ("https://user:pass@host/x ghp_abcdefghijklmnop1 AKIAABCDEFGHIJKLMNOP", "https://***@host/x *** ***"),
        ({"openai_api_key_1": "x", "key2": "y"}, {"openai_api_key_1": "***", "key2": "***"}),
        ({"api_keys": ["x", "y"], "secrets": {"a": "z"}}, {"api_keys": ["***", "***"], "secrets": {"a": "***"}}),
        ("postgres://u:p@ss@h/db redis://:pw@h", "postgres://***@h/db redis://***@h"),
        ("http://token@h/v1 http://h?mail=a@b", "http://***@h/v1 http://h?mail=a@b"),
        ({"deep": [{"authorization": "Basic Zm9v"}]}, {"deep": [{"authorization": "***"}]}),
        ({"n": 1, "ok": True, "none": None, "f": 0.5}, {"n": 1, "ok": True, "none": None, "f": 0.5}),
    ],
)
def test_values_that_look_like_keys_are_masked(value: Any, masked: Any) -> None:
    assert without_secrets(value) == masked


def test_values_of_secret_environment_variables_are_masked_in_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "quite-unusual-77")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    masked = without_secrets({"text": 'it is "quite-unusual-77", which is not false'})
    assert masked == {"text": 'it is "***", which is not false'}
