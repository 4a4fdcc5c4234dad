"""Test `rove.compat`: the alias `verifiers`, v0's API on rove's runs, deprecated forms and the fixed mode."""

from __future__ import annotations

import asyncio
import copy
import importlib
import importlib.util
import itertools
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Rove, in_process_rove
from compat_runner import RECORDED
from compat_server import ScriptedServer
from fakes import tiny_model

import rove
import rove.compat
import rove.compat.verifiers as vf
from rove.compat import alias
from rove.compat.verifiers.types import State
from rove.core.errors import ConfigError
from rove.envs.loading import load_environment
from rove.remote import IsolatedEnv
from rove.rubrics import Rubric as RoveRubric
from rove.runs.run import Run
from rove.workers.import_alias import active_import_alias

PACKAGES = Path(__file__).parents[1] / "compat_packages"
SERVER = Path(__file__).parents[1].joinpath("support", "mcp_server.py")
MODULE_PATHS = """verifiers.types verifiers.errors verifiers.decorators verifiers.clients verifiers.parsers.parser
verifiers.parsers.think_parser verifiers.parsers.xml_parser verifiers.rubrics.rubric verifiers.rubrics.judge_rubric
verifiers.rubrics.tool_rubric verifiers.rubrics.rubric_group verifiers.envs.environment verifiers.envs.multiturn_env
verifiers.envs.singleturn_env verifiers.envs.tool_env verifiers.envs.stateful_tool_env verifiers.envs.sandbox_env
verifiers.envs.env_group verifiers.envs.experimental.gym_env verifiers.envs.experimental.mcp_env verifiers.utils.async_utils
verifiers.utils.data_utils verifiers.utils.tool_utils verifiers.utils.message_utils verifiers.utils.response_utils
verifiers.utils.error_utils verifiers.legacy.envs.environment verifiers.trainers""".split()  # noqa: SIM905


@pytest.fixture
def clean_modules() -> Iterator[None]:
    """Remove the alias, the module `verifiers` and the imported test packages before and after the test."""

    def clean() -> None:
        rove.compat.uninstall()
        sys.modules.pop("verifiers", None)
        for file in PACKAGES.glob("*.py"):
            sys.modules.pop(file.stem, None)

    clean()
    yield
    clean()


class SequenceClient:
    """A rove client that returns the same sequence of responses in every rollout."""

    max_concurrent = 8

    def __init__(self, *replies: Any, finish: str = "stop"):
        self.replies = replies
        self.finish = finish
        self.requests: list[rove.Request] = []

    async def respond(self, request: rove.Request) -> rove.Response:
        self.requests.append(request)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        reply = self.replies[min(turn, len(self.replies) - 1)]
        message = (
            rove.AssistantMessage(reply) if isinstance(reply, str) else rove.AssistantMessage(None, tool_calls=reply)
        )
        return rove.Response(message, rove.Usage(3, 4), self.finish)

    async def close(self) -> None: ...


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


ADDING_PACKAGE = """
import sys
import rove.compat.verifiers as vf

def load_environment():
    servers = [{{"name": "test", "command": sys.executable, "args": [{server!r}, "stdio"]}}]
    rows = [{{"question": "2+3?", "answer": "5"}}, {{"question": "3+2?", "answer": "5"}}]
    return vf.MCPEnv(mcp_servers=servers, dataset=rows, rubric=vf.Rubric(), max_turns=2)
"""
ROWS = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]


def four(completion: Any, answer: str) -> float:
    return 1.0 if completion[-1]["content"] == answer else 0.0


# The alias


@pytest.mark.usefixtures("clean_modules")
def test_every_module_path_can_be_imported() -> None:
    rove.compat.install()
    for path in MODULE_PATHS:
        assert importlib.import_module(path).__name__ == path
    xml = importlib.import_module("verifiers.parsers.xml_parser")
    assert xml.XMLParser is importlib.import_module("verifiers").XMLParser is vf.XMLParser
    assert importlib.import_module("verifiers.utils.async_utils").maybe_await is not None
    rove.compat.uninstall()
    rove.compat.install()
    root = importlib.import_module("verifiers")
    assert root.utils.data_utils.BOXED_SYSTEM_PROMPT.startswith("Please reason")
    assert root.types.State is vf.types.State is State
    assert root.envs.tool_env.ToolEnv is vf.ToolEnv
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("verifiers.nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("verifiers.types.nothing")


NAMES_OF_MODULES = {
    "types": "TextContentPart ImageUrlContentPart ClientConfig GenerateOutputs State Messages ProcessedOutputs TASK_INPUT_FIELDS",
    "utils.async_utils": "maybe_await maybe_call_with_named_args maybe_semaphore",
    "utils.data_utils": "BOXED_SYSTEM_PROMPT THINK_BOXED_SYSTEM_PROMPT extract_boxed_answer load_example_dataset",
    "utils.message_utils": "concat_messages normalize_messages maybe_normalize_messages messages_to_printable get_messages",
    "utils.response_utils": "parse_response_message parse_response_tokens",
    "utils.tool_utils": "convert_func_to_tool_def is_valid_tool_content_parts",
    "utils.error_utils": "ErrorChain error_data",
    "envs.tool_env": "ToolEnv ToolMonitorRubric",
    "envs.stateful_tool_env": "StatefulToolEnv filter_signature",
    "envs.multiturn_env": "MultiTurnEnv MultiTurnMonitorRubric",
    "envs.env_group": "EnvGroup EnvGroupRubric ENV_GROUP_INFO_KEY",
    "envs.sandbox_env": "SandboxEnv SandboxMonitorRubric",
    "envs.experimental.gym_env": "GymEnv EpisodicSumRubric",
    "envs.experimental.mcp_env": "MCPEnv MCPServerConfig",
    "rubrics.judge_rubric": "JudgeRubric DEFAULT_JUDGE_PROMPT",
    "rubrics.tool_rubric": "ToolRubric",
    "clients": "Client resolve_client OpenAIChatCompletionsClient",
    "errors": "Error ToolError TunnelError BrowserSandboxError",
}


@pytest.mark.usefixtures("clean_modules")
def test_names_can_be_imported_from_their_v0_modules() -> None:
    rove.compat.install()
    for path, names in NAMES_OF_MODULES.items():
        module = importlib.import_module(f"verifiers.{path}")
        for name in names.split():
            assert getattr(module, name) is not None


@pytest.mark.usefixtures("clean_modules")
def test_star_imports_have_the_names_of_0_3_1_and_no_older_names() -> None:
    rove.compat.install()
    names: dict[str, Any] = {}
    exec("from verifiers import *", names)
    assert {"Environment", "State", "stop", "XMLParser", "EnvGroup", "SandboxEnv", "load_environment"} <= names.keys()
    assert "GRPOTrainer" not in names
    assert "ToolRubric" not in names


def test_every_root_name_can_be_imported() -> None:
    for name in vf.__all__:
        assert getattr(vf, name) is not None
    assert "XMLParser" in dir(vf)
    with pytest.raises(AttributeError, match=r"rove\.AgentEnv"):
        vf.CliAgentEnv  # noqa: B018
    with pytest.raises(AttributeError, match="no 'Nothing'"):
        vf.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((path, "") for path in ("Rubric", "types.State", "envs.environment.Environment", "utils", "rubrics.Parser")),
        ("SmolaToolEnv", ""),
        ("CliAgentEnv", "rove.AgentEnv"),
        ("envs.BrowserEnv", "vf.MCPEnv"),
        ("envs.composable.ComposableEnv", "has no 'composable'"),
    ],
)
def test_missing_names_are_reported(path: str, message: str) -> None:
    reason = rove.compat.missing_reason(path)
    assert message in reason and bool(reason) == bool(message)


@pytest.mark.usefixtures("clean_modules")
def test_install_is_idempotent_and_uninstall_reverts_it() -> None:
    meta_path_before = list(sys.meta_path)
    rove.compat.install()
    rove.compat.install()
    rove.compat.install_fallback()
    assert len(sys.meta_path) == len(meta_path_before) + 1
    importlib.import_module("verifiers.types")
    rove.compat.uninstall()
    assert sys.meta_path == meta_path_before
    assert not [name for name in sys.modules if name.split(".")[0] == "verifiers"]
    assert importlib.util.find_spec("verifiers") is None


@pytest.fixture
def installed_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_modules: None) -> Path:
    """Create another module `verifiers`, as if the library were installed."""
    (tmp_path / "verifiers.py").write_text("__version__ = '0.3.1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_installed_library_is_not_replaced_by_default(installed_library: Path) -> None:
    with pytest.raises(ConfigError, match="--compat") as raised:
        rove.compat.install()
    assert str(installed_library) in str(raised.value)
    rove.compat.install_fallback()
    assert importlib.import_module("verifiers").__file__ == str(installed_library / "verifiers.py")
    with pytest.raises(ConfigError, match="imported already"):
        rove.compat.install(replace=True)


def worker_setup() -> str:
    active = active_import_alias()
    return "" if active is None else active.setup


def test_an_installed_library_can_be_replaced(installed_library: Path) -> None:
    rove.compat.install_fallback()
    assert worker_setup() == "rove.compat:install_fallback"
    rove.compat.install_replacement()
    assert worker_setup() == "rove.compat:install_replacement"
    assert isinstance(importlib.import_module("verifiers"), alias._AliasModule)


# Environments run by rove


@pytest.mark.usefixtures("clean_modules")
def test_load_environment_returns_a_rove_environment() -> None:
    rove.compat.install()
    env = load_environment("guess_number", env_dir=PACKAGES)
    assert isinstance(env, rove.Environment)
    assert env.env_id == "guess_number"
    assert env.count_examples() == 4
    assert env.count_examples(3) == 3
    assert [example["example_id"] for example in env.examples(2)] == [0, 1]
    assert env.rubric.names == ["solved", "rounds", "format_reward_func", "last_words", "num_turns"]
    assert env.identity["compat"] == "v0"
    assert env.source


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clean_modules: None
) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def test_rove_eval_enables_the_alias_by_itself(command: Rove) -> None:
    with ScriptedServer() as server:
        arguments = (
            "guess_number",
            "-m",
            "guess_number",
            "-b",
            server.url,
            "--env-dir",
            str(PACKAGES),
            "-n",
            "4",
            "-r",
            "2",
        )
        result = command("eval", *arguments, "--run-dir", "run", "--json")
    assert result.status == 0, result.err
    rewards = sorted(record.reward for record in Run("run").rollouts() if record.reward is not None)
    real = json.loads((RECORDED / "guess_number.json").read_text(encoding="utf-8"))
    assert rewards == sorted(row["reward"] for row in real["rows"])


def test_eval_settings_of_a_package_are_its_defaults(command: Rove, tmp_path: Path) -> None:
    package = tmp_path / "environments" / "guess_number"
    package.mkdir(parents=True)
    (package / "guess_number.py").write_text((PACKAGES / "guess_number.py").read_text(encoding="utf-8"))
    (package / "pyproject.toml").write_text(
        "[tool.verifiers.eval]\nnum_examples = 2\nrollouts_per_example = 1\nmodel = 'x'\n"
    )
    with ScriptedServer() as server:
        result = command("eval", "guess_number", "-m", "guess_number", "-b", server.url, "--run-dir", "run")
    assert result.status == 0, result.err
    assert len(list(Run("run").rollouts())) == 2


def test_compat_flag_replaces_an_installed_library(installed_library: Path, command: Rove) -> None:
    with ScriptedServer() as server:
        arguments = (
            "guess_number",
            "-m",
            "guess_number",
            "-b",
            server.url,
            "--env-dir",
            str(PACKAGES),
            "-n",
            "1",
            "-r",
            "1",
        )
        assert "has no attribute" in command("eval", *arguments).err
        del sys.modules["verifiers"]
        result = command("eval", *arguments, "--compat")
    assert result.status == 0, result.err


@pytest.mark.slow
def test_the_course_trains_unchanged(command: Rove, tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "m")
    options = ("--steps", "3", "--batch-size", "8", "-r", "4", "-t", "8", "--run-dir", "rl", "--env-dir", str(PACKAGES))
    result = command("rl", "tictactoe_course", "-m", "m", "-a", '{"max_turns": 3, "num_examples": 4}', *options)
    assert result.status == 0, result.err
    assert (tmp_path / "rl" / "final" / "config.json").exists()
    records = list(Run("rl").rollouts())
    assert len(records) == 24
    assert all(record.error is None and record.scores is not None for record in records)
    pairs = [pair for record in records for pair in itertools.pairwise(record.steps)]
    assert pairs
    for earlier_step, later_step in pairs:  # conversion to v0's messages loses no token
        assert earlier_step.tokens is not None
        assert later_step.tokens is not None
        assert later_step.tokens.prompt_ids[: len(earlier_step.tokens.ids)] == earlier_step.tokens.ids


async def test_datasets_can_be_plain_lists() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, system_prompt="Be brief.", rubric=vf.Rubric(funcs=[four]))
    client = SequenceClient("4")
    records = await rove.generate(env, client)
    assert [record.reward for record in records] == [1.0, 0.0]
    assert [message["content"] for message in client.requests[0].messages] == ["Be brief.", "2+2?"]
    assert [record.answer for record in records] == ["4", "6"]
    table = env.get_dataset(seed=1)
    assert sorted(table["answer"]) == ["4", "6"]
    assert env.get_dataset(1).to_list()[0]["question"] == "2+2?"


async def test_an_environment_is_torn_down_after_its_last_run() -> None:
    teardowns: list[int] = []

    class Ends(vf.SingleTurnEnv):
        @vf.teardown
        async def end(self) -> None:
            teardowns.append(1)

    env = Ends(dataset=ROWS, rubric=vf.Rubric(funcs=[four]))
    assert env.__rove_environment__() is env.__rove_environment__()
    await asyncio.gather(*(rove.evaluate(env, SequenceClient("4")) for _ in range(2)))
    assert teardowns == [1]


async def test_errors_affect_only_their_rollout() -> None:
    class Broken(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise KeyError(state["answer"])

    env = Broken(dataset=ROWS, rubric=vf.Rubric(funcs=[four]), max_turns=3)
    results = await env.evaluate(SequenceClient("4"), "m")
    assert [output["error"]["error"] for output in results["outputs"]] == ["KeyError", "KeyError"]
    assert results["metadata"]["avg_error"] == 1.0
    records = await rove.generate(env, SequenceClient("4"))
    assert [(record.error.type, record.error.message) for record in records if record.error] == [
        ("KeyError", "'4'"),
        ("KeyError", "'6'"),
    ]
    assert [record.stop_condition for record in records] == ["has_error", "has_error"]


async def test_env_response_may_return_a_message_and_a_state() -> None:
    """0.1.0 returned one message with the state; 0.1.2 to 0.1.7 returned a list of messages with it."""

    class AsksAgain(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {"role": "user", "content": "Sure?"}, {"asked": True}

    env = AsksAgain(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[lambda state: float(state["asked"])]), max_turns=2)
    with pytest.warns(FutureWarning, match="return the messages"):
        [record] = await rove.generate(env, SequenceClient("4"))
    assert record.reward == 1.0 and [message["content"] for message in record.completion] == ["4", "Sure?", "4"]


async def test_a_rollout_that_times_out_is_cleaned_up() -> None:
    closed: list[int] = []

    class Slow(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(60)

        @vf.cleanup
        async def close(self, state: Any) -> None:
            closed.append(len(state["completion"]))

    env = Slow(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four])).__rove_environment__()
    [record] = await rove.generate(env, SequenceClient("4"), limits=rove.Limits(timeout_seconds=0.05))
    assert closed == [1]
    assert record.stop_condition == "timeout_reached"
    assert len(record.steps) == 1


async def test_a_timed_out_rollout_is_scored() -> None:
    class Slow(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(60)

    env = Slow(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), timeout_seconds=0.05)
    [record] = await rove.generate(env, SequenceClient("4"))
    assert (record.stop_condition, record.reward, record.error) == ("timeout_reached", 1.0, None)


async def test_the_limits_of_a_run_are_enforced() -> None:
    class Talk(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return "go on"

    env = Talk(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]))
    [record] = await rove.generate(env, SequenceClient("4"), limits=rove.Limits(max_turns=2))
    assert (record.stop_condition, len(record.steps), record.reward) == ("max_turns_reached", 2, 1.0)
    assert record.error is None


async def test_model_calls_of_the_environment_have_their_own_seeds_and_role() -> None:
    class CallsModelTwice(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            prompt = [vf.UserMessage(content="same")]
            responses = [
                await self.get_model_response(state, prompt, sampling_args=sampling_args)
                for sampling_args in ({"temperature": 0.5}, None)
            ]
            return [vf.UserMessage(content=responses[0].message.content)]

    env = CallsModelTwice(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), max_turns=2)
    client = SequenceClient("4")
    [record] = await rove.generate(env, client)
    assert len(record.steps) == 2
    assert len(record.model_roles["environment"]) == 2
    assert len({request.seed for request in client.requests}) == 4
    assert [request.sampling_params.temperature for request in client.requests] == [None, 0.5, None, None]
    other_client = SequenceClient("4")
    await rove.generate(env, other_client)
    assert [request.seed for request in other_client.requests] == [request.seed for request in client.requests]


async def test_turns_are_recorded_if_the_package_copies_responses() -> None:
    class Copies(vf.MultiTurnEnv):
        async def get_model_response(self, *args: Any, **kwargs: Any) -> Any:
            response = await super().get_model_response(*args, **kwargs)
            return response.model_copy(update={"model": "copied"})

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["trajectory"] = copy.deepcopy(state["trajectory"])
            return [vf.UserMessage(content="on")]

    class CopiesInOldLoop(Copies):
        async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return state["turn"] == 3

    for env_class in (Copies, CopiesInOldLoop):
        env = env_class(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), max_turns=3)
        [record] = await rove.generate(env, SequenceClient("1", "2", "3"))
        assert [step.completion[0]["content"] for step in record.steps] == ["1", "2", "3"]
        assert not record.model_roles


async def test_the_environment_can_make_concurrent_calls() -> None:
    class CallsModelConcurrently(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            prompts = [[vf.UserMessage(content=f"number {i}")] for i in range(8)]
            sampling_args = [None, {"temperature": 0.5}] * 4
            calls = (
                self.get_model_response(state, prompt, sampling_args=args)
                for prompt, args in zip(prompts, sampling_args, strict=True)
            )
            responses = await asyncio.gather(*calls)
            return [vf.UserMessage(content=" ".join(response.message.content for response in responses))]

    class Echo(SequenceClient):
        async def respond(self, request: rove.Request) -> rove.Response:
            last = request.messages[-1]["content"]
            await asyncio.sleep(0.01 * (9 - int(last[-1])) if last.startswith("number") else 0)
            return rove.Response(rove.AssistantMessage(last[-1]))

    env = CallsModelConcurrently(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), max_turns=2)
    [record] = await rove.generate(env, Echo())
    assert record.completion[1]["content"] == "0 1 2 3 4 5 6 7"
    assert (len(record.steps), len(record.model_roles["environment"])) == (2, 8)


async def test_prompts_contain_the_sampled_turns() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    class Calls(SequenceClient):
        async def respond(self, request: rove.Request) -> rove.Response:
            response = await super().respond(request)
            if len(self.requests) == 1:
                arguments = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
                response.message.update(content="", tool_calls=[{"id": "c", "type": "function", **arguments}])
            return response

    env = vf.ToolEnv(dataset=ROWS[:1], tools=[add], rubric=vf.Rubric(funcs=[four]), max_turns=3)
    client = Calls("4")
    [record] = await rove.generate(env, client)
    assert record.completion[1]["content"] == "3"
    assert client.requests[1].messages[1] == record.steps[0].completion[0]
    assert client.requests[1].messages[1]["content"] == ""


async def test_members_of_environment_groups_use_their_own_rubric() -> None:
    def loud(completion: Any) -> float:
        return 1.0

    first = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four], weights=[0.5]))
    second = vf.SingleTurnEnv(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[loud]))
    outer = vf.EnvGroup([vf.EnvGroup([first, second], ["a", "b"]), second], ["in", "out"])
    records = await rove.generate(outer, SequenceClient("4"))
    assert [record.info["env_id"] for record in records] == [["in", "a"], ["in", "a"], ["in", "b"], "out"]
    assert [record.env_id for record in records] == ["in/a", "in/a", "in/b", "out"]
    scores = [record.scores for record in records if record.scores]
    assert [score.weights for score in scores] == [{"four": 0.5}, {"four": 0.5}, {"loud": 1.0}, {"loud": 1.0}]
    assert [score.reward for score in scores] == [0.5, 0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="at least one"):
        vf.EnvGroup([])
    with pytest.raises(ValueError, match="env_id"):
        outer.routed({"prompt": []})


async def test_rubrics_can_override_score_group() -> None:
    class CustomRubric(vf.Rubric):
        async def score_group(self, states: Any) -> None:
            for state in states:
                state["reward"], state["metrics"] = 3.0, {"four": 1.0}

    env = vf.SingleTurnEnv(dataset=ROWS[:1], rubric=CustomRubric(funcs=[four]))
    [record] = await rove.generate(env, SequenceClient("4"))
    assert record.scores is not None
    assert record.scores.reward == 3.0
    assert record.scores.rewards == {"reward": 3.0}
    assert record.scores.metrics == {"four": 1.0, "num_turns": 1.0}


async def test_a_bridged_rubric_refuses_rollouts_of_other_processes() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four])).__rove_environment__()
    assert isinstance(env.rubric, RoveRubric)
    with pytest.raises(ConfigError, match="in this process"):
        await env.rubric.score_rollout(rove.State(input={}))


async def test_environments_without_scoring_have_zero_rewards() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), score_rollouts=False)
    [output] = (await env.evaluate(SequenceClient("4"), "m"))["outputs"]
    assert (output["reward"], output["metrics"]) == (0.0, {})


# v0's evaluation and loading functions


@pytest.mark.usefixtures("clean_modules")
def test_load_environment_works_as_in_v0(monkeypatch: pytest.MonkeyPatch) -> None:
    rove.compat.install()
    monkeypatch.syspath_prepend(str(PACKAGES))
    env = vf.load_environment("owner/guess-number@1.0", max_turns=2)
    assert (env.env_id, env.env_args, env.max_turns) == ("owner/guess-number@1.0", {"max_turns": 2}, 2)
    with pytest.raises(ValueError, match="is installed"):
        vf.load_environment("no-such-thing")
    with pytest.raises(RuntimeError, match="Failed to load"):
        vf.load_environment("guess-number", max_turns=2, nonsense=object(), dataset=3)


def test_missing_keys_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "x")
    vf.ensure_keys(["SOME_KEY"])
    with pytest.raises(vf.MissingKeyError, match="OTHER_KEY, THIRD_KEY") as raised:
        vf.ensure_keys(["SOME_KEY", "OTHER_KEY", "THIRD_KEY"])
    assert raised.value.keys == ["OTHER_KEY", "THIRD_KEY"]


async def test_results_are_saved_with_mean_values(tmp_path: Path) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four]), env_id="sums")
    progress: list[int] = []
    results = await env.evaluate(
        SequenceClient("4"),
        "m",
        rollouts_per_example=2,
        save_results=True,
        results_path=tmp_path / "out",
        on_progress=lambda outputs, new, metadata: progress.append(len(outputs)),
    )
    metadata = results["metadata"]
    assert metadata["avg_reward"] == 0.5
    assert metadata["avg_metrics"] == {"four": 0.5, "num_turns": 1.0}
    assert metadata["pass_at_k"] == metadata["pass_all_k"] == {"1": 0.5, "2": 0.5}
    assert metadata["usage"] == {
        "input_tokens": 3,
        "output_tokens": 4,
        "final_output_tokens": 4,
        "final_input_tokens": 3,
    }
    assert progress == [2, 4]
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == [1.0, 1.0, 0.0, 0.0]
    assert json.loads((tmp_path / "out" / "metadata.json").read_text())["env_id"] == "sums"
    assert len(env.make_dataset(results)) == 4


async def test_custom_clients_are_used() -> None:
    class CustomClient(vf.Client):
        def setup_client(self, config: Any) -> Any:
            return config

        async def to_native_tool(self, tool: Any) -> Any:
            return tool.name

        async def to_native_prompt(self, messages: Any) -> Any:
            return [message.content for message in messages], {"extra": 1}

        async def get_native_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kw: Any
        ) -> Any:
            assert kw["extra"] == 1
            assert len(kw["extra_headers"]["X-Session-ID"]) == 32
            if "3+3" in prompt[0]:
                raise OSError("no line")
            return f"{model} {sampling_args['temperature']}"

        async def raise_from_native_response(self, response: Any) -> None: ...
        async def close(self) -> None: ...
        async def from_native_response(self, response: Any) -> Any:
            return vf.Response(message=vf.ResponseMessage(content=response))

    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four]))
    results = await env.evaluate(
        CustomClient(vf.ClientConfig(extra_headers_from_state={"X-Session-ID": "trajectory_id"})),
        "m",
        {"temperature": 0.5},
    )
    assert results["outputs"][0]["completion"][0]["content"] == "m 0.5"
    assert results["outputs"][1]["error"]["error_chain_str"] == "ModelError -> OSError"
    with pytest.raises(ConfigError, match="client"):
        await env.evaluate()


async def test_tokens_are_truncated_to_the_maximum_sequence_length() -> None:
    from rove.compat.verifiers.multiturn import parse_response_message, parse_response_tokens

    tokens = {"prompt_ids": [1, 2], "prompt_mask": [0, 0], "completion_ids": [3, 4], "completion_mask": [1, 1]}
    response_tokens = vf.ResponseTokens(**tokens, completion_logprobs=[-0.1, -0.2])
    response = vf.Response(message=vf.ResponseMessage(content="hi", tokens=response_tokens, note=1))
    assert await parse_response_message(response) == [vf.AssistantMessage(content="hi", note=1)]
    whole = await parse_response_tokens(response)
    assert whole is not None
    assert (whole["completion_ids"], whole["is_truncated"], whole["overlong_prompt"]) == ([3, 4], False, False)
    cut = await parse_response_tokens(response, 3)
    assert cut is not None
    assert (cut["completion_ids"], cut["completion_logprobs"], cut["is_truncated"]) == ([3], [-0.1], True)
    short = await parse_response_tokens(response, 1)
    assert short is not None
    assert (short["prompt_ids"], short["completion_ids"], short["overlong_prompt"]) == ([1], [], True)
    env = vf.SingleTurnEnv(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]))
    row = env.get_dataset()[0]
    assert (await env.run_rollout(row, SequenceClient("4"), "m", {}, 0, ["trajectory_id"]))["reward"] == 1.0


def test_a_client_config_can_have_several_endpoints() -> None:
    config = vf.ClientConfig(
        timeout=5.0,
        endpoint_configs=[
            vf.EndpointClientConfig(api_base_url="http://a/v1"),
            {"api_base_url": "http://b/v1", "timeout": 9.0},
        ],
    )
    assert [(endpoint.api_base_url, endpoint.timeout) for endpoint in config.resolved()] == [
        ("http://a/v1", 3600.0),
        ("http://b/v1", 9.0),
    ]


# Deprecated forms of older packages


async def test_deprecated_arguments_are_accepted_with_a_warning() -> None:
    with pytest.warns(FutureWarning, match="funcs="):
        rubric = vf.Rubric(four, four, weights=[1.0, 0.5])
    assert rubric.weights == [1.0, 0.5]
    with pytest.warns(FutureWarning, match="keywords"):
        env = vf.SingleTurnEnv(ROWS, vf.Parser(), rubric)
    assert env.rubric.rubrics[0] is rubric
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
    with pytest.warns(FutureWarning, match="tool_defs"):
        env = vf.SingleTurnEnv(dataset=ROWS, oai_tools=[tool])
    assert env.tool_defs is not None
    assert env.tool_defs[0].name == "add"
    with pytest.warns(FutureWarning, match="counts calls"):
        counts = vf.ToolRubric(tools=[four], funcs=[four])
    with pytest.warns(FutureWarning, match="read env.tool_defs"):
        tools = vf.ToolEnv(dataset=ROWS, tools=[four]).oai_tools
    assert tools[0]["function"]["name"] == "four"
    assert counts._get_reward_func_names() == ["four", "total_tool_calls", "four_calls"]
    with pytest.warns(FutureWarning, match=r"info\['tool_defs'\]"):
        state = await env.init_state(
            {"prompt": "x", "example_id": 0, "info": {"oai_tools": [tool]}}, SequenceClient(""), "m"
        )
    assert state["tool_defs"][0]["name"] == "add"


async def test_results_can_be_read_by_column_with_a_warning() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four]), client=SequenceClient("4"), model="m")
    with pytest.warns(FutureWarning, match="num_examples"):
        results = await env.evaluate(num_samples=2)
    with pytest.warns(FutureWarning, match=r"results\['outputs'\]"):
        rewards, metrics = [results["reward"], results.reward], results["metrics"]
    assert rewards == [[1.0, 0.0]] * 2
    assert metrics == {"four": [1.0, 0.0], "num_turns": [1.0, 1.0]}
    assert set(results) == {"outputs", "metadata"}
    with pytest.raises(KeyError, match="outputs"):
        results["nonsense"]
    with pytest.raises(AttributeError):
        results.nonsense  # noqa: B018


def test_unknown_keywords_become_attributes_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="max_seq_len"):
        env = vf.SingleTurnEnv(dataset=ROWS, seq_len=512)
    assert env.seq_len == 512


def test_trainer_settings_are_converted() -> None:
    from rove.compat.verifiers.trainer import GRPOConfig, rl_config

    config = rl_config(GRPOConfig(max_steps=7, num_generations=4, epsilon=0.1, scale_rewards=True), "env")
    assert (config.steps, config.rollouts_per_example, config.batch_size) == (7, 4, 8)
    assert (config.loss.kind, config.loss.clip_low, config.advantage_estimator, config.truncated) == (
        "dapo",
        0.1,
        "std",
        "mask",
    )
    config.check()
    with pytest.raises(ConfigError, match="loss_type"):
        rl_config(GRPOConfig(loss_type="other"), "env")


async def test_functions_are_converted_to_openai_tools_with_a_warning() -> None:
    from rove.compat.verifiers.tools import convert_func_to_oai_tool

    with pytest.warns(FutureWarning, match="convert_func_to_tool_def"):
        assert convert_func_to_oai_tool(four)["function"]["name"] == "four"


# With ROVE_COMPAT=fixed


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROVE_COMPAT", "fixed")


def test_the_compat_variable_is_unset_or_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROVE_COMPAT", "fix")
    with pytest.raises(ConfigError, match="expected 'fixed'"):
        vf.SingleTurnEnv(dataset=ROWS, anything=1)


async def sample_with_failing_reward() -> list[Any]:
    def fails(answer: str) -> float:
        return 1 / (int(answer) - 4)

    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[fails]))
    return await rove.generate(env, SequenceClient("4"))


async def test_a_failing_reward_function_scores_zero() -> None:
    assert [(record.reward, record.error) for record in await sample_with_failing_reward()] == [
        (0.0, None),
        (0.5, None),
    ]


@pytest.mark.usefixtures("fixed")
async def test_a_failing_reward_function_is_an_error_when_fixed() -> None:
    first, second = await sample_with_failing_reward()
    assert first.error is not None
    assert (first.error.phase, first.error.type, second.reward) == ("reward fails", "ZeroDivisionError", 0.5)


DRAFTS = [{"role": "assistant", "content": "<answer>1</answer> no: <answer>2</answer>"}]


def test_the_first_answer_is_parsed() -> None:
    assert vf.XMLParser(["answer"]).parse_answer(DRAFTS) == "1"
    assert vf.XMLParser(["answer"]).get_format_reward_func()([{"role": "assistant", "content": "no tag"}]) == 0.2


@pytest.mark.usefixtures("fixed")
def test_the_last_answer_is_parsed_when_fixed() -> None:
    assert vf.XMLParser(["answer"]).parse_answer(DRAFTS) == "2"
    assert vf.XMLParser(["answer"]).get_format_reward_func()([{"role": "assistant", "content": "no tag"}]) == 0.0


async def compute_advantages() -> list[float]:
    def small(number: int) -> float:
        return [1.0, 0.0, 0.0, 0.0][number]

    def large(number: int) -> float:
        return [0.0, 10.0, 0.0, 0.0][number]

    states = []
    for number in range(4):
        step = {"advantage": None, "reward": None}
        states.append(State(input={"prompt": [], "number": number}, completion=[], trajectory=[step]))
    await vf.RubricGroup([vf.Rubric(funcs=[small]), vf.Rubric(funcs=[large])]).score_group(states)
    return [state["trajectory"][0]["advantage"] for state in states]


async def test_advantages_use_the_reward_of_the_first_rubric() -> None:
    assert await compute_advantages() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.usefixtures("fixed")
async def test_advantages_use_the_total_reward_when_fixed() -> None:
    assert await compute_advantages() == [1 - 2.75, 10 - 2.75, -2.75, -2.75]


class Counts(vf.MultiTurnEnv):
    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["seen"] = 0

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["seen"] += 1
        return [{"role": "user", "content": f"seen {state['seen']}"}]


def seen(state: Any) -> float:
    return state["seen"]


async def sample_with_counter() -> Any:
    env = Counts(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[seen]), max_turns=2)
    [record] = await rove.generate(env, SequenceClient("4"))
    return record.reward, [message["content"] for message in record.completion]


async def test_env_response_is_not_called_for_the_last_turn() -> None:
    assert await sample_with_counter() == (1.0, ["4", "seen 1", "4"])


@pytest.mark.usefixtures("fixed")
async def test_env_response_is_called_for_the_last_turn_when_fixed() -> None:
    assert await sample_with_counter() == (2.0, ["4", "seen 1", "4", "seen 2"])


@pytest.mark.usefixtures("fixed")
def test_typos_and_duplicate_functions_are_refused_when_fixed() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_seq_len'"):
        vf.SingleTurnEnv(dataset=ROWS, seq_len=512)
    rubric = vf.Rubric(funcs=[four])
    with pytest.raises(ValueError, match="already has a function"):
        rubric.add_metric(four)


async def reward_of_shadowing_metric() -> Any:
    def reward(completion: Any) -> float:
        return 5.0

    env = vf.SingleTurnEnv(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four, reward], weights=[1.0, 0.0]))
    [output] = (await env.evaluate(SequenceClient("4"), "m"))["outputs"]
    return output["reward"]


async def test_a_metric_named_reward_replaces_the_reward() -> None:
    assert await reward_of_shadowing_metric() == 5.0


@pytest.mark.usefixtures("fixed")
async def test_a_metric_named_reward_does_not_replace_the_reward_when_fixed() -> None:
    assert await reward_of_shadowing_metric() == 1.0


GPQA = {"Question": "Which?", "Correct Answer": "right", **{f"Incorrect Answer {i}": f"wrong {i}" for i in (1, 2, 3)}}


def test_example_datasets_have_the_same_text_as_in_v0() -> None:
    from rove.compat.verifiers import data

    row = data._gpqa(GPQA)
    assert row["question"].startswith("Question: Which?\n\nA: ")
    assert f"{row['answer']}: right" in row["question"]
    assert data._mmlu({"question": "Q", "choices": ["x", "y"], "answer": 1}) == {
        "question": "Question: Q\n\nA: x\nB: y",
        "answer": "B",
    }
    assert data._gsm8k({"question": "Q", "answer": "so\n#### 72"})["answer"] == "72"
    assert data._math({"problem": "P", "solution": "is \\boxed{\\frac{1}{2}}"})["answer"] == "\\frac{1}{2}"
    assert data._aime2024({"problem": "P", "answer": "033"})["answer"] == "33"
    assert data._aime2025({"question": "P", "answer": "$70$"})["answer"] == "70"
    book = {"question_stem": "Q", "choices": {"label": ["A", "B"], "text": ["x", "y"]}, "answerKey": "A"}
    assert data._openbookqa(book) == {"question": "Question: Q\n\nChoices:\nA. x\nB. y", "answer": "A"}
    with pytest.raises(ValueError, match="gsm8k"):
        vf.load_example_dataset("nothing")


@pytest.mark.usefixtures("fixed")
def test_answer_options_are_not_shuffled_when_fixed() -> None:
    from rove.compat.verifiers import data

    assert len({data._gpqa(GPQA)["question"] for _ in range(5)}) == 1


async def score_unreadable_answer() -> Any:
    env = vf.SingleTurnEnv(dataset=[{"question": "?", "answer": ""}], rubric=vf.MathRubric())
    bridged = env.__rove_environment__()
    async with bridged.used_in_run():
        [record] = await rove.generate(bridged, SequenceClient("\\boxed{4}"))
    return record.reward, record.error and record.error.type


@pytest.mark.slow
async def test_an_unreadable_reference_answer_scores_zero() -> None:
    assert await score_unreadable_answer() == (0.0, None)


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
async def test_an_unreadable_reference_answer_is_an_error_when_fixed() -> None:
    assert await score_unreadable_answer() == (None, "Error")


async def metrics_of_group_member() -> Any:
    first = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[four]))
    group = vf.EnvGroup([first, vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[seen]))], ["a", "b"])
    row = group.get_dataset()[0]
    state = await group.rollout(row, SequenceClient("4"), "m", {})
    await group.rubric.score_group([state])
    return state["metrics"]


async def test_metrics_of_other_group_members_are_zero() -> None:
    assert await metrics_of_group_member() == {"four": 1.0, "num_turns": 1, "seen": 0.0}


@pytest.mark.usefixtures("fixed")
async def test_metrics_of_other_group_members_are_absent_when_fixed() -> None:
    assert await metrics_of_group_member() == {"four": 1.0, "num_turns": 1}


# Tools, sandboxes, records


@pytest.mark.broad
async def test_the_python_tool_is_persistent(contained: None) -> None:
    class Env(vf.PythonEnv):
        async def post_rollout(self, state: Any) -> None:
            result = await self.sandbox_client.execute_command(state["sandbox_id"], "echo there")
            state["after"] = result.stdout.strip()

    def after(state: Any) -> float:
        return float(state["after"] == "there")

    env = Env(dataset=ROWS[:1], rubric=vf.Rubric(funcs=[after]), max_turns=3, pip_install_packages="")
    client = SequenceClient(
        [call("python", {"code": "x = 5\nprint(1)\nx * 2"})], [call("python", {"code": "x + 1/0"})], "done"
    )
    bridged = env.__rove_environment__()
    async with bridged.used_in_run():
        [record] = await rove.generate(bridged, client)
    assert record.reward == 1.0
    assert record.completion[1]["content"] == "1\nOut[1]: 10"
    assert "ZeroDivisionError" in record.completion[3]["content"]
    assert record.tools is not None
    assert record.tools[0]["function"]["parameters"]["required"] == ["code"]


def test_a_sandbox_has_the_given_limits(contained: None) -> None:
    env = vf.SandboxEnv(dataset=ROWS, memory_gb=1, disk_size_gb=0.5)
    assert (env.backend.limits.memory_bytes, env.backend.limits.disk_bytes) == (1 << 30, 1 << 29)


@pytest.mark.slow
async def test_mcp_servers_are_restarted_for_the_next_run() -> None:
    servers = [{"name": "test", "command": sys.executable, "args": [str(SERVER), "stdio"]}]
    env = vf.MCPEnv(mcp_servers=servers, dataset=ROWS[:1], rubric=vf.Rubric(funcs=[four]), max_turns=2)
    assert "add" in env.tool_map
    for _ in range(2):
        [record] = await rove.generate(env, SequenceClient([call("add", {"a": 2, "b": 3})], "4"))
        await env._teardown()
        assert record.completion[1]["content"] == "5"
        assert record.reward == 1.0


@pytest.mark.slow
async def test_a_forked_worker_starts_its_own_mcp_servers(tmp_path: Path) -> None:
    (tmp_path / "adding").mkdir()
    (tmp_path / "adding" / "adding.py").write_text(ADDING_PACKAGE.format(server=str(SERVER)))
    env = IsolatedEnv("adding", env_dir=tmp_path, hang_seconds=60)
    try:
        records = await rove.generate(env, SequenceClient([call("add", {"a": 2, "b": 3})], "5"), max_concurrent=1)
        assert [record.error for record in records] == [None, None]
        assert [record.completion[1]["content"] for record in records] == ["5", "5"]
    finally:
        await env.tear_down()


def test_messages_have_attributes_items_and_model_methods() -> None:
    message = vf.AssistantMessage(content="hi", note=1)
    assert (message.role, message["role"], message.get("content"), message.get("nothing", 3)) == (
        "assistant",
        "assistant",
        "hi",
        3,
    )
    assert "tool_calls" in message
    assert message.tool_calls is None
    assert (message.model_extra, message.model_copy(update={"content": "x"}).content) == ({"note": 1}, "x")
    message.content = "ho"
    assert message == {**message.model_dump()}
    assert json.loads(message.model_dump_json(exclude_none=True)) == {"role": "assistant", "content": "ho", "note": 1}
    with pytest.raises(AttributeError, match="no field 'nothing'"):
        message.nothing  # noqa: B018
    with pytest.raises(ValueError, match="content"):
        vf.UserMessage()
    with pytest.raises(ValueError, match="tool_call_id"):
        vf.ToolMessage(content="x")


def test_states_read_and_write_their_input_row() -> None:
    state = State(input={"prompt": "p", "answer": "4", "info": {}})
    state["answer"] = "5"
    assert state["input"]["answer"] == "5"
    assert state.get("prompt") == "p"
    assert state.get("nothing", 1) == 1
    state["trajectory"] = [{"reward": None, "response": "r"}]
    assert (state["turn"], state["responses"]) == (1, ["r"])
    assert "turn" not in state
    state.add_step_reward(0.5)
    state.add_step_reward(0.25)
    assert state.total_step_reward() == 0.75
    state.stop("enough")
    assert (state["is_completed"], state["stop_condition"]) == (True, "enough")


# The shim: a distribution that replaces the library

SHIM = Path(__file__).resolve().parents[2] / "shim"


@pytest.mark.usefixtures("clean_modules")
def test_the_shim_imports_rove_compat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHIM))
    assert importlib.import_module("verifiers").XMLParser is vf.XMLParser
    assert importlib.import_module("verifiers.envs.environment").Environment is vf.Environment
    rove.compat.install()  # the shim does not count as another library


def test_the_shim_pins_its_own_version() -> None:
    version = tomllib.loads((SHIM / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert (SHIM / "constraint.txt").read_text(encoding="utf-8").strip() == f"verifiers=={version}"
    assert version.startswith("0.3.1+rove")
