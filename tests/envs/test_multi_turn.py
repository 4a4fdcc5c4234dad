"""Tests of MultiTurnEnv: the order of hooks, stop conditions, limits, and completion mode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row
from toy_envs import Talk, generate_sync, rows, scripted_client

import rove as vf
from rove.core.errors import ConfigError
from rove.runs.serialization import decode_record, encode_record


def reply_with_turn(messages, state, rng):
    state["log"].append("model")
    return f"turn {len(state['trajectory'])}"


def run_rollout(env: vf.Environment, policy=reply_with_turn) -> tuple[vf.RolloutRecord, vf.State]:
    """Run one rollout and return its record and its final state."""
    states: list[vf.State] = []

    def keep_state(state) -> int:
        states.append(state)
        return 0

    rubric = vf.Rubric()
    rubric.add_metric(keep_state)
    env.add_rubric(rubric)
    [record] = generate_sync(env, scripted_client(policy))
    assert record.error is None, record.error
    return record, states[0]


def messages_of(record: vf.RolloutRecord) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in record.completion]


def test_hooks_of_a_rollout_run_in_order():
    record, state = run_rollout(Talk(turns=2))
    turn = ["model", "stop?", "env"]
    # After the final response has_final_env_response is true first, so the condition below it is not checked again.
    assert state["log"] == ["setup", *turn, "stop?", *turn, "cleanup"]
    assert record.stop_condition == "has_final_env_response"
    assert not record.is_truncated


def test_final_env_response_ends_the_rollout_and_replaces_the_response():
    record, _ = run_rollout(Talk(turns=2))
    assert messages_of(record) == [("assistant", "turn 0"), ("user", "go on"), ("assistant", "turn 1"), ("user", "bye")]


@pytest.mark.parametrize(
    ("final", "last"),
    [
        ("bye", [("user", "bye")]),
        ([vf.UserMessage("so"), vf.UserMessage("bye")], [("user", "so"), ("user", "bye")]),
        ({"role": "system", "content": "bye"}, [("system", "bye")]),
        ([], []),
    ],
)
def test_final_env_response_can_be_a_string_messages_or_empty(final, last):
    class Ending(Talk):
        async def env_response(self, messages, state, **kwargs):
            state["final_env_response"] = final
            return "unused"

    record, _ = run_rollout(Ending())
    assert messages_of(record) == [("assistant", "turn 0"), *last]
    assert record.stop_condition == "has_final_env_response"


@pytest.mark.parametrize("max_turns", [1, 3])
def test_the_environment_sees_the_last_allowed_turn(max_turns):
    record, state = run_rollout(Talk(max_turns=max_turns))
    assert state["log"].count("model") == state["log"].count("env") == max_turns
    assert messages_of(record)[-1] == ("user", "go on")
    assert record.stop_condition == "max_turns_reached"
    assert not record.is_truncated


def test_final_env_response_precedes_max_turns_as_the_stop_condition():
    record, _ = run_rollout(Talk(turns=3, max_turns=3))
    assert record.stop_condition == "has_final_env_response"


def test_a_stop_condition_after_a_model_turn_skips_env_response():
    class Short(Talk):
        @vf.stop(priority=1)
        def twice(self, state):
            return len(state["trajectory"]) == 2

    record, state = run_rollout(Short())
    assert messages_of(record) == [("assistant", "turn 0"), ("user", "go on"), ("assistant", "turn 1")]
    assert record.stop_condition == "twice"
    assert state["log"].count("env") == 1


def test_stop_conditions_see_changes_by_env_response():
    class Board(Talk):
        async def env_response(self, messages, state, **kwargs):
            state["solved"] = True
            return "solved"

        @vf.stop
        def is_solved(self, state):
            return state.get("solved", False)

    record, _ = run_rollout(Board())
    assert record.stop_condition == "is_solved"
    assert messages_of(record) == [("assistant", "turn 0"), ("user", "solved")]


@given(st.integers(1, 6), st.integers(1, 20))
@settings(max_examples=30)
def test_the_token_limit_ends_and_truncates_the_rollout(words, limit):
    env = Talk(max_total_completion_tokens=limit)
    [record] = generate_sync(env, scripted_client("word " * words))
    assert record.stop_condition == "max_total_completion_tokens_reached"
    assert record.is_truncated
    assert record.usage.completion_tokens - words < limit <= record.usage.completion_tokens


def test_turns_are_unlimited_by_default():
    record, _ = run_rollout(Talk(turns=40))
    assert len(record.steps) == 40


def test_a_rollout_that_times_out_is_scored():
    async def slow(messages, state, rng):
        if state["trajectory"]:
            await asyncio.Event().wait()
        return "quick"

    record, state = run_rollout(Talk(timeout_seconds=0.05), slow)
    assert record.stop_condition == "timeout_reached"
    assert record.is_truncated
    assert messages_of(record) == [("assistant", "quick"), ("user", "go on")]
    assert record.scores is not None
    assert state["log"][-1] == "cleanup"


def test_a_timeout_inside_env_response_is_an_error():
    class TimeoutInsideResponse(Talk):
        async def env_response(self, messages, state, **kwargs):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    [record] = generate_sync(TimeoutInsideResponse(timeout_seconds=60), scripted_client("hi"))
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("env_response", "TimeoutError")


def test_a_prompt_that_is_too_long_truncates_the_rollout():
    def overlong_prompt(messages, state, rng):
        if state["trajectory"]:
            raise vf.OverlongPromptError("too long")
        return "fits"

    record, _ = run_rollout(Talk(), overlong_prompt)
    assert (record.stop_condition, record.is_truncated) == ("prompt_too_long", True)
    assert messages_of(record) == [("assistant", "fits"), ("user", "go on")]


# Return values of the hooks


@pytest.mark.parametrize("returns", ["None", "the state", "a dict", "another state"])
def test_setup_state_can_modify_the_state_or_return_additions(returns):
    class Setup(Talk):
        async def setup_state(self, state, **kwargs):
            state["log"] = []
            if returns == "a dict":
                return {"board": "...", "log": []}
            if returns == "another state":
                return vf.State(board="...", log=[])
            state["board"] = "..."
            return state if returns == "the state" else None

    record, state = run_rollout(Setup(turns=1))
    assert state["board"] == "..."
    assert record.answer == state["answer"] == "0"


def test_setup_state_can_replace_the_prompt():
    class Board(Talk):
        async def setup_state(self, state, **kwargs):
            state["log"] = []
            state["prompt"] = [vf.UserMessage("board")]

    record, _ = run_rollout(Board(turns=1))
    assert record.prompt == record.steps[0].prompt == [vf.UserMessage("board")]


@each_row(
    ("reply", "heard"),
    [
        ("go", ["go"]),
        ([vf.UserMessage("a"), {"role": "user", "content": "b"}], ["a", "b"]),
        ({"role": "user", "content": "c"}, ["c"]),
        ("", []),
        (None, []),
        ([], []),
    ],
)
def test_env_response_can_return_a_string_messages_or_nothing(reply, heard):
    class Replying(Talk):
        async def env_response(self, messages, state, **kwargs):
            return reply

    record, _ = run_rollout(Replying(max_turns=1))
    assert messages_of(record) == [("assistant", "turn 0"), *(("user", text) for text in heard)]


def test_each_turn_sees_the_whole_conversation_and_is_recorded():
    record, _ = run_rollout(Talk(turns=3, system_prompt="Be brief."))
    prompts = [[message["content"] for message in step.prompt] for step in record.steps]
    opening = ["Be brief.", "q0"]
    assert prompts == [opening, [*opening, "turn 0", "go on"], [*opening, "turn 0", "go on", "turn 1", "go on"]]
    assert [step.completion[0]["content"] for step in record.steps] == ["turn 0", "turn 1", "turn 2"]
    assert record.steps[-1].prompt[:2] == record.prompt


def test_num_turns_is_a_metric():
    record, _ = run_rollout(Talk(turns=3))
    assert record.scores is not None
    assert record.scores.metrics["num_turns"] == 3


def test_env_response_is_required():
    class WithoutResponse(vf.MultiTurnEnv):
        pass

    with pytest.raises(TypeError, match="abstract"):
        WithoutResponse(dataset=[{"question": "q"}])  # pyright: ignore[reportAbstractUsage]


def test_a_response_cut_by_max_tokens_marks_the_rollout_as_truncated():
    class TruncatingClient:
        max_concurrent = 1

        async def respond(self, request):
            return vf.Response(vf.AssistantMessage("and th"), finish_reason="length")

        async def close(self):
            pass

    [record] = generate_sync(Talk(turns=1), TruncatingClient())
    assert record.is_truncated
    assert record.stop_condition == "has_final_env_response"
    assert record.scores is not None


# Completion mode


class Story(vf.MultiTurnCompletionEnv):
    """Appends `replies` in order and stores every text it receives; the last reply ends the rollout."""

    def __init__(self, replies=(" (1) ", " (2) "), **kwargs):
        super().__init__(**{"dataset": [{"question": "Once"}], **kwargs})
        self.replies = replies

    async def setup_state(self, state, **kwargs):
        state["shown"] = []

    async def env_response(self, messages, state, **kwargs):
        state["shown"].append(messages)
        turn = len(state["trajectory"])
        if turn == len(self.replies):
            state["final_env_response"] = self.replies[-1]
            return None
        return self.replies[turn - 1]


def write_turn(messages, state, rng):
    return f"t{len(state['trajectory'])}"


def test_model_and_environment_extend_one_text_in_turns():
    record, state = run_rollout(Story(), write_turn)
    assert state["shown"] == ["Oncet0", "Oncet0 (1) t1"]
    assert (state["prompt"], state["completion"]) == ("Once", "t0 (1) t1 (2) ")
    assert record.prompt == [vf.UserMessage("Once")]
    assert messages_of(record) == [("assistant", "t0"), ("user", " (1) "), ("assistant", "t1"), ("user", " (2) ")]
    assert [[message["content"] for message in step.prompt] for step in record.steps] == [
        ["Once"],
        ["Once", "t0", " (1) "],
    ]
    assert record.stop_condition == "has_final_env_response"
    assert decode_record(encode_record(record)) == record


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.text(max_size=5), st.text(min_size=1, max_size=5))
@settings(max_examples=50)
def test_the_messages_of_a_record_concatenate_to_the_text(replies, prompt, answer):
    record, state = run_rollout(Story(replies, dataset=[{"prompt": prompt}]), lambda messages, state, rng: answer)
    assert "".join(text for _, text in messages_of(record)) == state["completion"]
    assert [text for role, text in messages_of(record) if role == "assistant"] == [answer] * len(replies)
    assert [text for role, text in messages_of(record) if role == "user"] == list(filter(None, replies))
    prompt_texts = ["".join(message["content"] for message in step.prompt) for step in record.steps]
    assert state["shown"] == [text + answer for text in prompt_texts]


def test_the_request_has_the_text_and_the_messages_by_author():
    requests: list[vf.Request] = []

    class RecordingClient:
        max_concurrent = 1

        async def respond(self, request):
            requests.append(request)
            return vf.Response(vf.AssistantMessage("x"))

        async def close(self):
            pass

    generate_sync(Story(), RecordingClient())
    generate_sync(Talk(turns=1), RecordingClient())
    assert [request.text for request in requests] == ["Once", "Oncex (1) ", None]
    assert [message["role"] for message in requests[1].messages] == ["user", "assistant", "user"]


def test_parsers_and_reward_functions_get_the_text():
    parser = vf.XMLParser(["answer"])

    def judge(completion: str, parser: vf.Parser) -> float:
        return float(parser.parse_answer(completion) == "t1" and isinstance(completion, str))

    env = Story(["<answer>", "</answer>"], parser=parser, rubric=vf.Rubric([judge]))
    record, _ = run_rollout(env, write_turn)
    assert record.reward == 1.0


def test_a_rollout_that_stops_before_the_first_response_has_an_empty_completion():
    def overlong_prompt(messages, state, rng):
        raise vf.OverlongPromptError("too long")

    record, state = run_rollout(Story(), overlong_prompt)
    assert (state["completion"], record.completion, record.reward) == ("", [], 0.0)
    assert record.prompt == [vf.UserMessage("Once")]


@pytest.mark.parametrize(("kind", "prompt"), [(Story, "board"), (Talk, "board"), (Talk, [vf.UserMessage("board")])])
def test_setup_state_can_set_a_string_as_the_prompt(kind, prompt):
    class Board(kind):
        async def setup_state(self, state, **kwargs):
            state.update(shown=[], log=[], prompt=prompt)

    record, _ = run_rollout(Board(max_turns=1), lambda messages, state, rng: messages[0].content)
    assert record.prompt == [vf.UserMessage("board")]
    assert messages_of(record)[0] == ("assistant", "board")
    assert decode_record(encode_record(record)) == record


def test_in_completion_mode_setup_state_cannot_set_messages_as_the_prompt():
    class MessagePromptStory(Story):
        async def setup_state(self, state, **kwargs):
            state["prompt"] = [vf.UserMessage("hi")]

    [record] = generate_sync(MessagePromptStory(), scripted_client("x"))
    assert record.error is not None
    assert record.error.phase == "setup_state"
    assert "state['prompt'] is a list; message_type 'completion' needs a text" in record.error.message


def test_a_completion_environment_requires_env_response_and_has_no_message_type():
    class WithoutResponse(vf.MultiTurnCompletionEnv):
        pass

    with pytest.raises(TypeError, match="abstract"):
        WithoutResponse(dataset=[{"question": "q"}])  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match="message_type"):
        Story(message_type="chat")


def test_hooks_can_be_sync():
    class Sync(vf.MultiTurnEnv):
        def setup_state(self, state: vf.State, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            state["seen"] = 1

        def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return f"again {state['seen']}"

    [record] = generate_sync(Sync(dataset=rows(1), max_turns=2), scripted_client(lambda *_: "x"))
    assert (record.error, record.completion[1]["content"]) == (None, "again 1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"rubric": [len]}, "expected a rove.Rubric"), ({"policies": [len]}, "expected a dict of functions by name")],
)
def test_an_argument_of_the_wrong_type_is_reported(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        vf.SingleTurnEnv(dataset=rows(1), **wrong)
