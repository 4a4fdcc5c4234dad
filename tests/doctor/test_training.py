"""All checks before a training run: what is sampled, the order of findings, and that no files change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from commands import write_environment
from fakes import tiny_model
from flat_settings import with_tables

from rove.core.config import convert
from rove.core.findings import HIGH, MEDIUM, OK, SKIPPED, Finding
from rove.doctor.training import check_training
from rove.train.config import RLConfig

SOURCE = '''
import rove as vf

class Letters(vf.MultiTurnEnv):
    """Rewards even lengths: now and then anybody does that."""

    async def env_response(self, messages, state):
        return "go on"

def even(completion):
    if BROKEN:
        raise ValueError("no such letter")
    return float(len(completion[0]["content"]) % 2 == 0)

BROKEN = False

def load_environment(count=64, broken=False, policies=True):
    global BROKEN
    BROKEN = broken
    if count == 0:
        raise RuntimeError("no letters today")
    said = {"brief": lambda messages, state, rng: "4", "wrong": lambda messages, state, rng: 1 / 0}
    rows = [{"question": f"{n % 9}"} for n in range(count)]
    return Letters(dataset=rows, rubric=vf.Rubric([even]), max_turns=2, policies=said if policies else {})
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_environment(tmp_path, "letters", SOURCE)
    tiny_model().save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def find(folder: Path, groups: int = 3, **over: Any) -> dict[str, Finding]:
    settings = {"env": "letters", "env_dir": str(folder), "model": str(folder / "model"), "max_tokens": 6, **over}
    return {finding.id: finding async for finding in check_training(convert(RLConfig, with_tables(settings)), groups)}


SANDBOX_SOURCE = """
import rove as vf
from rove.sandbox import LocalBackend

def load_environment(without=(), unsafe=False):
    backend = LocalBackend(without=without, unsafe=unsafe)
    return vf.SandboxEnv(backend, dataset=[{"question": "q"}], rubric=vf.Rubric([lambda: 0.0]))
"""


@pytest.mark.parametrize(
    ("args", "status", "reason", "advice"),
    [
        (
            {"without": ["memory group"], "unsafe": True},
            MEDIUM,
            "memory_bytes limits each process separately",
            "run as root",
        ),
        ({"without": ["network"]}, HIGH, "code reaches the machine's network", "unsafe=True"),
    ],
)
async def test_missing_sandbox_features_are_found(folder: Path, args: Any, status: str, reason: str, advice: str):
    write_environment(folder, "boxed", SANDBOX_SOURCE)
    finding = (await find(folder, 0, env="boxed", env_args=args))["sandbox"]
    assert finding.severity == status and reason in repr(finding) and advice in repr(finding)


async def test_all_checks_run_in_order_and_change_no_files(folder: Path):
    progress: list[tuple[str, int, int]] = []
    config = RLConfig(env="letters", env_dir=str(folder), model=str(folder / "model"), max_tokens=6)
    findings = [
        finding async for finding in check_training(config, 3, on_progress=lambda *words: progress.append(words))
    ]
    assert not any(finding.severity is HIGH for finding in findings)
    names = [finding.id for finding in findings]
    assert names[:2] == ["settings", "batch"]
    assert names[-4:] == ["logprob_mismatch", "memory", "time", "disk"]
    assert {"learning_rate", "base_reward", "zero_advantage_groups", "max_tokens", "context", "history"} < set(names)
    assert ("sampling", 24, 24) in progress
    assert next(finding for finding in findings if finding.id == "rollouts").text == "24 sampled, none failed"
    assert sorted({*os.listdir(folder)} - {"__pycache__"}) == ["letters", "model"]


async def test_without_groups_nothing_is_sampled(folder: Path):
    findings = await find(folder, groups=0)
    assert findings["samples"].severity == SKIPPED
    assert {"memory", "disk", "learning_rate", "context"} < findings.keys()
    assert not {"time", "base_reward"} & findings.keys()


@pytest.mark.parametrize(
    ("over", "name", "message"),
    [
        ({"batch_size": 100}, "settings", "multiple of"),
        ({"env": "lettres"}, "environment", "lettres"),
        ({"env_args": {"count": 0}}, "environment", "RuntimeError: no letters today"),
        ({"env_args": {"size": 1}}, "environment", "size"),
        ({"env_args": {"broken": True}}, "rollouts", "reward even: ValueError: no such letter"),
        ({"model": "scripted:brief"}, "model", "scripted policy"),
        ({"model": "gpt-5"}, "model", "no model 'gpt-5'"),
    ],
)
async def test_invalid_settings_models_and_environments_fail(
    folder: Path, over: dict[str, Any], name: str, message: str
):
    findings = await find(folder, **over)
    assert {key for key, finding in findings.items() if finding.severity == HIGH} == {name}
    assert message in repr(findings[name])


async def test_an_environment_is_torn_down_after_an_early_end(folder: Path):
    method = "    async def tear_down(self):\n        open('torn_down', 'w').close()\n"
    write_environment(
        folder, "counted", SOURCE.replace("    async def env_response", f"{method}\n    async def env_response")
    )
    findings = await find(folder, env="counted", model="gpt-5")
    assert findings["model"].severity is HIGH and "torn_down" in os.listdir(folder)


@pytest.mark.broad
async def test_adapter_settings_are_checked(folder: Path):
    plain, small = await find(folder), await find(folder, lora__rank=2)
    assert not any(small_finding.severity is HIGH for small_finding in small.values())
    assert "an adapter of" in repr(small["learning_rate"])
    assert small["logprob_mismatch"].severity is OK
    assert small["adapter"].text.startswith("the adapter covers ")
    assert small["disk"].text != plain["disk"].text
    wrong = await find(folder, lora__rank=2, lora__targets=["q_prog"])
    assert {key for key, finding in wrong.items() if finding.severity == HIGH} == {"adapter"}
    assert "lora.targets has 'q_prog'" in repr(wrong["adapter"])


async def test_a_context_smaller_than_any_prompt_fails(folder: Path):
    tiny_model(context=4).save(folder / "small")
    findings = await find(folder, model=str(folder / "small"))
    assert findings["context"].severity == HIGH
    assert any(finding.severity is HIGH for finding in findings.values())


@pytest.mark.broad
@pytest.mark.parametrize("groups", [0, 2])
async def test_responses_longer_than_the_context_fail(folder: Path, groups: int):
    tiny_model(context=64).save(folder / "small")
    findings = await find(folder, groups=groups, model=str(folder / "small"), max_tokens=64)
    assert findings["context"].severity == HIGH
    assert "of 64 tokens" in repr(findings["context"])
    assert "at most -t" in repr(findings["context"])
    fits = await find(folder, groups=0, model=str(folder / "small"), max_tokens=6)
    assert fits["context"].severity is OK


async def test_environments_with_text_completions_are_checked(folder: Path):
    write_environment(folder, "texts", SOURCE.replace("policies=said", "message_type='completion', policies=said"))
    source = folder / "texts" / "texts.py"
    text = (
        source.read_text(encoding="utf-8")
        .replace('"question"', '"prompt"')
        .replace('completion[0]["content"]', "completion")
    )
    source.write_text(text, encoding="utf-8")
    assert (await find(folder, env="texts", groups=0))["context"].severity is OK
    findings = await find(folder, env="texts")
    assert not any(finding.severity is HIGH for finding in findings.values())
    assert "refuses" not in repr(findings["history"])
    assert findings["context"].severity is OK


async def test_an_environment_without_scripted_policies_does_not_fail(folder: Path):
    findings = await find(folder, env_args={"policies": False})
    assert all(finding.severity < HIGH for finding in findings.values())
