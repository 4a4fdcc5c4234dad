"""Rollouts with tools on the embedded engine: a trajectory is one unbroken token sequence in every tool-call format."""

from __future__ import annotations

import collections
import itertools
import json
import re
from typing import Any

import pytest
from fakes import tiny_model
from tiers import some_broad
from toy_envs import generate_sync, rows

import rove as vf
from rove.core.protocols import Request, SamplingParams, ToolChoice
from rove.engine.client import EngineClient
from rove.models.from_scratch import CHAT_TEMPLATE, new_model
from rove.models.load import LoadedModel
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import Call
from rove.runs.serialization import decode_record, encode_record
from rove.stages.models import ModelConfig, environment_texts
from rove.train.sequences import sequences_from_messages, sequences_from_record
from tests.rendering.test_tool_support import TEMPLATES as FURTHER_TEMPLATES
from tests.rendering.test_tools import TEMPLATES

ALL = {**TEMPLATES, "rove": CHAT_TEMPLATE, **{k: v for k, v in FURTHER_TEMPLATES.items() if k not in TEMPLATES}}


def add(a: int, b: int, why: str) -> dict[str, Any]:
    """Add two numbers."""
    return {"sum": a + b, "says": f"hello world <tool_call> {why}"}


def model_of(template: str) -> LoadedModel:
    loaded = tiny_model(context=4096)
    loaded.tokenizer.chat_template = template
    return loaded._replace(renderer=Renderer(loaded.tokenizer))


def call_pattern(renderer: Renderer, count: int) -> str:
    """Return a regular expression for responses that call `add` with digits and greetings."""
    tool_format = renderer.tool_format
    assert tool_format is not None
    text = tool_format.write([Call("add", {"a": 7, "b": 7, "why": "Z"})] * count)
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text).replace("7", "[0-9]").replace("Z", "( hello| hells){8}")


@pytest.mark.parametrize("name", some_broad(ALL, 10))
def test_a_rollout_with_tools_is_one_unbroken_sequence(name: str):
    loaded = model_of(ALL[name])
    renderer = loaded.renderer
    count = 1 if name == "llama3" else 2
    client = EngineClient.from_model(loaded)
    env = vf.ToolEnv(tools=[add], dataset=rows(1), max_turns=3)
    [greeting_token] = renderer.encode(" hello")
    sampling = {"logit_bias": {greeting_token: -100}}  # forces a tokenization that the tokenizer never produces
    form = {"regex": call_pattern(renderer, count)}
    [record] = generate_sync(
        env, client, sampling_args={"structured_outputs": form, "temperature": 1.0, "max_tokens": 1000} | sampling
    )

    assert record.error is None, record.error
    assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 3)
    assert record.scores is not None and record.scores.metrics["add_calls"] == 3 * count
    results = [json.loads(m["content"]) for m in record.completion if m["role"] == "tool"]
    assert len(results) == 3 * count and all(0 <= result["sum"] <= 18 for result in results)

    [sample] = sequences_from_record(record, 1.0)
    turns = [step.tokens for step in record.steps if step.tokens is not None]
    for turn, next_turn in itertools.pairwise(turns):
        assert next_turn.prompt_ids[: len(turn.ids)] == turn.ids
        added = renderer.decode(next_turn.prompt_ids[len(turn.ids) :])
        assert added.count('"sum"') == count  # only the tool results, no sampled tokens
    assert sample.ids == turns[-1].ids
    assert [i for i, m in zip(sample.ids, sample.mask, strict=True) if m] == [
        i for turn in turns for i in turn.completion_ids
    ]
    assert greeting_token not in sample.ids[len(turns[0].prompt_ids) :][: len(turns[0].completion_ids)]
    assert sample.ids != renderer.encode(renderer.decode(sample.ids))

    # A saved rollout is sufficient for training: the same text with the same trained part. (A response that completes
    # the regular expression ends without an end token.)
    saved = decode_record(encode_record(record))
    [from_saved] = sequences_from_messages(renderer, [*saved.prompt, *saved.completion], saved.tools)
    assert renderer.decode(from_saved.ids) == renderer.decode(sample.ids) + "<|end|>"
    assert trained_text(renderer, from_saved).replace("<|end|>", "") == trained_text(renderer, sample)


def trained_text(renderer: Renderer, sample: Any) -> str:
    return renderer.decode([i for i, m in zip(sample.ids, sample.mask, strict=True) if m])


def test_a_template_without_tool_support_is_an_error_of_the_rollout():
    loaded = model_of("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>")
    [record] = generate_sync(
        vf.ToolEnv(tools=[add], dataset=rows(1)), EngineClient.from_model(loaded), sampling_args={"max_tokens": 4}
    )
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("ConfigError", "model")
    assert "has no known tool-call format" in record.error.message


@pytest.mark.broad
async def test_in_lookup_all_sampled_tokens_are_trained_but_no_tool_results():
    texts = await environment_texts(vf.load_environment("lookup"), ModelConfig(env="lookup", games=20))
    loaded = new_model(texts, seed=2)  # a model that makes calls in several orders
    renderer = loaded.renderer
    env = vf.load_environment("lookup", num_examples=8)
    arguments = (
        r'"lookup", "arguments": \{"who": "(Ada|Ben|Kim|Nobody)"|"answer", "arguments": \{"room": "(attic|hall)"'
    )
    pattern = rf'<tool_call>\n\{{"name": ({arguments})\}}\}}\n</tool_call>'
    records = await vf.generate(
        env,
        EngineClient.from_model(loaded),
        rollouts_per_example=8,
        sampling_args={"structured_outputs": {"regex": pattern}, "temperature": 1.0, "max_tokens": 60},
    )
    assert len(records) == 64
    called: collections.Counter[tuple[str, ...]] = collections.Counter()
    for record in records:
        assert record.error is None
        called[tuple(m["tool_calls"][0]["function"]["name"] for m in record.completion[::2])] += 1
        [sample] = sequences_from_record(record, 1.0)
        turns = [step.tokens for step in record.steps if step.tokens is not None]
        expected = list(turns[0].prompt_ids)
        mask = [False] * len(expected)
        for turn, tool_message in zip(turns, record.completion[1::2], strict=True):
            assert turn.prompt_ids == expected  # the prompt starts with exactly the ids of the previous turn
            expected += turn.completion_ids
            mask += [True] * len(turn.completion_ids)
            if turn is turns[-1]:  # no prompt contains this last tool result
                break
            tool_ids = renderer.encode(f"<|tool|>{tool_message['content']}<|end|><|assistant|>")
            ended = [] if turn.completion_ids[-1] == renderer.encode("<|end|>")[0] else renderer.encode("<|end|>")
            expected += ended + tool_ids
            mask += [False] * len(ended + tool_ids)
        assert (list(sample.ids), list(sample.mask)) == (expected, mask)
        logprobs = [p for turn in turns for p in turn.logprobs]
        assert [p for p, is_sampled in zip(sample.logprobs, sample.mask, strict=True) if is_sampled] == logprobs
    assert called["lookup", "answer"] > 3 and called["lookup", "lookup", "answer"] > 3, called
    tool_results = {message["content"] for record in records for message in record.completion[1::2]}
    assert len(tool_results) > 6 and {"there is no person of that name", "Answer submitted."} < tool_results


COUNTING_TEMPLATE = (
    "{% set turn = namespace(count=0) %}{% for m in messages if m.role == 'user' or (m.role == 'assistant' and not "
    "m.tool_calls) %}{% if (m.role == 'user') != (turn.count % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "{% set turn.count = turn.count + 1 %}{% endfor %}"
)
"""The check of Mistral's templates, which a message without `tool_calls` fails after a tool's result."""


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(ALL["mistral"], id="Mistral 7B v0.3"),
        pytest.param(ALL["mistral"].replace("[TOOL_CALLS] [", "[TOOL_CALLS]["), id="Mistral Nemo"),
        pytest.param(ALL["mistral_named"], id="mistral_named"),
    ],
)
async def test_a_turn_after_forced_calls_of_mistral_continues_the_sampled_tokens(template: str):
    loaded = model_of(COUNTING_TEMPLATE + template)
    support = loaded.renderer.tool_support
    assert support.writes_ids and not support.keeps_text
    properties = {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "why": {"enum": ["x y", "z"]}}
    parameters = {"type": "object", "properties": properties, "required": ["a", "why"]}
    tools: Any = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": parameters}}]
    client = EngineClient.from_model(loaded)
    messages: list[Any] = [vf.UserMessage("hi")]
    previous = None
    for turn in range(3):
        request = Request(
            messages,
            SamplingParams(max_tokens=300, temperature=1.0),
            tools=tools,
            tool_choice=ToolChoice(("add",), parallel=False),
            previous=previous,
            seed=turn,
        )
        response = await client.respond(request)
        assert response.finish_reason == "tool_calls" and response.tokens is not None
        if previous is not None:
            assert response.tokens.prompt_ids[: len(previous.ids)] == previous.ids
        previous = response.tokens
        [call] = response.message["tool_calls"]
        messages = [*messages, response.message, vf.ToolMessage("5", call["id"])]
