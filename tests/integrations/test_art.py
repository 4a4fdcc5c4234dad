"""Rollouts of rove as trajectories of ART: exact tokens, rewards, and failures that are never a reward of 0.

The tests need openpipe-art 0.5.23 or later, which needs Python 3.12; `make test-trainers` installs it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import rove as vf
from rove.core.messages import text_of
from rove.core.records import StepTokens
from rove.rollouts.groups import RolloutError

pytest.importorskip("art")

import art  # pyright: ignore[reportMissingImports]
from art.trajectories import TokenFlag  # pyright: ignore[reportMissingImports]

from rove.integrations.art import trajectory_from_record

END = 0


class NoTokenizer:
    """A tokenizer that cannot tokenize: the trajectory has exact tokens. (ART also renders messages to annotate roles.)"""

    eos_token_id = END

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class ByteTokenClient:
    """Replies of a scripted policy, spelled in bytes; every prompt extends the tokens of the turn before it."""

    max_concurrent = 4

    def __init__(self, policy: Any):
        self.scripted = vf.ScriptedClient(policy)

    async def respond(self, request: vf.Request) -> vf.Response:
        response = await self.scripted.respond(request)
        previous = request.previous
        earlier = [] if previous is None else previous.prompt_ids + previous.completion_ids
        new = request.messages if previous is None else request.messages[-1:]
        prompt_ids = [*earlier, *(byte + 1 for byte in "".join(map(text_of, new)).encode())]
        reply = f"{text_of(response.message)}{response.message.get('tool_calls') or ''}"
        ids = [*(byte + 1 for byte in reply.encode()), END]
        tokens = StepTokens(prompt_ids, ids, [-position / 1000 for position in range(len(ids))], 3)
        usage = vf.Usage(len(prompt_ids), len(ids))
        return vf.Response(response.message, usage, response.finish_reason, tokens)

    async def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("name", "policy"), [("tictactoe", "teacher"), ("lookup", "solver"), ("word_game", "solver")])
def test_trajectories_have_the_tokens_and_rewards_of_the_rollouts(name: str, policy: str) -> None:
    env = vf.load_environment(name, num_examples=4)
    records = vf.run_rollouts_sync(
        env, env.get_dataset(4), ByteTokenClient(env.policies[policy]), rollouts_per_example=2
    )
    for record in records:
        assert record.scores is not None
        trajectory = trajectory_from_record(record, "served")
        assert trajectory.reward == record.reward and trajectory.metadata["example_id"] == record.example_id
        assert trajectory.metrics.items() >= record.scores.rewards.items()
        assert (trajectory.initial_policy_version, trajectory.final_policy_version) == (3, 3)
        [history] = trajectory.tokenize(tokenizer=NoTokenizer(), multi_history=True).histories
        [sequence] = vf.sequences_from_record(record)
        sampled = [bool(flag & TokenFlag.SAMPLED) for flag in history.flags]
        assert (history.tokens, sampled) == (sequence.ids, sequence.mask)
        logprobs = [value if is_sampled else 0.0 for value, is_sampled in zip(history.logprobs, sampled, strict=True)]
        assert logprobs == sequence.logprobs
        messages = trajectory.chat_completions_history().messages
        assert [message["role"] for message in messages] == [
            message["role"] for message in [*record.prompt, *record.completion][: len(messages)]
        ]
        assert (trajectory.exchanges.chat_completions[0].request.get("tools") is None) == (record.tools is None)


def test_records_without_tokens_keep_their_messages() -> None:
    env = vf.load_environment("tictactoe", num_examples=1)
    [record] = env.generate_sync(vf.ScriptedClient(env.policies["teacher"]), num_examples=1)
    trajectory = trajectory_from_record(record, "served")
    first = trajectory.exchanges.chat_completions[0].response.choices[0]
    assert first.message.content == record.steps[0].completion[0]["content"] and first.logprobs is None


def test_a_failed_rollout_is_an_exception_of_its_group() -> None:
    def correct(answer: str) -> float:
        if answer == "1":
            raise ValueError("the reward broke")
        return 1.0

    rows = [{"question": "?", "answer": str(number)} for number in range(3)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))

    async def rollout(row: dict[str, Any]) -> Any:
        [record] = await vf.run_rollouts(env, [row], ByteTokenClient(lambda messages, state, rng: "yes"))
        return trajectory_from_record(record, "served")

    async def gather() -> Any:
        return await art.trajectory_group([rollout(row) for row in env.get_dataset()], return_exceptions=True)

    group = asyncio.run(gather())
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 1.0]
    assert "the reward broke" in group.exceptions[0].message and RolloutError.__name__ in group.exceptions[0].type


def test_the_rewards_of_turns_are_part_of_the_reward() -> None:
    class Steps(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:
            state["trajectory"][-1]["reward"] = 0.25
            return "go on"

    env = Steps(dataset=[{"question": "?"}], rubric=vf.Rubric([lambda completion: 1.0]), max_turns=2)
    [record] = env.generate_sync(ByteTokenClient(lambda messages, state, rng: "yes"))
    assert trajectory_from_record(record, "served").reward == 1.0 + 2 * 0.25
