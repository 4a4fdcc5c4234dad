"""Model roles: the responses and failures of an opponent are recorded and counted separately."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toy_envs import generate_sync, rows, scripted_client, without_times

import rove as vf
from rove.core.errors import ConfigError, phase_of
from rove.runs.serialization import decode_outcome, decode_record, encode_record
from rove.statistics import Price, Tally


class DialogueEnv(vf.MultiTurnEnv):
    """The model talks to an opponent, which sees the conversation with swapped roles."""

    def __init__(self, opponent: vf.Client, turns: int = 3, **kwargs: Any):
        super().__init__(dataset=rows(2), max_turns=turns, **kwargs)
        self.other = opponent

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        sides = {"user": "assistant", "assistant": "user"}
        view = [{"role": sides[m["role"]], "content": m["content"]} for m in messages if m["role"] in sides]
        response = await vf.query(state, view, self.other, role="opponent", sampling_args={"temperature": 0.5})
        return response["content"]


def dice(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    return f"{len(messages)}: {rng.random()}"


def test_an_opponent_is_recorded_and_counted_separately() -> None:
    records = generate_sync(DialogueEnv(scripted_client(dice)), scripted_client("never mind"))
    for record in records:
        steps = record.model_roles["opponent"]
        assert [len(step.prompt) for step in steps] == [2, 4, 6]
        assert [step.completion[0]["content"] for step in steps] == [m["content"] for m in record.completion[1::2]]
        assert all(step.completion[0]["content"] == "never mind" for step in record.steps) and len(record.steps) == 3
        assert record.usage.completion_tokens == 6
    responses = [step.completion[0]["content"] for record in records for step in record.model_roles["opponent"]]
    assert len(set(responses)) == 6  # every call has its own random stream
    second_records = generate_sync(DialogueEnv(scripted_client(dice)), scripted_client("never mind"))
    assert [without_times(r).completion for r in second_records] == [without_times(r).completion for r in records]


def test_model_roles_survive_encoding_and_decoding() -> None:
    [record, _] = generate_sync(DialogueEnv(scripted_client(dice)), scripted_client("never mind"))
    line = encode_record(record)
    assert decode_record(line) == record
    outcome = decode_outcome(line)
    assert outcome == record.outcome and len(outcome.model_roles["opponent"]) == 3
    without_roles = msgspec.structs.replace(record, model_roles={})
    assert decode_record(encode_record(without_roles)).model_roles == {}


def test_tokens_and_cost_by_role() -> None:
    tally = Tally(role_prices={"opponent": Price(0, 1e6)})
    for record in generate_sync(DialogueEnv(scripted_client("so there"), turns=2), scripted_client("x")):
        tally.add(record)
    assert tally.result().to_dict()["model_roles"] == {
        "opponent": {"calls": 4, "prompt_tokens": 14, "completion_tokens": 8, "cost": 8.0}
    }
    assert "model_roles" not in Tally().result().to_dict()


def test_a_failing_opponent_is_an_error_of_its_role() -> None:
    def fails(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        raise vf.InfraError("gone", ["HTTP 503"])

    [record, _] = generate_sync(DialogueEnv(scripted_client(fails)), scripted_client("x"))
    assert record.error is not None
    assert (record.error.phase, record.error.type, record.error.attempts) == (
        "role opponent",
        "InfraError",
        ["HTTP 503"],
    )
    assert record.scores is None and len(record.steps) == 1


def test_rescoring_replays_the_recorded_opponent(tmp_path: Path) -> None:
    queries: list[str] = []

    def other(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        queries.append(messages[-1].content)
        return f"answer {len(queries)}"

    asyncio.run(vf.evaluate(DialogueEnv(scripted_client(other)), scripted_client("x"), run=tmp_path / "run"))
    query_count_before = len(queries)
    with vf.Run(tmp_path / "run") as run:
        env = DialogueEnv(scripted_client(other), rubric=vf.Rubric([length]))
        summary = asyncio.run(vf.rescore(env, run, into=tmp_path / "again"))
        assert (summary.failed, summary.reward.mean, len(queries)) == (0, 6.0, query_count_before)
        assert summary.model_roles["opponent"].calls == 6
        changed = asyncio.run(vf.generate(BlindOpponentEnv(scripted_client(other)), scripted_client("x"), run=None))
        assert len(changed) == 2  # the environment works, but differs from the recorded one
        failed = asyncio.run(
            vf.rescore(BlindOpponentEnv(scripted_client(other)), run, into=tmp_path / "changed")
        ).errors
        assert failed == {"replay: ReplayError": 2}


class ConcurrentQueriesEnv(vf.MultiTurnEnv):
    """Sends three concurrent queries to one role; the responses arrive in another order."""

    def __init__(self, **kwargs: Any):
        super().__init__(dataset=rows(1), max_turns=1, **kwargs)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        questions = ("3", "1", "2")
        responses = await asyncio.gather(
            *(vf.query(state, text, scripted_client(late), role="crowd") for text in questions)
        )
        return " ".join(str(response["content"]) for response in responses)


async def late(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    drawn = rng.random()
    for _ in range(10 * int(messages[-1].content)):
        await asyncio.sleep(0)
    return f"{messages[-1].content}: {drawn}"


def test_concurrent_queries_are_recorded_in_query_order(tmp_path: Path) -> None:
    with vf.Run(tmp_path / "run") as run:
        asyncio.run(vf.evaluate(ConcurrentQueriesEnv(), scripted_client("x"), run=tmp_path / "run"))
        [record] = run.rollouts()
        steps = record.model_roles["crowd"]
        assert [step.prompt[0]["content"] for step in steps] == ["3", "1", "2"]
        responses = [str(step.completion[0]["content"]) for step in steps]
        assert record.completion[1]["content"] == " ".join(responses)
        assert len({response.split(": ")[1] for response in responses}) == 3  # each query has its own random stream
        summary = asyncio.run(
            vf.rescore(ConcurrentQueriesEnv(rubric=vf.Rubric([length])), run, into=tmp_path / "again")
        )
    assert (summary.failed, summary.reward.mean) == (0, 2.0)


def length(completion: vf.Messages) -> float:
    return float(len(completion))


class BlindOpponentEnv(DialogueEnv):
    """The opponent does not see the conversation."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        return (await vf.query(state, "say something", self.other, role="opponent"))["content"]


async def test_invalid_queries_raise_config_errors_of_the_role() -> None:
    for messages, options in ((3, {}), ("hi", {"sampling_args": {"temperature": -1}})):
        with pytest.raises(ConfigError) as error:
            await vf.query(vf.State(), messages, scripted_client("x"), role="user", **options)  # pyright: ignore[reportArgumentType]
        assert phase_of(error.value) == "role user"
