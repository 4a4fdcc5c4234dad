"""rove environments in TRL's `GRPOTrainer`, and reward functions of TRL in rove.

The tests with `GRPOTrainer` need TRL 1.16; `make test-trainers` installs it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp_server
import msgspec
import pytest
import torch
from fakes import make_rollout, tiny_model
from toy_envs import Quiz, oracle, rows, scripted_client

import rove as vf
from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.records import StepTokens
from rove.core.state import bookkeeping
from rove.integrations.trl import Rollouts, _remove_nan, rubric_from_trl
from rove.integrations.trl_tools import ToolEnvironments
from rove.models.from_scratch import train_tokenizer
from rove.models.load import load_model
from rove.stages.reporter import SilentReporter
from rove.utils.event_loop import run_in_background

needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
ROOT = Path(__file__).parents[2]
MAX_LOGPROB_DIFFERENCE = 1e-4
GROUP = 4
OPTIONS: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 2 * GROUP,
    "num_generations": GROUP,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model whose tokenizer encodes any text."""
    folder = tmp_path_factory.mktemp("trl") / "tiny"
    return vf.new_model("tictactoe", folder, games=20, reporter=SilentReporter()).path


def trainer_for(rollouts: Rollouts, model: Path, folder: Path, **settings: Any) -> Any:
    """Return a `GRPOTrainer` on the CPU with 2 steps."""
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    options = {**OPTIONS, "max_completion_length": 96, "learning_rate": 1e-3, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL calls rollout_func experimental
        return GRPOTrainer(
            str(model),
            args=GRPOConfig(str(folder), **options),
            train_dataset=rollouts.dataset,
            rollout_func=rollouts,
            reward_funcs=rollouts.reward,
        )


def letters(completion: vf.Messages) -> float:
    """Return the fraction of lowercase letters in the first reply."""
    text = completion[0]["content"]
    return sum("a" <= character <= "z" for character in text) / max(1, len(text))


class RecordingRollouts(Rollouts):
    """Rollouts that record the data passed to TRL."""

    outputs: list[dict[str, Any]]

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, Any]:
        output = super().__call__(prompts, trainer)
        self.outputs = [*getattr(self, "outputs", []), {**output, "records": self.records}]
        return output


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("name", ["reverse_text", "tictactoe"])
def test_two_steps_of_grpo(name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = vf.load_environment(name)
    env.add_rubric(vf.Rubric([letters]))  # a model with random weights earns the same reward in all rollouts
    rollouts = RecordingRollouts(env, num_examples=8, max_tokens=16)
    trainer = trainer_for(rollouts, model, tmp_path)
    old_weights = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train()
    assert trainer.state.global_step == 2 and len(rollouts.outputs) == 2
    assert any(not torch.equal(value, old_weights[key]) for key, value in trainer.model.state_dict().items())
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    turns = 0
    for log, output in zip(logs, rollouts.outputs, strict=True):
        records: list[vf.RolloutRecord] = output["records"]
        rewards = [record.reward for record in records]
        assert None not in rewards and len(rewards) == 2 * GROUP
        assert log["reward"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-6)  # type: ignore[arg-type]
        assert log["rove/num_turns"] == pytest.approx(sum(len(record.steps) for record in records) / len(records))
        assert len({record.seed for record in records}) == len(records)
        assert len({record.example_key for record in records}) == len(records) // GROUP
        for number, record in enumerate(records):
            [sequence] = vf.sequences_from_record(record)
            ids = output["prompt_ids"][number] + output["completion_ids"][number]
            assert ids == sequence.ids[: len(ids)] and len(ids) >= min(len(sequence.ids), 96)
            start = len(output["prompt_ids"][number])
            assert output["env_mask"][number] == [int(sampled) for sampled in sequence.mask[start : len(ids)]]
            turns = max(turns, len(record.steps))
    assert turns > 1 or name == "reverse_text"

    # Log-probabilities of TRL and of rove's engine for the same tokens.
    client = vf.EngineClient.from_model(load_model(model, "cpu"))
    client.engine.model.load_state_dict(trainer.model.state_dict())
    client.engine.update_weights(1)
    largest = 0.0
    for prompt_ids, completion_ids in zip(output["prompt_ids"], output["completion_ids"], strict=True):
        ids = torch.tensor([prompt_ids + completion_ids])
        with torch.no_grad():
            theirs, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model.eval(), ids, torch.ones_like(ids), len(completion_ids)
            )
        ours = torch.tensor(client.engine.score(prompt_ids + completion_ids)[-len(completion_ids) :])
        largest = max(largest, float((theirs[0] - ours).abs().max()))
    with capsys.disabled():
        print(f"\n{name}: largest difference of log-probabilities between TRL and rove: {largest:.1e}")
    assert largest < MAX_LOGPROB_DIFFERENCE


@needs_trl
@pytest.mark.slow
def test_failed_rollouts_have_no_reward_and_are_not_trained_on(model: Path, tmp_path: Path) -> None:
    def fails_now_and_then(state: vf.State) -> float:
        if bool(state["example_id"] % 2):
            raise ValueError("no reward")
        return float(len(state["completion"][-1]["content"]))

    env = Quiz(2, rubric=vf.Rubric([fails_now_and_then]))
    rollouts = RecordingRollouts(env, max_tokens=8)
    trainer = trainer_for(rollouts, model, tmp_path)
    trainer.train()
    output = rollouts.outputs[0]
    failed = [record.error is not None for record in output["records"]]
    assert sorted(failed) == [False] * GROUP + [True] * GROUP
    assert [reward is None for reward in output["rove_reward"]] == failed
    for number, is_failed in enumerate(failed):
        assert (output["env_mask"][number] == [0]) is is_failed
    assert trainer.state.log_history[0]["rove/failed"] == 0.5


@needs_trl
@pytest.mark.slow
def test_trl_accepts_new_tokenizers_with_tools(model: Path) -> None:
    from trl.chat_template_utils import (  # pyright: ignore[reportMissingImports]
        is_chat_template_prefix_preserving,
        parse_response,
        supports_tool_calling,
    )

    tokenizer = load_model(model, "cpu").tokenizer
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)
    call = '<tool_call>\n{"name": "lookup", "arguments": {"key": "a"}}\n</tool_call><|end|>'
    prefix = tokenizer("<|user|>hi<|end|><|assistant|>")["input_ids"]
    parsed = parse_response(tokenizer, tokenizer(call)["input_ids"], prefix=prefix)
    assert [call["function"] for call in parsed["tool_calls"]] == [{"name": "lookup", "arguments": {"key": "a"}}]
    parsed = parse_response(tokenizer, tokenizer("hello<|end|>")["input_ids"], prefix=prefix)
    assert (parsed["role"], parsed["content"], parsed.get("tool_calls")) == ("assistant", "hello", None)


def test_new_tokenizers_keep_their_response_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    train_tokenizer(["hello"]).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).response_template["start_anchor"] == "<|assistant|>"


def accuracy(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    assert kwargs["prompts"][0][-1]["role"] == "user" and kwargs["trainer_state"] is None
    return [
        float(completion[0]["content"] == expected) for completion, expected in zip(completions, solution, strict=True)
    ]


async def short(completions: list[Any], log_metric: Any) -> list[float | None]:
    log_metric("seen", 1.0)
    return [None if len(completion[0]["content"]) > 1 else 0.5 for completion in completions]


def shorter(completions: list[Any]) -> list[float | None]:
    return [None] * len(completions)


def test_reward_functions_of_trl_become_a_rubric() -> None:
    data = [{**row, "solution": row["answer"]} for row in rows(2)]
    env = vf.SingleTurnEnv(dataset=data, rubric=rubric_from_trl([accuracy, short], [2.0, 1.0]))
    record, _ = env.generate_sync(scripted_client(oracle))
    assert record.scores is not None
    assert (record.reward, record.scores.rewards, record.scores.weights) == (
        2.5,
        {"accuracy": 1.0, "short": 0.5},
        {"accuracy": 2.0, "short": 1.0},
    )
    [long, _] = env.generate_sync(scripted_client("long"))
    assert long.scores is not None and long.scores.rewards == {"accuracy": 0.0, "short": 0.0}
    [failed, _] = vf.SingleTurnEnv(dataset=data, rubric=rubric_from_trl(short)).generate_sync(scripted_client("long"))
    assert failed.reward is None and failed.error is not None and "returned None" in failed.error.message
    rubric = rubric_from_trl([short, shorter])
    [failed, _] = vf.SingleTurnEnv(dataset=data, rubric=rubric).generate_sync(scripted_client("long"))
    assert failed.reward is None and failed.error is not None and "returned None" in failed.error.message
    assert rubric_from_trl(accuracy).identity != rubric_from_trl(short).identity
    with pytest.raises(ConfigError, match="1 weights for 2 reward functions"):
        rubric_from_trl([accuracy, short], [1.0])


def test_what_trl_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="sets stop in its sampling_args, which TRL's generation does not have"):
        Rollouts(Quiz(1, sampling_args={"stop": ["x"]}))
    with pytest.raises(ConfigError, match="has message_type 'completion'"):
        Rollouts(vf.SingleTurnEnv(dataset=[{"prompt": "a"}], message_type="completion"))
    with pytest.raises(ConfigError, match="is not a row of this environment"):
        Rollouts(Quiz(1))._position([{"role": "user", "content": "?"}])


def trainer_double(generate: Any, **settings: Any) -> Any:
    """Return an object with the attributes of a `GRPOTrainer` that `Rollouts` uses, and with another generation."""
    loaded = tiny_model()
    vllm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=64)))
    server = SimpleNamespace(get_server_info=lambda: {"model_config": {"max_model_len": 48}})
    attributes: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_generation": SimpleNamespace(llm=vllm, vllm_client=server),
        "accelerator": SimpleNamespace(num_processes=1, unwrap_model=lambda model: model),
        "_dist": SimpleNamespace(is_fsdp=False, is_zero3=False),
        "model": loaded.model,
        "processing_class": loaded.tokenizer,
        "eos_token_ids": [loaded.tokenizer.eos_token_id],
        "state": SimpleNamespace(global_step=0),
        "args": SimpleNamespace(seed=0),
        "temperature": 1.0,
        "max_completion_length": 8,
        "_generate_single_turn": generate,
        **settings,
    }
    return SimpleNamespace(**attributes)


def generate_four(prompts: list[list[int]], *_: Any) -> Any:
    return [[4]] * len(prompts), [[-0.5]] * len(prompts)


def run_double(rollouts: Rollouts, trainer: Any) -> dict[str, Any]:
    prompts = [[{"role": "user", "content": "", "rove_row": position}] for position in range(2)]
    return rollouts(prompts, trainer)


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_prompt_that_is_too_long_for_vllm_fails_only_its_rollout(mode: str) -> None:
    batches: list[int] = []

    def generate(prompts: list[list[int]], *_: Any) -> Any:
        batches.append(max(map(len, prompts)))
        return generate_four(prompts)

    rollouts = Rollouts(vf.SingleTurnEnv(dataset=[{"question": "hi"}, {"question": 99 * "no "}], rubric=vf.Rubric()))
    output = run_double(rollouts, trainer_double(generate, vllm_mode=mode))
    short, long = rollouts.records
    assert output["env_mask"] == [[1], [0]] and len(output["prompt_ids"][1]) < 64
    assert short.error is None and len(short.steps) == 1
    assert long.stop_condition == "prompt_too_long" and batches[0] < 48


def test_a_generation_that_always_fails_stops_the_run() -> None:
    def generate(prompts: list[list[int]], *_: Any) -> Any:
        raise RuntimeError("out of memory")

    rollouts = Rollouts(Quiz(2))
    with pytest.raises(RuntimeError, match="out of memory"):
        run_double(rollouts, trainer_double(generate))
    assert [record.error is None for record in rollouts.records] == [False, False]


def test_rollouts_that_fail_before_their_first_turn_have_logprobs_with_vllm() -> None:
    class Broken(Quiz):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            raise ValueError("no world")

    output = run_double(Rollouts(Broken(2)), trainer_double(generate_four))
    assert output["rove_reward"] == [None, None] and output["logprobs"] == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_vllm": True}, "generates with vLLM in 2 processes"),
        ({"use_vllm": False, "_dist": SimpleNamespace(is_fsdp=True, is_zero3=False)}, r"shards the model \(FSDP"),
        ({"use_vllm": False, "_dist": SimpleNamespace(is_fsdp=False, is_zero3=True)}, r"shards the model \(FSDP"),
    ],
)
def test_processes_that_generate_together_are_refused(settings: dict[str, Any], message: str) -> None:
    accelerator = SimpleNamespace(num_processes=2, unwrap_model=lambda model: model)
    with pytest.raises(ConfigError, match=message):
        run_double(Rollouts(Quiz(2)), trainer_double(generate_four, accelerator=accelerator, **settings))


def test_records_have_no_nan() -> None:
    record = make_rollout([StepTokens([1], [2, 3], [float("nan"), -0.5]), None])
    _remove_nan(record)
    assert msgspec.json.decode(msgspec.json.encode(record), type=vf.RolloutRecord) == record
    assert record.steps[0].tokens is not None and record.steps[0].tokens.logprobs == [0.0, -0.5]


def test_tools_are_methods_that_run_a_rollout() -> None:
    environments = ToolEnvironments("lookup", {"num_examples": 4})
    data = environments.dataset
    environment: Any = environments()
    [row] = [data[index] for index in (1,)]
    info = environments.rows[1]["info"]
    assert (row["rove_row"], row["prompt"][0]["role"]) == (1, "system")
    environment.reset(**row)
    assert environment.lookup(who=info["who"]) == info["rooms"][info["who"]]
    assert "no person" in environment.lookup(who="nobody")
    assert environment.answer(room=info["rooms"][info["who"]]) == "Answer submitted."
    assert environment.lookup(who=info["who"]) == "The task has ended."
    assert environment.get_reward() == 1.0
    environment.reset(**row)
    assert environment.get_reward() == 0.0  # the model's reply is no call
    with pytest.raises(ConfigError, match="has no tools, which TRL's environment_factory needs; use Rollouts"):
        ToolEnvironments(Quiz(1))


def lookup(key: str) -> str:
    """Return a value."""
    return key


def test_prompts_of_setup_state_reach_trl() -> None:
    class CellarEnv(vf.ToolEnv):
        leading: Any = ()

        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            state["prompt"] = [*self.leading, vf.UserMessage(text_of(state["prompt"][-1]) + " You are in a cellar.")]

    env = CellarEnv(tools=[lookup], dataset=[{"question": "Leave."}], max_turns=3)
    environment: Any = ToolEnvironments(env)()
    assert environment.reset(rove_row=0) == " You are in a cellar."
    env.leading = [vf.SystemMessage("Be brief.")]
    with pytest.raises(ConfigError, match="replaces the prompt of its rows .* use Rollouts"):
        environment.reset(rove_row=0)
    environment.get_reward()


def test_members_of_a_group_have_different_seeds_and_the_same_environment_seed() -> None:
    seeds: list[tuple[int, int]] = []

    class SeedRecordingEnv(vf.ToolEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            seeds.append((bookkeeping(state).seed, bookkeeping(state).env_seed))

    environments = ToolEnvironments(SeedRecordingEnv(tools=[lookup], dataset=rows(1)))
    for environment in [environments() for _ in range(3)]:
        assert environment.reset(rove_row=0) is None
        environment.get_reward()
    assert len({seed for seed, _ in seeds}) == 3 and len({env_seed for _, env_seed in seeds}) == 1


def test_the_tools_of_mcp_servers_are_methods() -> None:
    env = vf.MCPEnv(mcp_servers=[{"name": "test", "server": mcp_server.make_server}], dataset=rows(1), max_turns=2)
    environment: Any = ToolEnvironments(env)()
    environment.reset(rove_row=0)
    assert environment.add(a=1, b=2) == "3"
    assert environment.get_reward() == 0.0
    run_in_background(env.tear_down())


@needs_trl
@pytest.mark.slow
def test_trl_trains_with_an_environment_factory(model: Path, tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    environments = ToolEnvironments("lookup", {"num_examples": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL calls environment_factory experimental
        trainer = GRPOTrainer(
            str(model),
            args=GRPOConfig(str(tmp_path), max_completion_length=32, learning_rate=1e-3, **{**OPTIONS, "max_steps": 1}),
            train_dataset=environments.dataset,
            environment_factory=environments,
        )
    trainer.train()
    [log] = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert log["reward"] == 0.0 and log["rewards/lookup/mean"] == 0.0


@pytest.fixture
def served() -> Iterator[str]:
    """Run `rove serve --openenv reverse_text` and yield its URL."""
    command = [sys.executable, "-m", "rove.cli.main", "serve", "--openenv", "reverse_text", "--port", "0"]
    arguments = ["--env-args", '{"num_examples": 4}']
    env = {**os.environ, "PYTHONPATH": str(Path(vf.__file__).parents[1])}
    with subprocess.Popen([*command, *arguments], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3]
        process.terminate()


@needs_trl
@pytest.mark.slow
def test_trl_trains_with_an_openenv_server_as_the_guide_says(served: str, model: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "other_trainers.md").read_text(encoding="utf-8")
    [block] = [block for block in page.split("```") if "class Episode:" in block]
    program = block.removeprefix("python no-run\n").replace("http://127.0.0.1:8000", served)
    program = program.replace('"tictactoe"', '"reverse_text"').replace("models/tiny", str(model))
    options = f'"{tmp_path}", max_completion_length=32, **OPTIONS'
    program = program.replace('"runs/trl", max_steps=100', options)
    names: dict[str, Any] = {"OPTIONS": {**OPTIONS, "max_steps": 1}}
    exec(compile(program, "other_trainers.md", "exec"), names)
    trainer = names["trainer"]
    trainer.train()
    [log] = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert log["reward"] == 0.0 and log["rewards/Episode/mean"] == 0.0  # random weights call no tool

    # The class earns what `rove eval` does.
    env = vf.load_environment("reverse_text", num_examples=4)
    rows = env.get_dataset()
    assert [task["prompt"] for task in names["tasks"]] == [row["prompt"] for row in rows]
    for policy in ("oracle", "copycat"):
        for record in vf.run_rollouts_sync(env, rows, vf.ScriptedClient(env.policies[policy])):
            episode = names["Episode"]()
            episode.reset(**names["tasks"][record.example_id])
            assert episode.get_reward() == 0.0
            episode.send(text_of(record.completion[-1]))
            assert episode.get_reward() == record.reward
            assert episode.send("more") == "The task has ended."
