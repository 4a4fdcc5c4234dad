"""Test the API of `verifiers` 0.1.0 to 0.1.10 in rove.compat, one small case each. test_releases_012 has whole packages."""

from __future__ import annotations

import asyncio
import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import in_process_rove

import rove
import rove.compat
import rove.compat.verifiers as vf
from rove.compat.verifiers import data, decorators, errors, legacy_environments, messages
from rove.compat.verifiers import tools as tool_module
from rove.compat.verifiers.release import NEWEST, RELEASES, newest_allowed, project_requirements
from rove.compat.verifiers.types import Response, State
from rove.envs.loading import load_environment

ROWS = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def alias() -> Iterator[None]:
    rove.compat.install()
    yield
    rove.compat.uninstall()


def scripted_client(text: str) -> rove.ScriptedClient:
    return rove.ScriptedClient(lambda messages, state, rng: text)


def outputs(env: Any, client: Any, **options: Any) -> list[Any]:
    return env.evaluate_sync(client, "m", **options)["outputs"]


def load_package(folder: Path, name: str, source: str, requirement: str = "") -> Any:
    """Write a package with an optional requirement on `verifiers` into the folder; return its environment."""
    (folder / name).mkdir()
    (folder / name / f"{name}.py").write_text(source)
    if requirement:
        project = f'[project]\nname = "{name}"\nversion = "1"\ndependencies = ["{requirement}"]\n'
        (folder / name / "pyproject.toml").write_text(project)
    return load_environment(name, folder).inner  # type: ignore[attr-defined]


# Judges


class Judge:
    """A judge client, synchronous or asynchronous."""

    def __init__(self, is_async: bool):
        self.is_async = is_async
        self.prompts: list[str] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, model: str, messages: list[Any]) -> Any:
        self.prompts.append(messages[0]["content"])
        message = SimpleNamespace(content="Yes." if "answer:\n```\n4\n" in messages[0]["content"] else "no")
        reply = SimpleNamespace(choices=[SimpleNamespace(message=message)])

        async def judge_async() -> Any:
            await asyncio.sleep(0)
            return reply

        return judge_async() if self.is_async else reply


@pytest.mark.parametrize("is_async", [False, True])
def test_a_judge_can_be_called_with_and_without_await(is_async: bool) -> None:
    judge = Judge(is_async)
    rubric = vf.JudgeRubric(judge_client=judge)

    def sync(prompt: Any, completion: Any, answer: str, state: State) -> float:
        return float("yes" in rubric.judge(prompt, completion, answer, state).lower())

    async def judge_async(judge: Any, prompt: Any, completion: Any, answer: str, state: State) -> float:
        replies = await asyncio.gather(judge(prompt, completion, answer, state), judge(prompt, completion, answer))
        return float(all("yes" in reply.lower() for reply in replies))

    def passed_on(judge: Any, prompt: Any, completion: Any, answer: str, state: State) -> Any:
        async def scored() -> float:
            return float("yes" in (await judge(prompt, completion, answer, state)).lower())

        return scored()

    for func in (sync, judge_async, passed_on):
        rubric.add_reward_func(func)
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)
    assert [output["metrics"] for output in outputs(env, scripted_client("4"))] == [
        {"sync": 1.0, "judge_async": 1.0, "passed_on": 1.0, "num_turns": 1.0},
        {"sync": 0.0, "judge_async": 0.0, "passed_on": 0.0, "num_turns": 1.0},
    ]
    assert len(judge.prompts) == 4  # two calls (with and without the state) for each of two rows


def test_errors_of_a_sync_judge_are_reported() -> None:
    def fails(**kwargs: Any) -> Any:
        raise OSError("no line")

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=fails)))
    rubric = vf.JudgeRubric(judge_client=client)

    def judged(prompt: Any, completion: Any, answer: str, state: State) -> float:
        return float(rubric.judge(prompt, completion, answer, state) == "yes")

    state = State(prompt="?", completion="4", answer="4", trajectory=[])
    assert asyncio.run(rubric._call_individual_reward_func(judged, state)) == 0.0
    assert state["reward_errors"] == {"judged": "RuntimeError: judge model 'gpt-4.1-nano' could not be called: no line"}


@pytest.mark.broad
def test_the_default_judge_client_depends_on_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    source = "import rove.compat.verifiers as vf\ndef load_environment():\n"
    source += "    return vf.SingleTurnEnv(dataset=[{'question': '?', 'answer': ''}], rubric=vf.JudgeRubric())\n"
    kinds = {
        name: type(load_package(tmp_path, name, source, requirement).rubric.rubrics[0].judge_client).__name__
        for name, requirement in {"judge_old": "verifiers<0.1.3", "judge_new": "verifiers>=0.1.2"}.items()
    }
    assert kinds == {"judge_old": "OpenAI", "judge_new": "AsyncOpenAI"}


# Messages and calls


def test_a_tool_call_has_flat_and_nested_fields() -> None:
    call = vf.ToolCall(id="1", name="add", arguments='{"a": 2}')
    assert call.function.name == call["function"]["name"] == call.get("function")["name"] == call.name == "add"
    assert json.loads(call.function.arguments) == {"a": 2} and call.type == call.get("type") == "function"
    assert call.model_dump() == {"id": "1", "name": "add", "arguments": '{"a": 2}'} == dict(call)
    assert "function" not in call and call.get("other", 5) == 5
    with pytest.raises(AttributeError, match="no field 'other'"):
        _ = call.other


def test_legacy_messages_have_no_empty_fields() -> None:
    call = {"id": "1", "name": "add", "arguments": "{}"}
    normalized = messages.normalize_messages([{"role": "assistant"}, {"role": "assistant", "tool_calls": [call]}])
    plain, calling = messages.as_legacy_messages(normalized)
    assert plain == {"role": "assistant", "content": ""}
    assert "tool_calls" not in plain and "tool_calls" in calling and "tool_calls" in normalized[0]
    nested = {"id": "1", "function": {"arguments": "{}", "name": "add"}, "type": "function"}
    assert calling["tool_calls"][0].model_dump() == nested
    assert messages.as_legacy_messages("text") == "text"


def test_tool_calls_are_converted_to_json_strings() -> None:
    call = vf.ToolCall(id="1", name="add", arguments="{}")
    message = vf.AssistantMessage(content=None, tool_calls=[call], reasoning_content="hm")
    plain = {"role": "user", "content": "?"}
    sanitized = messages.sanitize_tool_calls([plain, message, {"role": "assistant", "tool_calls": ["{}", dict(call)]}])
    dumped = '{"id": "1", "name": "add", "arguments": "{}"}'
    assert sanitized[0] is plain
    assert sanitized[1] == {"role": "assistant", "content": "", "tool_calls": [dumped], "reasoning_content": "hm"}
    assert sanitized[2] == {"role": "assistant", "content": "", "tool_calls": ["{}", dumped]}
    assert messages.sanitize_tool_calls("text") == "text"


def test_responses_have_choices() -> None:
    response = Response(message=vf.types.ResponseMessage(content="four", finish_reason="stop"))
    assert response.choices[0].message.content == response.choices[0].text == "four"
    assert response.choices[0].finish_reason == "stop"


# Rubrics


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def test_the_function_lists_of_a_rubric_can_be_set(caplog: pytest.LogCaptureFixture) -> None:
    class AssignedLists(vf.Rubric):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.reward_funcs = [right, self.one]
            self.reward_weights = [1.0]

        def one(self) -> float:
            return 1.0

    rubric = AssignedLists(parallelize_scoring=False)
    assert rubric.get_reward_func_names() == ["right", "one"] and not rubric.parallelize_scoring  # type: ignore[attr-defined]
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)
    assert [output["reward"] for output in outputs(env, scripted_client("4"))] == [1.0, 0.0]
    assert "2 reward functions and 1 weights" in caplog.text
    rubric.reward_weights.append(0.5)
    assert [output["reward"] for output in outputs(env, scripted_client("4"))] == [1.5, 0.5]


def test_overridden_methods_for_function_lists_are_used() -> None:
    class OverriddenMethods(vf.Rubric):
        def get_reward_funcs(self) -> list[Any]:
            return [right]

        def get_reward_weights(self) -> list[float]:
            return [3.0]

        def get_reward_func_names(self) -> list[str]:
            return ["other"]

    first, second = outputs(vf.SingleTurnEnv(dataset=ROWS, rubric=OverriddenMethods()), scripted_client("4"))
    assert (first["reward"], second["reward"]) == (3.0, 0.0)


def test_unknown_keywords_of_a_rubric_are_refused_when_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROVE_COMPAT", "fixed")
    with pytest.raises(TypeError, match="Rubric has no argument parallelize_scoring"):
        vf.Rubric(parallelize_scoring=True)
    with pytest.raises(TypeError, match="Parser has no argument tag"):
        vf.Parser(tag="a")
    monkeypatch.delenv("ROVE_COMPAT")
    assert vf.Parser(tag="a").tag == "a"  # type: ignore[attr-defined]


def test_groups_can_be_scored_with_legacy_methods() -> None:
    class RankingRubric(vf.Rubric):
        async def score_rollouts(self, prompts: Any, completions: Any, *extra: Any, **kwargs: Any) -> Any:
            scores = await super().score_rollouts(prompts, completions, *extra, **kwargs)
            longest = max(len(completion[-1]["content"]) for completion in completions)
            ranks = [float(len(completion[-1]["content"]) == longest) for completion in completions]
            return vf.RolloutScores(reward=ranks, metrics={**scores.metrics, "rank": ranks})

    answers = iter(["a", "bbb", "cc", "dd"])
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=RankingRubric(funcs=[right]))
    client = rove.ScriptedClient(lambda messages, state, rng: next(answers))
    rows = outputs(env, client, rollouts_per_example=2, max_concurrent=1)
    assert [output["reward"] for output in rows] == [0.0, 1.0, 1.0, 1.0]
    assert rows[0]["metrics"] == {"right": 0.0, "rank": 0.0, "num_turns": 1.0}


def test_the_score_of_a_rollout_has_attributes_and_items() -> None:
    rubric = vf.Rubric(funcs=[right])
    score = asyncio.run(rubric.score_rollout("?", [{"role": "assistant", "content": "4"}], "4", State()))
    assert score.reward == 1.0 and score.metrics == {"right": 1.0} and score["reward"] == 1.0
    arguments = {"prompt": "?", "completion": [{"role": "assistant", "content": "4"}], "answer": "4", "state": {}}
    assert asyncio.run(rubric.score_rollout(**arguments)).reward == 1.0
    group = vf.RubricGroup([rubric, rubric])
    assert asyncio.run(group.score_rollout("?", [{"role": "assistant", "content": "4"}], answer="4")).reward == 2.0
    assert group.logger.name == "verifiers.RubricGroup"


@pytest.mark.parametrize("make", [lambda rubric: rubric, lambda rubric: vf.RubricGroup([rubric])])
def test_a_rollout_can_be_scored_with_legacy_keyword_arguments(make: Any) -> None:
    rubric = make(vf.Rubric(funcs=[right], weights=[2.0]))
    completion = [{"role": "assistant", "content": "4"}]
    values: dict[str, Any] = {
        "prompt": "?",
        "completion": completion,
        "answer": "4",
        "state": {},
        "task": "",
        "info": {},
    }
    names = list(values)
    for positional in range(len(values)):  # 0.1.2 accepts each argument by position or by name
        positional_names, keyword_names = names[:positional], names[positional:]
        arguments, named = [values[name] for name in positional_names], {name: values[name] for name in keyword_names}
        assert asyncio.run(rubric.score_rollout(*arguments, **named)).reward == 2.0
    state = State({"prompt": "?", "completion": completion, "answer": "4"})
    assert asyncio.run(rubric.score_rollout(state=state)) is None and state["reward"] == 2.0
    with pytest.raises(TypeError, match="prompt"):
        asyncio.run(rubric.score_rollout())


def double(number: int) -> int:
    """Double it."""
    return 2 * number


def test_tool_calls_are_counted_once() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "double", "arguments": '{"number": 2}'}}

    def call_tool(messages: Any, state: Any, rng: Any) -> Any:
        return "done" if messages[-1]["role"] == "tool" else rove.AssistantMessage(None, tool_calls=[call])

    for rubric in (vf.ToolRubric(tools=[double]), vf.RubricGroup([vf.Rubric(), vf.ToolRubric()]), vf.Rubric()):
        env = vf.ToolEnv(dataset=ROWS[:1], tools=[double], rubric=rubric)
        [row] = outputs(env, rove.ScriptedClient(call_tool))
        assert row["metrics"] == {"num_turns": 2.0, "total_tool_calls": 1.0, "double_calls": 1.0}


def test_a_group_has_the_reward_names_of_its_members() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
    assert vf.EnvGroup([env]).rubric.all_reward_names == ["num_turns", "right"]  # type: ignore[attr-defined]


# Environments

TURNS = """
import rove.compat.verifiers as vf

class Count(vf.MultiTurnEnv):
    {is_async}def is_completed(self, messages, state, **kwargs):
        return state["turn"] == {most}

    async def env_response(self, messages, state, **kwargs):
        return [{{"role": "user", "content": "again"}}], state

def load_environment():
    return Count(dataset=[{{"question": "?", "answer": ""}}], rubric=vf.Rubric())
"""


@pytest.mark.parametrize(
    ("is_async", "requirement", "turns"),
    [("", "", 10), ("async ", "", 12), ("async ", "verifiers<0.1.3", 10), ("", "verifiers==0.1.2", 10)],
)
def test_the_default_limit_of_turns_depends_on_the_release(
    is_async: str, requirement: str, turns: int, tmp_path: Path
) -> None:
    source = TURNS.format(is_async=is_async, most=12)
    env = load_package(tmp_path, f"count_{len(is_async)}_{len(requirement)}", source, requirement)
    [row] = outputs(env, scripted_client("so"), state_columns=["trajectory"])
    assert len(row["trajectory"]) == turns
    assert row["stop_condition"] == ("max_turns_reached" if turns == 10 else "is_completed")


@pytest.mark.usefixtures("alias")
def test_old_import_paths_of_tools_and_types_work() -> None:
    tools = importlib.import_module("verifiers.utils.tools")
    assert tools.python is legacy_environments.python
    assert importlib.import_module("verifiers.envs.textarena_env").TextArenaEnv is vf.TextArenaEnv
    types = importlib.import_module("verifiers.types")
    assert types.ChatMessages == list[Any] and types.ChatCompletionMessageToolCall is vf.ToolCall
    assert "ChatMessages" not in vf.__all__


def test_the_calculator_and_python_tools_return_results_or_errors() -> None:
    assert legacy_environments.calculator("2 ** 5 / 4") == "8.0"
    assert legacy_environments.calculator("import os") == "Error: Invalid characters in expression"
    assert legacy_environments.calculator("(1").startswith("Error: ")
    assert legacy_environments.python("  x = 5\n  x + 1") == "6"
    assert "ZeroDivisionError" in legacy_environments.python("1 / 0")
    assert legacy_environments.python("None") == ""


def test_the_python_tool_prints_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")  # the encoding of pipes on Windows
    assert legacy_environments.python("print('2 → 3')") == "2 → 3"


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        ("from verifiers import HarborEnv", "rove.AgentEnv"),
        ("from verifiers.envs.experimental import HarborEnv", "rove.AgentEnv"),
        ("from verifiers.envs.experimental.harbor_env import HarborEnv", "rove.AgentEnv"),
        ("from verifiers.envs.experimental.cli_agent_env import CliAgentEnv", "rove.AgentEnv"),
        ("import verifiers.envs.integrations.browser_env", "vf.MCPEnv"),
        ("from verifiers import BrowserEnv", "vf.MCPEnv"),
        ("from verifiers.inference.vllm_client import VLLMClient", "rove serve"),
    ],
)
def test_unsupported_names_report_a_replacement(statement: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead):
        exec(statement)


# Helpers


def test_chains_of_errors_are_returned() -> None:
    tool, cause = vf.ToolError("t"), ValueError("v")
    tool.__cause__ = vf.InfraError("i")
    tool.__cause__.__cause__ = cause
    assert errors.get_error_chain(tool) == [tool, tool.__cause__, cause]
    assert errors.get_vf_error_chain(tool) == [tool, tool.__cause__]
    assert errors.get_vf_error_chain(cause) == errors.get_error_chain(None) == []


def test_functions_are_retried_after_infrastructure_errors() -> None:
    attempts: list[int] = []

    async def fails(until: int) -> Any:
        attempts.append(until)
        if len(attempts) == 1:
            raise vf.InfraError("first")
        return [State(error=vf.InfraError("second") if len(attempts) < until else None)]

    assert decorators.maybe_retry(fails) is fails
    retried = decorators.maybe_retry(fails, max_retries=3, initial=0.0)
    assert asyncio.run(retried(3))[0]["error"] is None and len(attempts) == 3
    assert (
        isinstance(asyncio.run(decorators.maybe_retry(fails, 2, 0.0)(99))[0]["error"], vf.InfraError)
        and len(attempts) == 6
    )
    with pytest.raises(KeyError):
        asyncio.run(decorators.maybe_retry(lambda: {}["x"], 2, 0.0)())


def test_a_state_reports_keys_that_json_cannot_represent() -> None:
    state = State(fine=[1, {"a": None}])
    state.assert_serializable()
    state["client"] = object()
    with pytest.raises(TypeError, match="'client'"):
        state.assert_serializable()


@pytest.mark.broad
def test_results_become_a_dataset_with_usage() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
    results = env.evaluate_sync(scripted_client("4"), "m", state_columns=["usage_tracker"])
    rows = list(env.make_dataset(results))
    assert [row["reward"] for row in rows] == [1.0, 0.0]
    assert all(
        row["usage_tracker"] is None or set(row["usage_tracker"]) == {"input_tokens", "output_tokens"} for row in rows
    )


def test_pydantic_fields_describe_tool_arguments() -> None:
    pydantic = pytest.importorskip("pydantic")
    from typing import Annotated

    def look(
        number: Annotated[int, pydantic.Field(description="Which one.", ge=1)],
        color: str = pydantic.Field("red", description="Its color."),
        size: Annotated[str, "How big."] = "m",
    ) -> str:
        return f"{number}{color}{size}"

    look.__annotations__ = {"number": Annotated[int, pydantic.Field(description="Which one.", ge=1)], "color": str}
    look.__annotations__["size"] = Annotated[str, "How big."]
    properties = tool_module.convert_func_to_tool_def(look).parameters["properties"]
    assert properties["number"] == {"description": "Which one.", "minimum": 1, "type": "integer", "title": "Number"}
    assert properties["color"] == {"description": "Its color.", "default": "red", "type": "string", "title": "Color"}
    assert properties["size"] == {"description": "How big.", "default": "m", "type": "string", "title": "Size"}


# Rewards that raise

BROKEN = """
import rove.compat.verifiers as vf

def right(completion, answer):
    return 1.0 if completion[-1].nothing else 0.0

def sometimes(completion, answer):
    return 1.0 / (4 - int(answer))

def metric(completion):
    raise ValueError("not counted")

def load_environment(funcs="right sometimes"):
    rows = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]
    rubric = vf.Rubric(funcs=[globals()[name] for name in funcs.split()])
    rubric.add_metric(metric)
    return vf.SingleTurnEnv(dataset=rows, rubric=rubric)
"""


def write_broken_package(folder: Path) -> None:
    (folder / "broken.py").write_text(BROKEN)


def test_a_reward_that_always_raises_is_in_the_summary(tmp_path: Path) -> None:
    write_broken_package(tmp_path)
    env = rove.load_environment("broken", tmp_path)
    summary = asyncio.run(rove.evaluate(env, scripted_client("4"), run=tmp_path / "run"))
    assert list(summary.broken_rewards) == ["right"]
    assert summary.broken_rewards["right"].startswith("AttributeError: AssistantMessage has no field 'nothing'")
    assert summary.reward.mean == -0.25 and summary.failed == 0
    # computed from the saved records
    resumed = asyncio.run(rove.evaluate(env, scripted_client("4"), run=tmp_path / "run"))
    assert resumed.broken_rewards == summary.broken_rewards
    env = rove.load_environment("broken", tmp_path, funcs="sometimes")
    assert asyncio.run(rove.evaluate(env, scripted_client("4"))).broken_rewards == {}


def test_v0_evaluation_warns_of_a_broken_reward(tmp_path: Path) -> None:
    write_broken_package(tmp_path)
    env = load_environment("broken", tmp_path).inner  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="its reward is broken: right raised in every rollout"):
        rows = outputs(env, scripted_client("4"))
    assert [list(row["reward_errors"]) for row in rows] == [["right", "sometimes", "metric"], ["right", "metric"]]


@pytest.mark.broad
def test_rove_eval_reports_a_broken_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_broken_package(tmp_path)
    command = in_process_rove(tmp_path, monkeypatch, capsys)
    monkeypatch.setattr(
        "rove.stages.evaluation.make_client",
        lambda *args, **options: rove.ScriptedClient(lambda messages, state, rng: "4"),
    )
    arguments = ["eval", "broken", "--env-dir", ".", "-m", "any", "-n", "2", "-r", "1", "--no-save"]
    result = command(*arguments)
    assert result.status == 1, result
    assert "its reward is broken: right raised in every rollout, which counts as 0.0: AttributeError: " in result.out
    assert command(*arguments, "-a", '{"funcs": "sometimes"}').status == 0
    result = command(*arguments, "--json")
    assert result.status == 1 and list(json.loads(result.out)["broken_rewards"]) == ["right"]
    suite = "".join(f'[[eval]]\nenv_args = {{funcs = "{funcs}"}}\n' for funcs in ("sometimes", "right"))
    (tmp_path / "suite.toml").write_text(
        f'env = "broken"\nmodel = "any"\nenv_dir = "."\nsave = false\nbase_url = "http://127.0.0.1:9/v1"\n{suite}'
    )
    result = command("eval", "@", "suite.toml")
    assert result.status == 1 and result.out.count("its reward is broken: right") == 1


# Requirements

MATH = """
import verifiers as vf
from verifiers.utils.data_utils import extract_boxed_answer

def load_environment():
    rubric = vf.MathRubric()
    rubric.first = extract_boxed_answer
    return vf.SingleTurnEnv(dataset=[{"question": "?", "answer": "1"}], rubric=rubric)
"""


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(
    ("requirement", "names", "weights", "parser", "boxed"),
    [
        ("verifiers==0.1.2", ["correct_answer_reward_func", "format_reward_func"], [1.0, 0.2], "XMLParser", "1"),
        ("verifiers==0.1.2.post1", ["correct_answer_reward_func"], [1.0], "ThinkParser", "1"),
        ("verifiers~=0.1.2,<0.1.7", ["correct_answer_reward_func"], [1.0], "ThinkParser", "2"),
        ("verifiers<0.1.9", ["correct_answer_reward_func"], [1.0], "MaybeThinkParser", "2"),
        ("verifiers==0.1.10", ["correct_answer"], [1.0], "MaybeThinkParser", "2"),
        ("verifiers>=0.1.2", ["correct_answer"], [1.0], "MaybeThinkParser", "2"),
        ("", ["correct_answer"], [1.0], "MaybeThinkParser", "2"),
    ],
)
def test_the_math_rubric_depends_on_the_release(
    requirement: str, names: list[str], weights: list[float], parser: str, boxed: str, tmp_path: Path
) -> None:
    env = load_package(tmp_path, f"math_{len(requirement)}", MATH, requirement)
    rubric = env.rubric.rubrics[0]
    assert rubric.get_reward_func_names() == names and rubric.weights == weights
    assert type(rubric.parser).__name__ == parser
    assert rubric.first("\\boxed{1} \\boxed{2}") == boxed
    asyncio.run(rubric.teardown())


def test_the_first_boxed_answer_is_extracted() -> None:
    assert data.extract_first_boxed_answer("so \\boxed{a{b}c} \\boxed{d}") == "a{b}c"
    assert data.extract_first_boxed_answer("no box") == "no box"
    assert data.extract_first_boxed_answer("\\boxed{open") == "\\boxed{open"


def test_the_newest_release_allowed_by_the_requirements_is_found(tmp_path: Path) -> None:
    assert str(newest_allowed(["verifiers==0.1.2"])) == "0.1.2"
    assert str(newest_allowed(["numpy<2", "Verifiers>=0.1.2,<0.1.3"])) == "0.1.2.post1"
    assert newest_allowed(["verifiers>=9", "?"]) == newest_allowed([]) == NEWEST == RELEASES[-1]
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["verifiers==0.1.2", 5]\n')
    assert project_requirements(tmp_path / "one" / "__init__.py") == ["verifiers==0.1.2"]
    (tmp_path / "pyproject.toml").write_text("[project")
    assert project_requirements(tmp_path / "one.py") == []


def test_old_names_cause_warnings() -> None:
    rubric = vf.Rubric()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rubric.reward_funcs = [right]
        rubric.reward_weights = [1.0]
    assert [str(warning.message).partition(" is ")[0] for warning in caught] == [
        "rubric.reward_funcs",
        "rubric.reward_weights",
    ]
