"""The vLLM engine, tested against fake vLLM servers that run rove's engine behind vLLM's HTTP API."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_server
from fakes import tiny_model
from vllm_server import FakeVLLM

from rove.core.errors import ConfigError, InfraError, OverlongPromptError, RunError
from rove.core.protocols import Generation, SamplingParams, Token
from rove.engine.client import ClientEngine
from rove.models.load import LoadedModel
from rove.train.backends import parity_check
from rove.vllm.engine import VLLMEngine
from rove.vllm.server import VLLMConfig
from rove.vllm.weights import write_served

LOADED = tiny_model()
PROMPT = LOADED.renderer.encode("hello world, you say 4")
FAKE = f"{sys.executable} {vllm_server.__file__}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model saved by rove, with tied embeddings."""
    path = tmp_path_factory.mktemp("model")
    LOADED.save(path)
    return path


@pytest.fixture
def fake(folder: Path) -> Iterator[FakeVLLM]:
    with FakeVLLM(folder) as server:
        yield server


def set_backoff(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
    """Set the backoff between retries to `seconds`."""
    for module in ("engine", "fleet"):
        monkeypatch.setattr(f"rove.vllm.{module}.BACKOFF_S", seconds)


def engine_of(path: Path, *urls: str, **settings: Any) -> VLLMEngine:
    config = VLLMConfig(urls=list(urls), **settings)
    renderer = LOADED.renderer
    return VLLMEngine(config, path, sorted(renderer.stop_ids), LOADED.context, 320, renderer=renderer)


def synced_engine(
    path: Path, *urls: str, loaded: LoadedModel = LOADED, version: int = 1, **settings: Any
) -> VLLMEngine:
    """Return an engine whose servers have the weights of a model and passed the parity check."""
    engine = engine_of(path, *urls, **settings)
    publish(engine, loaded, version)
    return engine


def publish(engine: VLLMEngine, loaded: LoadedModel, version: int) -> Path:
    weights = engine.folder / f"weights-{version}-{len(list(engine.folder.glob('w*')))}"
    write_served(loaded, weights)
    engine.update_weights(version, weights)
    engine.check_parity(parity_check(loaded.model, PROMPT * 3))
    return weights


def generate(engine: VLLMEngine, *prompts: list[int], **sampling: Any) -> list[Generation]:
    async def generate_all() -> list[Generation]:
        try:
            return await asyncio.gather(
                *(engine.generate(ids, SamplingParams(**{"max_tokens": 8, **sampling})) for ids in prompts)
            )
        finally:
            session, engine._session = engine._session, None
            assert session
            await session.close()

    return asyncio.run(generate_all())


def expected_logprobs(prompt: list[int], generation: Generation, temperature: float = 1.0) -> list[float]:
    """Return the model's log-probabilities of the generated tokens."""
    ids = torch.tensor([[*prompt, *generation.ids]])
    with torch.inference_mode():
        logits = LOADED.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()


def test_vllm_engine_implements_the_client_engine_protocol(tmp_path: Path):
    engine: ClientEngine = engine_of(tmp_path)
    assert engine.adapters == []


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_have_the_logprobs_they_were_sampled_with(tmp_path: Path, fake: FakeVLLM, temperature: float):
    engine = synced_engine(tmp_path, fake.url, version=3)
    for generation in generate(engine, *[PROMPT] * 4, temperature=temperature):
        assert generation.policy_version == 3
        assert generation.version_spans == []
        assert generation.logprobs == pytest.approx(expected_logprobs(PROMPT, generation, temperature), abs=1e-4)
        assert generation.finish_reason == ("stop" if generation.ids[-1] in LOADED.renderer.stop_ids else "length")
    sent = [body for path, body in fake.requests if path == "/inference/v1/generate"]
    assert all(body["token_ids"] for body in sent)
    assert sent[-1]["token_ids"] == PROMPT
    assert sent[-1]["sampling_params"]["stop_token_ids"] == sorted(LOADED.renderer.stop_ids)
    assert "seed" not in sent[-1]["sampling_params"]


def test_scores_equal_those_of_the_model(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)
    assert engine.score(PROMPT) == pytest.approx(parity_check(LOADED.model, PROMPT).logprobs, abs=1e-4)
    with pytest.raises(ConfigError, match=r"temperature is 0.5; vLLM scores tokens at temperature 1 alone"):
        engine.score(PROMPT, 0.5)


def test_top_logprobs_and_prompt_logprobs_are_returned_on_request(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)
    [generation] = generate(engine, PROMPT, logprobs=2, prompt_logprobs=1, temperature=0.0)
    assert generation.top_logprobs is not None
    assert [len(top) for top in generation.top_logprobs] == [2] * len(generation.ids)
    assert [top[0][0] for top in generation.top_logprobs] == generation.ids  # greedy: the most likely token
    assert generation.prompt_logprobs == pytest.approx(parity_check(LOADED.model, PROMPT).logprobs, abs=1e-4)
    assert generation.prompt_top_logprobs is not None
    assert [len(top) for top in generation.prompt_top_logprobs] == [1] * (len(PROMPT) - 1)


def test_a_stop_string_truncates_the_text(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)
    [unstopped] = generate(engine, PROMPT, temperature=0.0, ignore_eos=True)
    text = LOADED.renderer.decode(unstopped.ids)
    [generation] = generate(engine, PROMPT, temperature=0.0, ignore_eos=True, stop=[text[2:4]])
    assert generation.text == text[: text.index(text[2:4])]
    assert (generation.finish_reason, generation.stopped_by) == ("stop", text[2:4])


def test_on_token_is_called_for_every_token(tmp_path: Path, fake: FakeVLLM):
    engine, streamed = synced_engine(tmp_path, fake.url), []

    async def generate() -> Generation:
        try:
            return await engine.generate(PROMPT, SamplingParams(max_tokens=4), on_token=streamed.append)
        finally:
            await engine.close()

    generation = asyncio.run(generate())
    assert streamed == [
        Token(token, logprob) for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
    ]


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "message"),
    [
        ([], {}, ConfigError, "the prompt has no tokens"),
        ([320], {}, ConfigError, "the prompt has token 320; expected ids from 0 to 319"),
        ([1] * 1024, {}, OverlongPromptError, "the prompt has 1024 tokens, the context is 1024"),
        ([1], {"logit_bias": {1: 1.0}}, ConfigError, "logit_bias is not supported by the vLLM backend"),
        ([1], {"max_tokens": 0}, ConfigError, "max_tokens is 0; expected 1 or more: vLLM"),
        ([1], {"extra": {"x": 1}}, ConfigError, "extra is not supported"),
    ],
)
def test_unsupported_requests_are_refused(
    tmp_path: Path, prompt: list[int], sampling: Any, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        asyncio.run(engine_of(tmp_path, "http://x").generate(prompt, SamplingParams(**sampling)))


def test_a_generation_ends_at_the_end_of_the_context(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)
    [generation] = generate(engine, [5] * 1022, ignore_eos=True)
    assert len(generation.ids) == 2
    fake.context = 50
    assert synced_engine(tmp_path, fake.url).context == 50


# Weights


def test_new_weights_are_used_after_an_update(tmp_path: Path, fake: FakeVLLM):
    engine, new_model = synced_engine(tmp_path, fake.url), tiny_model(seed=1)
    assert engine.fleet.weights
    first = engine.fleet.weights.model
    weights = publish(engine, new_model, 2)
    assert engine.fleet.parity_error <= 1e-4
    assert generate(engine, PROMPT)[0].policy_version == 2
    assert engine.score(PROMPT) == pytest.approx(parity_check(new_model.model, PROMPT).logprobs, abs=1e-4)
    assert weights.exists()
    assert not first.exists()
    paths = [path for path, _ in fake.requests if not path.startswith("/inference")]
    update = ["/pause?mode=keep", "/collective_rpc", "/update_weight_version", "/resume"]
    assert paths == ["/v1/models", "/resume", *update, *update]


def test_every_weight_update_uses_a_new_cache_salt(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)
    for version in (1, 2):
        publish(engine, LOADED, version)
        generate(engine, PROMPT)
    generate(engine_of(tmp_path, fake.url), PROMPT)  # another run
    salts = [body["cache_salt"] for path, body in fake.requests if path == "/inference/v1/generate"]
    assert len(set(salts)) == 4  # version 1 was loaded twice


def test_an_output_head_that_is_not_updated_is_detected(tmp_path: Path, folder: Path):
    """vLLM 0.32 does this on a CPU if it was started with tied embeddings."""
    with FakeVLLM(folder, "keeps_head") as fake:
        engine = synced_engine(tmp_path, fake.url)
        with pytest.raises(RunError, match=r"after the update to version 2 .* differ by .*tie_word_embeddings"):
            publish(engine, tiny_model(seed=1), 2)


def test_an_untied_output_head_is_updated(tmp_path: Path):
    write_served(LOADED, tmp_path / "served")
    with FakeVLLM(tmp_path / "served", "keeps_head") as fake:
        engine = synced_engine(tmp_path, fake.url)
        publish(engine, tiny_model(seed=1), 2)
        assert engine.fleet.parity_error <= 1e-4


def test_raw_logprobs_are_detected(tmp_path: Path, folder: Path):
    with FakeVLLM(folder, "raw_logprobs") as fake, pytest.raises(RunError, match="--logprobs-mode processed_logprobs"):
        synced_engine(tmp_path, fake.url)


def test_a_parity_error_below_the_tolerance_is_accepted(tmp_path: Path, fake: FakeVLLM):
    engine = engine_of(tmp_path, fake.url, tolerance=100.0)
    engine.update_weights(1, write_weights(tmp_path))
    engine.check_parity(parity_check(tiny_model(seed=1).model, PROMPT))
    assert 0.1 < engine.fleet.parity_error < 100


def write_weights(path: Path) -> Path:
    write_served(LOADED, path / "weights")
    return path / "weights"


def test_a_server_without_weight_update_endpoints_is_refused(tmp_path: Path, folder: Path):
    with FakeVLLM(folder, "no_dev_mode") as fake, pytest.raises(RunError, match="VLLM_SERVER_DEV_MODE=1"):
        synced_engine(tmp_path, fake.url)


def test_an_unreachable_server_is_reported(tmp_path: Path):
    with pytest.raises(RunError, match=r"vLLM could not start: .* does not answer"):
        synced_engine(tmp_path, "http://127.0.0.1:9")


def test_the_same_weights_need_no_update(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url, version=4)
    count = len(fake.requests)
    engine.update_weights(4)
    assert len(fake.requests) == count
    engine.update_weights(5)
    assert fake.requests[-2] == ("/update_weight_version", {"new_version": "5"})


# Several servers and failures


@pytest.mark.broad
def test_requests_are_balanced_and_a_next_turn_goes_to_the_same_server(tmp_path: Path, folder: Path):
    with FakeVLLM(folder) as first_server, FakeVLLM(folder) as second_server:
        engine = synced_engine(tmp_path, first_server.url, second_server.url)
        prompts = [[*PROMPT, n] for n in range(10, 18)]
        first = generate(engine, *prompts)
        prompts_by_server = [
            [body["token_ids"] for path, body in s.requests if "generate" in path][1:]
            for s in (first_server, second_server)
        ]
        assert [len(received) for received in prompts_by_server] == [4, 4]
        generate(engine, *[[*prompt, *generation.ids, 9] for prompt, generation in zip(prompts, first, strict=True)])
        for server, first_prompts in zip((first_server, second_server), prompts_by_server, strict=True):
            turns = [body["token_ids"] for path, body in server.requests if "generate" in path][5:]
            assert sorted(turn[: len(PROMPT) + 1] for turn in turns) == sorted(first_prompts)


@pytest.mark.parametrize("fault", ["http_500", "abort"])
def test_a_transient_failure_is_retried(tmp_path: Path, fake: FakeVLLM, fault: str, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, fake.url)
    fake.faults.append(fault)
    assert generate(engine, PROMPT)[0].ids
    assert not fake.faults


def test_a_permanent_failure_raises_an_error_after_four_attempts(
    tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch
):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, fake.url)
    fake.faults += ["http_500"] * 4
    with pytest.raises(InfraError, match="HTTP 500: EngineDeadError") as raised:
        generate(engine, PROMPT)
    assert len(raised.value.attempts) == 4


def test_requests_of_an_unreachable_server_go_to_the_others(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    set_backoff(monkeypatch)
    with FakeVLLM(folder) as running:
        with FakeVLLM(folder) as stopped:
            engine = synced_engine(tmp_path, running.url, stopped.url)
            first = generate(engine, *[[*PROMPT, n] for n in range(10, 18)])
        turns = [[*PROMPT, n, *generation.ids, 9] for n, generation in zip(range(10, 18), first, strict=True)]
        assert [len(generation.ids) > 0 for generation in generate(engine, *turns, *[PROMPT] * 30)] == [True] * 38
        with pytest.raises(RunError, match="the weights of version 2 were not loaded"):
            engine.update_weights(2, write_weights(tmp_path))


@pytest.mark.broad
def test_an_external_server_that_was_restarted_gets_its_weights_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    set_backoff(monkeypatch)
    tiny_model(seed=5).save(tmp_path / "others")
    with FakeVLLM(folder) as fake:
        engine = synced_engine(tmp_path, fake.url)
        fake._load(tmp_path / "others")
        fake.version = "default"
        [generation] = generate(engine, PROMPT)
        assert generation.policy_version == 1
        assert generation.logprobs == pytest.approx(expected_logprobs(PROMPT, generation), abs=1e-4)


def test_paused_requests_wait_until_weights_are_replaced(tmp_path: Path, fake: FakeVLLM):
    engine = synced_engine(tmp_path, fake.url)

    async def run() -> tuple[bool, int]:
        engine.pause_requests()
        pending = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=2)))
        await asyncio.sleep(0.2)
        was_waiting = not pending.done()
        await asyncio.to_thread(engine.update_weights, 2, write_weights(tmp_path))
        engine.resume_requests()
        generation = await pending
        await engine.close()
        return was_waiting, generation.policy_version

    assert asyncio.run(run()) == (True, 2)


@pytest.mark.slow
def test_a_parity_failure_after_a_restart_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, command=FAKE)
    assert engine.fleet.parity_check is not None
    engine.fleet.parity_check = engine.fleet.parity_check._replace(
        logprobs=[logprob - 1 for logprob in engine.fleet.parity_check.logprobs]
    )
    engine.fleet.servers[0].stop()
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        generate(engine, PROMPT)
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        asyncio.run(engine.generate(PROMPT, SamplingParams(max_tokens=2)))
    assert engine.fleet.servers[0].has_ended
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        engine.update_weights(2, write_weights(tmp_path))


@pytest.mark.slow
def test_a_killed_server_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch, 0.1)
    engine = engine_of(tmp_path, command=FAKE, args=["--x", "1"], servers=2)
    publish(engine, LOADED, 7)
    pids = [int(server.log.read_text().split()[1]) for server in engine.fleet.servers]
    assert "1" in engine.fleet.servers[0].log.read_text()
    os.kill(pids[0], signal.SIGKILL)
    assert [generation.policy_version for generation in generate(engine, *[PROMPT] * 6)] == [7] * 6
    assert engine.fleet.restarts == 1
    assert len({generation.ids[0] for generation in generate(engine, *[PROMPT] * 16, ignore_eos=True)}) > 1
    os.kill(pids[1], signal.SIGKILL)
    publish(engine, tiny_model(seed=1), 8)
    assert engine.fleet.restarts == 2
    asyncio.run(engine.close())
    assert all(server.has_ended for server in engine.fleet.servers)
    assert not list(tmp_path.glob("weights-*"))


@pytest.mark.slow
def test_other_servers_answer_while_one_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, command=FAKE, servers=2)
    first, other_server = engine.fleet.servers
    never_ready = VLLMConfig(command=f"{sys.executable} -S -c 'import time; time.sleep(999)'")
    monkeypatch.setattr(first, "config", never_ready)
    first.stop()

    async def count_generations() -> int:
        generations = await asyncio.gather(
            *(engine.generate([*PROMPT, n], SamplingParams(max_tokens=2)) for n in range(9, 19))
        )
        while first.has_ended:  # noqa: ASYNC110  (waits for a process to start)
            await asyncio.sleep(0.01)
        await engine.close()  # while the server is starting
        return len(generations)

    assert asyncio.run(count_generations()) == 10
    assert (first.starts, first.has_ended, other_server.has_ended) == (2, True, True)


@pytest.mark.slow
def test_a_server_that_keeps_dying_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    engine = synced_engine(tmp_path, command=FAKE)
    monkeypatch.setattr(
        engine.fleet.servers[0],
        "config",
        VLLMConfig(command=f"{sys.executable} -S -c 'print(\"oh no\"); raise SystemExit(1)'"),
    )
    engine.fleet.servers[0].stop()
    with pytest.raises(InfraError, match=r"(?s)ended with exit code 1.*oh no|has died 3 times"):
        generate(engine, PROMPT)
    with pytest.raises(RunError, match=r"(?s)the weights of version 2 were not loaded: .*oh no"):
        engine.update_weights(2, write_weights(tmp_path))
