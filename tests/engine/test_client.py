from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import generate_naively, tiny_model
from msgspec import structs
from tiers import first_quick

import rove as vf
from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.protocols import Client, Request, SamplingParams, Token
from rove.core.records import StepTokens, Usage
from rove.engine.client import EngineClient
from rove.train.sequences import sequences_from_record
from tests.rendering.test_tools import TEMPLATES

SAMPLING = SamplingParams(max_tokens=6)
ASK = [{"role": "user", "content": "0 1 2"}]


def test_it_is_a_client_that_likes_what_its_engine_can_batch():
    client = EngineClient.from_model(tiny_model(), max_batch=17)
    assert isinstance(client, Client)
    assert client.max_concurrent == 17
    assert client.engine.stop_ids == client.renderer.stop_ids


async def test_an_answer_carries_its_exact_tokens():
    loaded = tiny_model()
    response = await EngineClient.from_model(loaded).respond(Request(ASK, SAMPLING, seed=4))
    tokens = response.tokens
    assert tokens is not None
    prompt = loaded.renderer.prompt_ids(ASK)
    wanted = generate_naively(loaded, prompt, 4, 1.0, 6)
    assert (tokens.prompt_ids, tokens.completion_ids) == (prompt, wanted.ids)
    assert tokens.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
    assert response.message == loaded.renderer.read(wanted.ids)
    assert response.usage == Usage(len(prompt), len(wanted.ids))
    assert response.finish_reason == wanted.finish_reason


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_the_next_turn_extends_the_sampled_tokens(arch: str):
    loaded = tiny_model(arch, seed=1)
    client = EngineClient.from_model(loaded)
    messages: list[dict[str, Any]] = list(ASK)
    previous = None
    for turn in range(4):
        response = await client.respond(Request(messages, SAMPLING, previous=previous, seed=turn))
        tokens = response.tokens
        assert tokens is not None
        if previous is not None:
            assert tokens.prompt_ids[: len(previous.ids)] == previous.ids
        wanted = generate_naively(loaded, tokens.prompt_ids, turn, 1.0, 6)
        assert tokens.completion_ids == wanted.ids
        assert tokens.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        previous = tokens
        messages = [*messages, response.message, {"role": "user", "content": f"no {turn}"}]


async def test_the_next_turn_computes_only_what_is_new():
    client = EngineClient.from_model(tiny_model())
    first = await client.respond(Request(ASK, SamplingParams(max_tokens=1)))
    before = client.engine.computed_tokens
    messages = [*ASK, first.message, {"role": "user", "content": "no"}]
    assert first.tokens is not None
    second = await client.respond(Request(messages, SamplingParams(max_tokens=1), previous=first.tokens))
    assert second.tokens is not None
    assert client.engine.computed_tokens - before == len(second.tokens.prompt_ids) - len(first.tokens.prompt_ids)


async def test_a_rewritten_conversation_is_tokenised_afresh():
    loaded = tiny_model()
    client = EngineClient.from_model(loaded)
    first = await client.respond(Request(ASK, SAMPLING))
    messages = [*ASK, {"role": "assistant", "content": "4"}, {"role": "user", "content": "no"}]
    second = await client.respond(Request(messages, SAMPLING, previous=first.tokens, seed=1))
    assert second.tokens is not None
    assert second.tokens.prompt_ids == loaded.renderer.prompt_ids(messages)
    assert second.tokens.completion_ids == generate_naively(loaded, second.tokens.prompt_ids, 1, 1.0, 6).ids


@pytest.mark.parametrize("max_tokens", [1, 2, 6])
async def test_an_environment_may_take_an_answer_back_and_ask_again(max_tokens: int):
    loaded = tiny_model()
    client = EngineClient.from_model(loaded)
    sampling = SamplingParams(max_tokens=max_tokens)
    first = await client.respond(Request(ASK, sampling))
    again = await client.respond(Request(ASK, sampling, previous=first.tokens, seed=1))
    assert first.tokens is not None and again.tokens is not None
    assert again.tokens.prompt_ids == first.tokens.prompt_ids
    assert again.tokens.completion_ids == generate_naively(loaded, first.tokens.prompt_ids, 1, 1.0, max_tokens).ids


async def test_tokens_of_another_engine_are_extended_too():
    loaded = tiny_model()
    prompt = loaded.renderer.prompt_ids(ASK)
    foreign = StepTokens(prompt, [9, 9, 9], [0.0] * 3, policy_version=5)
    messages = [*ASK, loaded.renderer.read([9, 9, 9]), {"role": "user", "content": "no"}]
    response = await EngineClient.from_model(loaded).respond(Request(messages, SAMPLING, previous=foreign))
    assert response.tokens is not None
    assert response.tokens.prompt_ids[: len(foreign.ids)] == foreign.ids
    assert response.tokens.completion_ids == generate_naively(loaded, response.tokens.prompt_ids, 0, 1.0, 6).ids


async def test_the_version_of_the_weights_is_on_every_answer():
    client = EngineClient.from_model(tiny_model())
    client.engine.update_weights(7)
    made = await asyncio.gather(*(client.respond(Request(ASK, SAMPLING, seed=i)) for i in range(3)))
    assert [r.tokens.policy_version for r in made if r.tokens] == [7, 7, 7]


async def test_it_refuses_what_it_cannot_do():
    client = EngineClient.from_model(tiny_model(context=16))
    client.renderer.tokenizer.chat_template = "{{ messages[0].content }}"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="no known tool-call format"):
        await client.respond(Request(ASK, tools=[{"type": "function"}]))
    with pytest.raises(ConfigError, match="beams"):
        await client.respond(Request(ASK, SamplingParams(extra={"beams": 2})))
    with pytest.raises(OverlongPromptError):
        await client.respond(Request([{"role": "user", "content": "hello " * 20}]))


async def test_closing_frees_the_cache_and_keeps_the_version():
    client = EngineClient.from_model(tiny_model())
    client.engine.update_weights(2)
    await client.respond(Request(ASK, SAMPLING))
    cache = client.engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
    assert cache.allocated_bytes > 0
    await client.close()
    assert (cache.allocated_bytes, client.engine.policy_version) == (0, 2)


async def test_greedy_answers_do_not_depend_on_the_seed():
    client = EngineClient.from_model(tiny_model())
    made = [
        await client.respond(Request(ASK, SamplingParams(temperature=0.0, max_tokens=6), seed=seed)) for seed in (1, 2)
    ]
    assert made[0].tokens is not None and made[1].tokens is not None
    assert made[0].tokens.completion_ids == made[1].tokens.completion_ids
    free = [await client.respond(Request(ASK, SamplingParams(max_tokens=6), seed=seed)) for seed in (1, 2)]
    assert free[0].message != free[1].message


# Raw texts


@pytest.mark.parametrize("arch", first_quick(["llama", "lfm2", "gemma2"], 2))
async def test_a_raw_text_is_continued_by_the_tokens_it_grew_by(arch: str):
    loaded = tiny_model(arch, seed=2)
    client = EngineClient.from_model(loaded)
    text, previous, ends = "0 1 2", None, set()
    for turn in range(6):
        response = await client.respond(Request([], SAMPLING, previous=previous, seed=turn, text=text))
        tokens = response.tokens
        assert tokens is not None
        wanted = generate_naively(loaded, tokens.prompt_ids, turn, 1.0, 6)
        assert (tokens.completion_ids, response.finish_reason) == (wanted.ids, wanted.finish_reason)
        assert tokens.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
        assert loaded.renderer.decode(tokens.prompt_ids) == text
        if previous is not None:
            kept = previous.ids[:-1] if previous.ids[-1] in loaded.renderer.stop_ids else previous.ids
            assert tokens.prompt_ids[: len(kept)] == kept
        ends.add(response.finish_reason)
        previous = tokens
        text += f"{response.message.content} no {turn}"
    assert ends == {"stop", "length"}


@pytest.mark.parametrize("end", ["stop", "length"])
async def test_the_next_turn_of_a_raw_text_computes_only_what_is_new(end: str):
    client = EngineClient.from_model(tiny_model(seed=1))
    tries = [await client.respond(Request([], SAMPLING, text="0 1 2", seed=seed)) for seed in range(20)]
    first = next(response for response in reversed(tries) if response.finish_reason == end)
    assert first.tokens is not None
    before = client.engine.computed_tokens
    text = f"0 1 2{first.message.content} no"
    second = await client.respond(Request([], SamplingParams(max_tokens=1), previous=first.tokens, text=text))
    assert second.tokens is not None
    # At least all but the last sampled token was computed before; an end that was sampled last is not part of the text.
    assert client.engine.computed_tokens - before <= len(second.tokens.prompt_ids) - len(first.tokens.ids) + 1


async def test_a_raw_rollout_trains_each_sampled_token_once():
    class Counted(vf.MultiTurnCompletionEnv):
        async def env_response(self, messages, state, **kwargs):
            return f" no {len(state['trajectory'])} "

    env = Counted(dataset=[{"question": "0 1 2"}], max_turns=5)
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


async def test_an_empty_text_is_nothing_to_start_from():
    with pytest.raises(ConfigError, match="the prompt has no tokens"):
        await EngineClient.from_model(tiny_model()).respond(Request([], SAMPLING, text=""))


# Told as it comes


@pytest.mark.parametrize("text", first_quick([None, "0 1 2"]))
async def test_a_text_with_stop_texts_is_told_up_to_them_and_no_further(text: str | None):
    client = EngineClient.from_model(tiny_model(seed=1))
    ended, told_early = set(), 0
    for seed in range(12):
        sampling = SamplingParams(max_tokens=24, min_tokens=seed % 3)
        asked = Request([] if text else ASK, sampling, seed=seed, text=text)
        said = (await client.respond(asked)).message.content
        stop = [said[len(said) // 2 :][:3] or "none", said[-4:-1] + "?"]
        pieces: list[str] = []
        tokens: list[Token] = []
        fields: Any = {"on_text": pieces.append, "on_token": tokens.append}
        made = await client.respond(
            structs.replace(asked, sampling_params=structs.replace(sampling, stop=stop), **fields)
        )
        assert "".join(pieces) == made.message.content and "" not in pieces
        assert said.startswith(made.message.content)
        assert made.tokens is not None and [token.id for token in tokens] == made.tokens.completion_ids
        told_early += len(pieces) > 1
        ended.add(made.finish_reason)
    assert "stop" in ended and told_early > 4


@pytest.mark.parametrize("name", ["f", "g"])
@pytest.mark.parametrize("stop", [None, ["</tool_call>!"]])
async def test_nothing_is_told_of_a_call_and_all_of_the_rest(name: str, stop: list[str] | None):
    client = EngineClient.from_model(tiny_model(seed=1))
    client.renderer.tokenizer.chat_template = TEMPLATES["hermes"]  # pyright: ignore[reportAttributeAccessIssue]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' if name == "f" else "<tools are no call> "
    form = {"choice": [f"Let me see.{call}"]}
    pieces: list[str] = []
    tokens: list[Token] = []
    sampling = SamplingParams(max_tokens=99, structured_outputs=form, stop=stop)
    tools = [{"type": "function", "function": {"name": "f"}}]
    made = await client.respond(Request(ASK, sampling, tools=tools, on_text=pieces.append, on_token=tokens.append))
    assert made.message.content == ("Let me see." if name == "f" else f"Let me see.{call}")
    assert "".join(pieces) == made.message.content.rstrip() and len(pieces) > 3
    assert made.finish_reason == ("tool_calls" if name == "f" else "stop")
    assert made.tokens is not None and [token.id for token in tokens] == made.tokens.completion_ids


async def test_log_probabilities_of_the_prompt_are_told():
    client = EngineClient.from_model(tiny_model())
    made = await client.respond(Request(ASK, SamplingParams(max_tokens=1, prompt_logprobs=2)))
    assert made.tokens is not None
    assert made.prompt_logprobs == pytest.approx(client.engine.score(made.tokens.prompt_ids), abs=1e-5)
    assert [len(top) for top in made.prompt_top_logprobs or []] == [2] * (len(made.tokens.prompt_ids) - 1)
