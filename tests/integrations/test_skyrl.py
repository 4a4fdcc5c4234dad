"""rove environments in SkyRL, and environments of skyrl-gym in rove.

The tests need skyrl-gym 0.4 and, for the generator, skyrl 0.3 or later; `make test-trainers` installs them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import typing
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from shipped_environments import ENVIRONMENTS

import rove as vf
from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.envs.loading import environment_version
from rove.models.from_scratch import train_tokenizer
from rove.rollouts.groups import RolloutError

pytest.importorskip("skyrl_gym")

import skyrl_gym  # pyright: ignore[reportMissingImports]

from rove.integrations.skyrl import register, rows_for_skyrl

needs_generator = pytest.mark.skipif(importlib.util.find_spec("skyrl") is None, reason="skyrl is not installed")
ROWS = 24
WITHOUT_TOOLS = ("double_check", "reverse_text", "short_sentences", "sums", "tictactoe", "word_game")

ODD_ENV = """
import rove as vf


def fails(answer) -> float:
    raise ValueError("the reward broke")


class Forgetful(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        messages[0]["content"] = "something else"
        return "go on"


def load_environment(kind="fails"):
    rows = [{"question": "?", "answer": "1"}]
    if kind == "fails":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([fails]))
    return vf.ToolEnv(dataset=rows, rubric=vf.Rubric([fails]), tools=[lookup])


def lookup(key: str) -> str:
    "Return a value."
    return key
"""


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()


def scripted_records(name: str) -> list[vf.RolloutRecord]:
    """Return the rollouts of scripted policies in evaluation rows."""
    env = vf.load_environment(name)
    policies, _ = ENVIRONMENTS[name]

    def answer(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        return env.policies[policies[state["example_id"] % len(policies)]](messages, state, rng)

    return env.generate_sync(vf.ScriptedClient(answer), num_examples=ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_rewards_equal_those_of_rove_eval_row_by_row(name: str) -> None:
    records = scripted_records(name)
    rows = rows_for_skyrl(name, num_examples=ROWS, train=False)
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        extras = {key: value for key, value in row.items() if key != "prompt"}
        env = skyrl_gym.make(row["env_class"], env_config={}, extras={**extras, "max_turns": 3})
        prompt, _ = env.init(row["prompt"])
        assert [text_of(message) for message in prompt] == [text_of(message) for message in record.prompt]
        total = 0.0
        for position, step in enumerate(record.steps, start=1):
            output = env.step(text_of(step.completion[0]))
            total += output["reward"]
            assert output["done"] == (position == len(record.steps))
        env.close()
        assert record.scores is not None and total == record.reward
        assert env.get_metrics() == {**record.scores.rewards, **record.scores.metrics}


class Engine:
    """An inference engine for SkyRL's generator that repeats the turns of records; the session names the record."""

    model_name = "scripted"

    def __init__(self, tokenizer: Any, records: list[vf.RolloutRecord]):
        self.tokenizer = tokenizer
        self.records = records
        self.turns = [0] * len(records)

    async def generate(self, batch: Any, model: str | None = None) -> dict[str, Any]:
        [session] = batch["session_ids"]
        [prompt_ids] = batch["prompt_token_ids"]
        position = int(session.partition("_")[0])
        step = self.records[position].steps[self.turns[position]]
        self.turns[position] += 1
        prompt = self.tokenizer.decode(prompt_ids)
        assert text_of(step.prompt[-1]) in prompt and prompt.count("<|user|>") == self.turns[position]
        text = text_of(step.completion[0])
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        logprobs = [-0.5] * len(ids)
        return {"responses": [text], "response_ids": [ids], "stop_reasons": ["stop"], "response_logprobs": [logprobs]}

    async def finish_session(self, session_id: Any) -> None:
        """Do nothing: there are no sessions."""


@needs_generator
@pytest.mark.slow
@pytest.mark.parametrize("name", ["reverse_text", "tictactoe"])
def test_the_generator_of_skyrl_runs_the_environments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # skyrl 0.3 cannot be imported with Python 3.11 otherwise: pydantic refuses `typing.TypedDict` there.
    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig  # pyright: ignore[reportMissingImports]
    from skyrl.train.generators.base import TrajectoryID  # pyright: ignore[reportMissingImports]
    from skyrl.train.generators.skyrl_gym_generator import (  # pyright: ignore[reportMissingImports]
        SkyRLGymGenerator,
    )

    records = scripted_records(name)
    rows = rows_for_skyrl(name, num_examples=ROWS, train=False)
    tokenizer = train_tokenizer(["hello"])
    config = GeneratorConfig(max_turns=10, batched=False, max_input_length=100_000)
    config.sampling_params.max_generate_length = 1000
    gym_config = SkyRLGymConfig()
    gym_config.max_env_workers = 4
    generator = SkyRLGymGenerator(config, gym_config, Engine(tokenizer, records), tokenizer)
    batch = {
        "prompts": [row["prompt"] for row in rows],
        "env_classes": [row["env_class"] for row in rows],
        "env_extras": [{"rove": row["rove"]} for row in rows],
        "sampling_params": {"temperature": 1.0, "logprobs": 0},
        "trajectory_ids": [TrajectoryID(instance_id=str(position), repetition_id=0) for position in range(len(rows))],
    }
    # Other tests have run rollouts of these rows, and the first one has the seeds of `rove eval`.
    from rove.integrations import skyrl

    skyrl._rollout_indices.clear()
    output = asyncio.run(generator.generate(batch, disable_tqdm=True))
    rewards = [sum(reward) if isinstance(reward, list) else reward for reward in output["rewards"]]
    assert rewards == [record.reward for record in records]
    for ids, mask, record in zip(output["response_ids"], output["loss_masks"], records, strict=True):
        sampled = tokenizer.decode([token for token, flag in zip(ids, mask, strict=True) if flag])
        texts = [text_of(step.completion[0]) + str(tokenizer.eos_token) for step in record.steps]
        assert sampled == "".join(texts)


def test_failures_and_refusals(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(ODD_ENV, encoding="utf-8")
    [row] = rows_for_skyrl(str(file))
    env = skyrl_gym.make("rove", extras=row)
    env.init(row["prompt"])
    with pytest.raises(RolloutError, match="the reward broke"):
        env.step("yes")
    abandoned = skyrl_gym.make("rove", extras=row)
    abandoned.init(row["prompt"])
    abandoned.close()
    assert abandoned.get_metrics() == {}
    with pytest.raises(ConfigError, match="the row has no column 'rove'"):
        skyrl_gym.make("rove", extras={})
    with pytest.raises(ConfigError, match="has tools, but SkyRL's generator passes only texts"):
        rows_for_skyrl(str(file), {"kind": "tools"})


def test_limits_and_seed_are_in_the_rows() -> None:
    [row] = rows_for_skyrl("tictactoe", {"num_examples": 1}, num_examples=1, limits={"max_turns": 1}, seed=3)
    seeds: set[int] = set()
    for _ in range(2):  # members of a group have the same row
        env = skyrl_gym.make("rove", extras=row)
        env.init(row["prompt"])
        assert env.step("<move>4</move>")["done"]
        record = env._rollout.record
        assert record.stop_condition == "max_turns_reached"
        seeds.add(record.seed)
    [plain] = rows_for_skyrl("tictactoe", {"num_examples": 1}, num_examples=1)
    assert len(seeds) == 2 and plain["rove"] != row["rove"]


def gsm8k_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
            "env_class": "gsm8k_multi_turn",
            "reward_spec": {"method": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"max_turns": 3},
        }
        for number in range(count)
    ]


def test_rove_runs_environments_of_skyrl_gym(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in gsm8k_rows(10)), encoding="utf-8")
    arguments = {"data": str(file), "max_turns": 3}
    env = vf.load_environment("skyrl:gsm8k_multi_turn", **arguments)
    assert env.identity["env"] == environment_version("skyrl:gsm8k_multi_turn", None, arguments)
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (9, 1)

    def answers(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        right = state["info"]["extras"]["reward_spec"]["ground_truth"]
        return f"#### {right}" if state["example_id"] % 2 else "#### -1"

    records = vf.run_rollouts_sync(env, env.get_dataset(), vf.ScriptedClient(answers))
    for record in records:
        assert record.scores is not None, record.error
        is_right = record.example_id % 2 == 1
        assert record.reward == pytest.approx(1.0 if is_right else 3 * (0.2 / 3))
        assert record.scores.metrics["episode_steps"] == (1.0 if is_right else 3.0)
        assert record.stop_condition == "is_done"
    with pytest.raises(ConfigError, match="skyrl-gym has no environment 'gsm9k'; did you mean 'gsm8k'"):
        vf.load_environment("skyrl:gsm9k", data=str(file))
    with pytest.raises(ConfigError, match=r"row 1 \(line 1\) is for 'gsm8k_multi_turn'; expected rows for 'gsm8k'"):
        vf.load_environment("skyrl:gsm8k", data=str(file))
