"""Rollouts with tools on the embedded engine: the trajectory stays one unbroken sequence, in every way to write calls."""

from __future__ import annotations

import collections
import itertools
import json
import re
from typing import Any

import pytest
from fakes import tiny_model
from tiers import first_quick
from toys import roll, rows

import rove as vf
from rove.cli.model import ModelConfig, environment_texts
from rove.engine.client import EngineClient
from rove.models.from_scratch import CHAT_TEMPLATE, new_model
from rove.models.load import LoadedModel
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import Call
from rove.runs.serialization import decode_record, encode_record
from rove.train.sequences import sequences_from_messages, sequences_from_record
from tests.rendering.test_tools import TEMPLATES

ALL = {**TEMPLATES, "rove": CHAT_TEMPLATE}


def add(a: int, b: int, why: str) -> dict[str, Any]:
    """Add two numbers."""
    return {"sum": a + b, "says": f"hello world <tool_call> {why}"}


def model_of(template: str) -> LoadedModel:
    loaded = tiny_model(context=4096)
    loaded.tokenizer.chat_template = template
    return loaded._replace(renderer=Renderer(loaded.tokenizer))


def calling(renderer: Renderer, count: int) -> str:
    """A regular expression of answers that call `add` with digits and greetings."""
    how = renderer.tool_format
    assert how is not None
    text = how.write([Call("add", {"a": 7, "b": 7, "why": "Z"})] * count)
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text).replace("7", "[0-9]").replace("Z", "( hello| hells){8}")


@pytest.mark.broad
@pytest.mark.parametrize("name", first_quick(ALL))
def test_a_rollout_with_tools_is_one_unbroken_sequence(name: str):
    loaded = model_of(ALL[name])
    renderer = loaded.renderer
    count = 1 if name == "llama3" else 2
    client = EngineClient.from_model(loaded)
    env = vf.ToolEnv(tools=[add], dataset=rows(1), max_turns=3)
    [usual] = renderer.encode(" hello")
    spelling = {"logit_bias": {usual: -100}}  # the greeting is spelt as the tokenizer would never do
    form = {"regex": calling(renderer, count)}
    [record] = roll(
        env, client, sampling_args={"structured_outputs": form, "temperature": 1.0, "max_tokens": 400} | spelling
    )

    assert record.error is None, record.error
    assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 3)
    assert record.scores is not None and record.scores.metrics["add_calls"] == 3 * count
    results = [json.loads(m["content"]) for m in record.completion if m["role"] == "tool"]
    assert len(results) == 3 * count and all(0 <= result["sum"] <= 18 for result in results)

    [sample] = sequences_from_record(record, 1.0)
    turns = [step.tokens for step in record.steps if step.tokens is not None]
    for before, after in itertools.pairwise(turns):
        assert after.prompt_ids[: len(before.ids)] == before.ids
        added = renderer.decode(after.prompt_ids[len(before.ids) :])
        assert added.count('"sum"') == count  # what the tools said, and nothing of it sampled
    assert sample.ids == turns[-1].ids
    assert [i for i, m in zip(sample.ids, sample.mask, strict=True) if m] == [
        i for turn in turns for i in turn.completion_ids
    ]
    assert usual not in sample.ids[len(turns[0].prompt_ids) :][: len(turns[0].completion_ids)]
    assert sample.ids != renderer.encode(renderer.decode(sample.ids))

    # A saved rollout says enough to be learnt from: the same text, the same of it trained. (An expression that is
    # complete ends an answer without an end token.)
    saved = decode_record(encode_record(record))
    [learnt] = sequences_from_messages(renderer, [*saved.prompt, *saved.completion], saved.tools)
    assert renderer.decode(learnt.ids) == renderer.decode(sample.ids) + "<|end|>"
    assert trained(renderer, learnt).replace("<|end|>", "") == trained(renderer, sample)


def trained(renderer: Renderer, sample: Any) -> str:
    return renderer.decode([i for i, m in zip(sample.ids, sample.mask, strict=True) if m])


def test_a_model_whose_template_shows_no_tools_says_so_on_the_rollout():
    loaded = model_of("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>")
    [record] = roll(
        vf.ToolEnv(tools=[add], dataset=rows(1)), EngineClient.from_model(loaded), sampling_args={"max_tokens": 4}
    )
    assert record.error is not None
    assert (record.error.type, record.error.phase) == ("ConfigError", "model")
    assert "has no known tool-call format" in record.error.message


@pytest.mark.broad
async def test_in_lookup_every_sampled_token_is_trained_and_none_of_what_the_tools_said():
    texts = await environment_texts(vf.load_environment("lookup"), ModelConfig(env="lookup", games=20))
    loaded = new_model(texts)
    renderer = loaded.renderer
    env = vf.load_environment("lookup", num_examples=8)
    arguments = (
        r'"lookup", "arguments": \{"who": "(Ada|Ben|Kim|Nobody)"|"answer", "arguments": \{"room": "(attic|hall)"'
    )
    form = rf'<tool_call>\n\{{"name": ({arguments})\}}\}}\n</tool_call>'
    records = await vf.generate(
        env,
        EngineClient.from_model(loaded),
        rollouts_per_example=8,
        sampling_args={"structured_outputs": {"regex": form}, "temperature": 1.0, "max_tokens": 60},
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
        for turn, said in zip(turns, record.completion[1::2], strict=True):
            assert turn.prompt_ids == expected  # what the next turn is shown begins with the very ids of the last
            expected += turn.completion_ids
            mask += [True] * len(turn.completion_ids)
            if turn is turns[-1]:  # what the tool said then, nobody has read
                break
            told = renderer.encode(f"<|tool|>{said['content']}<|end|><|assistant|>")
            ended = [] if turn.completion_ids[-1] == renderer.encode("<|end|>")[0] else renderer.encode("<|end|>")
            expected += ended + told
            mask += [False] * len(ended + told)
        assert (list(sample.ids), list(sample.mask)) == (expected, mask)
        logprobs = [p for turn in turns for p in turn.logprobs]
        assert [p for p, own in zip(sample.logprobs, sample.mask, strict=True) if own] == logprobs
    assert called["lookup", "answer"] > 3 and called["lookup", "lookup", "answer"] > 3, called
    said = {message["content"] for record in records for message in record.completion[1::2]}
    assert len(said) > 6 and {"nobody has that name", "done"} < said
