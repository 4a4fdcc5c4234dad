"""Model requests from a worker, by sub-models, other roles and external agents, have the same responses as local ones."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fakes import tiny_model
from tiers import first_quick

import rove as vf
from rove.core.protocols import Request, Response
from rove.engine.client import EngineClient
from rove.remote import IsolatedEnv
from rove.remote.isolation import IsolationConfig
from rove.remote.loading import open_environment
from rove.remote.rollout import RemoteRollout
from rove.train.config import EvaluationConfig
from tests.remote.test_isolation import CRASH, facts, no_process_is_left  # noqa: F401  a fixture
from tests.train.test_rl import metrics_of, rollouts_of, settings, train

SUB_MODELS_SOURCE = '''
import asyncio, os, signal
import rove as vf


class Subs(vf.Environment):
    """After each turn of the model, asks it about two things at once, in another role or in conversations of their own."""

    async def run(self, state, turn):
        messages, state["completion"] = list(state["prompt"]), []
        for count in range(2):
            messages.append(await turn(state, messages))
            said = await asyncio.gather(*(self.sub(state, turn, f"{word} {count}") for word in ("left", "right")))
            IN_RUN
            messages.append(vf.UserMessage(" ".join(said)))
            state["completion"] = messages[len(state["prompt"]):]
        state["stop_condition"] = "done"

    async def sub(self, state, turn, text):
        messages = [vf.UserMessage(f"{state['info']['number']} {text}")]
        if not self.trained:
            return str((await turn(state, messages, role="sub", sampling_args={"temperature": 0.5}))["content"])
        seed = state["seed"] + len(text)
        inner = vf.State(input=state["input"], prompt=messages, trajectory=[], completion=[], is_truncated=False,
                         seed=seed, env_seed=0, tools=None)
        state.setdefault("inner", []).append(inner)
        said = await turn(inner, messages)
        again = await turn(inner, [*messages, said, vf.UserMessage("again")])
        return str(again["content"])

    def post_rollout(self, state):
        for inner in state.get("inner", ()):
            state["trajectory"] += inner["trajectory"]


def turns(state):
    return len(state["trajectory"]) + sum(map(len, state["model_roles"].values()))


def load_environment(trained: bool = False):
    env = Subs(dataset=[{"question": f"q{i}", "info": {"number": i}} for i in range(4)], rubric=vf.Rubric([turns]))
    env.trained = trained
    return env
'''


def write_sub_models(folder: Path, in_run: str = "pass") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "subs.py").write_text(SUB_MODELS_SOURCE.replace("IN_RUN", in_run))
    return folder


class CountingEcho:
    """A client that repeats the last message and counts equal requests."""

    max_concurrent = 64

    def __init__(self) -> None:
        self.request_counts: Counter[str] = Counter()

    async def respond(self, request: Request) -> Response:
        await asyncio.sleep(0.005 if "left" in str(request.messages[-1]) else 0.001)
        key = f"{request.seed} {request.messages} {request.sampling_params.temperature}"
        self.request_counts[key] += 1
        return Response(vf.AssistantMessage(f"{request.messages[-1]['content']}!"), vf.Usage(3, 2))

    async def close(self) -> None:
        pass


def roles_of(record: vf.RolloutRecord) -> dict[str, list[Any]]:
    return {
        role: [(s.prompt, s.completion, s.usage, s.tokens) for s in steps] for role, steps in record.model_roles.items()
    }


@pytest.mark.parametrize("trained", first_quick([True, False]))
def test_sub_model_requests_equal_local_ones(tmp_path: Path, trained: bool) -> None:
    write_sub_models(tmp_path)
    clients, results = [CountingEcho(), CountingEcho()], []
    for client, load in zip(clients, (vf.load_environment, load_isolated)):
        records = load("subs", tmp_path, trained=trained).generate_sync(client, rollouts_per_example=2)
        results.append([(*facts(record), roles_of(record), record.usage) for record in records])
    assert results[0] == results[1] and clients[0].request_counts == clients[1].request_counts
    assert all((record[-2] == {}) == trained for record in results[0])
    assert all(record[3].reward == (10 if trained else 6) for record in results[0])


def load_isolated(name: str, folder: Path | None, **arguments: Any) -> vf.Environment:
    return IsolatedEnv(name, arguments, folder)


@pytest.mark.parametrize("trained", first_quick([True, False]))
def test_a_crash_repeats_no_sub_model_request(tmp_path: Path, trained: bool) -> None:
    write_sub_models(tmp_path / "broken", f"if state['info']['number'] == 2 and count == 1: {CRASH}")
    write_sub_models(tmp_path / "fine")
    client = CountingEcho()
    records = load_isolated("subs", tmp_path / "broken", trained=trained).generate_sync(client)
    fine = vf.load_environment("subs", tmp_path / "fine", trained=trained).generate_sync(CountingEcho())
    failed = [record for record in records if record.error]
    assert [record.info["number"] for record in failed] == [2]
    assert failed[0].error is not None and "SIGSEGV" in failed[0].error.message
    succeeded = [(*facts(record), roles_of(record)) for record in records if not record.error]
    assert succeeded == [(*facts(record), roles_of(record)) for record in fine if record.info["number"] != 2]
    assert set(client.request_counts.values()) == {1}


@pytest.mark.broad
def test_cleanup_runs_once_in_a_new_worker_if_the_first_one_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sub_models(tmp_path)
    clean_up = RemoteRollout.clean_up

    async def kill_worker_first(rollout: RemoteRollout, keep: bool = False) -> None:
        assert rollout.worker is not None
        if rollout.state["info"]["number"] == 2:
            rollout.worker.close("it died")
        await clean_up(rollout, keep)

    reference = load_isolated("subs", tmp_path, trained=True).generate_sync(CountingEcho())
    monkeypatch.setattr(RemoteRollout, "clean_up", kill_worker_first)
    client = CountingEcho()
    records = load_isolated("subs", tmp_path, trained=True).generate_sync(client)
    assert [(*facts(record), record.reward) for record in records] == [
        (*facts(expected), expected.reward) for expected in reference
    ]
    assert set(client.request_counts.values()) == {1}


@pytest.mark.broad
def test_tokens_of_sub_models_are_recorded_exactly(tmp_path: Path) -> None:
    write_sub_models(tmp_path)
    results = []
    for load in (vf.load_environment, load_isolated):
        client = EngineClient.from_model(tiny_model())
        env = load("subs", tmp_path, trained=True)
        records = env.generate_sync(client, sampling_args={"max_tokens": 6, "temperature": 1.0})
        results.append([[step.tokens for step in record.steps] for record in records])
    assert results[0] == results[1]
    assert all(tokens is not None for steps in results[0] for tokens in steps)
    assert all(steps[3].ids[: len(steps[2].ids)] == steps[2].ids for steps in results[0])  # The conversation continues.


@pytest.mark.slow
def test_the_needle_environment_with_sub_models_runs_isolated() -> None:
    arguments = {"num_examples": 2, "length": 15_000, "max_turns": 2}
    for trained in (False, True):
        results = []
        for load in (vf.load_environment, load_isolated):
            env = load("needle", None, train_sub_calls=trained, **arguments)
            records = env.generate_sync(vf.ScriptedClient(env.policies["recursive"]))
            assert [record.error for record in records] == [None] * 2
            results.append([(facts(record)[:3], roles_of(record), record.reward) for record in records])
        assert results[0] == results[1] and {reward for *_, reward in results[0]} == {1.0}


@pytest.mark.broad
def test_turns_that_the_environment_omits_are_not_recorded(tmp_path: Path) -> None:
    write_sub_models(tmp_path)
    file = tmp_path / "subs.py"
    file.write_text(file.read_text().replace('state["trajectory"] += inner["trajectory"]', "pass"))
    results = []
    for load in (vf.load_environment, load_isolated):
        records = load("subs", tmp_path, trained=True).generate_sync(CountingEcho())
        results.append([(*facts(record), record.usage) for record in records])
    assert results[0] == results[1] and all(len(record[2][2]) == 2 for record in results[0])


@pytest.mark.broad
def test_cancelling_a_sub_call_cancels_its_model_request(tmp_path: Path) -> None:
    """The pending response is cancelled with the sub-call, so it costs nothing more."""
    wait = "asyncio.wait([asyncio.ensure_future(self.sub(state, turn, 'never'))], timeout=0.1)"
    write_sub_models(tmp_path, f"(await {wait})[1].pop().cancel()")
    cancelled: list[str] = []

    class HangingClient(CountingEcho):
        async def respond(self, request: Request) -> Response:
            if "never" in str(request.messages[-1]):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(str(request.messages))
                    raise
            return await super().respond(request)

    records = load_isolated("subs", tmp_path).generate_sync(HangingClient())
    assert [record.error for record in records] == [None] * 4 and len(cancelled) == 8


MODEL_CALLS_SOURCE = """
import rove as vf

def letters(completion):
    text = "".join(m["content"] for m in completion if m["role"] == "assistant")
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))

class Asks(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return "you say"

def load_environment():
    return Asks(dataset=[{"question": f"say {n}"} for n in range(8)], rubric=vf.Rubric([letters]), max_turns=2)
"""


@pytest.mark.broad
def test_isolated_training_equals_local_training(tmp_path: Path) -> None:
    """Rollouts and metrics are equal; the order of rollouts differs, so sums may differ in the last digits."""
    (tmp_path / "asks.py").write_text(MODEL_CALLS_SOURCE)
    evaluation = EvaluationConfig(env="asks", every=1, max_tokens=4, num_examples=2)
    config = settings(env="asks", env_dir=str(tmp_path), steps=1, evaluation=[evaluation])
    weights: list[dict[str, torch.Tensor]] = []
    for name, on in (("here", False), ("there", True)):
        config = msgspec.structs.replace(config, isolation=IsolationConfig(enabled=on))
        env = open_environment(config.env, config.env_dir, {}, config.environment_isolation)
        weights.append(train(tmp_path / name, config, env).model.state_dict())
    rollouts = [
        sorted(rollouts_of(tmp_path / name), key=lambda r: (r.example_id, r.rollout_index))
        for name in ("here", "there")
    ]
    assert rollouts[0] == rollouts[1] and len(rollouts[0]) == 16
    [local], [isolated] = metrics_of(tmp_path / "here"), metrics_of(tmp_path / "there")
    assert local == pytest.approx(isolated, rel=1e-4, abs=1e-6) and "eval/asks/reward/mean" in local
    assert all(
        torch.allclose(local_weights, remote_weights, atol=1e-5)
        for local_weights, remote_weights in zip(weights[0].values(), weights[1].values())
    )


def test_exhaustive_evaluation_cannot_be_isolated() -> None:
    tables = [EvaluationConfig(env="tictactoe", kind="exhaustive")]
    with pytest.raises(vf.ConfigError, match="leave out kind or isolation"):
        settings(isolation__enabled=True, evaluation=tables).check()


AGENT_SOURCE = """
import asyncio, json, os, signal, sys
import aiohttp
import rove as vf


async def asked(access, text, **more):
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {access.api_key}"}) as http:
        body = {"model": "any", "messages": [{"role": "user", "content": text}], **more}
        async with http.post(f"{access.base_url}/chat/completions", json=body) as reply:
            if more.get("stream"):
                lines = [line async for line in reply.content]
                found = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
                return "".join(one["choices"][0]["delta"].get("content") or "" for one in found if one["choices"])
            return (await reply.json())["choices"][0]["message"]["content"]


async def agent(access, state):
    number = state["info"]["number"]
    both = await asyncio.gather(asked(access, f"{number} a", max_tokens=5), asked(access, f"{number} b", stream=True))
    IN_AGENT
    return " ".join(sorted(both))


def answered(completion, state):
    return float(completion[-1]["content"] == state["agent_result"])


def load_environment(command: list[str] | None = None):
    rows = [{"question": f"q{i}", "info": {"number": i}} for i in range(4)]
    return vf.AgentEnv(None if command else agent, command, dataset=rows, rubric=vf.Rubric([answered]), grace_seconds=1.0)
"""


def write_agent(folder: Path, in_agent: str = "pass") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "talker.py").write_text(AGENT_SOURCE.replace("IN_AGENT", in_agent))
    return folder


def agent_facts(record: vf.RolloutRecord) -> list[Any]:
    """Return the comparable fields of a record, with concurrent steps sorted."""
    steps = sorted((str(step.prompt), str(step.completion), str(step.usage)) for step in record.steps)
    return [record.example_key, record.seed, steps, record.scores, record.error, record.stop_condition]


def test_external_agents_run_in_the_worker(tmp_path: Path) -> None:
    write_agent(tmp_path)
    results = []
    for load in (vf.load_environment, load_isolated):
        records = load("talker", tmp_path).generate_sync(CountingEcho(), rollouts_per_example=2)
        results.append(list(map(agent_facts, records)))
    assert results[0] == results[1]
    assert all(record[3] is not None and record[3].reward == 1.0 and len(record[2]) == 2 for record in results[0])


@pytest.mark.broad
def test_sampling_parameters_of_an_agent_are_applied(tmp_path: Path) -> None:
    write_agent(tmp_path)
    max_tokens: list[int | None] = []

    class MaxTokensRecorder(CountingEcho):
        async def respond(self, request: Request) -> Response:
            max_tokens.append(request.sampling_params.max_tokens)
            return await super().respond(request)

    load_isolated("talker", tmp_path).generate_sync(
        MaxTokensRecorder(), num_examples=1, sampling_args={"max_tokens": 50}
    )
    assert sorted(n or 0 for n in max_tokens) == [5, 50]


@pytest.mark.broad
def test_an_agent_that_kills_its_worker_affects_no_other_and_repeats_no_request(tmp_path: Path) -> None:
    write_agent(tmp_path, f"if number == 2: {CRASH}")
    client = CountingEcho()
    records = load_isolated("talker", tmp_path).generate_sync(client)
    assert [record.info["number"] for record in records if record.error] == [2]
    assert all(record.reward == 1.0 for record in records if not record.error)
    requests = Counter(key.split(" ", 1)[1] for key in client.request_counts.elements())
    assert set(requests.values()) == {1} and len(requests) == 8


@pytest.mark.broad
def test_child_processes_of_a_dead_worker_are_killed(tmp_path: Path) -> None:
    write_agent(tmp_path)
    note = tmp_path / "note"
    kill = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    program = [
        sys.executable,
        "-c",
        f"import os, signal, time; print(os.getpid(), file=open({str(note)!r}, 'a')); {kill}",
    ]
    records = load_isolated("talker", tmp_path, command=program).generate_sync(
        CountingEcho(), num_examples=1, rollouts_per_example=1
    )
    assert [record.error and record.error.type for record in records] == ["WorkerError"]
    started = list(map(int, note.read_text().split()))
    assert len(started) == 2
    deadline = time.monotonic() + 20  # a killed process takes a moment to end
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.broad
def test_a_function_in_this_process_can_be_the_opponent() -> None:
    views: list[list[str]] = [[], []]
    results = []
    for views_seen, load in zip(views, (vf.load_environment, load_isolated)):
        env: Any = load("tictactoe", None, num_examples=6)
        assert env.two_player

        async def choose_last(view: str, legal: list[str], board: Any = None, received: list[str] = views_seen) -> str:
            received.append(view)
            return legal[-1]

        env.opponent = choose_last
        records = env.generate_sync(vf.ScriptedClient(env.policies["teacher"]))
        results.append(list(map(facts, records)))
    assert results[0] == results[1]
    assert sorted(views[0]) == sorted(views[1]) and len(views[0]) > 6
