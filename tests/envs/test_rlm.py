"""Tests of RLMEnv: a long input as a variable, sub-model calls from code, recursion, training, and rescoring."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model
from tiers import each_row, first_quick
from toy_envs import generate_sync, rows, scripted_client

import rove as vf
from rove.engine.client import EngineClient
from rove.sandbox import DockerBackend
from rove.train.sequences import sequences_from_record
from tests.envs.test_sandbox import LIMITS, CountingBackend, no_new_resources, resource_counts
from tests.envs.test_tool import call, calls, tool_results
from tests.sandbox.test_docker import engine  # noqa: F401  a fixture
from tests.train.test_rl import ROWS, letters, metrics_of, rollouts_of, settings, train

TEXT = "".join(f"{n}: the owl is {n * n}\n" for n in range(2000))
READY = "answer['content'] = {}\nanswer['ready'] = True"


def python(code: str) -> vf.AssistantMessage:
    return calls(call("python", {"code": code}))


def turns_of(messages: Any) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def is_sub_call(messages: Any) -> bool:
    """Return whether these are the messages of a plain sub-call."""
    return messages[0]["role"] != "system"


def scripted_codes(*codes: Any, sub: Any = lambda messages: messages[-1]["content"].upper()) -> vf.ScriptedClient:
    """Return a client that runs these code snippets in turn and answers sub-calls with `sub`."""

    async def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        if is_sub_call(messages):
            reply = sub(messages)
            return await reply if asyncio.iscoroutine(reply) else reply
        code = [*codes, "done"][turns_of(messages)]
        return code if code == "done" else python(code)

    return vf.ScriptedClient(policy)


def env_of(text: Any = TEXT, **options: Any) -> vf.RLMEnv:
    dataset = [{"question": "Which owl?", "answer": "49", "info": {"context": text}}]
    return vf.RLMEnv(**{"dataset": dataset, "backend": CountingBackend(), "rubric": vf.Rubric([right]), **options})


def right(state: vf.State, answer: str) -> float:
    return float(state["final_answer"] == answer)


def run_codes(env: vf.RLMEnv, *codes: Any, **options: Any) -> vf.RolloutRecord:
    [record] = generate_sync(env, scripted_codes(*codes, **options))
    return record


def metrics(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.scores is not None, record.error
    return record.scores.metrics


def test_the_model_explores_the_context_with_code_and_answers_with_a_variable():
    env = env_of()
    find = "import re\nanswer['content'] = re.search(r'^7: .* (\\d+)$', context, re.M)[1]"
    record = run_codes(env, "len(context), context[:7]", find, "answer['ready'] = True", "1 / 0")
    assert tool_results(record) == [f"({len(TEXT)}, {TEXT[:7]!r})", "[no output]", "[no output]"]
    assert (record.stop_condition, record.reward, record.error) == ("answer_is_ready", 1.0, None)
    system, user = record.prompt
    assert (
        "`context`" in system["content"]
        and "llm_batch" in system["content"]
        and "at most 100 prompts" in system["content"]
    )
    assert "context=part" not in system["content"] and "```" not in system["content"]
    assert (
        user["content"] == f"Which owl?\n\n`context` is a text of {len(TEXT):,} characters. It begins: {TEXT[:200]!r}"
    )
    assert record.steps[0].prompt[-1] == user
    assert (metrics(record)["answer_ready"], metrics(record)["sub_calls"], metrics(record)["python_calls"]) == (1, 0, 3)
    assert env.backend.is_clean and record.model_roles == {}


@pytest.mark.broad
def test_an_answer_that_is_not_marked_ready_is_its_last_value():
    record = run_codes(env_of(), "answer['content'] = 48", "answer['content'] = 49")
    assert (record.stop_condition, record.reward, metrics(record)["answer_ready"]) == ("no_tools_called", 1.0, 0)
    assert run_codes(env_of()).reward == 0.0
    assert run_codes(env_of(max_turns=1), "answer['content'] = 49", READY).stop_condition == "max_turns_reached"


def test_code_in_fences_runs_without_tool_calls():
    replies = [
        "I look.\n```python\nx = 6\n```\nand\n```py\nprint(x * 7)\n```",
        "```\nno code\n``` ```python\nx = llm(context[:3])\nx\n```",
        "```Python\n" + READY.format("x") + "\n```",
    ]

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        return messages[0].content[::-1] if is_sub_call(messages) else replies[turns_of(messages)]

    env = env_of("abc", code_in="fence", rubric=vf.Rubric([]))
    [record] = generate_sync(env, scripted_client(policy))
    assert [m["content"] for m in record.completion if m["role"] == "user"] == ["42", "'cba'", "[no output]"]
    assert (record.stop_condition, record.tools, record.error) == ("answer_is_ready", None, None)
    assert "between ```python and ```" in record.prompt[0]["content"]
    [record] = generate_sync(env_of(code_in="fence"), scripted_client("It is 49."))
    assert (record.stop_condition, len(record.steps)) == ("no_tools_called", 1)
    assert env.backend.is_clean


@pytest.mark.parametrize(
    "context",
    first_quick(["", "a\r\nb\n\x00 é 漢 🙂 \"'\\", "x" * 3_000_000, ["a", 1, None], {"a": [1.5, True]}, 7], 2),
)
def test_strings_and_json_values_are_unchanged_in_the_sandbox(context: Any):
    code = "import hashlib, json\ntype(context).__name__, hashlib.md5(json.dumps(context).encode()).hexdigest()"
    [inside] = tool_results(run_codes(env_of(context), code))
    namespace: dict[str, Any] = {"context": context}
    exec(code.splitlines()[0], namespace)
    assert inside == repr(eval(code.splitlines()[1], namespace))


@pytest.mark.broad
def test_the_context_comes_from_info_the_row_or_a_function():
    async def make_context(state: vf.State) -> str:
        await asyncio.sleep(0)
        return f"made for {state['answer']}"

    row = {"question": "q", "answer": "5", "book": "of the row", "info": {"novel": "of info"}}
    for context, inside in (("novel", "of info"), ("book", "of the row"), (make_context, "made for 5")):
        assert tool_results(run_codes(env_of(dataset=[row], context=context), "context")) == [repr(inside)]
    assert "made" not in str(generate_sync(env_of(dataset=[row], context=make_context), scripted_client("x"))[0].info)


@pytest.mark.parametrize(
    ("options", "kind", "message", "phase"),
    [
        ({"context": "nowhere"}, "ConfigError", "neither the row's info nor the row has 'nowhere'", "setup_state"),
        ({"context": lambda state: {1}}, "ConfigError", "Object of type set is not JSON", "setup_state"),
        ({"context": lambda state: "x" * (33 << 20)}, "SandboxFileError", "(file_bytes)", "setup_sandbox"),
        ({"context": lambda state: 1 // 0}, "ZeroDivisionError", "", "setup_state"),
    ],
)
def test_an_invalid_context_fails_the_rollout(options: Any, kind: str, message: str, phase: str):
    env = env_of(**{"dataset": rows(1), **options})
    [record] = generate_sync(env, scripted_codes("1"))
    assert record.error is not None
    assert (record.error.type, record.error.phase) == (kind, phase) and message in record.error.message
    assert env.backend.is_clean or env.backend.opened == []


@pytest.mark.broad
def test_the_context_is_available_again_after_a_restart():
    env = env_of("abc", timeout_per_command_seconds=0.4)
    notice = "[the sandbox was restarted: variables are gone]\n[`context` and `answer` are as in the beginning]"
    record = run_codes(
        env,
        "context = 1; answer['content'] = 'so far'\nwhile True: pass",
        "context, answer['content']",
        "import os; os._exit(3)",
        "answer['content'] = context[::-1]",
    )
    answers = tool_results(record)
    assert (
        answers[0] == f"stopped after 0.4 s\n{notice}" and answers[1] == "('abc', '')" and answers[2].endswith(notice)
    )
    assert metrics(record)["answer_ready"] == 0 and env.backend.is_clean


def test_an_invalid_answer_is_reported_to_the_model():
    invalid = [
        "answer = 'x'",
        "del answer",
        "answer = {}",
        "answer = {'content': '', 'ready': True}; del answer['content']",
    ]
    record = run_codes(env_of(), *invalid, "answer = {'content': 49, 'ready': 1}")
    reports = tool_results(record)[: len(invalid)]
    assert ["[`answer` cannot be read, it has to have 'content' and 'ready': " in report for report in reports] == [
        True
    ] * 4
    assert record.reward == 1.0


@pytest.mark.broad
def test_code_can_only_answer_with_the_answer_variable():
    record = run_codes(
        env_of(), "_set_answer('49', True)", "class A:\n  def __str__(self): return '4' + 1\nanswer['content'] = A()"
    )
    assert (
        "NameError" in tool_results(record)[0] and "cannot be read" in tool_results(record)[1] and record.reward == 0.0
    )
    endless = "class A:\n  def __str__(self):\n    while True: pass\nanswer['content'] = A()"
    answers = tool_results(run_codes(env_of(timeout_per_command_seconds=0.3), endless, "answer"))
    assert "stopped after 0.3 s" in answers[0] and answers[1] == "{'content': '', 'ready': False}"


# Sub-calls


def test_sub_models_are_queried_from_code_and_recorded_separately():
    env = env_of("abcdef")
    record = run_codes(
        env, "first = llm('one')\nmore = llm_batch([context[:2], context[2:4]])\nfirst, more, llm_batch([])"
    )
    assert tool_results(record) == ["('ONE', ['AB', 'CD'], [])"]
    steps = record.model_roles["sub_model"]
    assert [(len(s.prompt), s.prompt[0]["role"], s.prompt[0]["content"]) for s in steps] == [
        (1, "user", "one"),
        (1, "user", "ab"),
        (1, "user", "cd"),
    ]
    assert len(record.steps) == 2 and record.usage.completion_tokens == 11  # the call of `python` and the reply "done"
    assert (metrics(record)["sub_calls"], metrics(record)["sub_tokens"], metrics(record)["num_turns"]) == (3, 6, 2)


@pytest.mark.broad
def test_a_batch_runs_concurrently_and_returns_in_order():
    active = most = 0

    async def sub(messages: Any) -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.001 * (10 - int(messages[0]["content"])))
        active -= 1
        return messages[0]["content"]

    for parallel in (1, 3):
        most = 0
        env = env_of(max_parallel_calls=parallel)
        record = run_codes(env, "llm_batch([str(n) for n in range(10)]) == [str(n) for n in range(10)]", sub=sub)
        assert tool_results(record) == ["True"] and most == parallel
        assert [s.prompt[0]["content"] for s in record.model_roles["sub_model"]] == [str(n) for n in range(10)]


INVALID_CALLS = {
    "llm()": "missing 1 required positional argument: 'prompt'",
    "llm(5)": "llm() got 5 as a prompt; pass a string that is not empty",
    "llm('')": "llm() got '' as a prompt",
    "llm_batch('abc')": "llm_batch() expects lists, for example llm_batch([prompt_1, prompt_2]",
    "llm_batch(['a'], [])": "1 prompts and 0 contexts",
    "llm_batch(['a', None])": "llm_batch() got None as a prompt",
    "llm_batch(['a'] * 101)": "llm_batch() exceeds the limit of 100 calls: 101 requested, 100 left",
}
"""Code of a model → part of the reported error."""


def test_invalid_calls_are_reported_and_do_not_use_the_budget():
    record = run_codes(env_of(), *INVALID_CALLS, "llm('x')")
    *reports, answer = tool_results(record)
    assert [error for report, error in zip(reports, INVALID_CALLS.values(), strict=True) if error not in report] == []
    assert answer == "'X'" and metrics(record)["sub_calls"] == 1


@pytest.mark.broad
@pytest.mark.parametrize("train", first_quick([False, True], broad=0))
def test_calls_beyond_the_budget_raise_in_the_code_without_ending_the_rollout(train: bool):
    code = "try: said.append(llm(str(n)))\n  except RuntimeError as e: said.append(str(e))"
    code = f"said = []\nfor n in range(5):\n  {code}\nsaid[2:4]"
    record = run_codes(env_of(max_sub_calls=3, train_sub_calls=train), code, READY.format("49"))
    assert tool_results(record)[0] == "['2', 'llm() exceeds the limit of 3 calls: 1 requested, 0 left']"
    assert (metrics(record)["sub_calls"], record.reward) == (3, 1.0)
    record = run_codes(env_of(max_sub_tokens=4, max_parallel_calls=1, train_sub_calls=train), code, "llm_batch(['a'])")
    assert (
        tool_results(record)[0]
        == "['llm() cannot be called: 4 of 4 tokens are used', 'llm() cannot be called: 4 of 4 tokens are used']"
    )
    assert metrics(record)["sub_calls"] == 2 and "4 of 4 tokens are used" in tool_results(record)[1]
    assert tool_results(run_codes(env_of(max_sub_calls=0), "llm('a')"))[0].endswith(
        "limit of 0 calls: 1 requested, 0 left"
    )
    assert metrics(run_codes(env_of(max_sub_calls=150), "len(llm_batch(['a'] * 150))"))["sub_calls"] == 150


def test_the_token_budget_can_be_exhausted_within_a_batch():
    record = run_codes(env_of(max_sub_tokens=4, max_parallel_calls=1), "llm_batch(['a', 'b', 'c', 'd'])", "1 + 1")
    assert "4 of 4 tokens are used" in tool_results(record)[0] and tool_results(record)[1] == "2"
    assert metrics(record)["sub_calls"] == 2


@pytest.mark.broad
def test_sub_model_errors_are_reported_and_endpoint_errors_end_the_rollout():
    def overlong(messages: Any) -> str:
        raise vf.OverlongPromptError("the prompt has 9 tokens, the model takes 8")

    record = run_codes(env_of(), "try: llm('x')\nexcept RuntimeError as e: print(e)", READY.format("49"), sub=overlong)
    assert tool_results(record)[0] == "the prompt has 9 tokens, the model takes 8" and record.reward == 1.0

    async def broken(messages: Any) -> str:
        if messages[0]["content"] == "1":
            raise vf.InfraError("gone", ["HTTP 503"])
        await asyncio.sleep(60)
        return ""

    env = env_of()
    record = run_codes(env, "try: llm_batch(['0', '1', '2'])\nexcept BaseException: pass", sub=broken)
    assert record.error is not None
    assert (record.error.type, record.error.phase, record.error.attempts) == (
        "InfraError",
        "role sub_model",
        ["HTTP 503"],
    )
    assert env.backend.is_clean
    record = run_codes(env_of(train_sub_calls=True), "llm('1')", sub=broken)
    assert record.error is not None and (record.error.type, record.error.phase) == ("InfraError", "model")


@pytest.mark.broad
def test_sub_calls_can_use_another_model_or_client():
    requests: list[Any] = []

    class RecordingClient:
        max_concurrent = 4

        def __init__(self, client: vf.Client):
            self.client = client

        async def respond(self, request: vf.Request) -> vf.Response:
            requests.append((request.model, request.sampling_params.temperature, request.tools is None))
            return await self.client.respond(request)

        async def close(self) -> None: ...

    options = {"sub_model": "small", "sub_sampling_args": {"temperature": 0.25}}
    own_client = RecordingClient(scripted_codes("llm('a')"))
    [record] = generate_sync(env_of(**options), own_client, model="large", sampling_args={"temperature": 1.0})
    assert (tool_results(record), requests) == (
        ["'A'"],
        [("large", 1.0, False), ("small", 0.25, True), ("large", 1.0, False)],
    )
    requests.clear()
    other_client = RecordingClient(scripted_client("I am another."))
    [record] = generate_sync(env_of(sub_client=other_client, **options), scripted_codes("llm('a')"))
    assert (tool_results(record), requests) == (["'I am another.'"], [("small", 0.25, True)])
    assert len(record.model_roles["sub_model"]) == 1
    for arguments in ({"sub_model": "small"}, {"sub_client": other_client}, {"sub_sampling_args": {}}):
        with pytest.raises(vf.ConfigError, match="train_sub_calls is combined with"):
            env_of(train_sub_calls=True, **arguments)


def test_trained_sub_calls_are_steps_in_request_order():
    async def sub(messages: Any) -> str:
        await asyncio.sleep(0.02 if messages[0]["content"] == "1" else 0)
        return messages[0]["content"] * 2

    env = env_of(train_sub_calls=True, max_turns=2)
    record = run_codes(env, "llm_batch(['1', '2'])", "llm('3')", "never", sub=sub)
    prompts = [step.prompt[-1]["content"] for step in record.steps]
    assert prompts[1:3] == ["1", "2"] and prompts[4:] == ["3"] and prompts[3] == "['11', '22']"
    assert (record.stop_condition, record.model_roles, len(record.steps)) == ("max_turns_reached", {}, 5)
    assert record.usage == sum((step.usage for step in record.steps), vf.Usage())
    assert tool_results(record) == ["['11', '22']", "'33'"] and metrics(record)["sub_calls"] == 3


@pytest.mark.parametrize("train", first_quick([False, True]))
def test_every_sub_call_has_its_own_seed(train: bool):
    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        number = str(rng.random())
        return (
            number
            if is_sub_call(messages)
            else [python("print(*llm_batch(['a'] * 8), llm('a'))"), number][turns_of(messages)]
        )

    runs = [
        generate_sync(env_of(train_sub_calls=train), scripted_client(policy), rollouts_per_example=2) for _ in range(2)
    ]
    numbers = [tool_results(record)[0].split() for record in runs[0]]
    assert len({*numbers[0], *numbers[1]}) == 18
    assert numbers == [tool_results(record)[0].split() for record in runs[1]]


@pytest.mark.broad
def test_run_limits_count_tokens_of_trained_sub_calls_but_not_their_turns():
    script = ["for n in range(30): llm('a b')", READY.format("49")]
    for limits, stop, steps in (
        (vf.Limits(max_total_tokens=10**5), "answer_is_ready", 32),
        (vf.Limits(max_turns=2), "answer_is_ready", 32),
        (vf.Limits(max_turns=1), "max_turns_reached", 31),
    ):
        [record] = generate_sync(env_of(train_sub_calls=True), scripted_codes(*script), limits=limits)
        assert (record.stop_condition, len(record.steps), record.error) == (stop, steps, None)
    first = record.steps[0].usage
    limits = vf.Limits(max_total_tokens=first.prompt_tokens + first.completion_tokens + 10)
    [record] = generate_sync(env_of(train_sub_calls=True), scripted_codes(*script), limits=limits)
    assert (record.stop_condition, record.is_truncated, record.error) == ("max_total_tokens_reached", True, None)
    assert len(record.steps) == 1 + 3  # 4 tokens each


# Depth


def halve_recursively(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Answer with the length of the context, computed by recursive sub-calls on its two halves."""
    if is_sub_call(messages):
        return str(len(messages[-1].content.split("\n\n")[-1]))
    code = (
        "half = len(context) // 2\n"
        "parts = llm_batch(['How long?'] * 2, [context[:half], context[half:]])\n"
        "answer['content'] = sum(map(int, parts))"
    )
    return [python(code), python("answer['ready'] = True")][turns_of(messages)]


@pytest.mark.broad
@pytest.mark.parametrize("train", first_quick([False, True], broad=0))
def test_sub_models_can_have_their_own_sandbox_and_sub_models(train: bool):
    backends = [CountingBackend() for _ in range(3)]
    env = env_of("x" * 4444, backend=backends[0], sub_backends=backends[1:], max_depth=3, train_sub_calls=train)
    [record] = generate_sync(env, scripted_client(halve_recursively))
    assert record.error is None, record.error
    assert record.completion[-1]["content"] == "[no output]" and metrics(record)["answer_ready"] == 1
    steps = record.steps if train else record.model_roles["sub_model"]
    assert metrics(record)["sub_calls"] == 2 * (2 + 2 * (2 + 2)) == len(steps) - 2 * train
    assert [len(backend.opened) for backend in backends] == [1, 2, 4] and all(backend.is_clean for backend in backends)
    inner_steps = [step for step in steps if len(step.prompt) > 1 and "2,222 characters" in step.prompt[1]["content"]]
    assert len(inner_steps) == 4 and inner_steps[0].prompt[0] == record.prompt[0]
    assert "context=part" in record.prompt[0]["content"]


@pytest.mark.broad
def test_a_sub_call_with_a_context_works_at_every_depth():
    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        return (
            [python("answer['content'] = llm('How long?', context=context[:10])\nanswer['ready'] = True")][0]
            if not is_sub_call(messages)
            else messages[-1].content
        )

    env = env_of("0123456789abc", max_depth=2, backend=None, unsafe=True, rubric=vf.Rubric([]))
    [record] = generate_sync(env, scripted_client(policy))
    [first, last] = record.model_roles["sub_model"]
    assert first.prompt[-1]["content"].startswith("How long?\n\n`context` is a text of 10 characters")
    assert last.prompt == [{"role": "user", "content": "How long?\n\n0123456789"}]
    [flat] = generate_sync(env_of("0123456789abc", rubric=vf.Rubric([])), scripted_client(policy))
    assert [s.prompt[0]["content"] for s in flat.model_roles["sub_model"]] == ["How long?\n\n0123456789"]


@pytest.mark.broad
def test_a_deep_sub_model_stops_by_plain_text_by_its_answer_or_by_its_turn_limit():
    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        if "2 characters" not in messages[1].content:
            return [python("llm_batch(['words', 'answer', 'turns'], ['ab'] * 3)"), "done"][turns_of(messages)]
        prompt = messages[1].content.split()[0]
        return {"words": "plain words", "answer": python(READY.format("'final'"))}.get(
            prompt, python("answer['content'] += 'x'")
        )

    env = env_of(max_depth=2, backend=CountingBackend(), sub_backends=[CountingBackend()], sub_max_turns=3)
    [record] = generate_sync(env, scripted_client(policy))
    assert tool_results(record) == ["['plain words', 'final', 'xxx']"]
    assert metrics(record)["sub_calls"] == 1 + 1 + 3 and env.backends[1].is_clean


@pytest.mark.slow
def test_nested_sub_models_do_not_deadlock_when_all_sandboxes_are_in_use():
    env = vf.RLMEnv(
        dataset=[{"question": str(n), "info": {"context": "x" * 64}} for n in range(6)],
        unsafe=True,
        max_sandboxes=2,
        max_depth=3,
        max_sub_calls=1000,
    )
    for record in generate_sync(env, scripted_client(halve_recursively), max_concurrent=6):
        assert record.error is None and metrics(record)["answer_ready"] == 1
    with pytest.raises(vf.ConfigError, match="sub_backends has 0; expected 1 for max_depth 2"):
        env_of(max_depth=2)


@pytest.mark.broad
def test_the_budget_stops_unbounded_recursion():
    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        if is_sub_call(messages):
            return "bottom"
        return [python("try: x = llm('deeper', context=context)\nexcept RuntimeError as e: x = str(e)\nx"), "up"][
            turns_of(messages)
        ]

    env = env_of(max_depth=4, sub_backends=[CountingBackend() for _ in range(3)], max_sub_calls=5)
    [record] = generate_sync(env, scripted_client(policy))
    assert metrics(record)["sub_calls"] == 5 and record.error is None
    assert all(backend.is_clean for backend in env.backends)


# Training, rescoring and cleanup


def extends(earlier: Any, later: Any) -> bool:
    return later.prompt_ids[: len(earlier.ids)] == earlier.ids


@pytest.mark.broad
def test_every_sampled_token_is_trained_once_in_its_own_conversation():
    loaded = tiny_model(context=4096)
    pattern = r"```python\nx = llm_batch\(\['(hello|world|no)', '[0-9]'\]\)\n```"
    env = env_of(
        "abc" * 100, code_in="fence", system_prompt="You say.", train_sub_calls=True, max_turns=3, rubric=vf.Rubric([])
    )
    records = generate_sync(
        env,
        EngineClient.from_model(loaded),
        rollouts_per_example=2,
        sampling_args={"structured_outputs": {"regex": pattern}, "temperature": 1.0, "max_tokens": 200},
    )
    for record in records:
        assert record.error is None, record.error
        assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 9)
        turns = [step.tokens for step in record.steps]
        assert all(turn is not None for turn in turns)
        root_turns, sub = turns[0::3], [turn for n, turn in enumerate(turns) if n % 3]
        assert extends(root_turns[0], root_turns[1]) and extends(root_turns[1], root_turns[2])
        sequences = sequences_from_record(record, 0.5)
        assert len(sequences) == 7 and sequences[0].ids == root_turns[2].ids
        assert [i for i, m in zip(sequences[0].ids, sequences[0].mask, strict=True) if m] == [
            i for t in root_turns for i in t.completion_ids
        ]
        assert [(s.ids, s.mask) for s in sequences[1:]] == [
            (t.ids, [False] * len(t.prompt_ids) + [True] * len(t.completion_ids)) for t in sub
        ]
        assert {a for s in sequences for a, m in zip(s.advantages, s.mask, strict=True) if m} == {0.5}
        for step, turn in zip(record.steps, turns, strict=True):
            assert loaded.renderer.prompt_ids(step.prompt)[-3:] == turn.prompt_ids[-3:]
        assert {step.prompt[0]["content"] for n, step in enumerate(record.steps) if n % 3} <= {
            *"0123456789",
            "hello",
            "world",
            "no",
        }


class SubCallingEnv(vf.RLMEnv):
    """Runs code with two sub-model calls after every response of the model."""

    def _has_code(self, message: Any) -> bool:
        return True

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        return [vf.UserMessage(await self.python("len(llm_batch(['you', 'say']))", state))]


@pytest.mark.slow
def test_rl_trains_sub_calls_if_configured(tmp_path: Path):
    trained = {}
    for sub in (False, True):
        rubric = vf.Rubric()
        rubric.add_reward_func(letters, weight=1.0)
        env = SubCallingEnv(
            dataset=[{**row, "info": {"context": "hello"}} for row in ROWS],
            system_prompt="",
            code_in="fence",
            max_turns=2,
            train_sub_calls=sub,
            rubric=rubric,
            unsafe=True,
        )
        train(tmp_path / str(sub), settings(steps=1), env)
        records = rollouts_of(tmp_path / str(sub))
        assert {record.error for record in records} == {None}
        assert {(len(r.steps), len(r.model_roles.get("sub_model", []))) for r in records} == {(6, 0) if sub else (2, 4)}
        assert {len(sequences_from_record(record, 1.0)) for record in records} == {5 if sub else 1}
        trained[sub] = metrics_of(tmp_path / str(sub))[0]["tokens"]
    assert trained[True] > 2 * trained[False]


@pytest.mark.broad
@pytest.mark.parametrize("options", first_quick([{}, {"train_sub_calls": True}], broad=0))
def test_rescoring_sees_sub_model_replies(tmp_path: Path, options: Any):
    script = ["x = llm_batch(['a', 'b', 'c'])", "y = llm('d')", READY.format("y")]
    with vf.Run(tmp_path / "run") as run:
        asyncio.run(vf.evaluate(env_of(**options), scripted_codes(*script), run=tmp_path / "run"))

        def upper(state: vf.State) -> float:
            return float(state["final_answer"] == "D")

        env = env_of(rubric=vf.Rubric([upper]), **options)
        summary = asyncio.run(vf.rescore(env, run, into=tmp_path / "again"))
    assert (summary.failed, summary.reward.mean, summary.functions["sub_calls"].mean) == (0, 1.0, 4)


@pytest.mark.broad
@pytest.mark.parametrize("train", first_quick([False, True], broad=0))
def test_rescoring_matches_deep_sub_calls_in_any_order(tmp_path: Path, train: bool):
    def total(state: vf.State) -> float:
        return float(state["final_answer"])

    options: dict[str, Any] = {"max_depth": 3, "train_sub_calls": train, "backend": None, "unsafe": True}
    with vf.Run(tmp_path / "run") as run:
        asyncio.run(vf.evaluate(env_of("x" * 444, **options), scripted_client(halve_recursively), run=tmp_path / "run"))
        env = env_of("x" * 444, rubric=vf.Rubric([total]), **options)
        summary = asyncio.run(vf.rescore(env, run, into=tmp_path / "again"))
    assert (summary.errors, summary.reward.mean, summary.functions["sub_calls"].mean) == ({}, 444, 20)


@pytest.mark.broad
@pytest.mark.parametrize("train", first_quick([False, True], broad=0))
def test_a_cancelled_rollout_keeps_its_steps_and_frees_its_resources(train: bool):
    async def sub(messages: Any) -> str:
        if messages[0]["content"] == "slow":
            await asyncio.sleep(60)
        return "quick"

    sub_backend = CountingBackend()
    env = env_of(timeout_seconds=5, train_sub_calls=train, max_depth=2, sub_backends=[sub_backend])

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if is_sub_call(messages):
            return sub(messages)
        return python("llm_batch(['quick', 'slow'])" if "2 char" in messages[1].content else "llm('in', context='ab')")

    [record] = generate_sync(env, scripted_client(policy))
    assert (record.stop_condition, record.error) == ("timeout_reached", None)
    assert metrics(record)["sub_calls"] == 2
    assert env.backend.is_clean and sub_backend.is_clean


@pytest.mark.broad
def test_rollouts_work_in_containers_and_in_a_group(engine: Path):  # noqa: F811
    backend = DockerBackend(limits=LIMITS, binary=str(engine), max_sessions=2)
    group = vf.EnvGroup([env_of("abc", backend=backend), vf.SingleTurnEnv(dataset=rows(1))], env_names=["rlm", "plain"])
    rlm_record, plain_record = generate_sync(group, scripted_codes("llm(context)", READY.format("49")))
    assert (rlm_record.env_id, rlm_record.error, rlm_record.reward, tool_results(rlm_record)) == (
        "rlm",
        None,
        1.0,
        ["'ABC'", "[no output]"],
    )
    assert (plain_record.error, plain_record.model_roles) == (None, {})
    log = (engine.parent / "log").read_text()
    assert log.count('["run"') == log.count('["rm"') == 1


@pytest.mark.slow
def test_two_hundred_concurrent_rollouts_leave_no_resources():
    script = ["len(llm_batch([context[i:i + 500] for i in range(0, 2000, 500)]))", "llm('a')", READY.format("49")]
    run_codes(env_of(backend=None, unsafe=True), *script)
    held_before = resource_counts()
    dataset = [{"question": str(n), "answer": "49", "info": {"context": TEXT}} for n in range(200)]
    env = env_of(dataset=dataset, backend=None, unsafe=True, max_sandboxes=32)
    records = generate_sync(env, scripted_codes(*script), max_concurrent=200)
    assert [(tool_results(record), record.reward) for record in records] == [(["4", "'A'", "[no output]"], 1.0)] * 200
    assert {metrics(record)["sub_calls"] for record in records} == {5}
    assert no_new_resources(held_before)


@pytest.mark.slow
def test_the_benchmark_runs_and_leaves_no_resources():
    script = Path(__file__).resolve().parents[2] / "benchmarks/recursion.py"
    arguments = ["--calls", "50", "--rollouts", "4", "--batch", "5", "--concurrency", "2", "--rounds", "1"]
    process = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)
    assert process.stdout.endswith("left behind: nothing\n"), process.stdout


@each_row(
    ("options", "complaint"),
    [
        ({"max_sub_llm_parallelism": 3}, "pass max_parallel_calls"),
        ({"include_sub_llm_in_trajectory": True}, "pass train_sub_calls"),
        ({"code_execution_timeout": 3}, "pass timeout_per_command_seconds"),
        ({"max_sub_call": 3}, "did you mean 'max_sub_calls'"),
        ({"max_depth": 0}, "max_depth is 0"),
        ({"max_sub_calls": -1}, "max_sub_calls is -1; expected an integer, 0 or more"),
        ({"max_parallel_calls": 0}, "max_parallel_calls is 0"),
        ({"code_in": "xml"}, "code_in is 'xml'; expected one of tool, fence"),
    ],
)
def test_invalid_arguments_are_rejected(options: Any, complaint: str):
    with pytest.raises(vf.ConfigError, match=complaint):
        env_of(**options)


def test_sub_call_settings_are_part_of_the_identity():
    same, backend = env_of().identity, {"backend": CountingBackend(), "sub_backends": [CountingBackend()]}
    assert env_of().identity == same
    variants = [
        {"max_sub_calls": 5},
        {"sub_model": "x"},
        {"sub_client": scripted_client("x")},
        {"max_depth": 2, **backend},
        {"context": "b"},
    ]
    assert all(env_of(**options).identity != same for options in variants)
    assert env_of(limits=LIMITS, max_parallel_calls=2).identity == same
