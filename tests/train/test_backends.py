"""Sampling backends of an RL run: the embedded engine and vLLM servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_server
from fakes import tiny_model
from safetensors.torch import load_file
from tiers import first_quick
from vllm_server import FakeVLLM

from rove.core.errors import ConfigError, RunError
from rove.core.protocols import SamplingParams
from rove.models.adapter import add_adapter
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel, load_model
from rove.runs.run import Run
from rove.train.backends import EmbeddedBackend, VLLMBackend, parity_check
from rove.train.config import RLConfig
from rove.train.rl import make_backend, train_rl
from rove.vllm.engine import VLLMEngine
from rove.vllm.server import VLLMConfig
from tests.train.test_evaluation import envs, table
from tests.train.test_rl import metrics_of, one_turn, rollouts_of, settings, two_turns
from tests.vllm.test_engine import set_backoff

__all__ = ["envs"]

ROVE_VLLM = os.environ.get("ROVE_VLLM")
"""A Python interpreter with vLLM installed; tests with a real server are skipped if it is not set."""
needs_vllm = pytest.mark.skipif(not ROVE_VLLM, reason="ROVE_VLLM names no interpreter that has vLLM")
VLLM_FIELDS = {
    "command": f"{ROVE_VLLM} -m vllm.entrypoints.openai.api_server",
    "args": ["--enforce-eager", "--max-model-len", "512"],
}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVLLM]:
    tiny_model(seed=3).save(tmp_path / "theirs")  # another model: the first update must replace all its weights
    with FakeVLLM(tmp_path / "theirs") as server:
        yield server


def vllm_settings(*urls: str, **fields: Any) -> RLConfig:
    return settings(**{"backend": "vllm", "vllm": VLLMConfig(urls=list(urls)), **fields})


def train(
    path: Path, config: RLConfig, env: Any = None, loaded: LoadedModel | None = None, on_step: Any = None
) -> None:
    with Run(path) as run:
        run.start("rl", {}, {})
        asyncio.run(train_rl(config, env or two_turns(), loaded or tiny_model(), run, on_step))


def assert_on_policy(path: Path, tolerance: float = 1e-4) -> None:
    """Assert that each token was sampled with the weights of its step and has the log-probability of the trainer."""
    for row in metrics_of(path):
        assert row["logprob_diff/max"] <= tolerance
        assert row["sampler/probe_difference"] <= tolerance
    for record in rollouts_of(path):
        assert record.step is not None
        assert {step.tokens.policy_version for step in record.steps if step.tokens} == {record.step - 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backend": "llama.cpp"}, "backend is 'llama.cpp'; expected embedded or vllm"),
        ({"backend": "vllm", "bf16_sampling": True}, "bf16_sampling needs backend"),
        ({"backend": "vllm", "vllm": VLLMConfig(command="no/such")}, "there is no such program: install vLLM"),
        ({"vllm": VLLMConfig(tolerance=0.1)}, "vllm.tolerance is set, but backend is 'embedded'"),
    ],
)
def test_invalid_settings_are_rejected(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(**fields).check()


@pytest.mark.broad
def test_training_through_a_server_raises_the_reward(tmp_path: Path, fake: FakeVLLM):
    run = tmp_path / "run"
    train(run, vllm_settings(fake.url, batch_size=64, rollouts_per_example=16, checkpoint_every=99), one_turn())
    assert_on_policy(run)
    rewards = [row["reward/mean"] for row in metrics_of(run)]
    assert sum(rewards[-2:]) > sum(rewards[:2])
    updates = [body["new_version"] for path, body in fake.requests if path == "/update_weight_version"]
    assert updates == [str(version) for version in range(6)]
    assert not list((run / "vllm").glob("weights-*"))


@pytest.mark.slow
def test_a_resumed_run_continues_with_its_weights(tmp_path: Path, fake: FakeVLLM):
    def stop(step: int, metrics: Any) -> None:
        if step == 3:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(run, vllm_settings(fake.url), on_step=stop)
    (run / "vllm" / "weights-3-1").mkdir()  # left behind by a killed run
    train(run, vllm_settings(fake.url))
    assert [row["step"] for row in metrics_of(run)] == [1, 2, 3, 4, 5]
    assert_on_policy(run)
    assert not list((run / "vllm").glob("weights-*"))


@pytest.mark.broad
def test_evaluations_use_the_same_server(tmp_path: Path, fake: FakeVLLM, envs: str):
    run = tmp_path / "run"
    train(run, vllm_settings(fake.url, steps=2, evaluation=[table(every=1)], env_dir=envs))
    assert all(any(name.startswith("eval/") for name in row) for row in metrics_of(run))
    temperatures = [
        body["sampling_params"]["temperature"] for path, body in fake.requests if path == "/inference/v1/generate"
    ]
    assert 0.0 in temperatures


@pytest.mark.broad
def test_asynchronous_collection_uses_older_weights(tmp_path: Path, fake: FakeVLLM):
    run = tmp_path / "run"
    train(run, vllm_settings(fake.url, steps=3, max_off_policy_steps=1, checkpoint_every=99))
    rows = metrics_of(run)
    assert [row["off_policy/max"] for row in rows] == [0, 1, 1]
    assert max(row["sampler/probe_difference"] for row in rows) <= 1e-4


def weight_calls(fake: FakeVLLM) -> list[str]:
    """Return the methods called on the workers and the requests to load adapters."""
    return [
        body["method"] if path == "/collective_rpc" else path
        for path, body in fake.requests
        if path in ("/collective_rpc", "/v1/load_lora_adapter")
    ]


@pytest.mark.broad
@pytest.mark.parametrize("ahead", first_quick([2, 0], broad=0))
def test_only_the_adapter_is_sent_to_the_server(tmp_path: Path, fake: FakeVLLM, ahead: int):
    run = tmp_path / "run"
    train(run, vllm_settings(fake.url, steps=3, lora__rank=2, learning_rate=0.05, max_off_policy_steps=ahead))
    assert (run / "final" / "adapter_model.safetensors").exists()
    assert weight_calls(fake) == ["reload_weights", "/v1/load_lora_adapter", *["list_loras", "remove_lora"] * 3]
    rows = metrics_of(run)
    assert max(row["sampler/probe_difference"] for row in rows) <= 1e-4
    assert {row["sampler/sent_bytes"] for row in rows} == {float(adapter_bytes(run / "final"))}
    assert not list((run / "vllm").glob("weights-*"))
    if not ahead:
        assert_on_policy(run)


def adapter_bytes(folder: Path) -> int:
    return sum(
        (folder / name).stat().st_size for name in ("adapter_model.safetensors", "adapter_config.json", "base.txt")
    )


@pytest.mark.broad
@pytest.mark.parametrize(
    ("fault", "message"),
    first_quick([("no_lora", "HTTP 404"), ("refuses_lora", "does not yet support DoRA"), ("", "")], broad=0),
)
def test_a_rejected_adapter_is_merged_into_full_weights(
    tmp_path: Path, fake: FakeVLLM, fault: str, message: str, caplog: pytest.LogCaptureFixture
):
    run = tmp_path / "run"
    fake.faults += [fault] * bool(fault)
    config = vllm_settings(fake.url, steps=2, lora__rank=2, learning_rate=0.05)
    if not fault:
        config = vllm_settings(steps=2, lora__rank=2, vllm=VLLMConfig(urls=[fake.url], merge_adapter=True))
    train(run, config)
    assert_on_policy(run)
    warnings = "\n".join(record.getMessage() for record in caplog.records if "rove.train.backends" in record.name)
    assert message in warnings
    assert ("receives full weights with the adapter merged" in warnings) == bool(fault)
    assert weight_calls(fake).count("reload_weights") == (4 if fault else 3)
    assert not list((run / "vllm").glob("weights-*"))


@pytest.mark.broad
def test_adapter_layers_that_a_server_ignores_are_detected(
    tmp_path: Path, fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vllm_server.merge_adapter", lambda model, folder: model)
    with pytest.raises(RunError, match=r"after the update to version 1 .*does not have all of the adapter's layers"):
        train(tmp_path / "run", vllm_settings(fake.url, steps=2, lora__rank=2, learning_rate=0.05))


def test_adapters_with_ranks_that_vllm_does_not_support_are_merged(tmp_path: Path):
    loaded = tiny_model()
    adapted = loaded._replace(adapter=add_adapter(loaded.model, 513, 8.0, 0.0, ["q_proj"], 0, "somewhere"))
    sampler = make_backend(vllm_settings("http://x", lora__rank=513), adapted, tmp_path)
    assert isinstance(sampler, VLLMBackend)
    assert not sampler._sends_adapter


def test_a_server_with_other_logprobs_after_an_update_ends_the_run(tmp_path: Path):
    tiny_model().save(tmp_path / "theirs")
    with FakeVLLM(tmp_path / "theirs", "keeps_head") as fake:
        run = tmp_path / "run"
        with pytest.raises(RunError, match=r"after the update to version 1 .*tie_word_embeddings"):
            train(run, vllm_settings(fake.url, learning_rate=0.1))


@pytest.mark.broad
def test_a_run_whose_server_fails_can_be_resumed_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_backoff(monkeypatch)
    tiny_model().save(tmp_path / "theirs")
    fake, run = FakeVLLM(tmp_path / "theirs"), tmp_path / "run"

    def fail_after_step_3(step: int, metrics: Any) -> None:
        if step == 3:
            fake.faults += ["http_500"] * 9999

    with fake, pytest.raises(RunError, match=r"(?s)every rollout of step 4 failed.*HTTP 500"):
        train(run, vllm_settings(fake.url), on_step=fail_after_step_3)
    last = Run(run).last_checkpoint()
    assert last is not None
    assert last[1].step == 2
    with FakeVLLM(tmp_path / "theirs") as fake:
        train(run, vllm_settings(fake.url))
    assert [row["step"] for row in metrics_of(run)] == [1, 2, 3, 4, 5]


# With a real server


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch):
    """Limit the KV cache: on a CPU, vLLM reserves most of the memory by default."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def start_backend(model: LoadedModel, path: Path, **fields: Any) -> VLLMBackend:
    config = settings(backend="vllm", vllm=VLLMConfig(**{**VLLM_FIELDS, **fields}))
    sampler = make_backend(config, model, path)
    assert isinstance(sampler, VLLMBackend)
    return sampler


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_a_real_server_computes_the_trainers_logprobs(tmp_path: Path, arch: str):
    loaded = model_with_head_size_32(arch)
    sampler = start_backend(loaded, tmp_path)
    assert isinstance(sampler.engine, VLLMEngine)
    try:
        for version in range(3):
            scale_weights(loaded)
            sampler.publish(version)
            assert sampler.metrics["sampler/probe_difference"] <= 1e-3
        asyncio.run(check_update_during_generation(sampler, loaded, partial(scale_weights, loaded)))
    finally:
        asyncio.run(sampler.close())


@needs_vllm
@pytest.mark.slow
def test_a_real_server_runs_the_parity_check_before_queued_requests(tmp_path: Path):
    """The server computes 2 of 30 requests at a time; the update does not wait for queued requests."""
    loaded = model_with_head_size_32("llama")
    sampler = start_backend(loaded, tmp_path, args=[*VLLM_FIELDS["args"], "--max-num-seqs", "2"])

    async def send_requests() -> int:
        sampling = SamplingParams(max_tokens=200, ignore_eos=True)
        tasks = [asyncio.create_task(sampler.engine.generate([7, 8, number], sampling)) for number in range(30)]
        await asyncio.sleep(0.3)
        scale_weights(loaded)
        await asyncio.to_thread(sampler.publish, 1)
        finished = sum(task.done() for task in tasks)
        await asyncio.gather(*tasks)
        await sampler.close()
        return finished

    try:
        sampler.publish(0)
        assert asyncio.run(send_requests()) < 15
    finally:
        asyncio.run(sampler.close())


def scale_weights(loaded: LoadedModel) -> None:
    for parameter in loaded.model.parameters():
        parameter.data *= 1.1


async def check_update_during_generation(sampler: VLLMBackend, loaded: LoadedModel, change: Callable[[], None]) -> None:
    """Check that a response continues with weights updated during generation and records the version of each token."""
    sampling = SamplingParams(max_tokens=500, ignore_eos=True)
    for version in range(3, 8):  # on a busy machine the response may end before the update
        task = asyncio.create_task(sampler.engine.generate([7, 8, 9], sampling))
        await asyncio.sleep(0.3)
        change()
        await asyncio.to_thread(sampler.publish, version)
        generation = await task
        if generation.version_spans:
            break
    assert (generation.policy_version, [v for v, _ in generation.version_spans]) == (
        version - 1,
        [version - 1, version],
    )
    assert sum(count for _, count in generation.version_spans) == len(generation.ids) == 500
    repeated = await sampler.engine.generate([7, 8, 9], SamplingParams(max_tokens=20, ignore_eos=True))
    assert repeated.policy_version == version
    ids = [7, 8, 9, *repeated.ids]
    expected = parity_check(loaded.model, ids).logprobs[2:]
    assert repeated.logprobs == pytest.approx(expected, abs=1e-3)  # the cache has no entries from older weights
    assert sampler.engine._session is not None
    await sampler.engine._session.close()
    sampler.engine._session = None


def model_with_head_size_32(arch: str) -> LoadedModel:
    """Return a model with tied weights and a head size of 32, the minimum of vLLM's attention on a CPU."""
    return new_model(["say 1 2 3 you say hello world"] * 9, arch, "tiny")


@needs_vllm
@pytest.mark.slow
def test_an_architecture_that_vllm_computes_incorrectly_is_rejected(tmp_path: Path):
    """vLLM 0.32 computes LFM2's attention incorrectly on a CPU. If this test fails, vLLM was fixed: update docs/scale.md."""
    sampler = start_backend(model_with_head_size_32("lfm2"), tmp_path)
    try:
        with pytest.raises(RunError, match="does not compute what the trainer does"):
            sampler.publish(0)
    finally:
        asyncio.run(sampler.close())


@needs_vllm
@pytest.mark.slow
def test_a_real_server_started_with_a_tied_head_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The reason for `write_served`. If this test fails, vLLM was fixed and `write_served` is unnecessary."""
    loaded = model_with_head_size_32("llama")
    monkeypatch.setattr("rove.train.backends.write_served", LoadedModel.save)
    sampler = start_backend(loaded, tmp_path)
    try:
        sampler.publish(0)
        for parameter in loaded.model.parameters():
            parameter.data *= 1.5
        with pytest.raises(RunError, match="tie_word_embeddings"):
            sampler.publish(1)
    finally:
        asyncio.run(sampler.close())


@needs_vllm
@pytest.mark.slow
def test_a_real_server_that_hangs_is_restarted(tmp_path: Path):
    """Stop the engine process; the process that responds to /health continues."""
    vllm = VLLMConfig(**VLLM_FIELDS, hang_seconds=30.0)
    config = settings(backend="vllm", vllm=vllm, steps=5, max_off_policy_steps=2, checkpoint_every=99)

    def stop(step: int, metrics: Any) -> None:
        if step == 2:
            for pid in vllm_processes(os.getpid()):
                if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGSTOP)

    train(tmp_path / "run", config, loaded=model_with_head_size_32("llama"), on_step=stop)
    rows, records = metrics_of(tmp_path / "run"), rollouts_of(tmp_path / "run")
    assert max(row["sampler/probe_difference"] for row in rows) <= 1e-3
    assert rows[-1]["sampler/restarts"] == 1
    assert len(records) == 5 * config.batch_size
    for record in records:
        assert record.error is None
        assert record.step is not None
        for turn in record.steps:
            assert turn.tokens is not None
            spans = turn.tokens.version_spans or [(turn.tokens.policy_version, len(turn.tokens.completion_ids))]
            assert sum(count for _, count in spans) == len(turn.tokens.completion_ids)
            assert all(0 <= record.step - 1 - version <= 2 for version, _ in spans)


@needs_vllm
@pytest.mark.slow
def test_only_the_adapter_is_sent_to_a_real_server_that_is_killed(tmp_path: Path):
    loaded = model_with_head_size_32("llama")
    options = {"lora__rank": 4, "learning_rate": 0.02, "checkpoint_every": 99}
    config = settings(backend="vllm", vllm=VLLMConfig(**VLLM_FIELDS), steps=4, **options)

    train(tmp_path / "run", config, loaded=loaded, on_step=kill_in_step_2)
    assert_on_policy(tmp_path / "run", 1e-3)
    rows = metrics_of(tmp_path / "run")
    assert rows[-1]["sampler/restarts"] == 1
    assert {row["sampler/sent_bytes"] for row in rows} == {float(adapter_bytes(tmp_path / "run/final"))}


@needs_vllm
@pytest.mark.slow
def test_a_real_server_continues_a_response_with_a_new_adapter(tmp_path: Path):
    loaded = model_with_head_size_32("llama")
    adapter = add_adapter(loaded.model, 4, 8.0, 0.0, [], 0, "somewhere")
    vllm = VLLMConfig(**VLLM_FIELDS)
    sampler = make_backend(
        settings(backend="vllm", vllm=vllm, lora__rank=4),
        loaded._replace(adapter=adapter),
        tmp_path,
    )
    assert isinstance(sampler, VLLMBackend)
    try:
        for version in range(3):
            change_adapter(loaded, version)
            sampler.publish(version)
        asyncio.run(check_update_during_generation(sampler, loaded, partial(change_adapter, loaded, 3)))
    finally:
        asyncio.run(sampler.close())


def change_adapter(loaded: LoadedModel, seed: int) -> None:
    torch.manual_seed(seed)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.05)


@needs_vllm
@pytest.mark.slow
def test_a_run_continues_after_its_real_server_is_killed(tmp_path: Path):
    loaded = model_with_head_size_32("llama")
    config = settings(backend="vllm", vllm=VLLMConfig(**VLLM_FIELDS), steps=4)

    train(tmp_path / "run", config, loaded=loaded, on_step=kill_in_step_2)
    assert_on_policy(tmp_path / "run", 1e-3)
    assert metrics_of(tmp_path / "run")[-1]["sampler/restarts"] == 1
    assert load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert load_model(tmp_path / "run" / "final", "cpu").context == loaded.context


def kill_in_step_2(step: int, metrics: Any) -> None:
    if step == 2:
        for pid in vllm_processes(os.getpid()):
            os.kill(pid, signal.SIGKILL)


def vllm_processes(parent: int) -> list[int]:
    """Return the ids of the vLLM processes among the descendants of a process."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(folder.name))
            names[int(folder.name)] = command
    descendants = [parent]
    for pid in descendants:
        descendants += children.get(pid, [])
    return [
        pid
        for pid in descendants
        if "VLLM" in names.get(pid, "") or "vllm.entrypoints" in names.get(pid, "").split("supervisor")[0]
    ]


SERVER_WITHOUT_LORA = """
import asyncio, sys
from vllm_server import main

if "--enable-lora" in sys.argv:
    raise ValueError("OddForCausalLM does not support LoRA yet.")
asyncio.run(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_server_that_fails_with_lora_enabled_is_started_without_it(tmp_path: Path):
    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "serve.py").write_text(f"import sys; sys.path.insert(0, {support!r})" + SERVER_WITHOUT_LORA)
    config = vllm_settings(steps=2, lora__rank=2, vllm=VLLMConfig(command=f"{sys.executable} {tmp_path / 'serve.py'}"))
    train(tmp_path / "run", config)
    assert_on_policy(tmp_path / "run")
    assert "does not support LoRA yet" in (tmp_path / "run/vllm/server-0.log").read_text()


@pytest.mark.slow
def test_a_started_server_is_restarted_after_a_kill_and_stopped_at_the_end(tmp_path: Path):
    """Run all of `rove rl`: start a server, kill it during training, restart it and stop it at the end."""
    command = f"{sys.executable} {vllm_server.__file__}"
    killed_pids: list[int] = []

    def kill(step: int, metrics: Any) -> None:
        if step == 1:
            killed_pids.append(int((tmp_path / "run/vllm/server-0.log").read_text().split()[1]))
            os.kill(killed_pids[0], signal.SIGKILL)

    config = vllm_settings(steps=2, vllm=VLLMConfig(command=command))
    train(tmp_path / "run", config, on_step=kill)
    assert_on_policy(tmp_path / "run")
    assert metrics_of(tmp_path / "run")[-1]["sampler/restarts"] == 1
    last_pid = int((tmp_path / "run/vllm/server-0.log").read_text().rpartition("listening ")[2].split()[0])
    assert last_pid != killed_pids[0]
    with pytest.raises(ProcessLookupError):
        os.kill(last_pid, 0)


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_sampling_is_ignored_on_a_cpu_without_bf16_products(fast: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.models.linear.HAS_BF16_PRODUCTS", fast)
    backend = EmbeddedBackend(tiny_model(), 16, bf16=True)
    assert {p.dtype for p in backend.client.engine.model.parameters()} == {torch.bfloat16 if fast else torch.float32}
