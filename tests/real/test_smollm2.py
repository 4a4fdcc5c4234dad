"""SmolLM2-135M-Instruct with its own tokenizer of 49,152 tokens: engine, trainer, template, constraints and server."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from click.testing import CliRunner

import rove as vf
from rove.cli.main import cli
from rove.clients.scripted import ScriptedClient
from rove.core.protocols import Request, SamplingParams
from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.models.load import LoadedModel
from rove.rollouts.evaluate import generate
from rove.runs.run import Run
from rove.server import base_url_of, listening, make_app
from rove.train.batch import can_pack, micro_batches
from rove.train.conversations import conversations_of
from rove.train.sequences import sequences_from_record
from rove.train.trainer import token_logprobs
from rove.viewer.api import token_decoder
from rove.viewer.rollouts import describe_rollout
from rove.viewer.run_store import RunStore
from tests.real.conftest import NAME

pytestmark = [pytest.mark.real, pytest.mark.slow]

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
QUESTIONS = [
    FRANCE,
    [{"role": "user", "content": "Name three colors, separated by commas."}],
    [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "What is the opposite of hot?"},
    ],
    [{"role": "user", "content": "Write “naïve café” – twice. 日本語 🙂"}],
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def transformers_greedy(loaded: LoadedModel, prompt: list[int], max_tokens: int) -> list[int]:
    with torch.inference_mode():
        ids = loaded.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=max_tokens,
        )
    return ids[0, len(prompt) :].tolist()


async def test_greedy_responses_of_a_batch_equal_those_of_transformers(loaded: LoadedModel, client: EngineClient):
    answers = await asyncio.gather(*(client.respond(Request(question, GREEDY)) for question in QUESTIONS))
    assert "Paris" in answers[0].message["content"]
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert answer.tokens is not None
        prompt = loaded.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
        assert answer.tokens.prompt_ids == prompt
        assert answer.tokens.completion_ids == transformers_greedy(loaded, prompt, 24)


def two_turn_env() -> vf.Environment:
    """Return an environment with two turns, so that the template's default system prompt precedes a history."""

    class Talk(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: vf.State, **_: Any) -> Any:
            return [{"role": "user", "content": "Say it again, in other words — s'il te plaît."}]

    rows = [{"question": question[-1]["content"], "answer": ""} for question in QUESTIONS]
    return Talk(dataset=rows, rubric=vf.Rubric([lambda completion: 1.0]), max_turns=2)


async def test_evaluation_sft_and_rl_see_the_same_tokens_and_log_probabilities(
    loaded: LoadedModel, client: EngineClient
):
    records = await generate(two_turn_env(), client, NAME, sampling_args={"temperature": 1.0, "max_tokens": 24})
    assert len(records) == 4 and all(len(record.steps) == 2 for record in records)
    sequences = [sequence for record in records for sequence in sequences_from_record(record, 1.0)]
    for record, sequence in zip(records, sequences, strict=True):  # the second turn extends the first
        text = loaded.renderer.decode(sequence.ids)
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        [(ids, mask)] = loaded.renderer.training_branches(conversations_of(record)[-1].messages)
        assert loaded.renderer.decode(ids).startswith(text.removesuffix("<|im_end|>"))
        assert sum(mask) >= sum(sequence.mask) - 2  # a response truncated by max_tokens has no end token
    for batch in micro_batches(sequences, 512, pack=can_pack(loaded.model)):
        with torch.inference_mode():
            trained, _ = token_logprobs(loaded.model, batch)
        assert float((trained - batch.logprobs).abs().max()) < 1e-4


async def test_a_json_schema_constrains_a_large_vocabulary(client: EngineClient):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for temperature in (0.0, 1.5):
        sampling = SamplingParams(temperature=temperature, max_tokens=48, response_format=response_format)
        answer = await client.respond(Request(FRANCE, sampling, seed=3))
        assert set(json.loads(answer.message["content"])) == {"city", "sure"}


async def test_a_regular_expression_of_multi_byte_characters_constrains_the_response(client: EngineClient):
    sampling = SamplingParams(temperature=1.0, max_tokens=20, structured_outputs={"regex": "(é|日本|🙂){3}"})
    answer = await client.respond(Request(FRANCE, sampling, seed=1))
    assert re.fullmatch("(é|日本|🙂){3}", answer.message["content"])


async def test_a_stop_string_inside_a_token_ends_the_response(client: EngineClient):
    free = await client.respond(Request(FRANCE, GREEDY))
    text = free.message["content"]
    stop = text[text.index("Par") + 1 :][:4]  # does not start at the beginning of a token
    cut = await client.respond(Request(FRANCE, SamplingParams(temperature=0.0, max_tokens=24, stop=[stop])))
    assert cut.message["content"] == text[: text.index(stop)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(3))
async def test_streamed_pieces_are_whole_characters(client: EngineClient, seed: int):
    pieces: list[str] = []
    sampling = SamplingParams(temperature=1.5, max_tokens=32)
    answer = await client.respond(Request(QUESTIONS[3], sampling, seed=seed, on_text=pieces.append))
    assert "".join(pieces).strip() == answer.message["content"].strip()
    assert not any("\ufffd" in piece for piece in pieces[:-1])


async def test_the_server_returns_log_probabilities_of_the_sampled_tokens(loaded: LoadedModel, client: EngineClient):
    app = make_app(client, NAME)
    async with listening(app) as runner, openai.AsyncOpenAI(base_url=base_url_of(runner), api_key="k") as sdk:
        chat: Any = sdk.chat.completions.create
        response = await chat(model=NAME, messages=FRANCE, temperature=0, max_tokens=12, logprobs=True)
        tokens = (await client.respond(Request(FRANCE, SamplingParams(temperature=0.0, max_tokens=12)))).tokens
        assert tokens is not None
        shown_content = response.choices[0].logprobs.content
        assert [token.token for token in shown_content] == [
            loaded.renderer.decode([id]) for id in tokens.completion_ids
        ]
        assert [token.logprob for token in shown_content] == pytest.approx(tokens.logprobs, abs=1e-4)
        text = await sdk.completions.create(model=NAME, prompt="The capital of France is", temperature=0, max_tokens=3)
        assert text.choices[0].text.startswith(" Paris")


@pytest.mark.parametrize("rank", [0, 4])
def test_commands_take_the_model_by_name(folder: Path, tmp_path: Path, rank: int):
    """Evaluate, fine-tune on oracle rows, train with RL for a step; the last evaluation loads the trained model."""

    def rove(*words: str) -> None:
        result = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    lora = ("--lora.rank", str(rank)) if rank else ()
    data, sft, rl = (str(tmp_path / name) for name in ("data", "sft", "rl"))
    rove("eval", "reverse_text", "-m", "scripted:oracle", "--train", "-n", "8", "-r", "1", "--run-dir", data)
    rove("sft", "--data", data, "-m", NAME, "--epochs", "1", "--final_eval_rollouts", "0", "--run-dir", sft, *lora)
    sizes = ("--batch-size", "4", "-r", "2", "-t", "8")
    rove("rl", "reverse_text", "-m", f"{sft}/final", "--steps", "1", "--run-dir", rl, *sizes, *lora)
    rove(
        "eval",
        "reverse_text",
        "-m",
        f"{rl}/final",
        "-n",
        "2",
        "-r",
        "1",
        "-t",
        "8",
        "--run-dir",
        str(tmp_path / "eval"),
    )
    config = (tmp_path / "sft" / "config.toml").read_text()
    assert f'model = "{NAME}"' in config and str(folder) not in config  # the settings work on another machine
    assert Run(tmp_path / "eval").summary() is not None


def test_the_viewer_shows_token_texts_of_a_run_with_a_catalog_model(folder: Path, tmp_path: Path):
    words = ("eval", "reverse_text", "-m", NAME, "-n", "1", "-r", "1", "-t", "4", "--run-dir", str(tmp_path / "one"))
    assert CliRunner().invoke(cli, words, catch_exceptions=False).exit_code == 0
    decode = token_decoder(RunStore(tmp_path), "one")
    assert decode is not None
    [turn] = describe_rollout((tmp_path / "one" / "rollouts.jsonl").read_bytes(), decode)["tokens"]
    assert "".join(text for _, text in turn["prompt"]).startswith("<|im_start|>system\nReverse the text")


async def test_tool_calls_of_the_extended_template_are_parsed(loaded: LoadedModel):
    env = load_environment("lookup")
    [record] = await generate(env, ScriptedClient(env.policies["solver"], "solver"), num_examples=1)
    messages = conversations_of(record)[-1].messages
    [(ids, mask)] = loaded.renderer.training_branches(messages, record.tools)
    trained = [id for id, sampled in zip(ids, mask, strict=True) if sampled]
    turns = loaded.renderer.decode(trained).split("<|im_end|>")
    calls = [loaded.renderer.message(text.strip(), record.tools).get("tool_calls") for text in turns if text.strip()]
    assert [call[0]["function"]["name"] for call in calls] == ["lookup", "answer"]
