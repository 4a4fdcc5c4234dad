"""Test v0's environments for other libraries: rows, prompts and rewards are the same as in verifiers 0.3.1.

`compat_recorded/reasoning_gym.json` and `text_arena.json` have the results of `compat_integrations` with the real library and
the versions of reasoning-gym and TextArena that it used.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import random
from pathlib import Path
from typing import Any

import compat_integrations
import pytest
from libraries import requires_library
from toy_envs import scripted_client

import rove
import rove.compat.verifiers as vf
from rove.core.errors import ConfigError
from rove.runs.run import Run
from tests.integrations.test_open_env import Guessing, serving

RECORDED = Path(__file__).parents[1] / "compat_recorded"
WORDS = "apple berry lemon mango grape house river".split()  # noqa: SIM905


def recorded(name: str, library: str) -> Any:
    recording = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    if importlib.metadata.version(library) != recording["version"]:
        pytest.skip(f"recorded with {library} {recording['version']}")
    return recording["told"]


@pytest.mark.slow
@requires_library("reasoning_gym", "rove[reasoning-gym]")
def test_reasoning_gym_matches_v0() -> None:
    assert json.loads(json.dumps(compat_integrations.reasoning_gym_results(vf))) == recorded(
        "reasoning_gym", "reasoning-gym"
    )


@pytest.mark.slow
@requires_library("nltk", "nltk")
@requires_library("textarena", "rove[textarena]")
def test_text_arena_matches_v0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, tagger = tmp_path / "corpora/words", tmp_path / "taggers/averaged_perceptron_tagger_eng"
    for folder in (corpus, tagger):
        folder.mkdir(parents=True)
    for name in ("en", "en-basic", "README"):
        (corpus / name).write_text("\n".join(WORDS) + "\n")
    tagger_data = {"weights": {}, "tagdict": dict.fromkeys([*WORDS, "test"], "NN"), "classes": ["NN"]}
    for name, data in tagger_data.items():
        (tagger / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(data))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    assert json.loads(json.dumps(compat_integrations.text_arena_results(vf))) == recorded("text_arena", "textarena")


def render(observation: dict[str, Any], context: str, seed: int | None = None) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{context} {observation['hint']}{'' if seed is None else f' #{seed}'}"}]


def test_rollouts_with_a_running_open_env_server_match_v0() -> None:
    async def main() -> list[rove.RolloutRecord]:
        async with serving(Guessing().app()) as url:
            env = vf.OpenEnvEnv(
                url, num_train_examples=1, num_eval_examples=2, seed=3, prompt_renderer=render, max_turns=9
            )
            return await rove.generate(env, scripted_client(lambda messages, state, rng: str(len(messages) // 2)))

    records = asyncio.run(main())
    assert [record.prompt[0]["content"] for record in records] == ["reset 0 to 9 #4", "reset 0 to 9 #5"]
    assert [(record.reward, len(record.steps), record.stop_condition) for record in records] == [
        (1.0, 6, "openenv_done"),  # as in v0, the last step follows the end of the game
        (1.0, 7, "openenv_done"),
    ]
    assert records[0].completion[1]["content"] == "step no"


def test_open_env_projects_must_be_started() -> None:
    with pytest.raises(ValueError, match="prompt_renderer"):
        vf.OpenEnvEnv("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="Start its server"):
        vf.OpenEnvEnv(Path("proj"), prompt_renderer=render)


def test_actions_with_several_fields_are_json() -> None:
    from rove.compat.verifiers.integrations import _parse_action

    schema = {"properties": {"x": {"type": "string"}, "y": {"type": "string"}}, "required": ["x", "y"]}
    assert _parse_action('```json\n{"x": "1", "y": "2"}\n```', schema) == {"x": "1", "y": "2"}
    assert _parse_action("left", {"properties": {"x": {"type": "string"}}}) == {"x": "left"}
    with pytest.raises(ValueError, match="Failed to parse"):
        _parse_action("left", schema)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_smolagents_tools_can_be_used() -> None:
    from smolagents import tool

    @tool
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: the number
        """
        return 2 * number

    def play(messages: Any, state: Any, rng: random.Random) -> Any:
        if messages[-1]["role"] == "tool":
            return str(messages[-1]["content"])
        call = {"name": "double", "arguments": '{"number": 21}'}
        return rove.AssistantMessage("", tool_calls=[{"id": "1", "type": "function", "function": call}])

    with pytest.warns(FutureWarning, match="SmolaToolEnv"):
        env = vf.SmolaToolEnv(
            [double, add], max_steps=3, mask_env_response=True, dataset=[{"question": "?", "answer": ""}]
        )
    assert [tool_def.name for tool_def in env.tool_defs] == ["double", "add"]
    [record] = asyncio.run(rove.generate(env, scripted_client(play)))
    assert record.completion[-1]["content"] == "42"
    assert record.scores is not None
    assert record.scores.metrics["double_calls"] == 1.0


def test_the_legacy_math_environment_has_a_python_tool() -> None:
    with pytest.warns(FutureWarning, match="CodeMathEnv"):
        env = vf.CodeMathEnv(dataset=[{"question": "?", "answer": "4"}])
    assert (env.max_turns, [tool_def.name for tool_def in env.tool_defs]) == (5, ["python"])
    assert "correct_answer" in env.__rove_environment__().rubric.names


def test_lora_settings_are_converted() -> None:
    from rove.compat.verifiers.trainer import GRPOConfig, rl_config

    with pytest.warns(FutureWarning, match="lora.rank"):
        adapter = vf.lora_defaults(r=4, alpha=8)
    config = rl_config(GRPOConfig(), "env", adapter)
    assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (4, 8.0, 0.0)
    assert config.lora.targets == ["k_proj", "o_proj", "q_proj", "v_proj"]
    adapter.target_modules = "all-linear"
    assert rl_config(GRPOConfig(), "env", adapter).lora.targets == []


def test_unsupported_names_report_a_replacement() -> None:
    for name in ("CliAgentEnv", "HarborEnv", "BrowserEnv", "VLLMClient"):
        with pytest.raises(AttributeError, match=f"no '{name}': .*(use|give|serve) "):
            getattr(vf, name)


def length_env(power: int) -> vf.SingleTurnEnv:
    async def length(completion: Any) -> float:
        return float(len(completion[-1]["content"])) ** power

    return vf.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}] * 3, rubric=vf.Rubric(funcs=[length]))


def test_rollouts_can_be_rescored(tmp_path: Path) -> None:
    asyncio.run(rove.evaluate(length_env(1), scripted_client("four"), run=tmp_path / "run"))
    rescored = rove.rescore(length_env(2).__rove_environment__(), Run(tmp_path / "run"), into=tmp_path / "again")
    summary = asyncio.run(rescored)
    assert (summary.reward.mean, summary.scored, summary.failed) == (16.0, 3, 0)


def test_loading_a_verifiers_package_without_the_alias_reports_a_hint(tmp_path: Path) -> None:
    rove.compat.uninstall()
    file = tmp_path / "old_one.py"
    file.write_text("import verifiers as vf\n\ndef load_environment():\n    return vf.SingleTurnEnv()\n")
    with pytest.raises(ConfigError, match=r"rove\.compat\.install\(\)"):
        rove.load_environment("old_one", env_dir=tmp_path)
