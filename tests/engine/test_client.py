from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import bpe_tokenizer, generate_naively, tiny_model
from msgspec import structs
from tiers import first_quick

import rove as vf
from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.protocols import Client, Request, SamplingParams, Token, ToolChoice
from rove.core.records import StepTokens, Usage
from rove.engine.client import EngineClient
from rove.engine.engine import Engine
from rove.rendering.renderer import Renderer
from rove.train.sequences import sequences_from_record
from tests.rendering.test_renderer import of_pieces
from tests.rendering.test_tools import TEMPLATES
from tests.rendering.test_turn_ends import COHERE2, COHERE2_TOKENS

SAMPLING = SamplingParams(max_tokens=6)
END: int = bpe_tokenizer().eos_token_id
MESSAGES = [{"role": "user", "content": "0 1 2"}]
REPEAT = {END: -100.0}
"""Biases against the end of a completion, so that several calls follow each other."""


async def test_a_required_call_that_is_complete_survives_the_length_limit():
    client = EngineClient.from_model(tiny_model())
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]

    def request(max_tokens: int) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, logit_bias=REPEAT)
        return Request(MESSAGES, sampling, tools=tools, tool_choice=ToolChoice(("f",), True), seed=1)

    whole = await client.respond(request(120))
    assert whole.tokens is not None
    ids = whole.tokens.completion_ids
    texts = [client.renderer.decode(ids[:length]) for length in range(len(ids))]
    first_end = next(length for length, text in enumerate(texts) if "</tool_call>" in text)
    cut = await client.respond(request(first_end + 8))
    assert texts[first_end + 8].endswith("</tool_call>\n<tool_c")  # the second call is not complete
    (call,) = cut.message["tool_calls"]
    assert (call["function"], cut.message.content) == ({"name": "f", "arguments": "{}"}, None)
    assert cut.finish_reason == "length"


def test_client_takes_its_concurrency_from_the_engine_and_stop_ids_from_the_renderer():
    client = EngineClient.from_model(tiny_model(), max_batch=17)
    assert isinstance(client, Client)
    assert client.max_concurrent == 17
    assert client.engine.stop_ids == client.renderer.stop_ids


async def test_response_carries_the_exact_tokens_and_logprobs():
    loaded = tiny_model()
    response = await EngineClient.from_model(loaded).respond(Request(MESSAGES, SAMPLING, seed=4))
    tokens = response.tokens
    assert tokens is not None
    prompt = loaded.renderer.prompt_ids(MESSAGES)
    expected = generate_naively(loaded, prompt, 4, 1.0, 6)
    assert (tokens.prompt_ids, tokens.completion_ids) == (prompt, expected.ids)
    assert tokens.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert response.message == loaded.renderer.read(expected.ids)
    assert response.usage == Usage(len(prompt), len(expected.ids))
    assert response.finish_reason == expected.finish_reason


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_the_next_turn_extends_the_sampled_tokens(arch: str):
    loaded = tiny_model(arch, seed=1)
    client = EngineClient.from_model(loaded)
    messages: list[dict[str, Any]] = list(MESSAGES)
    previous = None
    for turn in range(4):
        response = await client.respond(Request(messages, SAMPLING, previous=previous, seed=turn))
        tokens = response.tokens
        assert tokens is not None
        if previous is not None:
            assert tokens.prompt_ids[: len(previous.ids)] == previous.ids
        expected = generate_naively(loaded, tokens.prompt_ids, turn, 1.0, 6)
        assert tokens.completion_ids == expected.ids
        assert tokens.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        previous = tokens
        messages = [*messages, response.message, {"role": "user", "content": f"no {turn}"}]


async def test_the_next_turn_computes_only_new_tokens():
    client = EngineClient.from_model(tiny_model())
    first = await client.respond(Request(MESSAGES, SamplingParams(max_tokens=1)))
    computed_tokens_before = client.engine.computed_tokens
    messages = [*MESSAGES, first.message, {"role": "user", "content": "no"}]
    assert first.tokens is not None
    second = await client.respond(Request(messages, SamplingParams(max_tokens=1), previous=first.tokens))
    assert second.tokens is not None
    assert client.engine.computed_tokens - computed_tokens_before == len(second.tokens.prompt_ids) - len(
        first.tokens.prompt_ids
    )


async def test_a_rewritten_conversation_is_tokenized_from_scratch():
    loaded = tiny_model()
    client = EngineClient.from_model(loaded)
    first = await client.respond(Request(MESSAGES, SAMPLING))
    messages = [*MESSAGES, {"role": "assistant", "content": "4"}, {"role": "user", "content": "no"}]
    second = await client.respond(Request(messages, SAMPLING, previous=first.tokens, seed=1))
    assert second.tokens is not None
    assert second.tokens.prompt_ids == loaded.renderer.prompt_ids(messages)
    assert second.tokens.completion_ids == generate_naively(loaded, second.tokens.prompt_ids, 1, 1.0, 6).ids


@pytest.mark.parametrize("max_tokens", [1, 2, 6])
async def test_the_same_prompt_can_be_sampled_again_after_a_response(max_tokens: int):
    loaded = tiny_model()
    client = EngineClient.from_model(loaded)
    sampling = SamplingParams(max_tokens=max_tokens)
    first = await client.respond(Request(MESSAGES, sampling))
    second_response = await client.respond(Request(MESSAGES, sampling, previous=first.tokens, seed=1))
    assert first.tokens is not None and second_response.tokens is not None
    assert second_response.tokens.prompt_ids == first.tokens.prompt_ids
    assert (
        second_response.tokens.completion_ids
        == generate_naively(loaded, first.tokens.prompt_ids, 1, 1.0, max_tokens).ids
    )


async def test_the_next_turn_extends_tokens_sampled_by_another_engine():
    loaded = tiny_model()
    prompt = loaded.renderer.prompt_ids(MESSAGES)
    foreign = StepTokens(prompt, [9, 9, 9], [0.0] * 3, policy_version=5)
    messages = [*MESSAGES, loaded.renderer.read([9, 9, 9]), {"role": "user", "content": "no"}]
    response = await EngineClient.from_model(loaded).respond(Request(messages, SAMPLING, previous=foreign))
    assert response.tokens is not None
    assert response.tokens.prompt_ids[: len(foreign.ids)] == foreign.ids
    assert response.tokens.completion_ids == generate_naively(loaded, response.tokens.prompt_ids, 0, 1.0, 6).ids


async def test_every_response_carries_the_policy_version():
    client = EngineClient.from_model(tiny_model())
    client.engine.update_weights(7)
    responses = await asyncio.gather(*(client.respond(Request(MESSAGES, SAMPLING, seed=i)) for i in range(3)))
    assert [r.tokens.policy_version for r in responses if r.tokens] == [7, 7, 7]


async def test_unsupported_requests_raise_errors():
    client = EngineClient.from_model(tiny_model(context=16))
    client.renderer.tokenizer.chat_template = "{{ messages[0].content }}"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="no known tool-call format"):
        await client.respond(Request(MESSAGES, tools=[{"type": "function"}]))
    with pytest.raises(ConfigError, match="beams"):
        await client.respond(Request(MESSAGES, SamplingParams(extra={"beams": 2})))
    with pytest.raises(OverlongPromptError):
        await client.respond(Request([{"role": "user", "content": "hello " * 20}]))


async def test_closing_frees_the_cache_and_keeps_the_policy_version():
    client = EngineClient.from_model(tiny_model())
    client.engine.update_weights(2)
    await client.respond(Request(MESSAGES, SAMPLING))
    cache = client.engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
    assert cache.allocated_bytes > 0
    await client.close()
    assert (cache.allocated_bytes, client.engine.policy_version) == (0, 2)


async def test_greedy_responses_do_not_depend_on_the_seed():
    client = EngineClient.from_model(tiny_model())
    greedy = [
        await client.respond(Request(MESSAGES, SamplingParams(temperature=0.0, max_tokens=6), seed=seed))
        for seed in (1, 2)
    ]
    assert greedy[0].tokens is not None and greedy[1].tokens is not None
    assert greedy[0].tokens.completion_ids == greedy[1].tokens.completion_ids
    sampled = [await client.respond(Request(MESSAGES, SamplingParams(max_tokens=6), seed=seed)) for seed in (1, 2)]
    assert sampled[0].message != sampled[1].message


# Raw texts


@pytest.mark.parametrize("arch", first_quick(["llama", "lfm2", "gemma2"], 2))
async def test_the_next_turn_of_a_raw_text_extends_the_previous_tokens(arch: str):
    loaded = tiny_model(arch, seed=2)
    client = EngineClient.from_model(loaded)
    text, previous, finish_reasons = "0 1 2", None, set()
    for turn in range(6):
        response = await client.respond(Request([], SAMPLING, previous=previous, seed=turn, text=text))
        tokens = response.tokens
        assert tokens is not None
        expected = generate_naively(loaded, tokens.prompt_ids, turn, 1.0, 6)
        assert (tokens.completion_ids, response.finish_reason) == (expected.ids, expected.finish_reason)
        assert tokens.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert loaded.renderer.decode(tokens.prompt_ids) == text
        if previous is not None:
            prefix = previous.ids[:-1] if previous.ids[-1] in loaded.renderer.stop_ids else previous.ids
            assert tokens.prompt_ids[: len(prefix)] == prefix
        finish_reasons.add(response.finish_reason)
        previous = tokens
        text += f"{response.message.content} no {turn}"
    assert finish_reasons == {"stop", "length"}


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_the_next_turn_of_a_raw_text_computes_only_new_tokens(end: str):
    client = EngineClient.from_model(tiny_model(seed=1))
    candidates = [await client.respond(Request([], SAMPLING, text="0 1 2", seed=seed)) for seed in range(20)]
    first = next(response for response in reversed(candidates) if response.finish_reason == end)
    assert first.tokens is not None
    computed_tokens_before = client.engine.computed_tokens
    text = f"0 1 2{first.message.content} no"
    second = await client.respond(Request([], SamplingParams(max_tokens=1), previous=first.tokens, text=text))
    assert second.tokens is not None
    # All sampled tokens but the last were computed before; a sampled end token is not part of the text.
    assert (
        client.engine.computed_tokens - computed_tokens_before
        <= len(second.tokens.prompt_ids) - len(first.tokens.ids) + 1
    )


async def test_a_raw_rollout_trains_each_sampled_token_once():
    class CountingEnv(vf.MultiTurnCompletionEnv):
        async def env_response(self, messages, state, **kwargs):
            return f" no {len(state['trajectory'])} "

    env = CountingEnv(dataset=[{"question": "0 1 2"}], max_turns=5)
    sampling = {"max_tokens": 6, "temperature": 1.0}
    client = EngineClient.from_model(tiny_model(seed=1))
    records = await vf.generate(env, client, rollouts_per_example=4, sampling_args=sampling)
    assert {step.finish_reason for record in records for step in record.steps} == {"stop", "length"}
    for record in records:
        steps = [step.tokens for step in record.steps if step.tokens is not None]
        samples = sequences_from_record(record, 1.0)
        trained = [i for sample in samples for i, mask in zip(sample.ids, sample.mask, strict=True) if mask]
        assert trained == [i for tokens in steps for i in tokens.completion_ids]
        assert len(samples) == 1 + sum(step.finish_reason == "stop" for step in record.steps[:-1])


async def test_an_empty_raw_text_is_refused():
    with pytest.raises(ConfigError, match="the prompt has no tokens"):
        await EngineClient.from_model(tiny_model()).respond(Request([], SAMPLING, text=""))


# Streaming


@pytest.mark.parametrize("text", first_quick([None, "0 1 2"]))
async def test_streamed_text_ends_before_a_stop_string(text: str | None):
    client = EngineClient.from_model(tiny_model(seed=1))
    finish_reasons, streamed_count = set(), 0
    for seed in range(12):
        sampling = SamplingParams(max_tokens=24, min_tokens=seed % 3)
        request = Request([] if text else MESSAGES, sampling, seed=seed, text=text)
        full_text = (await client.respond(request)).message.content
        stop = [full_text[len(full_text) // 2 :][:3] or "none", full_text[-4:-1] + "?"]
        pieces: list[str] = []
        tokens: list[Token] = []
        fields: Any = {"on_text": pieces.append, "on_token": tokens.append}
        response = await client.respond(
            structs.replace(request, sampling_params=structs.replace(sampling, stop=stop), **fields)
        )
        assert "".join(pieces) == response.message.content and "" not in pieces
        assert full_text.startswith(response.message.content)
        assert response.tokens is not None and [token.id for token in tokens] == response.tokens.completion_ids
        streamed_count += len(pieces) > 1
        finish_reasons.add(response.finish_reason)
    assert "stop" in finish_reasons and streamed_count > 4


@pytest.mark.parametrize("name", ["f", "g"])
@pytest.mark.parametrize("stop", [None, ["</tool_call>!"]])
async def test_streamed_text_excludes_tool_calls_and_nothing_else(name: str, stop: list[str] | None):
    client = EngineClient.from_model(tiny_model(seed=1))
    client.renderer.tokenizer.chat_template = TEMPLATES["hermes"]  # pyright: ignore[reportAttributeAccessIssue]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' if name == "f" else "<tools are no call> "
    structured_outputs = {"choice": [f"Let me see.{call}"]}
    pieces: list[str] = []
    tokens: list[Token] = []
    sampling = SamplingParams(max_tokens=99, structured_outputs=structured_outputs, stop=stop)
    tools = [{"type": "function", "function": {"name": "f"}}]
    response = await client.respond(
        Request(MESSAGES, sampling, tools=tools, on_text=pieces.append, on_token=tokens.append)
    )
    assert response.message.content == ("Let me see." if name == "f" else f"Let me see.{call}")
    assert "".join(pieces) == response.message.content.rstrip() and len(pieces) > 3
    assert response.finish_reason == ("tool_calls" if name == "f" else "stop")
    assert response.tokens is not None and [token.id for token in tokens] == response.tokens.completion_ids


async def test_prompt_logprobs_are_returned():
    client = EngineClient.from_model(tiny_model())
    response = await client.respond(Request(MESSAGES, SamplingParams(max_tokens=1, prompt_logprobs=2)))
    assert response.tokens is not None
    assert response.prompt_logprobs == pytest.approx(client.engine.score(response.tokens.prompt_ids), abs=1e-5)
    assert [len(top) for top in response.prompt_top_logprobs or []] == [2] * (len(response.tokens.prompt_ids) - 1)


OPENED_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


async def test_a_reply_to_a_prompt_that_opens_the_reasoning_is_marked():
    loaded = tiny_model()
    loaded.tokenizer.chat_template = OPENED_TEMPLATE
    client = EngineClient.from_model(loaded)
    response = await client.respond(Request(MESSAGES, SamplingParams(max_tokens=4)))
    assert response.message["opened_reasoning"] == "<think>\n"


@pytest.mark.parametrize(
    "constraint",
    [
        {"structured_outputs": {"choice": ["yes"]}},
        {"structured_outputs": {"regex": "yes"}},
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_a_constrained_answer_does_not_count_as_unfinished_reasoning(constraint: dict[str, Any]):
    loaded = tiny_model()
    loaded.tokenizer.chat_template = OPENED_TEMPLATE
    client = EngineClient.from_model(loaded)
    response = await client.respond(Request(MESSAGES, SamplingParams(max_tokens=40, **constraint)))
    assert response.message.content
    assert vf.Parser().parse_answer([response.message]) == response.message.content
    reasoned = SamplingParams(max_tokens=40, structured_outputs={"choice": ["so</think>yes"]})
    response = await client.respond(Request(MESSAGES, reasoned))
    assert vf.Parser().parse_answer([response.message]) == "<think>\nso</think>yes"


async def test_a_required_call_does_not_count_as_unfinished_reasoning():
    loaded = tiny_model()
    loaded.tokenizer.chat_template = TEMPLATES["hermes"] + "{% if add_generation_prompt %}<think>\n{% endif %}"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    request = Request(MESSAGES, SamplingParams(max_tokens=120), tools=tools, tool_choice=ToolChoice(("f",), False))
    response = await EngineClient.from_model(loaded).respond(request)
    assert response.message.tool_calls and "opened_reasoning" not in response.message


# Where the text ends


def forced_client(renderer: Renderer, completion: list[int], monkeypatch: pytest.MonkeyPatch) -> EngineClient[Engine]:
    """Return a client whose model samples the tokens `completion` after any prompt."""
    engine = Engine(tiny_model().model, sorted(renderer.stop_ids), renderer=renderer)
    runner_step = engine._runner.step

    def forced_step() -> Any:
        seqs, logits = runner_step()
        for row, seq in enumerate(seqs):
            logits[row, completion[len(seq.tokens) - seq.prompt_length]] = 1000.0
        return seqs, logits

    monkeypatch.setattr(engine._runner, "step", forced_step)
    return EngineClient(engine, renderer)


async def complete(client: EngineClient[Engine], text: str | None, **sampling: Any) -> tuple[list[int], str, str]:
    """Return the sampled ids, the content of the message, and the streamed text."""
    pieces: list[str] = []
    sampling_params = SamplingParams(max_tokens=20, temperature=0.0, **sampling)
    messages = MESSAGES if text is None else []
    response = await client.respond(Request(messages, sampling_params, text=text, on_text=pieces.append))
    assert response.tokens is not None
    return response.tokens.completion_ids, response.message.content, "".join(pieces)


@pytest.mark.parametrize("stop", [None, ["zzz"]])
async def test_closing_tokens_and_stop_tokens_are_not_part_of_the_text(
    stop: list[str] | None, monkeypatch: pytest.MonkeyPatch
):
    tokenizer = bpe_tokenizer(vocab_size=300)
    names = [f"<|{name}|>" for name in COHERE2_TOKENS]
    tokenizer.add_special_tokens({"eos_token": names[0], "additional_special_tokens": names[1:]})
    tokenizer.chat_template = COHERE2
    renderer = Renderer(tokenizer)
    closed = renderer.encode("world<|END_RESPONSE|><|END_OF_TURN_TOKEN|>")
    client = forced_client(renderer, closed, monkeypatch)
    assert await complete(client, None, stop=stop) == (closed, "world", "world")
    stopped = renderer.encode("world<|USER_TOKEN|>")
    client = forced_client(renderer, stopped, monkeypatch)
    assert await complete(client, None, stop=stop, stop_token_ids=stopped[-1:]) == (stopped, "world", "world")
    assert await complete(client, "0 1", stop=stop, stop_token_ids=stopped[-1:]) == (stopped, "world", "world")


@pytest.mark.parametrize("stop", [None, ["zzz"], ["hello"]])
async def test_only_the_first_word_of_a_chat_reply_loses_its_space(
    stop: list[str] | None, monkeypatch: pytest.MonkeyPatch
):
    renderer = of_pieces()
    renderer.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"  # pyright: ignore[reportAttributeAccessIssue]
    completion = renderer.encode(" world hello<|end|>")
    client = forced_client(renderer, completion, monkeypatch)
    content = "world " if stop == ["hello"] else "world hello"
    assert (await complete(client, None, stop=stop))[1:] == (content, content)
    assert (await complete(client, "say", stop=stop))[1:] == (f" {content}", f" {content}")
