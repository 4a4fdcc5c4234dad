"""Tests of ToolEnv: tool calls and results, malformed calls, failing tools, and concurrency."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row
from toy_envs import correct, generate_sync, rows, scripted_client, without_times

import rove as vf
from rove.core.errors import ToolParseError
from rove.core.protocols import Request, Response
from rove.rendering.tool_calls import FORMATS, Call, Format
from rove.rollouts.evaluate import conversation_texts
from rove.runs.serialization import decode_record, encode_record
from rove.tools.tool import make_tool


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def noon() -> str:
    """Tell the time."""
    return "12:00"


async def double(n: int) -> dict[str, int]:
    """Double a number, a little later."""
    await asyncio.sleep(0)
    return {"doubled": 2 * n}


def fail(manner: str = "badly") -> None:
    """Always fails."""
    raise ValueError(f"it went {manner}")


def call(name: Any, arguments: Any = None, id: Any = "call_1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(*tool_calls: Any) -> vf.AssistantMessage:
    return vf.AssistantMessage(None, tool_calls=list(tool_calls))


def replies_in_order(*answers: Any) -> vf.ScriptedClient:
    """Return a client that sends these replies in order, then "done"."""
    replies = [*answers, "done"]
    return scripted_client(lambda messages, state, rng: replies[len(state["trajectory"])])


def env_of(*tools: Any, **options: Any) -> vf.ToolEnv:
    return vf.ToolEnv(**{"tools": tools, "dataset": rows(1), **options})


def run_replies(env: vf.Environment, *answers: Any) -> vf.RolloutRecord:
    [record] = generate_sync(env, replies_in_order(*answers))
    return record


def tool_results(record: vf.RolloutRecord) -> list[Any]:
    """Return the contents of the tool messages."""
    return [m["content"] for m in record.completion if m["role"] == "tool"]


def test_tool_results_metrics_and_definitions_are_recorded():
    env = env_of(add, double, rubric=vf.Rubric([correct]))
    record = run_replies(env, calls(call("add", {"a": 1, "b": 2}), call("double", {"n": 4}, "call_2")), "0")
    assert [(m["role"], m["content"], m.get("tool_call_id")) for m in record.completion] == [
        ("assistant", None, None),
        ("tool", "3", "call_1"),
        ("tool", '{"doubled":8}', "call_2"),
        ("assistant", "0", None),
    ]
    assert (record.stop_condition, record.reward, record.error) == ("no_tools_called", 1.0, None)
    assert record.scores is not None
    assert record.scores.metrics == {"num_turns": 2, "total_tool_calls": 2, "add_calls": 1, "double_calls": 1}
    assert record.tools == env.tool_defs
    assert without_times(decode_record(encode_record(record))) == without_times(record)


def test_the_request_has_the_tools_that_setup_state_selects():
    class ToolSelectingEnv(vf.ToolEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            state["tools"] = [tool for tool in state["tools"] if tool["function"]["name"] == state["answer"]]

    tool_names = []

    class ToolRecordingClient(vf.ScriptedClient):
        async def respond(self, request: vf.Request) -> vf.Response:
            tool_names.append([tool["function"]["name"] for tool in request.tools or []])
            return await super().respond(request)

    dataset = [{"question": "q", "answer": name} for name in ("add", "none")]
    env = ToolSelectingEnv(tools=[add, double], dataset=dataset)
    records = generate_sync(env, ToolRecordingClient(lambda messages, state, rng: "done"), max_concurrent=1)
    assert tool_names == [["add"], []]
    assert [record.tools for record in records] == [[env.tool_defs[0]], None]


def test_a_tool_that_setup_state_removed_cannot_be_called():
    class ToolSelectingEnv(vf.ToolEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            state["tools"] = [tool for tool in state["tools"] if tool["function"]["name"] == "add"]

    numbers = {"a": 1, "b": 2}
    record = run_replies(
        ToolSelectingEnv(tools=[add, double], dataset=rows(1)), calls(call("double", {"n": 1}), call("add", numbers))
    )
    assert tool_results(record) == ["there is no tool 'double'; known: add", "3"]


def test_changes_to_the_tools_of_a_rollout_do_not_affect_other_rollouts():
    class ToolEditingEnv(vf.ToolEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
            function = state["tools"][0]["function"]
            function["description"] += state["answer"]
            function["parameters"]["properties"].clear()

    env = ToolEditingEnv(tools=[add], dataset=[{"question": "q", "answer": str(i)} for i in range(3)])
    records = generate_sync(env, scripted_client(lambda messages, state, rng: "done"), max_concurrent=1)
    descriptions = [record.tools[0]["function"]["description"] for record in records if record.tools]
    assert descriptions == [f"Add two numbers.{i}" for i in range(3)]
    assert env.tool_defs == [make_tool(add).definition]


def test_turns_are_limited_to_ten_by_default():
    env = env_of(add)
    assert env.max_turns == 10
    record = run_replies(env_of(add, max_turns=2), *[calls(call("add", {"a": 1, "b": 2}))] * 5)
    assert (record.stop_condition, len(record.steps), tool_results(record)) == ("max_turns_reached", 2, ["3", "3"])


def test_tools_can_be_added_and_removed():
    env = env_of(add)
    env.add_tool(double)
    assert (env.tools, list(env.tool_map), len(env.tool_defs)) == ([add, double], ["add", "double"], 2)
    with pytest.raises(vf.ConfigError, match="a tool named 'add' exists already"):
        env.add_tool(add)
    env.remove_tool(add)
    env.add_tool(make_tool(add, name="plus"))
    assert [definition["function"]["name"] for definition in env.tool_defs] == ["double", "plus"]
    assert {"double_calls", "plus_calls"} <= set(
        env.scoring_rubric.names
    ) and "add_calls" not in env.scoring_rubric.names
    env.remove_tool("plus")
    with pytest.raises(vf.ConfigError, match="not one of the tools; known: double"):
        env.remove_tool(add)
    assert tool_results(run_replies(env, calls(call("add")))) == ["there is no tool 'add'; known: double"]


def test_invalid_arguments_are_rejected():
    with pytest.raises(vf.ConfigError, match="message_type 'completion'"):
        env_of(add, message_type="completion")
    with pytest.raises(vf.ConfigError, match="did you mean 'max_turns'"):
        env_of(add, max_turn=3)
    with pytest.raises(vf.ConfigError, match=r"stop_errors has 'ValueError'; expected exception classes"):
        env_of(add, stop_errors=["ValueError"])
    with pytest.raises(vf.ConfigError, match="tools is .*expected a list"):
        vf.ToolEnv(tools=add, dataset=rows(1))  # type: ignore[arg-type]

    def add_calls() -> float:
        return 0.0

    with pytest.raises(vf.ConfigError, match="the metric 'add_calls' of tool 'add' exists already"):
        env_of(add, rubric=vf.Rubric([add_calls]))


def test_tools_are_part_of_the_identity():
    identity = env_of(add).identity
    assert identity["tools"] != env_of(double).identity["tools"]
    assert identity == env_of(add).identity


def test_descriptions_bound_values_and_hidden_arguments_are_part_of_the_identity():
    class Stateful(vf.StatefulToolEnv):
        def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            return tool_args

    def hiding(*names: str) -> vf.ToolEnv:
        env = Stateful(dataset=rows(1))
        env.add_tool(make_tool(add, name="t", hidden=names))
        return env

    def bound(*values: Any, **named: Any) -> vf.ToolEnv:
        return env_of(make_tool(functools.partial(add, *values, **named), name="t"))

    envs = [
        env_of(make_tool(add, name="t")),
        env_of(make_tool(add, name="t", description="Add.")),
        bound(1),
        bound(2),
        bound(b=1),
        bound(b="1"),
        bound(b=Panic()),
        hiding("a"),
        hiding("a", "b"),
    ]
    identities = [env.identity["tools"][0] for env in envs]
    assert len(set(identities)) == len(identities)
    assert bound(b={"x": [1, None]}).identity == bound(b={"x": [1, None]}).identity
    assert bound(b=Panic()).identity == bound(b=Panic()).identity  # the repr has an address, which must not matter


# Malformed calls


@each_row(
    ("wrong", "message"),
    [
        (call("ad"), "there is no tool 'ad'; did you mean 'add'?"),
        (call("add", '{"a": 1'), "the arguments of add are not JSON (Input data was truncated)"),
        (call("add", "[1, 2]"), "the arguments of add are a list; expected a JSON object"),
        (call("add", '"a = 1"'), "the arguments of add are a text"),
        (call("add", {"a": 1}), "add needs the argument 'b'; expected at least a, b"),
        (call("add", {"a": 1, "b": "2"}), "add: argument 'b': Expected `int`, got `str`"),
        (call("add", {"a": 1, "b": 2, "c": 3}), "add has no argument 'c'"),
        (call("add", '{"a": 1, "b": "' + "x" * 10**6 + '"}'), "add: argument 'b': Expected `int`"),
        (call("add", "{" * 10**6), "the arguments of add are not JSON"),
        (call("a" * 10**6), "there is no tool 'aaa"),
        (call(None), "a tool call names no function"),
        ({}, "a tool call names no function"),
        ("add", "a tool call names no function"),
        (None, "a tool call names no function"),
    ],
)
def test_an_invalid_call_is_reported_to_the_model(wrong: Any, message: str):
    record = run_replies(env_of(add), calls(wrong))
    assert record.error is None
    [answer] = tool_results(record)
    assert answer.startswith(message) and len(answer) < 600


def test_missing_and_repeated_call_ids_are_accepted():
    """Some servers send no ids, or equal ids; the calls are still answered in order."""
    tool_calls = [call("add", {"a": n, "b": 0}, id) for n, id in enumerate(["same", "same", "", None])]
    del tool_calls[3]["id"]
    record = run_replies(env_of(add), calls(*tool_calls))
    assert [(m["content"], m["tool_call_id"]) for m in record.completion if m["role"] == "tool"] == [
        ("0", "same"),
        ("1", "same"),
        ("2", ""),
        ("3", ""),
    ]


def test_tool_calls_that_are_not_a_list_fail_the_rollout():
    record = run_replies(env_of(add), vf.AssistantMessage("", tool_calls="add(1, 2)"))
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("ToolParseError", "env_response")


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>', '{"name": "name", "arguments": {"argument"'),
        ("<think>so</think> <|tool_call_start|>[add(1, 2)]<|tool_call_end|>", "[name(argument='value')]"),
        ("[TOOL_CALLS]add(1, 2)", "[TOOL_CALLS]"),
        ("<|python_tag|>add(1, 2)", '"parameters": {"argument": "value"}'),
    ],
)
def test_a_malformed_call_in_the_text_is_reported_to_the_model(text: str, example: str):
    record = run_replies(env_of(add), vf.AssistantMessage(text), vf.AssistantMessage("3"))
    assert (record.stop_condition, len(record.steps)) == ("no_tools_called", 2)
    [report] = [message["content"] for message in record.completion if message["role"] == "user"]
    assert (
        report.startswith("the tool call cannot be read; write the complete call, for example: ") and example in report
    )
    stopped = run_replies(env_of(add, stop_errors=[ToolParseError]), vf.AssistantMessage(text))
    assert stopped.error is not None and stopped.error.type == "ToolParseError"


@pytest.mark.parametrize("call_format", FORMATS, ids=lambda call_format: call_format.name)
def test_a_valid_call_in_the_text_means_that_the_server_does_not_parse_tool_calls(call_format: Format):
    record = run_replies(env_of(add), vf.AssistantMessage(call_format.write([Call("add", {"a": 1, "b": 2})])))
    assert record.error is not None and "a call of 'add' in its text" in record.error.message
    assert (record.error.type, record.error.phase) == ("ToolParseError", "env_response")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1, "b": 2}<|tool_call_end|>',
        '<invoke name="add"><parameter name="a">1</parameter></invoke>',
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    ],
)
@pytest.mark.parametrize("max_turns", [1, 10])
def test_a_call_of_another_format_in_the_text_fails_the_rollout_too(text: str, max_turns: int):
    record = run_replies(env_of(add, max_turns=max_turns), vf.AssistantMessage(text))
    assert record.error is not None and record.error.type == "ToolParseError"
    after_a_call = run_replies(env_of(add), calls(call("add", {"a": 1, "b": 2})), vf.AssistantMessage(text))
    assert after_a_call.error is not None and after_a_call.error.type == "ToolParseError"


@each_row(
    "text",
    [
        '{"name": "add", "score": 1}',
        '{"name": "other", "parameters": {"a": 1}}',
        "add",
        "The tool is add(a=1, b=2).",
        "",
    ],
)
def test_an_answer_without_a_call_is_scored(text: str):
    record = run_replies(env_of(add), vf.AssistantMessage(text))
    assert (record.error, record.stop_condition) == (None, "no_tools_called")


def test_arguments_that_are_null_or_encoded_twice_are_read():
    record = run_replies(
        env_of(noon), calls(*(call("noon", value, str(n)) for n, value in enumerate(["null", None, "", {}])))
    )
    assert tool_results(record) == ["12:00"] * 4
    assert tool_results(run_replies(env_of(add), calls(call("add", json.dumps('{"a": 1, "b": 2}'))))) == ["3"]


class CutOff(vf.ScriptedClient):
    async def respond(self, request: Request) -> Response:
        return msgspec.structs.replace(await super().respond(request), finish_reason="length")


def test_a_call_inside_thinking_or_in_a_truncated_response_is_ignored():
    record = run_replies(env_of(add), vf.AssistantMessage("<think><tool_call></think>3"))
    assert (record.stop_condition, len(record.steps)) == ("no_tools_called", 1)
    [record] = generate_sync(env_of(add), CutOff(lambda *_: '<tool_call>{"name'))
    assert (record.stop_condition, len(record.steps), record.is_truncated) == ("no_tools_called", 1, True)


json_like_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
argument_texts = (
    st.text(st.characters(), max_size=20)
    | json_like_values.map(lambda value: json.dumps(value, default=str))
    | json_like_values.map(lambda value: json.dumps({"a": value, "b": 1}))
    | st.sampled_from(
        ['{"a": 1, "b": 2}', '{"a": "\\"1\\"", "b": \'2\'}', '{"a": 1, "a": 2, "b": 1e999}', "{}", "\ud800"]
    )
)
broken_calls = st.one_of(
    json_like_values,
    st.fixed_dictionaries(
        {},
        optional={
            "id": json_like_values | st.sampled_from(["call_1", "call_1", ""]),
            "type": st.just("function") | json_like_values,
            "function": json_like_values
            | st.fixed_dictionaries(
                {},
                optional={
                    "name": json_like_values | st.sampled_from(["add", "ad", "double", "fail", ""]),
                    "arguments": json_like_values | argument_texts,
                },
            ),
        },
    ),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(broken_calls, max_size=4) | json_like_values, st.booleans())
def test_any_malformed_call_is_answered_or_becomes_a_typed_error(tool_calls: Any, parallel: bool):
    env = env_of(add, double, fail, parallel_calls=parallel, max_turns=1, max_threads=0)
    record = run_replies(env, vf.AssistantMessage("", tool_calls=tool_calls))
    if record.error is not None:
        assert (record.error.type, isinstance(tool_calls, list)) == ("ToolParseError", False)
    else:
        assert len(tool_results(record)) == len(tool_calls or [])
        assert all(isinstance(text, str) and text for text in tool_results(record))
    restored = decode_record(encode_record(record))
    assert (restored.stop_condition, len(restored.completion)) == (record.stop_condition, len(record.completion))


# Exceptions in tools


def exit_now() -> None:
    """Exits."""
    raise SystemExit(3)


def stop_iteration() -> None:
    """Raises what a coroutine may not."""
    raise StopIteration


async def cancel() -> None:
    """As if something inside had been cancelled."""
    raise asyncio.CancelledError


class Panic(BaseException):
    """A direct subclass of BaseException, as extension modules raise."""


def panic() -> None:
    """Panics."""
    raise Panic("index out of bounds")


async def panic_later() -> None:
    """Panics on the loop."""
    raise Panic("overflow")


def silent() -> None:
    """Fails without a word."""
    raise ValueError


class ValueWithoutText:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def return_value_without_text() -> Any:
    """Return a value whose text cannot be computed."""
    return ValueWithoutText()


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (fail, "it went badly"),
        (exit_now, "exit(3)"),
        (stop_iteration, "StopIteration"),
        (cancel, "the tool was cancelled"),
        (panic, "Panic: index out of bounds"),
        (panic_later, "Panic: overflow"),
        (silent, "ValueError()"),
        (return_value_without_text, "no words"),
    ],
)
def test_exceptions_of_a_tool_are_reported_to_the_model(tool: Any, message: str, parallel: bool, threads: int):
    env = env_of(tool, add, parallel_calls=parallel, max_threads=threads)
    record = run_replies(env, calls(call(tool.__name__), call("add", {"a": 1, "b": 1})))
    assert record.error is None
    assert message in tool_results(record)[0] and tool_results(record)[1] == "2"


def test_error_formatter_formats_the_message():
    env = env_of(fail, error_formatter=lambda error: f"{type(error).__name__}!")
    assert tool_results(run_replies(env, calls(call("fail"), call("nothing")))) == ["ValueError!", "ToolParseError!"]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("wrong", "stop_errors", "kind", "message"),
    [
        (call("fail"), [ValueError], "ToolCallError", "ValueError: it went badly"),
        (call("fail"), [Exception], "ToolCallError", "ValueError: it went badly"),
        (call("exit_now"), [SystemExit], "ToolCallError", "exit(3)"),
        (call("panic"), [Panic], "ToolCallError", "Panic: index out of bounds"),
        (call("nothing"), [vf.ToolParseError], "ToolParseError", "there is no tool 'nothing'"),
        (call("add", "{"), [ValueError], "ToolParseError", "not JSON"),
        (call("add", {"a": "1", "b": 2}), [vf.ToolError], "ToolParseError", "Expected `int`"),
    ],
)
def test_stop_errors_end_the_rollout(wrong: Any, stop_errors: Any, kind: str, message: str, parallel: bool):
    env = env_of(add, fail, exit_now, panic, stop_errors=stop_errors, parallel_calls=parallel)
    record = run_replies(env, calls(wrong, call("add", {"a": 1, "b": 2})))
    assert record.error is not None and record.scores is None
    assert record.error.type == kind and message in record.error.message
    assert record.error.phase == (f"tool {wrong['function']['name']}" if kind == "ToolCallError" else "env_response")


def test_an_error_outside_of_stop_errors_does_not_end_the_rollout():
    assert tool_results(run_replies(env_of(fail, stop_errors=[KeyError]), calls(call("fail")))) == ["it went badly"]


def use_broken_machine() -> None:
    """Fail because a machine is gone."""
    raise vf.InfraError("no sandbox", ["try 1"])


def exhaust_budget() -> None:
    """Fail because the budget is exhausted."""
    raise vf.LimitReachedError("budget_reached")


def test_infrastructure_errors_and_limits_in_a_tool_end_the_rollout():
    record = run_replies(env_of(use_broken_machine), calls(call("use_broken_machine")))
    assert record.error is not None
    assert (record.error.type, record.error.phase, record.error.attempts) == (
        "InfraError",
        "tool use_broken_machine",
        ["try 1"],
    )
    record = run_replies(env_of(exhaust_budget), calls(call("exhaust_budget")))
    assert (record.error, record.stop_condition) == (None, "budget_reached")


def test_images_reach_the_model_as_content_parts():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}

    def draw() -> list[Any]:
        """Draw."""
        return [{"type": "text", "text": "here"}, image]

    record = run_replies(env_of(draw), calls(call("draw")))
    assert record.steps[1].prompt[-1]["content"] == [{"type": "text", "text": "here"}, image]


# Concurrency


async def test_calls_of_a_turn_run_concurrently_and_are_answered_in_order():
    meeting = asyncio.Barrier(3)

    async def meet(n: int) -> int:
        """Wait for the others."""
        async with asyncio.timeout(10):
            await meeting.wait()
        await asyncio.sleep(0.02 * (3 - n))
        return n

    client = replies_in_order(calls(*(call("meet", {"n": n}, f"c{n}") for n in range(3))))
    [record] = await vf.generate(env_of(meet), client)
    assert tool_results(record) == ["0", "1", "2"]


def test_without_parallel_calls_the_calls_run_sequentially():
    log = []

    async def step(n: int) -> None:
        """Log."""
        log.append(n)
        await asyncio.sleep(0.01)
        log.append(n)

    run_replies(env_of(step, parallel_calls=False), calls(*(call("step", {"n": n}) for n in range(3))))
    assert log == [0, 0, 1, 1, 2, 2]


async def test_a_sync_tool_that_blocks_does_not_block_other_rollouts():
    """The tools of all rollouts wait for each other; on the event loop they would deadlock."""
    meeting = threading.Barrier(4)

    def meet() -> int:
        """Wait for the others."""
        meeting.wait(10)
        return 1

    client = scripted_client(lambda messages, state, rng: "done" if state["trajectory"] else calls(call("meet")))
    records = await vf.generate(env_of(meet, dataset=rows(4)), client)
    assert [tool_results(record) for record in records] == [["1"]] * 4


def test_without_threads_sync_tools_run_on_the_event_loop():
    def where() -> bool:
        """Tell the thread."""
        return threading.current_thread() is threading.main_thread()

    assert tool_results(run_replies(env_of(where, max_threads=0), calls(call("where")))) == ["true"]
    assert tool_results(run_replies(env_of(where), calls(call("where")))) == ["false"]


def test_a_sync_function_can_return_an_awaitable():
    assert tool_results(run_replies(env_of(make_tool(lambda: double(2), name="later")), calls(call("later")))) == [
        '{"doubled":4}'
    ]


@pytest.mark.parametrize("parallel", [False, True])
def test_call_tool_can_be_overridden(parallel: bool):
    class ExclamationEnv(vf.ToolEnv):
        async def call_tool(self, tool_name: str, tool_args: dict, tool_call_id: str, **kwargs: Any) -> Any:
            message = await super().call_tool(tool_name, tool_args, tool_call_id, **kwargs)
            return {"role": "tool", "content": f"{message.content}!", "tool_call_id": tool_call_id}

    env = ExclamationEnv(tools=[add], dataset=rows(1), parallel_calls=parallel)
    record = run_replies(env, calls(call("add", {"a": 1, "b": 2}), call("add", {"a": 2, "b": 2})))
    assert tool_results(record) == ["3!", "4!"]


async def test_call_tool_can_be_called_directly():
    message = await env_of(add).call_tool("add", {"a": 1, "b": 2}, "c")
    assert message == vf.ToolMessage("3", "c")
    with pytest.raises(vf.ToolParseError, match="did you mean 'add'"):
        await env_of(add).call_tool("adds", {}, "c")


def test_rollouts_with_tools_can_be_rescored(tmp_path: Path):
    """Rescoring reproduces tool results, call ids and tool definitions of the record."""
    answer = calls(call("add", {"a": 1, "b": 2}), call("ad", id="call_2"))
    client = replies_in_order(answer, "0")
    asyncio.run(vf.evaluate(env_of(add), client, run=tmp_path / "run"))
    rescored_env = env_of(add, rubric=vf.Rubric([correct]))
    asyncio.run(vf.rescore(rescored_env, vf.Run(tmp_path / "run"), into=tmp_path / "again"))
    [old], [new] = (list(vf.Run(tmp_path / name).rollouts()) for name in ("run", "again"))
    assert (old.reward, new.reward, new.error) == (0.0, 1.0, None)
    assert (new.completion, new.tools) == (old.completion, old.tools)


@pytest.mark.broad
def test_a_tool_that_never_returns_does_not_block_exit(tmp_path: Path):
    code = """
import threading
import rove as vf

def hang() -> None:
    "Hang."
    threading.Event().wait()

call = {"id": "1", "function": {"name": "hang", "arguments": "{}"}}
player = vf.ScriptedClient(lambda messages, state, rng: vf.AssistantMessage(None, tool_calls=[call]))
env = vf.ToolEnv(tools=[hang], dataset=[{"question": "q"}], timeout_seconds=0.1)
print([record.stop_condition for record in env.generate_sync(player)])
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (0, "['timeout_reached']\n"), process.stderr


def test_a_timeout_cancels_the_calls():
    ended = []

    async def hang(n: int) -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(n)

    record = run_replies(env_of(hang, timeout_seconds=0.1), calls(call("hang", {"n": 1}), call("hang", {"n": 2})))
    assert (record.stop_condition, record.error, sorted(ended)) == ("timeout_reached", None, [1, 2])


def test_conversation_texts_contain_tools_and_calls():
    env = env_of(add)
    texts = conversation_texts([run_replies(env, calls(call("add", {"a": 1, "b": 2})))])
    lines = [
        json.dumps(env.tool_defs[0]),
        "q0",
        "",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        "3",
        "done",
    ]
    assert texts == ["\n".join(lines)]
