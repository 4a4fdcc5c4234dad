"""Tests of SingleTurnEnv."""

from __future__ import annotations

import pytest
from toy_envs import Quiz, generate_sync, oracle, scripted_client

import rove as vf


def test_the_model_is_queried_once():
    records = generate_sync(Quiz(3, system_prompt="Be brief."), scripted_client(oracle))
    assert [record.reward for record in records] == [1.0, 1.0, 1.0]
    for i, record in enumerate(records):
        assert record.prompt == [vf.SystemMessage("Be brief."), vf.UserMessage(f"q{i}")]
        assert record.completion == [vf.AssistantMessage(str(i))]
        assert len(record.steps) == 1
        assert (record.stop_condition, record.is_truncated) == ("answered", False)
        assert record.scores is not None
        assert record.scores.metrics == {"num_turns": 1.0}


def test_in_completion_mode_the_text_is_continued_once():
    arguments = []

    def judge(prompt: str, completion: str, parser: vf.Parser, state: vf.State) -> float:
        arguments.append((prompt, completion, parser.parse_answer(completion), state["prompt"]))
        return 1.0

    env = Quiz(1, message_type="completion", rubric=vf.Rubric([judge]))
    [record] = generate_sync(env, scripted_client(lambda messages, state, rng: f" and {messages[0].content}"))
    assert arguments == [("q0", " and q0", " and q0", "q0")]
    assert record.prompt == [vf.UserMessage("q0")]
    assert record.completion == [vf.AssistantMessage(" and q0")]
    assert (record.reward, record.stop_condition) == (1.0, "answered")


def test_env_response_is_never_called():
    class Silent(Quiz):
        async def env_response(self, messages, state, **kwargs):
            raise AssertionError("called")

    [record] = generate_sync(Silent(1), scripted_client("0"))
    assert record.error is None


@pytest.mark.parametrize("returns", [False, True])
def test_setup_state_can_modify_the_state_or_return_additions(returns):
    class Setup(Quiz):
        async def setup_state(self, state, **kwargs):
            new = {"prompt": [vf.UserMessage("another question")], "secret": "42"}
            if returns:
                return new
            state.update(new)

    [record] = generate_sync(
        Setup(1), scripted_client(lambda messages, state, rng: f"{messages[0].content}: {state['secret']}")
    )
    assert record.completion[0]["content"] == "another question: 42"
    assert record.prompt == [vf.UserMessage("another question")]


def test_an_error_in_setup_state_fails_the_rollout():
    class Broken(Quiz):
        async def setup_state(self, state, **kwargs):
            raise KeyError("board")

    [record] = generate_sync(Broken(1), scripted_client("0"))
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("setup_state", "KeyError")
    assert record.prompt == [vf.UserMessage("q0")]
    assert record.steps == []


def test_max_turns_is_rejected():
    with pytest.raises(TypeError, match="max_turns"):
        Quiz(max_turns=3)
