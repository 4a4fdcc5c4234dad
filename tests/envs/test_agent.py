"""Tests of AgentEnv: coroutines, functions and programs as agents, exact tokens, and failures."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes import tiny_model
from tiers import each_row

import rove as vf
from rove.core.errors import cancelled_unanswered
from rove.engine.client import EngineClient
from rove.envs.agent import conversation, task_of
from rove.server.proxy import Access
from rove.train.sequences import sequences_from_record
from rove.utils.hidden_exec import CREATE_RULESET
from rove.utils.processes import SAFE_VARIABLES
from tests.server.test_server import wait_until

PROGRAM = [sys.executable, str(Path(__file__).parents[1].joinpath("support", "agent_program.py"))]
CURL = (
    'sleep 1000 & cat >/dev/null; curl -sf "$OPENAI_BASE_URL/chat/completions" -H "x-api-key: $OPENAI_API_KEY" '
    '-d "{\\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"$ROVE_TASK\\"}]}"'
)
ROWS = [{"question": f"question {i}", "answer": f"question {i}"} for i in range(3)]


def open_sdk(access: Access) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0)


async def send(sdk: openai.AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    response = await sdk.chat.completions.create(model="any", messages=messages, **options)
    messages.append(response.choices[0].message.model_dump(exclude_none=True))
    return messages[-1].get("content")


async def three_turn_agent(access: Access, state: vf.State) -> str:
    """Run three turns that only append messages."""
    async with open_sdk(access) as sdk:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task_of(state)}]
        for _ in range(2):
            await send(sdk, messages)
            messages.append({"role": "user", "content": "go on"})
        return await send(sdk, messages)


def echo(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    return f"{task_of(state)} #{len(state['trajectory']) + 1}"


def contains_answer(completion: vf.Messages, answer: str) -> float:
    return float(bool(completion) and answer in str(completion[-1]["content"]))


def env_of(agent: Any = None, rows: list[Any] = ROWS, **options: Any) -> vf.AgentEnv:
    return vf.AgentEnv(agent, dataset=rows, rubric=vf.Rubric([contains_answer]), **options)


async def run_one(env: vf.AgentEnv, client: Any = None, **options: Any) -> vf.RolloutRecord:
    options = {"num_examples": 1, "rollouts_per_example": 1} | options
    [record] = await env.generate(client or vf.ScriptedClient(echo), **options)
    return record


async def test_an_agent_that_only_appends_is_recorded_as_one_conversation():
    env = env_of(three_turn_agent)
    records = await env.generate(vf.ScriptedClient(echo), rollouts_per_example=2)
    assert [record.reward for record in records] == [1.0] * 6
    record = records[0]
    assert [message["role"] for message in record.completion] == ["assistant", "user", "assistant", "user", "assistant"]
    assert record.prompt == [vf.UserMessage("question 0")] and len(record.steps) == 3
    assert [len(step.prompt) for step in record.steps] == [2, 4, 6]
    assert (record.stop_condition, record.is_truncated, record.error) == ("agent_finished", False, None)
    assert record.scores is not None and record.scores.metrics == {"num_turns": 3.0}
    assert env._proxy is None and len(asyncio.all_tasks()) == 1


async def test_a_sync_agent_runs_in_a_thread():
    def agent(access: Access, state: vf.State) -> str:
        assert threading.current_thread() is not threading.main_thread()
        with openai.OpenAI(base_url=access.base_url, api_key=access.api_key) as sdk:
            response = sdk.responses.create(model="any", input=task_of(state))
            return response.output_text

    records = await env_of(agent).generate(vf.ScriptedClient(echo))
    assert [record.reward for record in records] == [1.0] * 3


async def test_the_agents_return_value_is_the_last_message():
    async def agent(access: Access, state: vf.State) -> Any:
        await three_turn_agent(access, state)
        return {"total": 4}

    record = await run_one(env_of(agent))
    assert record.completion[-1] == vf.AssistantMessage('{"total":4}') and len(record.completion) == 6
    assert (await run_one(env_of(three_turn_agent))).completion[-1]["content"] == "question 0 #3"


async def test_run_agent_receives_the_state_from_setup_state():
    class StateReadingEnv(vf.AgentEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> Any:
            return {"board": "empty"}

        async def run_agent(self, access: Access, state: vf.State) -> str:
            return state["board"]

    record = await run_one(
        StateReadingEnv(dataset=[{"question": "q", "answer": "empty"}], rubric=vf.Rubric([contains_answer]))
    )
    assert (record.reward, record.steps, record.stop_condition) == (1.0, [], "agent_finished")


# Exact tokens


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
async def test_an_agent_that_only_appends_gives_one_sequence_with_exact_tokens(arch: str):
    client = EngineClient.from_model(tiny_model(arch))
    env = env_of(three_turn_agent, sampling_args={"max_tokens": 8, "temperature": 1.0})
    for record in await env.generate(client, rollouts_per_example=2):
        first, second, third = (step.tokens for step in record.steps)
        assert first and second and third
        assert second.prompt_ids[: len(first.ids)] == first.ids
        assert third.prompt_ids[: len(second.ids)] == second.ids
        [sequence] = sequences_from_record(record, 1.0)
        assert sequence.ids == third.ids
        sampled = [*first.completion_ids, *second.completion_ids, *third.completion_ids]
        assert [i for i, trained in zip(sequence.ids, sequence.mask, strict=True) if trained] == sampled
        logprobs = [*first.logprobs, *second.logprobs, *third.logprobs]
        assert [p for p, trained in zip(sequence.logprobs, sequence.mask, strict=True) if trained] == logprobs


async def test_interleaved_conversations_become_separate_sequences():
    async def agent(access: Access, state: vf.State) -> None:
        main_messages: list[Any] = [{"role": "user", "content": task_of(state)}]
        helper_messages: list[Any] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "say 4"}]
        async with open_sdk(access) as sdk:
            await send(sdk, main_messages)
            for _ in range(2):
                await send(sdk, helper_messages)
                helper_messages.append({"role": "user", "content": "no"})
                main_messages.append({"role": "user", "content": "go on"})
                await send(sdk, main_messages)

    client = EngineClient.from_model(tiny_model())
    record = await run_one(env_of(agent, sampling_args={"max_tokens": 8}), client)
    sequences = sequences_from_record(record, 1.0)
    assert sorted(sequence.ids for sequence in sequences) == sorted(step.tokens.ids for step in record.steps[-2:])  # pyright: ignore[reportOptionalMemberAccess]
    assert record.completion == [*record.steps[-1].prompt, *record.steps[-1].completion][1:]


WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name":"weather",  "arguments": {"city": "Rome"}}</tool_call>'  # the chat template formats it differently


async def chat_completions_agent(access: Access, state: vf.State) -> None:
    tools: Any = [{"type": "function", "function": WEATHER}]
    async with open_sdk(access) as sdk:
        messages: list[Any] = [{"role": "user", "content": task_of(state)}]
        await send(sdk, messages, tools=tools)
        call = messages[-1]["tool_calls"][0]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
        await send(sdk, messages, tools=tools)


async def responses_agent(access: Access, state: vf.State) -> None:
    tools: Any = [{"type": "function", "strict": False, **WEATHER}]
    async with open_sdk(access) as sdk:
        items: list[Any] = [{"role": "user", "content": task_of(state)}]
        response = await sdk.responses.create(model="any", input=items, tools=tools)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "sunny"})
        await sdk.responses.create(model="any", input=items, tools=tools)


async def messages_agent(access: Access, state: vf.State) -> None:
    import anthropic  # slow to import

    tools: Any = [{"name": "weather", "input_schema": WEATHER["parameters"]}]
    async with anthropic.AsyncAnthropic(base_url=access.root, api_key=access.api_key) as sdk:
        messages: list[Any] = [{"role": "user", "content": task_of(state)}]
        async with sdk.messages.stream(model="any", max_tokens=99, messages=messages, tools=tools) as stream:
            response = await stream.get_final_message()
        result = {"type": "tool_result", "tool_use_id": response.content[-1].id, "content": "sunny"}  # pyright: ignore[reportAttributeAccessIssue]
        messages += [{"role": "assistant", "content": response.content}, {"role": "user", "content": [result]}]
        await sdk.messages.create(model="any", max_tokens=99, messages=messages, tools=tools)


@pytest.mark.parametrize(
    "agent", [chat_completions_agent, responses_agent, pytest.param(messages_agent, marks=pytest.mark.broad)]
)
async def test_a_tool_call_that_is_sent_back_keeps_its_sampled_tokens(agent: Any):
    client = EngineClient.from_model(tiny_model(context=4096))
    sampling = {"structured_outputs": {"choice": [CALL]}, "max_tokens": 200}
    record = await run_one(env_of(agent, sampling_args=sampling), client)
    assert record.error is None, record.error
    first, second = (step.tokens for step in record.steps)
    assert first and second and CALL in client.renderer.decode(first.completion_ids)
    assert second.prompt_ids[: len(first.ids)] == first.ids
    [sequence] = sequences_from_record(record, 1.0)
    assert sequence.ids == second.ids
    assert record.tools is not None and record.tools[0]["function"]["name"] == "weather"


@pytest.mark.broad
async def test_the_same_seed_gives_the_same_tokens():
    env, client = env_of(three_turn_agent, sampling_args={"max_tokens": 8}), EngineClient.from_model(tiny_model())
    first_records, second_records = [await env.generate(client, seed=3) for _ in range(2)]
    assert [[step.completion for step in record.steps] for record in first_records] == [
        [step.completion for step in record.steps] for record in second_records
    ]


# Programs


def sleep_processes() -> set[str]:
    processes = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in processes.splitlines() if line.endswith("sleep 1000")}


@pytest.mark.broad
async def test_a_program_runs_as_an_agent_and_leaves_no_process(tmp_path: Path):
    sleep_processes_before = sleep_processes()
    env = env_of(command=PROGRAM, cwd=tmp_path, environment_vars={"EXTRA": "1"})
    record = await run_one(env)
    assert (record.reward, record.stop_condition) == (1.0, "agent_finished"), record.error
    assert record.completion[-1] == vf.AssistantMessage("question 0 #2")
    assert [step.prompt[0]["role"] for step in record.steps] == ["system", "system"]
    assert sleep_processes() == sleep_processes_before


async def test_a_command_string_runs_in_a_shell_and_its_output_is_in_the_state():
    states: list[dict[str, Any]] = []

    def record_state(state: vf.State) -> float:
        states.append(
            {name: state[name] for name in ("agent_output", "agent_errors", "agent_exit_code", "agent_result")}
        )
        return 1.0

    command = 'cat >/dev/null; echo "${OPENAI_BASE_URL#http} $ROVE_TASK"; echo warned >&2; seq 1 9999'
    env = vf.AgentEnv(command=command, dataset=ROWS, rubric=vf.Rubric([record_state]), max_chars=40)
    assert (await run_one(env)).reward == 1.0
    [state] = states
    assert state["agent_output"].startswith("…") and state["agent_output"].endswith("9998\n9999\n")
    assert (len(state["agent_output"]), state["agent_errors"], state["agent_exit_code"]) == (41, "warned\n", 0)
    assert state["agent_result"] == state["agent_output"].strip()


@pytest.mark.slow
async def test_a_failing_program_is_an_agent_error():
    record = await run_one(env_of(command=[*PROGRAM, "crash"]))
    assert record.error is not None and record.scores is None
    assert (record.error.phase, record.error.type) == ("agent", "AgentError")
    assert "exit code 3; its output: about to fail" in record.error.message
    assert len(record.steps) == 2
    start_error = (await run_one(env_of(command=["no-such-program"]))).error
    assert start_error is not None and "cannot be started" in start_error.message


@pytest.mark.broad
async def test_a_program_that_hangs_is_killed_with_its_child_processes():
    sleep_processes_before = sleep_processes()
    record = await run_one(env_of(command=f"{CURL}; sleep 1000", timeout_seconds=3))
    assert (record.stop_condition, record.is_truncated, record.reward) == ("timeout_reached", True, 1.0), record.error
    assert len(record.completion) == 1 and sleep_processes() == sleep_processes_before


@pytest.mark.slow
async def test_fifty_concurrent_rollouts_leave_no_process_task_or_socket():
    processes_before, open_files = sleep_processes(), len(os.listdir("/proc/self/fd"))
    rows = [{"question": f"question {i}", "answer": f"question {i}"} for i in range(50)]
    program_records = await env_of(command=CURL, rows=rows).generate(vf.ScriptedClient(echo), max_concurrent=50)
    assert [record.reward for record in program_records] == [1.0] * 50
    coroutine_records = await env_of(three_turn_agent, rows=rows).generate(vf.ScriptedClient(echo), max_concurrent=50)
    assert [record.reward for record in coroutine_records] == [1.0] * 50
    assert sleep_processes() == processes_before and len(asyncio.all_tasks()) == 1
    async with asyncio.timeout(60):
        await wait_until(lambda: len(os.listdir("/proc/self/fd")) <= open_files)


# Failures


async def test_an_exception_in_the_agent_is_an_agent_error():
    async def agent(access: Access, state: vf.State) -> str:
        await three_turn_agent(access, state)
        raise KeyError("the page")

    record = await run_one(env_of(agent))
    assert record.error is not None and record.scores is None
    assert (record.error.phase, record.error.type, record.error.message) == (
        "agent",
        "AgentError",
        "KeyError: 'the page'",
    )
    assert "the page" in record.error.traceback and len(record.steps) == 3 and len(record.completion) == 5


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError])
async def test_an_agent_that_exits_fails_only_its_own_rollout(kind: type[BaseException]):
    async def agent(access: Access, state: vf.State) -> str:
        if state["example_id"] == 1:
            raise kind("3")
        return await three_turn_agent(access, state)

    records = await env_of(agent).generate(vf.ScriptedClient(echo))
    assert [record.error and record.error.phase for record in records] == [None, "agent", None]


async def test_a_model_error_fails_the_rollout_even_if_the_agent_catches_it():
    async def agent(access: Access, state: vf.State) -> str:
        try:
            return await three_turn_agent(access, state)
        except openai.APIStatusError as error:
            assert error.status_code == 503
            return "question 0"  # the rubric would accept this answer

    def fail(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        if len(state["trajectory"]) == 1:
            raise vf.InfraError("the endpoint is gone", ["HTTP 500"])
        return "fine"

    record = await run_one(env_of(agent), vf.ScriptedClient(fail))
    assert record.error is not None and record.scores is None
    assert (record.error.phase, record.error.type, record.error.attempts) == ("model", "InfraError", ["HTTP 500"])


async def test_limits_stop_an_agent_that_never_finishes():
    async def endless(access: Access, state: vf.State) -> None:
        async with open_sdk(access) as sdk:
            while True:
                try:
                    await send(sdk, [{"role": "user", "content": "again"}])
                except openai.PermissionDeniedError:
                    await asyncio.sleep(0.01)

    record = await run_one(env_of(endless, max_turns=2, grace_seconds=0.1))
    assert (record.stop_condition, len(record.steps), record.error) == ("max_turns_reached", 2, None)
    assert record.scores is not None
    record = await run_one(env_of(endless, grace_seconds=0.1), limits={"max_total_tokens": 20})
    assert (record.stop_condition, record.is_truncated) == ("max_total_tokens_reached", True)


async def test_an_agent_can_return_an_answer_after_max_turns():
    async def agent(access: Access, state: vf.State) -> str:
        try:
            return await three_turn_agent(access, state)
        except openai.PermissionDeniedError:
            return "question 0, as far as I got"

    record = await run_one(env_of(agent, max_turns=2))
    assert (record.stop_condition, record.reward, len(record.steps)) == ("max_turns_reached", 1.0, 2)


async def test_a_stop_condition_ends_the_rollout():
    class Stopping(vf.AgentEnv):
        @vf.stop
        def after_two_responses(self, state: vf.State) -> bool:
            return len(state["trajectory"]) == 2

    record = await run_one(Stopping(three_turn_agent, dataset=ROWS, rubric=vf.Rubric([contains_answer])))
    assert (record.stop_condition, len(record.steps), record.error) == ("after_two_responses", 2, None)


@pytest.mark.broad
async def test_an_agent_that_hangs_is_stopped_by_the_timeout_and_scored():
    async def agent(access: Access, state: vf.State) -> None:
        await three_turn_agent(access, state)
        await asyncio.sleep(3600)

    record = await run_one(env_of(agent, timeout_seconds=2))
    assert (record.stop_condition, record.is_truncated, record.reward) == ("timeout_reached", True, 1.0), record.error
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.broad
async def test_an_agent_in_a_thread_fails_at_its_next_request_after_the_timeout():
    agent_ended = threading.Event()

    def agent(access: Access, state: vf.State) -> None:
        with openai.OpenAI(base_url=access.base_url, api_key=access.api_key, max_retries=0) as sdk:
            try:
                while True:
                    sdk.responses.create(model="any", input="again")
            finally:
                agent_ended.set()

    record = await run_one(env_of(agent, timeout_seconds=2))
    assert record.stop_condition == "timeout_reached"
    assert await asyncio.to_thread(agent_ended.wait, 10)


async def test_a_prompt_that_is_too_long_ends_the_rollout():
    client = EngineClient.from_model(tiny_model(context=64))

    async def agent(access: Access, state: vf.State) -> None:
        async with open_sdk(access) as sdk:
            await send(sdk, [{"role": "user", "content": "0 1 2 " * 100}])

    record = await run_one(env_of(agent), client)
    assert (record.stop_condition, record.is_truncated, record.error) == ("prompt_too_long", True, None)


@pytest.mark.broad
async def test_a_timeout_while_the_endpoint_is_unresponsive_is_an_error():
    class Silent(vf.ScriptedClient):
        async def respond(self, request: vf.Request) -> vf.Response:
            if state_of(request):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError as cancelled:
                    raise cancelled_unanswered(["HTTP 503"]) from cancelled
            return await super().respond(request)

    def state_of(request: vf.Request) -> list[Any]:
        assert request.state is not None
        return request.state["trajectory"]

    record = await run_one(env_of(three_turn_agent, timeout_seconds=2), Silent(echo))
    assert record.error is not None and record.error.attempts == ["HTTP 503"]


@each_row(
    ("options", "message"),
    [
        ({"agent": three_turn_agent, "command": "true"}, "both agent and command"),
        ({"command": []}, "command is empty"),
        ({"agent": three_turn_agent, "agent_sampling": ["temprature"]}, "did you mean 'temperature'"),
        ({"agent": three_turn_agent, "message_type": "completion"}, "agents cannot be used with message_type"),
        ({"agent": three_turn_agent, "grace_seconds": 0}, "grace_seconds"),
        ({"agent": three_turn_agent, "max_turn": 3}, "max_turns"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, Any], message: str):
    with pytest.raises(vf.ConfigError, match=message):
        vf.AgentEnv(dataset=ROWS, **options)


async def test_an_environment_without_an_agent_reports_how_to_add_one():
    record = await run_one(vf.AgentEnv(dataset=ROWS))
    assert record.error is not None and "pass agent= or command=, or override run_agent" in record.error.message


def test_the_agent_is_part_of_the_identity():
    async def other(access: Access, state: vf.State) -> str:
        return "other"

    identities = [env_of(three_turn_agent).identity, env_of(other).identity, env_of(command="true").identity]
    assert len({str(identity["agent"]) for identity in identities}) == 3


def test_a_group_runs_an_agent_among_other_environments():
    group = vf.EnvGroup(
        [env_of(three_turn_agent), vf.SingleTurnEnv(dataset=ROWS[:1], rubric=vf.Rubric([contains_answer]))]
    )
    records = group.generate_sync(vf.ScriptedClient(echo))
    assert [len(record.steps) for record in records] == [3, 3, 3, 1]
    second_records = group.generate_sync(vf.ScriptedClient(echo))  # on another event loop
    assert [record.completion for record in second_records] == [record.completion for record in records]


def test_conversation_uses_rewritten_messages_and_ignores_side_conversations():
    def step(prompt: list[str], reply: str) -> vf.TrajectoryStep:
        return vf.TrajectoryStep([vf.UserMessage(text) for text in prompt], [vf.AssistantMessage(reply)])

    steps = [step(["a"], "1"), step(["a", "1, and b"], "2"), step(["helper"], "3")]
    assert [message["content"] for message in conversation(steps)] == ["1, and b", "2"]
    assert conversation([step(["a title?"], "0"), *steps]) == conversation(steps)
    assert [message["content"] for message in conversation([step(["a title?"], "0"), step(["a"], "1")])] == ["1"]
    assert conversation([]) == []


def test_agent_rollouts_can_be_rescored(tmp_path: Path):
    env = env_of(three_turn_agent)

    async def evaluate_and_rescore() -> dict[str, Any]:
        await env.evaluate(vf.ScriptedClient(echo), run=tmp_path / "run")
        return await vf.rescore(env, vf.Run(tmp_path / "run"), into=tmp_path / "again")

    summary = asyncio.run(evaluate_and_rescore())
    assert (summary.rescored.failed, summary.reward.mean) == (0, 1.0)


# What a command can see


def test_a_command_does_not_get_the_environment_of_the_user(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SECRET_KEY", "sk-mine")
    monkeypatch.setenv("LANG", "C.UTF-8")
    env = vf.AgentEnv(command="env", environment_vars={"ASKED_FOR": "yes"}, dataset=ROWS[:1], rubric=vf.Rubric())
    [record] = env.generate_sync(vf.ScriptedClient(echo))
    assert record.error is None
    names = {line.partition("=")[0] for line in str(record.completion[-1]["content"]).splitlines()}
    assert "MY_SECRET_KEY" not in names
    assert {"ASKED_FOR", "OPENAI_API_KEY", "ROVE_TASK", "PATH", "LANG"} <= names
    assert names <= {*SAFE_VARIABLES, *("ASKED_FOR", "ROVE_TASK", "NO_PROXY", "no_proxy", "PWD", "SHLVL", "_")} | {
        *("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
    }


def has_landlock() -> bool:
    """Return whether the kernel has Landlock: the call returns its version."""
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, 1) > 0


SPY_PROGRAM = """
import glob, os, time

def content_of(path):
    try:
        return open(path, "rb").read().decode(errors="replace")
    except OSError:
        return ""

here = os.getpid()
open("started." + str(here), "w").close()
deadline = time.monotonic() + 20
while len(glob.glob("started.*")) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
keys = set()
for process in glob.glob("/proc/[0-9]*"):
    try:
        folder = os.readlink(process + "/cwd")
    except OSError:
        continue
    if folder == os.getcwd():  # other tests of this machine have keys too
        variables = content_of(process + "/environ").split(chr(0))
        keys |= {line for line in variables if line.startswith("OPENAI_API_KEY=")}
others = keys - {"OPENAI_API_KEY=" + os.environ["OPENAI_API_KEY"]}
print("reads parent" if content_of("/proc/%d/environ" % os.getppid()) else "-", "and", len(others), "keys")
open("done." + str(here), "w").close()
while len(glob.glob("done.*")) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
"""


@pytest.mark.skipif(not has_landlock(), reason="needs Linux with Landlock")
@pytest.mark.parametrize("hide", [True, False])
def test_a_command_cannot_read_the_keys_of_other_rollouts(hide: bool, tmp_path: Path):
    (tmp_path / "spy.py").write_text(SPY_PROGRAM)
    command = [sys.executable, "spy.py"]
    env = vf.AgentEnv(command=command, cwd=tmp_path, hide_processes=hide, dataset=ROWS[:2], rubric=vf.Rubric())
    records = env.generate_sync(vf.ScriptedClient(echo))
    assert [record.error for record in records] == [None, None]
    answers = [record.completion[-1]["content"] for record in records]
    assert answers == ["- and 0 keys" if hide else "reads parent and 1 keys"] * 2


async def test_an_override_of_check_stops_names_its_stop_condition():
    class Stopping(vf.AgentEnv):
        async def check_stops(self, state: vf.State) -> bool:
            state["stop_condition"] = "enough"
            return True

    env = Stopping(three_turn_agent, dataset=ROWS, rubric=vf.Rubric())
    record = await run_one(env)
    assert (record.stop_condition, len(record.steps)) == ("enough", 1)
