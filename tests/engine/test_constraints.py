"""Structured outputs: JSON schemas, regular expressions, choices, grammars and forced tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row, first_quick, some_broad, some_quick

from rove.core.errors import ConfigError
from rove.core.messages import UserMessage
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.engine.client import EngineClient
from rove.engine.constraints import Constraint, constraint_for, tool_call_grammar
from rove.engine.sampler import Sampler, SamplerRow
from rove.engine.stop_checker import StopChecker
from rove.rendering.tool_calls import ALL_FORMATS, FORMATS, TAG_FORMATS, Call, Format, read_calls, schemas_of

SCHEMA = {
    "type": "object",
    "properties": {
        "move": {"type": "integer", "minimum": 0, "maximum": 8},
        "why": {"type": "string", "maxLength": 8},
        "sure": {"enum": ["yes", "no", None, 1.5]},
        "next": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["move", "why", "sure", "next"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def loaded() -> Any:
    return tiny_model()


def json_sampling(schema: dict[str, Any]) -> SamplingParams:
    return SamplingParams(response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})


def structured_sampling(**constraint: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=constraint)


def build_constraint(loaded: Any, sampling: SamplingParams) -> Constraint:
    constraint = constraint_for(sampling, loaded.tokenizer, sorted(loaded.renderer.stop_ids))
    assert constraint is not None
    return constraint


def generate(loaded: Any, sampling: SamplingParams, seed: int, max_tokens: int = 200) -> tuple[str, str | None]:
    """Return the generated text and the stop reason; each token takes a full forward pass."""
    constraint, stop_ids = build_constraint(loaded, sampling), loaded.renderer.stop_ids
    vocab = loaded.model.config.vocab_size
    prompt = loaded.renderer.encode("hello world")
    sampler = Sampler(vocab, sorted(stop_ids), rows=[SamplerRow(sampling, seed, prompt, constraint=constraint)])
    stop_checker = StopChecker(sampling, max_tokens, stop_ids, loaded.renderer.decode, constraint)
    ids = list(prompt)
    while stop_checker.reason is None:
        with torch.inference_mode():
            logits = loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1]
        ids.append(int(sampler.step(logits).ids))
        stop_checker.push(ids[-1])
    return stop_checker.text, stop_checker.reason


def check_schema(answer: Any) -> None:
    assert sorted(answer) == ["move", "next", "sure", "why"]
    assert type(answer["move"]) is int
    assert 0 <= answer["move"] <= 8
    assert isinstance(answer["why"], str)
    assert len(answer["why"]) <= 8
    assert answer["sure"] in ["yes", "no", None, 1.5]
    assert 1 <= len(answer["next"]) <= 3
    assert all(type(value) is bool for value in answer["next"])


@pytest.mark.parametrize("temperature", some_broad([3.0, 0.0, 1.0], 3))
def test_a_random_model_generates_json_that_matches_the_schema(loaded: Any, temperature: float):
    for seed in range(4):
        sampling = SamplingParams(temperature=temperature, response_format=json_sampling(SCHEMA).response_format)
        text, reason = generate(loaded, sampling, seed)
        check_schema(json.loads(text))
        assert reason == "stop"


@pytest.mark.parametrize("regex", ["[a-c]{3}-[0-9]+x", "(ab|cd){1,5}", "é€+🌍"])
def test_a_random_model_generates_text_that_matches_the_regex(loaded: Any, regex: str):
    sampling = SamplingParams(structured_outputs={"regex": regex}, temperature=2.0, logit_bias={1: 3.0})
    for seed in range(3):
        text, reason = generate(loaded, sampling, seed)
        assert reason == "stop"
        assert re.fullmatch(regex, text)


def test_a_constrained_text_may_end_with_the_end_token_wherever_it_is_complete(loaded: Any):
    texts = {generate(loaded, structured_sampling(regex="a+"), seed)[0] for seed in range(12)}
    assert all(re.fullmatch("a+", text) for text in texts)
    assert len(texts) > 1


@pytest.mark.broad
def test_filters_penalties_and_min_tokens_do_not_break_the_constraint(loaded: Any):
    hard = SamplingParams(
        top_k=1,
        top_p=0.1,
        min_p=0.9,
        min_tokens=50,
        repetition_penalty=2.0,
        logit_bias={5: 100.0},
        response_format=json_sampling(SCHEMA).response_format,
    )
    text, reason = generate(loaded, hard, 0)
    check_schema(json.loads(text))
    assert reason == "stop"


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_a_choice_constraint_generates_one_of_the_choices(loaded: Any, choices: list[str], seed: int):
    text, reason = generate(loaded, structured_sampling(choice=choices), seed)
    assert text in choices
    assert reason == "stop"


@pytest.mark.parametrize(
    "sampling",
    [
        json_sampling({"enum": ["x"]}),
        structured_sampling(json={"enum": ["x"]}),
        structured_sampling(json='{"enum": ["x"]}', regex=None),
        structured_sampling(grammar='start: "\\"x\\""'),
    ],
)
def test_every_request_field_for_constraints_is_supported(loaded: Any, sampling: SamplingParams):
    assert generate(loaded, sampling, 0) == ('"x"', "stop")


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(response_format={"type": "json_object"}), structured_sampling(json_object=True)],
)
def test_json_object_constraint_starts_with_a_brace(loaded: Any, sampling: SamplingParams):
    assert generate(loaded, sampling, 0, max_tokens=3)[0].startswith("{")


def test_a_mask_has_the_width_of_the_logits(loaded: Any):
    constraint = build_constraint(loaded, structured_sampling(regex="[ab]"))
    vocab = len(loaded.tokenizer)
    a, b = (loaded.renderer.encode(text)[0] for text in "ab")
    for width in (vocab, vocab + 64):
        mask = constraint.mask(width)
        assert mask.dtype == torch.bool
        assert mask.nonzero()[:, 0].tolist() == sorted([a, b])
        assert len(mask) == width


def test_constraints_of_two_requests_advance_independently(loaded: Any):
    first, second = (build_constraint(loaded, structured_sampling(regex="ab")) for _ in range(2))
    first.advance(loaded.renderer.encode("a")[0])
    assert not torch.equal(first.mask(320), second.mask(320))
    first.advance(loaded.renderer.encode("b")[0])
    assert (first.done, second.done) == (True, False)


def test_the_end_token_completes_a_constraint(loaded: Any):
    constraint = build_constraint(loaded, structured_sampling(regex="a+"))
    constraint.advance(loaded.renderer.encode("a")[0])
    assert not constraint.done
    constraint.advance(loaded.tokenizer.eos_token_id)
    assert (constraint.done, constraint.error) == (True, "")


def test_a_token_that_violates_the_constraint_is_an_error(loaded: Any, capfd: pytest.CaptureFixture[str]):
    constraint = build_constraint(loaded, structured_sampling(regex="a"))
    constraint.advance(loaded.renderer.encode("b")[0])
    assert constraint.done
    assert "doesn't satisfy the grammar" in constraint.error
    assert "\n" not in constraint.error
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(response_format={"type": "text"})])
def test_no_constraint_is_built_unless_requested(loaded: Any, sampling: SamplingParams):
    assert constraint_for(sampling, loaded.tokenizer) is None


@each_row(
    ("sampling", "message"),
    [
        (json_sampling({"type": "objekt"}), "not possible: .*objekt"),
        (structured_sampling(regex="a(b"), "not possible: .*unclosed group"),
        (structured_sampling(grammar="start: nowhere"), "not possible: .*nowhere"),
        (structured_sampling(regex=r"[^\s\S]"), "not possible: no text matches it; expected"),
        (json_sampling({"$ref": "#"}), "not possible: no text matches it"),
        (structured_sampling(json="{"), "JSON schema .* is not valid"),
        (structured_sampling(regex="a", choice=["b"]), "expected exactly one of"),
        (structured_sampling(choice=[]), "expected exactly one of"),
        (structured_sampling(choice=["a", 1]), "expected exactly one of"),
        (structured_sampling(), "expected exactly one of"),
        (SamplingParams(response_format={"type": "json_schema"}), "response_format is .*; expected"),
        (SamplingParams(response_format={"type": "xml"}), "response_format is .*; expected"),
        (SamplingParams(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), "both given"),
    ],
)
def test_an_invalid_constraint_is_refused(loaded: Any, sampling: SamplingParams, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        constraint_for(sampling, loaded.tokenizer)


MOVE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "square": {"type": "integer", "minimum": 0, "maximum": 8},
        "piece": {"$ref": "#/$defs/Piece"},
        "sure": {"type": ["boolean", "null"]},
    },
    "required": ["square"],
    "$defs": {"Piece": {"enum": ["X", 'O "ö"\n']}},
}


def tool(name: str, parameters: dict[str, Any] | str | None = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("move", MOVE_SCHEMA),
    tool("resign"),
    tool("other", {"type": "object", "properties": {"a": {"enum": [1]}}}),
]
FORMAT_CASES = [pytest.param(call_format, id=call_format.name) for call_format in ALL_FORMATS]
SEEDED_FORMATS = [
    *some_quick([(call_format, 0) for call_format in ALL_FORMATS], 5),
    *[pytest.param(call_format, seed, marks=pytest.mark.slow) for call_format in ALL_FORMATS for seed in (1, 2)],
]


def grammar_text(loaded: Any, call_format: Format, *names: str, parallel: bool = False, tools: Any = None) -> str:
    choice = ToolChoice(names or ("move", "resign", "other"), parallel)
    return tool_call_grammar(call_format, tools or TOOLS, choice, loaded.renderer.special_token)


def accepts(loaded: Any, constraint: Constraint, text: str) -> bool:
    ids = loaded.renderer.encode(text)
    matcher = constraint._matcher
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize(("call_format", "seed"), SEEDED_FORMATS)
def test_random_weights_write_calls_that_match_the_schema(loaded: Any, call_format: Format, seed: int):
    sampling = structured_sampling(grammar=grammar_text(loaded, call_format))
    text, _ = generate(loaded, sampling, seed, max_tokens=600)
    other_text, calls = read_calls(text, call_format, ["move", "resign", "other"], schemas=schemas_of(TOOLS))
    assert (other_text, len(calls)) == ("", 1), text
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        name = call["function"]["name"]
        allowed = {"move": {"square", "piece", "sure"}, "resign": set(), "other": {"a"}}[name]
        assert arguments.keys() <= allowed, text
        assert name != "move" or arguments["square"] in range(9)
        assert arguments.get("piece", "X") in ("X", 'O "ö"\n') and arguments.get("sure") in (True, False, None)


@pytest.mark.parametrize("call_format", FORMAT_CASES)
def test_calls_as_models_write_them_are_accepted(loaded: Any, call_format: Format):
    calls = [Call("move", {"square": 3, "piece": "X"}), Call("resign", {}), Call("move", {"square": 0, "sure": None})]
    if call_format.name in (
        "lfm2",
        "llama4",
    ):  # their writers quote strings as Python does; the grammar uses JSON quotes
        text = '[move(square=3, piece="X"), resign(), move(square=0, sure=null)]'
        if call_format.name == "lfm2":
            text = f"<|tool_call_start|>{text}<|tool_call_end|>"
    else:
        text = call_format.write(calls)
    several = structured_sampling(grammar=grammar_text(loaded, call_format, parallel=True))
    assert accepts(loaded, build_constraint(loaded, several), text)
    single = structured_sampling(grammar=grammar_text(loaded, call_format))
    assert not accepts(loaded, build_constraint(loaded, single), text)
    assert accepts(loaded, build_constraint(loaded, single), call_format.write(calls[1:2]))
    named = structured_sampling(grammar=grammar_text(loaded, call_format, "move"))
    assert not accepts(loaded, build_constraint(loaded, named), call_format.write(calls[1:2]))
    for wrong in (Call("move", {}), Call("move", {"square": 9}), Call("move", {"square": 1, "more": 2}), Call("x", {})):
        assert not accepts(loaded, build_constraint(loaded, several), call_format.write([wrong])), wrong


TALK: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "mode": {"enum": ["a", "b c"]}, "size": {"type": "number"}},
    "required": ["text"],
}


@pytest.mark.parametrize("call_format", [pytest.param(call_format, id=call_format.name) for call_format in TAG_FORMATS])
def test_strings_in_tags_are_forced_without_quotes(loaded: Any, call_format: Format):
    tools = [tool("talk", TALK)]
    constraint = structured_sampling(grammar=grammar_text(loaded, call_format, "talk", tools=tools))
    for arguments in ({"text": ""}, {"text": "a <b>\n<<c d\n"}, {"text": "x", "mode": "b c", "size": 1.5}):
        call = Call("talk", arguments)
        assert accepts(loaded, build_constraint(loaded, constraint), call_format.write([call])), arguments
        [parsed] = read_calls(call_format.write([call]), call_format, schemas=schemas_of(tools))[1]
        assert json.loads(parsed["function"]["arguments"]) == arguments
    for arguments in ({"text": "x", "mode": "c"}, {"text": "</parameter>"}, {"mode": "a"}, {"text": "x", "size": "y"}):
        written = call_format.write([Call("talk", arguments)])
        assert not accepts(loaded, build_constraint(loaded, constraint), written), arguments


def test_a_tool_call_marker_that_is_a_special_token_is_sampled_as_that_token():
    loaded = tiny_model()
    loaded.tokenizer.chat_template = "<|tool_call_start|>"
    call_format = next(call_format for call_format in FORMATS if call_format.name == "lfm2")
    # Two arbitrary special tokens of the tiny tokenizer.
    marker_ids: Any = {
        "<|tool_call_start|>": 2,
        "<|tool_call_end|>": 3,
    }
    assert loaded.renderer.special_token("<|user|>") == loaded.renderer.encode("<|user|>")[0]
    assert (loaded.renderer.special_token("hello"), loaded.renderer.special_token("0 1 2 <|user|>")) == (None, None)
    grammar = tool_call_grammar(call_format, TOOLS, ToolChoice(("resign",), False), marker_ids.get)
    constraint = build_constraint(loaded, structured_sampling(grammar=grammar))
    assert constraint._matcher.consume_tokens([2, *loaded.renderer.encode("[resign()]"), 3])
    assert constraint._matcher.is_accepting()


NEEDS_A: dict[str, Any] = {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


@each_row(
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
    call_format = next(arguments for arguments in FORMATS if arguments.name == "hermes")
    sampling = structured_sampling(grammar=grammar_text(loaded, call_format, "f", tools=[tool("f", parameters)]))
    texts = {
        arguments: f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        for arguments in accepted + refused
    }
    assert [
        arguments for arguments, text in texts.items() if accepts(loaded, build_constraint(loaded, sampling), text)
    ] == accepted
    assert all(len(read_calls(texts[arguments], call_format, ["f"])[1]) == 1 for arguments in accepted)


def string_of(*options: object) -> dict[str, Any]:
    """Return the parameters of a tool whose argument `a` is a string of these options."""
    return {"type": "object", "properties": {"a": {"type": "string", "enum": list(options)}}, "required": ["a"]}


@each_row("name", ["gemma4", "qwen_xml", "glm"])
def test_a_forced_string_is_one_of_the_strings_of_its_enum(loaded: Any, name: str):
    [call_format] = [call_format for call_format in ALL_FORMATS if call_format.name == name]
    tools = [tool("f", string_of("c", 1, None))]
    sampling = structured_sampling(grammar=grammar_text(loaded, call_format, "f", tools=tools))
    texts = {value: call_format.write([Call("f", {"a": value})]) for value in ("c", "", "1")}
    assert [value for value, text in texts.items() if accepts(loaded, build_constraint(loaded, sampling), text)] == [
        "c"
    ]


@each_row(
    ("format_name", "tools", "message"),
    [
        ("lfm2", [tool("a+b")], r"cannot write the name 'a\+b'"),
        ("lfm2", [tool("f", {"type": "object", "properties": {"a b": {}}})], "cannot write the name 'a b'"),
        (
            "lfm2",
            [tool("f", {"type": "object", "required": ["a"]})],
            "requires a, which its properties do not describe",
        ),
        ("lfm2", [tool("f", {"properties": {"a": False}, "required": ["a"]})], "requires a, whose schema false"),
        ("lfm2", [tool("f", {"allOf": [{"$ref": "#/$defs/A"}], "$defs": NEEDS_A})], "tool 'f' use allOf"),
        ("hermes", [tool("f", {"type": "string"})], "parameters of the tool 'f' have type string; expected object"),
        ("mistral_named", [tool("a b")], "cannot write the name 'a b'"),
        ("hermes", [tool("f", "x")], "parameters of the tool 'f' are \"x\"; expected a JSON schema"),
        ("lfm2", [tool("f", {"properties": ["a"]})], "parameters of the tool 'f' are .*; expected a JSON schema"),
        ("lfm2", [tool("f", {"properties": {"a": 1}})], "parameters of the tool 'f' are .*; expected a JSON schema"),
        ("gemma4", [tool("f", string_of(None))], "the argument 'a' has the schema .* no text matches"),
        ("qwen_xml", [tool("f", string_of(1, None))], "the argument 'a' has the schema .* no text matches"),
    ],
)
def test_tools_that_a_call_format_cannot_express_are_refused(
    loaded: Any, format_name: str, tools: list[Any], message: str
):
    names = [definition["function"]["name"] for definition in tools]
    with pytest.raises(ConfigError, match=message):
        grammar_text(
            loaded,
            next(call_format for call_format in ALL_FORMATS if call_format.name == format_name),
            *names,
            tools=tools,
        )


@each_row("name", ["from", "class", "None", "true", "größe", "ﬁ", "a-b", "a.1", "get.call", "1st"])
def test_tool_names_that_python_could_not_read_are_supported(loaded: Any, name: str):
    call_format = next(call_format for call_format in FORMATS if call_format.name == "lfm2")
    tools = [tool(name, {"properties": {name: {"type": "string"}, "never": False}})]
    constraint = build_constraint(
        loaded, structured_sampling(grammar=grammar_text(loaded, call_format, name, tools=tools))
    )
    text = f'<|tool_call_start|>[{name}({name}="x")]<|tool_call_end|>'
    assert accepts(loaded, constraint, text)
    _, (call,) = read_calls(text, call_format, [name])
    assert call["function"]["name"] == name and json.loads(call["function"]["arguments"]) == {name: "x"}


@pytest.mark.parametrize("arch", first_quick(["llama", "gemma2"]))
async def test_a_forced_tool_choice_returns_a_tool_call(arch: str):
    client = EngineClient.from_model(tiny_model(arch))
    choice = ToolChoice(("move",), False)
    constraints: list[Any] = [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}]
    for seed in range(2):
        request = Request(
            [UserMessage("hi")], SamplingParams(max_tokens=200), tools=TOOLS, tool_choice=choice, seed=seed
        )
        response = await client.respond(request)
        (call,) = response.message["tool_calls"]
        assert (response.finish_reason, call["function"]["name"]) == ("tool_calls", "move")
        assert json.loads(call["function"]["arguments"])["square"] in range(9)
    for fields in constraints:
        with pytest.raises(ConfigError, match="tool_choice forces a tool call, and .* is given too"):
            await client.respond(
                Request([UserMessage("hi")], SamplingParams(**fields), tools=TOOLS, tool_choice=choice)
            )
