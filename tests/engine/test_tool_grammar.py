"""Forced tool calls: every text of the grammar is a call that the reader understands, with arguments that match the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import tiny_model

from rove.core.errors import ConfigError
from rove.core.messages import UserMessage
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.engine.client import EngineClient
from rove.engine.constraints import Constraint
from rove.engine.tool_grammar import tool_call_grammar
from rove.rendering.tool_calls import FORMATS, Call, Format, read_calls
from tests.engine.test_constraints import as_outputs, form, generate

MOVE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "square": {"type": "integer", "minimum": 0, "maximum": 8},
        "piece": {"$ref": "#/$defs/Piece"},
        "sure": {"type": ["boolean", "null"]},
    },
    "required": ["square"],
    "$defs": {"Piece": {"enum": ["X", 'O "ö"\n']}},
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("move", MOVE), tool("resign"), tool("other", {"type": "object", "properties": {"a": {"enum": [1]}}})]
FORMAT_CASES = [pytest.param(how, id=how.name) for how in FORMATS]


@pytest.fixture(scope="module")
def loaded() -> Any:
    return tiny_model()


def grammar(loaded: Any, how: Format, *names: str, parallel: bool = False, tools: Any = None) -> str:
    choice = ToolChoice(names or ("move", "resign", "other"), parallel)
    return tool_call_grammar(how, tools or TOOLS, choice, loaded.renderer.special_token)


def accepts(loaded: Any, constraint: Constraint, text: str) -> bool:
    ids = loaded.renderer.encode(text)
    matcher = constraint._matcher
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize("how", FORMAT_CASES)
def test_random_weights_write_calls_that_match_the_schema(loaded: Any, how: Format):
    lark = as_outputs(grammar=grammar(loaded, how))
    for seed in range(3):
        text, _ = generate(loaded, lark, seed)
        beside, calls = read_calls(text, how, ["move", "resign", "other"])
        assert (beside, len(calls)) == ("", 1), text
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            name = call["function"]["name"]
            allowed = {"move": {"square", "piece", "sure"}, "resign": set(), "other": {"a"}}[name]
            assert arguments.keys() <= allowed, text
            assert name != "move" or arguments["square"] in range(9)
            assert arguments.get("piece", "X") in ("X", 'O "ö"\n') and arguments.get("sure") in (True, False, None)


@pytest.mark.parametrize("how", FORMAT_CASES)
def test_calls_as_models_write_them_are_accepted(loaded: Any, how: Format):
    calls = [Call("move", {"square": 3, "piece": "X"}), Call("resign", {}), Call("move", {"square": 0, "sure": None})]
    if how.name == "lfm2":  # its own writer quotes texts as Python does; the grammar has JSON's quotes
        text = '<|tool_call_start|>[move(square=3, piece="X"), resign(), move(square=0, sure=null)]<|tool_call_end|>'
    else:
        text = how.write(calls)
    several = as_outputs(grammar=grammar(loaded, how, parallel=True))
    assert accepts(loaded, form(loaded, several), text)
    one = as_outputs(grammar=grammar(loaded, how))
    assert not accepts(loaded, form(loaded, one), text)
    assert accepts(loaded, form(loaded, one), how.write(calls[1:2]))
    named = as_outputs(grammar=grammar(loaded, how, "move"))
    assert not accepts(loaded, form(loaded, named), how.write(calls[1:2]))
    for wrong in (Call("move", {}), Call("move", {"square": 9}), Call("move", {"square": 1, "more": 2}), Call("x", {})):
        assert not accepts(loaded, form(loaded, several), how.write([wrong])), wrong


def test_a_mark_that_is_a_special_token_is_sampled_as_such():
    loaded = tiny_model()
    loaded.tokenizer.chat_template = "<|tool_call_start|>"
    how = next(one for one in FORMATS if one.name == "lfm2")
    marks: Any = {"<|tool_call_start|>": 2, "<|tool_call_end|>": 3}  # any special tokens of the tiny tokenizer
    assert loaded.renderer.special_token("<|user|>") == loaded.renderer.encode("<|user|>")[0]
    assert (loaded.renderer.special_token("hello"), loaded.renderer.special_token("0 1 2 <|user|>")) == (None, None)
    lark = tool_call_grammar(how, TOOLS, ToolChoice(("resign",), False), marks.get)
    constraint = form(loaded, as_outputs(grammar=lark))
    assert constraint._matcher.consume_tokens([2, *loaded.renderer.encode("[resign()]"), 3])
    assert constraint._matcher.is_accepting()


NEEDS_A: dict[str, Any] = {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


@pytest.mark.parametrize(
    ("parameters", "accepted", "refused"),
    [
        ({"properties": {}, "allOf": [{"$ref": "#/$defs/A"}], "$defs": NEEDS_A}, ['{"a": 1}'], ["{}", '{"a": "x"}']),
        ({"properties": {"b": {}}, "$ref": "#/$defs/A", "$defs": NEEDS_A}, ['{"a": 1}'], ["{}", '{"b": 1}']),
        ({"properties": {"b": {"type": "integer"}}, "required": ["a"]}, ['{"a": 1}'], ["{}", '{"b": 1}']),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, ["{}"], ['"x"', "null"]),
        ({"type": ["object", "null"]}, ["{}"], ["null"]),
        ({"properties": {"a": {}}, "type": ["object", "null"]}, ['{"a": 1}'], ["null", '{"b": 1}']),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, ['{"a": 1}', '{"x": 1}'], ['{"b": 1}']),
    ],
)
def test_arguments_are_an_object_that_matches_the_whole_schema(
    loaded: Any, parameters: dict[str, Any], accepted: list[str], refused: list[str]
):
    how = next(one for one in FORMATS if one.name == "hermes")
    outputs = as_outputs(grammar=grammar(loaded, how, "f", tools=[tool("f", parameters)]))
    texts = {one: f'<tool_call>\n{{"name": "f", "arguments": {one}}}\n</tool_call>' for one in accepted + refused}
    assert [one for one, text in texts.items() if accepts(loaded, form(loaded, outputs), text)] == accepted
    assert all(len(read_calls(texts[one], how, ["f"])[1]) == 1 for one in accepted)


@pytest.mark.parametrize(
    ("how", "tools", "message"),
    [
        ("lfm2", [tool("a-b")], "cannot write the name 'a-b'"),
        ("lfm2", [tool("f", {"type": "object", "properties": {"a b": {}}})], "cannot write the name 'a b'"),
        (
            "lfm2",
            [tool("f", {"type": "object", "required": ["a"]})],
            "requires a, which its properties do not describe",
        ),
        ("lfm2", [tool("f", {"properties": {"a.b": {}}})], "cannot write the name 'a.b'"),
        ("lfm2", [tool("f", {"properties": {"ﬁ": {}}})], "cannot write the name 'ﬁ'"),  # Python reads "fi"
        ("lfm2", [tool("a.1")], "cannot write the name 'a.1'"),
        ("lfm2", [tool("get.call")], "cannot write the name 'get.call'"),  # the reader takes it for "get"
        ("lfm2", [tool("f", {"properties": {"a": False}, "required": ["a"]})], "requires a, whose schema false"),
        ("lfm2", [tool("f", {"allOf": [{"$ref": "#/$defs/A"}], "$defs": NEEDS_A})], "tool 'f' use allOf"),
        ("hermes", [tool("f", {"type": "string"})], "parameters of the tool 'f' have type string; expected object"),
        ("mistral_named", [tool("a b")], "cannot write the name 'a b'"),
    ],
)
def test_what_a_format_cannot_write_is_refused(loaded: Any, how: str, tools: list[Any], message: str):
    names = [one["function"]["name"] for one in tools]
    with pytest.raises(ConfigError, match=message):
        grammar(loaded, next(one for one in FORMATS if one.name == how), *names, tools=tools)


@pytest.mark.parametrize("name", ["from", "class", "in", "None", "pass", "true", "print", "größe"])
def test_names_that_python_reserves_are_read(loaded: Any, name: str):
    how = next(one for one in FORMATS if one.name == "lfm2")
    tools = [tool(name, {"properties": {name: {"type": "string"}, "never": False}})]
    constraint = form(loaded, as_outputs(grammar=grammar(loaded, how, name, tools=tools)))
    text = f'<|tool_call_start|>[{name}({name}="x")]<|tool_call_end|>'
    assert accepts(loaded, constraint, text)
    _, (call,) = read_calls(text, how, [name])
    assert call["function"]["name"] == name and json.loads(call["function"]["arguments"]) == {name: "x"}


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
async def test_the_client_answers_with_a_forced_call(arch: str):
    client = EngineClient.from_model(tiny_model(arch))
    choice = ToolChoice(("move",), False)
    forms: list[Any] = [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}]
    for seed in range(2):
        request = Request(
            [UserMessage("hi")], SamplingParams(max_tokens=200), tools=TOOLS, tool_choice=choice, seed=seed
        )
        made = await client.respond(request)
        (call,) = made.message["tool_calls"]
        assert (made.finish_reason, call["function"]["name"]) == ("tool_calls", "move")
        assert json.loads(call["function"]["arguments"])["square"] in range(9)
    for given in forms:
        with pytest.raises(ConfigError, match="tool_choice forces a tool call, and .* is given too"):
            await client.respond(Request([UserMessage("hi")], SamplingParams(**given), tools=TOOLS, tool_choice=choice))
