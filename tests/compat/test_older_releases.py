"""Test what rove.compat does for packages of older releases: their generation, messages, results and helpers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import rove
import rove.compat.verifiers as vf
from rove.compat.source_reader import read, takes_messages
from rove.compat.verifiers.decorators import maybe_retry
from rove.compat.verifiers.legacy_loop import parameter_names
from rove.compat.verifiers.messages import as_legacy_messages, normalize_messages
from rove.compat.verifiers.multiturn import parse_is_truncated, parse_response_messages
from rove.compat.verifiers.release import RELEASES, allowed_releases, recognized_releases, release_within
from rove.compat.verifiers.types import Response, ResponseMessage, RolloutTiming, TimeSpan, Tool
from rove.envs.loading import load_environment

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROWS = [{"question": f"{i}+{i}?", "answer": str(2 * i)} for i in range(1, 6)]


def answer_four(messages: Any, state: Any, rng: Any) -> str:
    return "4"


# The generation of a package

SYNC = "import verifiers as vf\nclass E(vf.MultiTurnEnv):\n    def is_completed(self, messages, state): return True\n"
ASYNC = SYNC.replace("def", "async def")
OWN_TURN = "import verifiers as vf\nasync def f(state):\n    state['turn'] = 1\n    return state['turn']\n"


def load_package(folder: Path, name: str, source: str, requirement: str) -> Any:
    """Write a package with a requirement on `verifiers` into the folder; return its environment."""
    (folder / name).mkdir()
    (folder / name / f"{name}.py").write_text(source)
    project = f'[project]\nname = "{name}"\nversion = "1"\ndependencies = ["{requirement}"]\n'
    (folder / name / "pyproject.toml").write_text(project)
    return load_environment(name, folder).inner  # type: ignore[attr-defined]


def release(source: str, requirement: str = "") -> str:
    span = recognized_releases(read({"m.py": source}).features)
    allowed = allowed_releases([f"verifiers{requirement}"])
    return str(allowed[-1] if span is None or allowed[-1] < span.end else release_within(span, allowed))


@pytest.mark.parametrize(
    ("source", "requirement", "expected"),
    [
        (SYNC, ">=0.1.2", "0.1.2"),  # the release that the author had
        (SYNC, "", "0.1.2.post1"),
        (SYNC, ">=0.1.3", "0.1.2.post1"),
        (SYNC, "==0.1.1", "0.1.1"),
        (ASYNC, ">=0.1.5", "0.1.5"),
        (ASYNC, ">=0.1.2", "0.1.7.post0"),
        (ASYNC, "==0.1.9", "0.1.7.post0"),
        ("import verifiers as vf\nvf.ToolEnv(oai_tools=[])", ">=0.1.9", "0.1.9"),
        ("import verifiers as vf\ndef f(state):\n    return state['turn']\n", "", "0.1.7.post0"),
        (OWN_TURN, "", str(RELEASES[-1])),
        (SYNC.replace("messages, state", "state"), "", str(RELEASES[-1])),
        ("import verifiers as vf\nvf.SingleTurnEnv(dataset=[])", ">=0.1.2", str(RELEASES[-1])),
    ],
)
def test_the_code_shows_the_release_if_the_requirement_is_open(source: str, requirement: str, expected: str) -> None:
    assert release(source, requirement) == expected


MATH = """
import rove.compat.verifiers as vf

class Ask(vf.MultiTurnEnv):
    def is_completed(self, messages, state, **kwargs):
        return state["turn"] == 1

    def env_response(self, messages, state, **kwargs):
        return [], state

def load_environment():
    return Ask(dataset=[{"question": "2+2?", "answer": "4"}], rubric=vf.MathRubric())
"""


@pytest.mark.slow
def test_an_open_requirement_gets_the_math_rubric_of_the_recognized_release(tmp_path: Path) -> None:
    folder = tmp_path / "ask_math"
    folder.mkdir()
    (folder / "ask_math.py").write_text(MATH)
    project = '[project]\nname = "ask-math"\nversion = "1"\ndependencies = ["verifiers>=0.1.2"]\n'
    (folder / "pyproject.toml").write_text(project)
    with pytest.warns(
        FutureWarning, match=r"ask_math is written for verifiers 0\.1\.2 .*although its requirement allows"
    ):
        env = load_environment("ask_math", tmp_path).inner  # type: ignore[attr-defined]
    client = rove.ScriptedClient(lambda messages, state, rng: "<think>\nsum\n</think>\n<answer>\n4\n</answer>")
    [output] = env.evaluate_sync(client, "m")["outputs"]
    assert output["metrics"]["correct_answer_reward_func"] == 1.0
    assert output["reward"] == pytest.approx(1.2)


# Completion of a rollout


def test_an_overridden_is_completed_is_called_only_before_each_turn() -> None:
    class Play(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["replies"] = state.get("replies", 0) + 1
            return [{"role": "user", "content": "on"}]

        async def is_completed(self, state: Any, **kwargs: Any) -> bool:
            return state.get("replies", 0) >= 2

    env = Play(dataset=ROWS[:1], rubric=vf.Rubric())
    [output] = env.evaluate_sync(rove.ScriptedClient(answer_four), "m", state_columns=["trajectory"])["outputs"]
    assert len(output["trajectory"]) == 3 and output["stop_condition"] == "is_completed"


@pytest.mark.parametrize(
    "arguments", ["state", "state, **kw", "state, limit=3, **options", "state, *rest", "*rest", "s"]
)
def test_an_is_completed_without_messages_is_called_with_the_state(arguments: str) -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(f"async def is_completed(self, {arguments}):\n    return len(self.asked.append(1) or self.asked) > 3", names)

    class Play(vf.MultiTurnEnv):
        asked: ClassVar[list[int]] = []
        is_completed = names["is_completed"]

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "on"}]

    env = Play(dataset=ROWS[:1], rubric=vf.Rubric())
    [output] = env.evaluate_sync(rove.ScriptedClient(answer_four), "m", state_columns=["trajectory"])["outputs"]
    assert len(output["trajectory"]) == 3 and output["stop_condition"] == "is_completed"


@pytest.mark.parametrize(
    "arguments", ["messages, state", "messages, state, **kw", "chat, s, **kw", "*, messages, state"]
)
def test_an_is_completed_with_messages_belongs_to_an_old_release(arguments: str) -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(f"def is_completed(self, {arguments}): pass", names)
    assert takes_messages(parameter_names(names["is_completed"]))


def test_an_error_ends_a_rollout_with_an_overridden_is_completed() -> None:
    class Fail(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise vf.ToolError("broken")

        async def is_completed(self, state: Any, **kwargs: Any) -> bool:
            return False

    env = Fail(dataset=ROWS[:1], rubric=vf.Rubric())
    [output] = env.evaluate_sync(rove.ScriptedClient(answer_four), "m")["outputs"]
    assert output["stop_condition"] == "has_error" and output["error"]["error"] == "ToolError"


# Messages


def test_messages_before_0_1_11_are_shown_as_dicts() -> None:
    call = {"id": "c", "name": "add", "arguments": "{}"}
    raw = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    user, calling, result = as_legacy_messages(normalize_messages(raw))
    assert f"{user}" == repr(user) == "{'role': 'user', 'content': '2+2?'}"
    call_text = "ChatCompletionMessageToolCall(id='c', function=Function(arguments='{}', name='add'), type='function')"
    assert str(calling) == f"{{'role': 'assistant', 'content': '', 'tool_calls': [{call_text}]}}"
    assert str(result) == "{'role': 'tool', 'content': '4', 'tool_call_id': 'c'}"
    later = as_legacy_messages(normalize_messages(raw), has_call_objects=False)[1]
    nested = {"id": "c", "function": {"arguments": "{}", "name": "add"}, "type": "function"}
    assert str(later) == str({"role": "assistant", "content": "", "tool_calls": [nested]})
    assert str(normalize_messages(raw)[0]) == "role='user' content='2+2?'"


def test_model_dump_leaves_out_fields() -> None:
    tool = Tool(name="add", description="Add.", parameters={"type": "object", "properties": {"a": {}}})
    assert tool.model_dump(exclude={"strict"}).keys() == {"name", "description", "parameters"}
    assert tool.model_dump(include={"name"}) == {"name": "add"}
    assert tool.model_dump(exclude={"parameters": {"properties"}})["parameters"] == {"type": "object"}
    assert tool.model_dump(exclude={"strict": True}, exclude_none=True).keys() == {"name", "description", "parameters"}
    assert json.loads(tool.model_dump_json(include={"name"})) == {"name": "add"}


def test_responses_are_parsed_as_in_0_1_9() -> None:
    call = {"id": "c", "name": "add", "arguments": "{}"}
    message = ResponseMessage(content=None, tool_calls=[call], finish_reason="length")
    response = Response(message=message)
    [parsed] = asyncio.run(parse_response_messages(response, "chat"))
    nested = {"id": "c", "function": {"arguments": "{}", "name": "add"}, "type": "function"}
    assert parsed["content"] == "" and parsed["tool_calls"][0].model_dump() == nested
    assert asyncio.run(parse_is_truncated(response, "chat"))
    text = Response(message=ResponseMessage(content="four", finish_reason="stop"))
    assert asyncio.run(parse_response_messages(text, "completion")) == "four"


STORY = """
import rove.compat.verifiers as vf

class Story(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        assert messages == "Once a"
        return REPLY

    IS_COMPLETED

def load_environment():
    def length(prompt, completion):
        return float(completion.strip() == "a and a") * (prompt == "Once")

    rows = [{"prompt": "Once", "answer": ""}]
    return Story(dataset=rows, rubric=vf.Rubric(funcs=[length]), max_turns=2, message_type="completion")
"""
OLD_STORY = STORY.replace("REPLY", '" and", state').replace(
    "IS_COMPLETED", "async def is_completed(self, messages, state): return messages.endswith('and a')"
)


@pytest.mark.parametrize(
    ("requirement", "source"),
    [
        ("verifiers==0.1.9", STORY.replace("REPLY", '" and"').replace("IS_COMPLETED", "")),
        ("verifiers==0.1.5", OLD_STORY),
    ],
)
def test_completion_environments_before_0_1_11_have_texts(requirement: str, source: str, tmp_path: Path) -> None:
    env = load_package(tmp_path, f"story_{requirement[-1]}", source, requirement)
    client = rove.ScriptedClient(lambda messages, state, rng: " a")
    [output] = env.evaluate_sync(client, "m")["outputs"]
    assert (output["prompt"], output["completion"], output["reward"]) == ("Once", " a and a", 1.0)
    [record] = asyncio.run(rove.generate(env, client))
    assert [message["content"] for message in record.completion] == [" a", " and", " a"]
    assert [message["role"] for message in record.completion] == ["assistant", "user", "assistant"]
    assert len(record.steps) == 2 and record.reward == 1.0


@pytest.mark.parametrize(("name", "calls"), [("SandboxError", 3), ("EmptyModelResponseError", 3), ("ToolError", 1)])
def test_serialized_errors_are_retried_by_their_class(name: str, calls: int) -> None:
    attempts: list[str] = []

    async def fail() -> Any:
        attempts.append(name)
        return {"error": {"error": name, "message": "m", "error_chain_repr": f"{name}('m')", "error_chain_str": name}}

    result = asyncio.run(maybe_retry(fail, max_retries=2, initial=0.0)())
    assert result["error"]["error"] == name and len(attempts) == calls


# State


def test_the_timing_has_milliseconds_that_can_be_set() -> None:
    timing = RolloutTiming(generation=TimeSpan(start=1.0, end=3.0), scoring=TimeSpan(start=3.0, end=3.5))
    assert (timing["generation_ms"], timing["scoring_ms"], timing.get("total_ms")) == (2000.0, 500.0, 2500.0)
    timing["total_ms"] += 1.0
    assert timing["total_ms"] == 2501.0 and "generation_ms" not in timing.model_dump()
    with pytest.raises(KeyError):
        timing["waiting_ms"]


def tool_named(name: str) -> dict[str, Any]:
    function = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


def test_tools_can_be_set_in_the_form_of_openai() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    class ToolSettingEnv(vf.ToolEnv):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.oai_tools.append(tool_named("appended"))
            self.oai_tools = [*self.oai_tools, tool_named("set")]
            self.add_tool(lookup)

        async def setup_state(self, state: Any, **kwargs: Any) -> Any:
            state["oai_tools"] = [*state["oai_tools"], tool_named("in_state")]
            state["oai_tools"].append(tool_named("appended_in_state"))
            return state

    def lookup(word: str) -> str:
        """Look up."""
        return word

    env = ToolSettingEnv(tools=[add], dataset=ROWS[:1], rubric=vf.Rubric())
    requests: list[rove.Request] = []

    class Records(rove.ScriptedClient):
        async def respond(self, request: rove.Request) -> rove.Response:
            requests.append(request)
            return await super().respond(request)

    [record] = asyncio.run(rove.generate(env, Records(answer_four)))
    env.evaluate_sync(Records(answer_four), "m")
    names = ["add", "appended", "set", "lookup", "in_state", "appended_in_state"]
    for tools in (record.tools, requests[0].tools, requests[1].tools):
        assert [tool["function"]["name"] for tool in tools or []] == names
    env.remove_tool(add)
    assert [tool["function"]["name"] for tool in env.oai_tools or []] == names[1:4]


def test_the_client_of_a_state_has_the_method_of_the_client_of_openai() -> None:
    class QueriesModel(vf.SingleTurnEnv):
        async def setup_state(self, state: Any, **kwargs: Any) -> Any:
            messages = [{"role": "user", "content": "2+2?"}]
            create = state["client"].chat.completions.create
            response = await create(model=state["model"], messages=messages, temperature=0.5)
            state["hint"] = response.choices[0].message.content
            return state

    env = QueriesModel(dataset=ROWS[:1], rubric=vf.Rubric())
    [output] = env.evaluate_sync(rove.ScriptedClient(answer_four), "m", state_columns=["hint"])["outputs"]
    assert output["hint"] == "4"
    [record] = asyncio.run(rove.generate(env, rove.ScriptedClient(answer_four)))
    assert len(record.steps) == len(record.model_roles["environment"]) == 1


# Scoring


def test_independent_scoring_calls_score_rollout() -> None:
    class CustomRubric(vf.Rubric):
        async def score_rollout(self, state: Any) -> None:
            state.update(reward=7.0, metrics={"own": 7.0})

    class OldSignatureRubric(vf.Rubric):
        async def score_rollout(self, prompt: Any, completion: Any, *row_values: Any, **kwargs: Any) -> Any:
            return vf.RolloutScore(reward=3.0, metrics={"older": 3.0})

    for rubric, reward in ((CustomRubric(funcs=[right]), 7.0), (OldSignatureRubric(funcs=[right]), 3.0)):
        env = vf.SingleTurnEnv(dataset=ROWS[1:2], rubric=rubric)
        for member in (env, vf.EnvGroup([env])):
            [output] = member.evaluate_sync(rove.ScriptedClient(answer_four), "m", independent_scoring=True)["outputs"]
            assert output["reward"] == reward
            row = member.get_dataset()[0]
            assert asyncio.run(member.run_rollout(row, rove.ScriptedClient(answer_four), "m", {}))["reward"] == reward
    [output] = vf.SingleTurnEnv(dataset=ROWS[1:2], rubric=CustomRubric(funcs=[right])).evaluate_sync(
        rove.ScriptedClient(answer_four), "m"
    )["outputs"]
    assert output["reward"] == 1.0  # as a group


GROUP = """
import rove.compat.verifiers as vf

def load_environment():
    with_eval = vf.SingleTurnEnv(dataset=[{"question": "a"}], eval_dataset=[{"question": "b"}])
    return vf.EnvGroup([with_eval, vf.SingleTurnEnv(dataset=[{"question": "c"}])])
"""


@pytest.mark.parametrize(("release", "questions"), [("0.1.10", ["b", "c"]), ("0.1.11", ["b"])])
def test_members_of_a_group_without_evaluation_rows(release: str, questions: list[str], tmp_path: Path) -> None:
    env = load_package(tmp_path, f"group_{release[-2:]}", GROUP, f"verifiers=={release}")
    assert [row["question"] for row in env.get_eval_dataset()] == questions


# Saved results


def counted_client(requests: list[str]) -> rove.ScriptedClient:
    def reply(messages: Any, state: Any, rng: Any) -> str:
        requests.append(messages[-1]["content"])
        return "4"

    return rove.ScriptedClient(reply)


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def test_saved_results_are_resumed(tmp_path: Path) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
    requests: list[str] = []
    client = counted_client(requests)
    options: dict[str, Any] = {"results_path": tmp_path / "r", "save_results": True}
    env.evaluate_sync(client, "m", num_examples=2, **options)
    file = tmp_path / "r" / "results.jsonl"
    file.write_text(file.read_text().replace("1+1?", "1+1?\u2028"))  # a line end for Python, but not in JSON
    results = env.evaluate_sync(client, "m", num_examples=5, **options)
    assert len(requests) == 5 and requests[2:] == ["3+3?", "4+4?", "5+5?"]
    assert [output["reward"] for output in results["outputs"]] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert results["metadata"]["avg_reward"] == pytest.approx(0.2)
    assert len((tmp_path / "r" / "results.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("other", {"num_examples": 5}, "model 'm' instead of 'other'"),
        ("m", {"num_examples": 2}, "results of 5 examples, and this run has only 2"),
        ("m", {"num_examples": 5, "rollouts_per_example": 2}, "rollouts_per_example 1 instead of 2"),
    ],
)
def test_saved_results_of_another_run_are_never_overwritten(
    model: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
    client = counted_client([])
    env.evaluate_sync(client, "m", results_path=tmp_path, save_results=True)
    saved = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        env.evaluate_sync(client, model, results_path=tmp_path, save_results=True, **options)
    assert (tmp_path / "results.jsonl").read_bytes() == saved


def test_finished_rollouts_are_saved_if_the_run_ends_early(tmp_path: Path) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
    requests: list[str] = []
    options: dict[str, Any] = {"results_path": tmp_path, "save_results": True, "max_concurrent": 1}

    def fail_later(outputs: list[Any], new: list[Any], metadata: Any) -> None:
        lines = (tmp_path / "results.jsonl").read_text().splitlines()
        assert len(lines) == len(outputs)
        if len(outputs) == 3:
            raise RuntimeError("broken callback")

    with pytest.raises(RuntimeError, match="broken callback"):
        env.evaluate_sync(counted_client(requests), "m", on_progress=fail_later, **options)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"example_id": 3, "rew')  # as a killed process leaves it
    requests.clear()
    results = env.evaluate_sync(counted_client(requests), "m", **options)
    assert len(results["outputs"]) == 5 and requests == ["4+4?", "5+5?"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 5
