"""Servers of vLLM as an engine, against small servers that speak its HTTP with rove's engine behind it."""

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
    """The model as a folder with its head tied, as rove saves it."""
    path = tmp_path_factory.mktemp("model")
    LOADED.save(path)
    return path


@pytest.fixture
def fake(folder: Path) -> Iterator[FakeVLLM]:
    with FakeVLLM(folder) as server:
        yield server


def quick(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.01) -> None:
    """Failures are waited for no longer than that."""
    for module in ("engine", "fleet"):
        monkeypatch.setattr(f"rove.vllm.{module}.BACKOFF_S", seconds)


def engine_of(path: Path, *urls: str, **settings: Any) -> VLLMEngine:
    config = VLLMConfig(urls=list(urls), **settings)
    renderer = LOADED.renderer
    return VLLMEngine(config, path, sorted(renderer.stop_ids), LOADED.context, 320, renderer=renderer)


def synced(path: Path, *urls: str, loaded: LoadedModel = LOADED, version: int = 1, **settings: Any) -> VLLMEngine:
    """An engine whose servers have the weights of a model, and were asked for its probe."""
    engine = engine_of(path, *urls, **settings)
    publish(engine, loaded, version)
    return engine


def publish(engine: VLLMEngine, loaded: LoadedModel, version: int) -> Path:
    weights = engine.folder / f"weights-{version}-{len(list(engine.folder.glob('w*')))}"
    write_served(loaded, weights)
    engine.update_weights(version, weights)
    engine.check_parity(parity_check(loaded.model, PROMPT * 3))
    return weights


def ask(engine: VLLMEngine, *prompts: list[int], **sampling: Any) -> list[Generation]:
    async def all_of_them() -> list[Generation]:
        try:
            return await asyncio.gather(
                *(engine.generate(ids, SamplingParams(**{"max_tokens": 8, **sampling})) for ids in prompts)
            )
        finally:
            session, engine._session = engine._session, None
            assert session
            await session.close()

    return asyncio.run(all_of_them())


def scored(prompt: list[int], made: Generation, temperature: float = 1.0) -> list[float]:
    """What the model itself says of an answer's tokens."""
    ids = torch.tensor([[*prompt, *made.ids]])
    with torch.inference_mode():
        logits = LOADED.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()


def test_it_is_an_engine_for_clients(tmp_path: Path):
    engine: ClientEngine = engine_of(tmp_path)
    assert engine.adapters == []


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_come_with_the_log_probabilities_they_were_drawn_with(
    tmp_path: Path, fake: FakeVLLM, temperature: float
):
    engine = synced(tmp_path, fake.url, version=3)
    for made in ask(engine, *[PROMPT] * 4, temperature=temperature):
        assert made.policy_version == 3
        assert made.version_spans == []
        assert made.logprobs == pytest.approx(scored(PROMPT, made, temperature), abs=1e-4)
        assert made.finish_reason == ("stop" if made.ids[-1] in LOADED.renderer.stop_ids else "length")
    sent = [body for path, body in fake.asked if path == "/inference/v1/generate"]
    assert all(body["token_ids"] for body in sent)
    assert sent[-1]["token_ids"] == PROMPT
    assert sent[-1]["sampling_params"]["stop_token_ids"] == sorted(LOADED.renderer.stop_ids)
    assert "seed" not in sent[-1]["sampling_params"]


def test_scores_are_those_of_the_model(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)
    assert engine.score(PROMPT) == pytest.approx(parity_check(LOADED.model, PROMPT).logprobs, abs=1e-4)
    with pytest.raises(ConfigError, match=r"temperature is 0.5; vLLM scores tokens at temperature 1 alone"):
        engine.score(PROMPT, 0.5)


def test_more_is_told_where_it_is_asked_for(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)
    [made] = ask(engine, PROMPT, logprobs=2, prompt_logprobs=1, temperature=0.0)
    assert made.top_logprobs is not None
    assert [len(top) for top in made.top_logprobs] == [2] * len(made.ids)
    assert [top[0][0] for top in made.top_logprobs] == made.ids  # greedy: the likeliest
    assert made.prompt_logprobs == pytest.approx(parity_check(LOADED.model, PROMPT).logprobs, abs=1e-4)
    assert made.prompt_top_logprobs is not None
    assert [len(top) for top in made.prompt_top_logprobs] == [1] * (len(PROMPT) - 1)


def test_stop_texts_cut_the_answer(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)
    [whole] = ask(engine, PROMPT, temperature=0.0, ignore_eos=True)
    text = LOADED.renderer.decode(whole.ids)
    [made] = ask(engine, PROMPT, temperature=0.0, ignore_eos=True, stop=[text[2:4]])
    assert made.text == text[: text.index(text[2:4])]
    assert (made.finish_reason, made.stopped_by) == ("stop", text[2:4])


def test_tokens_are_told(tmp_path: Path, fake: FakeVLLM):
    engine, told = synced(tmp_path, fake.url), []

    async def listen() -> Generation:
        try:
            return await engine.generate(PROMPT, SamplingParams(max_tokens=4), on_token=told.append)
        finally:
            await engine.close()

    made = asyncio.run(listen())
    assert told == [Token(token, logprob) for token, logprob in zip(made.ids, made.logprobs, strict=True)]


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "message"),
    [
        ([], {}, ConfigError, "the prompt has no tokens"),
        ([320], {}, ConfigError, "the prompt has token 320; expected ids from 0 to 319"),
        ([1] * 1024, {}, OverlongPromptError, "the prompt has 1024 tokens, the context is 1024"),
        ([1], {"logit_bias": {1: 1.0}}, ConfigError, "logit_bias is not supported by the vLLM backend"),
        ([1], {"max_tokens": 0}, ConfigError, "max_tokens is 0; expected 1 or more"),
        ([1], {"extra": {"x": 1}}, ConfigError, "extra is not supported"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, prompt: list[int], sampling: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        asyncio.run(engine_of(tmp_path, "http://x").generate(prompt, SamplingParams(**sampling)))


def test_an_answer_ends_where_the_context_does(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)
    [made] = ask(engine, [5] * 1022, ignore_eos=True)
    assert len(made.ids) == 2
    fake.context = 50
    assert synced(tmp_path, fake.url).context == 50


# Weights


def test_new_weights_are_played_with(tmp_path: Path, fake: FakeVLLM):
    engine, other = synced(tmp_path, fake.url), tiny_model(seed=1)
    assert engine.fleet.weights
    first = engine.fleet.weights.model
    weights = publish(engine, other, 2)
    assert engine.fleet.parity_error <= 1e-4
    assert ask(engine, PROMPT)[0].policy_version == 2
    assert engine.score(PROMPT) == pytest.approx(parity_check(other.model, PROMPT).logprobs, abs=1e-4)
    assert weights.exists()
    assert not first.exists()
    paths = [path for path, _ in fake.asked if not path.startswith("/inference")]
    update = ["/pause?mode=keep", "/collective_rpc", "/update_weight_version", "/resume"]
    assert paths == ["/v1/models", "/resume", *update, *update]


def test_what_was_cached_with_older_weights_is_not_found(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)
    for version in (1, 2):
        publish(engine, LOADED, version)
        ask(engine, PROMPT)
    ask(engine_of(tmp_path, fake.url), PROMPT)  # of another run
    salts = [body["cache_salt"] for path, body in fake.asked if path == "/inference/v1/generate"]
    assert len(set(salts)) == 4  # version 1 was loaded twice


def test_a_head_that_stays_old_is_seen(tmp_path: Path, folder: Path):
    """What vLLM 0.32 does on a CPU where it was started with tied embeddings."""
    with FakeVLLM(folder, "keeps_head") as fake:
        engine = synced(tmp_path, fake.url)
        with pytest.raises(RunError, match=r"after the update to version 2 .* differ by .*tie_word_embeddings"):
            publish(engine, tiny_model(seed=1), 2)


def test_with_a_head_of_its_own_nothing_stays_old(tmp_path: Path):
    write_served(LOADED, tmp_path / "served")
    with FakeVLLM(tmp_path / "served", "keeps_head") as fake:
        engine = synced(tmp_path, fake.url)
        publish(engine, tiny_model(seed=1), 2)
        assert engine.fleet.parity_error <= 1e-4


def test_log_probabilities_of_another_distribution_are_seen(tmp_path: Path, folder: Path):
    with FakeVLLM(folder, "raw_logprobs") as fake, pytest.raises(RunError, match="--logprobs-mode processed_logprobs"):
        synced(tmp_path, fake.url)


def test_the_tolerance_is_what_counts(tmp_path: Path, fake: FakeVLLM):
    engine = engine_of(tmp_path, fake.url, tolerance=100.0)
    engine.update_weights(1, written(tmp_path))
    engine.check_parity(parity_check(tiny_model(seed=1).model, PROMPT))
    assert 0.1 < engine.fleet.parity_error < 100


def written(path: Path) -> Path:
    write_served(LOADED, path / "weights")
    return path / "weights"


def test_a_server_without_the_ways_to_replace_weights(tmp_path: Path, folder: Path):
    with FakeVLLM(folder, "no_dev_mode") as fake, pytest.raises(RunError, match="VLLM_SERVER_DEV_MODE=1"):
        synced(tmp_path, fake.url)


def test_a_server_that_is_not_there(tmp_path: Path):
    with pytest.raises(RunError, match=r"vLLM could not start: .* does not answer"):
        synced(tmp_path, "http://127.0.0.1:9")


def test_the_same_weights_need_no_update(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url, version=4)
    count = len(fake.asked)
    engine.update_weights(4)
    assert len(fake.asked) == count
    engine.update_weights(5)
    assert fake.asked[-2] == ("/update_weight_version", {"new_version": "5"})


# Several servers, and those that fail


def test_requests_are_spread_and_a_next_turn_finds_its_server(tmp_path: Path, folder: Path):
    with FakeVLLM(folder) as one, FakeVLLM(folder) as other:
        engine = synced(tmp_path, one.url, other.url)
        prompts = [[*PROMPT, n] for n in range(10, 18)]
        first = ask(engine, *prompts)
        asked = [[body["token_ids"] for path, body in s.asked if "generate" in path][1:] for s in (one, other)]
        assert [len(found) for found in asked] == [4, 4]
        ask(engine, *[[*prompt, *made.ids, 9] for prompt, made in zip(prompts, first, strict=True)])
        for server, before in zip((one, other), asked, strict=True):
            turns = [body["token_ids"] for path, body in server.asked if "generate" in path][5:]
            assert sorted(turn[: len(PROMPT) + 1] for turn in turns) == sorted(before)


@pytest.mark.parametrize("fault", ["http_500", "abort"])
def test_a_failure_that_passes(tmp_path: Path, fake: FakeVLLM, fault: str, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, fake.url)
    fake.faults.append(fault)
    assert ask(engine, PROMPT)[0].ids
    assert not fake.faults


def test_a_failure_that_stays(tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, fake.url)
    fake.faults += ["http_500"] * 4
    with pytest.raises(InfraError, match="HTTP 500: EngineDeadError") as raised:
        ask(engine, PROMPT)
    assert len(raised.value.attempts) == 4


def test_a_server_that_is_away_leaves_its_requests_to_the_others(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    with FakeVLLM(folder) as one:
        with FakeVLLM(folder) as other:
            engine = synced(tmp_path, one.url, other.url)
            first = ask(engine, *[[*PROMPT, n] for n in range(10, 18)])
        turns = [[*PROMPT, n, *made.ids, 9] for n, made in zip(range(10, 18), first, strict=True)]
        assert [len(made.ids) > 0 for made in ask(engine, *turns, *[PROMPT] * 30)] == [True] * 38
        with pytest.raises(RunError, match="the weights of version 2 were not loaded"):
            engine.update_weights(2, written(tmp_path))


def test_what_somebody_else_has_started_anew_gets_its_weights(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    quick(monkeypatch)
    tiny_model(seed=5).save(tmp_path / "others")
    with FakeVLLM(folder) as fake:
        engine = synced(tmp_path, fake.url)
        fake._load(tmp_path / "others")
        fake.version = "default"
        [made] = ask(engine, PROMPT)
        assert made.policy_version == 1
        assert made.logprobs == pytest.approx(scored(PROMPT, made), abs=1e-4)


def test_requests_wait_while_weights_are_replaced_beside_them(tmp_path: Path, fake: FakeVLLM):
    engine = synced(tmp_path, fake.url)

    async def held() -> tuple[bool, int]:
        engine.pause_requests()
        asked = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=2)))
        await asyncio.sleep(0.2)
        waits = not asked.done()
        await asyncio.to_thread(engine.update_weights, 2, written(tmp_path))
        engine.resume_requests()
        made = await asked
        await engine.close()
        return waits, made.policy_version

    assert asyncio.run(held()) == (True, 2)


@pytest.mark.slow
def test_one_that_computes_something_else_after_a_restart_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, command=FAKE)
    assert engine.fleet.parity_check is not None
    engine.fleet.parity_check = engine.fleet.parity_check._replace(
        logprobs=[one - 1 for one in engine.fleet.parity_check.logprobs]
    )
    engine.fleet.servers[0].stop()
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        ask(engine, PROMPT)
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        asyncio.run(engine.generate(PROMPT, SamplingParams(max_tokens=2)))
    assert engine.fleet.servers[0].has_ended
    with pytest.raises(RunError, match="does not compute what the trainer does"):
        engine.update_weights(2, written(tmp_path))


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch, 0.1)
    engine = engine_of(tmp_path, command=FAKE, args=["--x", "1"], servers=2)
    publish(engine, LOADED, 7)
    pids = [int(server.log.read_text().split()[1]) for server in engine.fleet.servers]
    assert "1" in engine.fleet.servers[0].log.read_text()
    os.kill(pids[0], signal.SIGKILL)
    assert [made.policy_version for made in ask(engine, *[PROMPT] * 6)] == [7] * 6
    assert engine.fleet.restarts == 1
    assert len({made.ids[0] for made in ask(engine, *[PROMPT] * 16, ignore_eos=True)}) > 1
    os.kill(pids[1], signal.SIGKILL)
    publish(engine, tiny_model(seed=1), 8)
    assert engine.fleet.restarts == 2
    asyncio.run(engine.close())
    assert all(server.has_ended for server in engine.fleet.servers)
    assert not list(tmp_path.glob("weights-*"))


@pytest.mark.slow
def test_others_answer_while_one_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, command=FAKE, servers=2)
    first, other = engine.fleet.servers
    never_ready = VLLMConfig(command=f"{sys.executable} -S -c 'import time; time.sleep(999)'")
    monkeypatch.setattr(first, "config", never_ready)
    first.stop()

    async def answered() -> int:
        made = await asyncio.gather(
            *(engine.generate([*PROMPT, n], SamplingParams(max_tokens=2)) for n in range(9, 19))
        )
        while first.has_ended:  # noqa: ASYNC110  (a process begins)
            await asyncio.sleep(0.01)
        await engine.close()  # while it is waited for
        return len(made)

    assert asyncio.run(answered()) == 10
    assert (first.starts, first.has_ended, other.has_ended) == (2, True, True)


@pytest.mark.slow
def test_one_that_dies_all_the_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quick(monkeypatch)
    engine = synced(tmp_path, command=FAKE)
    monkeypatch.setattr(
        engine.fleet.servers[0],
        "config",
        VLLMConfig(command=f"{sys.executable} -S -c 'print(\"oh no\"); raise SystemExit(1)'"),
    )
    engine.fleet.servers[0].stop()
    with pytest.raises(InfraError, match=r"(?s)ended with exit code 1.*oh no|has died 3 times"):
        ask(engine, PROMPT)
    with pytest.raises(RunError, match=r"(?s)the weights of version 2 were not loaded: .*oh no"):
        engine.update_weights(2, written(tmp_path))
