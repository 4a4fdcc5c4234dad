"""Tests of PythonEnv: persistent variables within a rollout, concurrency, and cleanup."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_envs import correct, generate_sync, rows, scripted_client

import rove as vf
from tests.envs.test_sandbox import CountingBackend, no_new_resources, resource_counts
from tests.envs.test_tool import call, calls, replies_in_order, run_replies, tool_results


def python(code: str, id: str = "call_1") -> dict[str, Any]:
    return call("python", {"code": code}, id)


def env_of(**options: Any) -> vf.PythonEnv:
    return vf.PythonEnv(**{"dataset": rows(1), "backend": CountingBackend(), **options})


def test_variables_persist_between_calls_and_turns():
    record = run_replies(
        env_of(),
        calls(python("import math\nx = [1]", "1"), python("print('now', x)\nx.append(2)\nx", "2")),
        calls(python("sum(x), math.floor(2.5)")),
    )
    assert tool_results(record) == ["[no output]", "now [1]\n[1, 2]", "(3, 2)"]
    assert record.scores is not None and record.scores.metrics["python_calls"] == 3


def test_variables_do_not_persist_between_rollouts():
    env = env_of(dataset=rows(3))
    script = calls(python("'x' in globals()", "1"), python("x = 1; open('f', 'x').close()", "2"))
    for record in generate_sync(env, replies_in_order(script), rollouts_per_example=2, max_concurrent=2):
        assert tool_results(record) == ["False", "[no output]"]
    assert env.backend.is_clean


def test_failures_are_reported_to_the_model():
    env = env_of(timeout_per_command_seconds=0.3)
    record = run_replies(
        env,
        calls(python("x = 1\n1 / 0"), python("f(")),
        calls(python("x"), python("import os; os._exit(3)"), python("'x' in globals()")),
        calls(python("print('so far')\nwhile True: pass"), python("2 + 2")),
        calls(python("print('a' * 10**6)")),
    )
    answers = tool_results(record)
    assert answers[0].splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert answers[1].splitlines()[-1].startswith("SyntaxError")
    assert answers[2] == "1" and "exit status 3" in answers[3] and answers[4] == "False"
    assert answers[5:7] == ["so far\nstopped after 0.3 s\n[the sandbox was restarted: variables are gone]", "4"]
    assert len(answers[7]) < 3000
    assert record.error is None and record.scores is not None
    assert record.scores.metrics["sandbox_timeouts"] == 1
    assert env.backend.is_clean


def test_the_tool_description_shows_the_code_argument_and_the_packages():
    [tool] = env_of().tool_defs
    assert list(tool["function"]["parameters"]["properties"]) == ["code"]
    assert tool["function"]["description"].startswith("Run Python") and "Args" not in tool["function"]["description"]
    [tool] = vf.PythonEnv(dataset=rows(1), pip_install_packages="msgspec click").tool_defs
    assert tool["function"]["description"].endswith("Packages: msgspec, click.")


def test_code_can_call_functions_of_the_environment():
    class Shop(vf.PythonEnv):
        def functions(self, state: vf.State) -> Any:
            async def price(fruit: str) -> float:
                return {"apple": 0.5 + float(state["answer"])}[fruit]

            return {"price": price}

    env = Shop(dataset=rows(2), backend=CountingBackend())
    answers = [
        tool_results(record)
        for record in generate_sync(env, replies_in_order(calls(python("3 * price('apple')"), python("price('fig')"))))
    ]
    assert [outputs[0] for outputs in answers] == ["1.5", "4.5"]
    assert all(outputs[1].endswith("RuntimeError: 'fig'") for outputs in answers)


def test_the_bash_tool_can_be_added():
    env = env_of()
    env.add_tool(env.bash, args_to_skip=["state"])
    answers = tool_results(
        run_replies(env, calls(python("open('a', 'w').write('3')"), call("bash", {"command": "cat a"})))
    )
    assert answers == ["1", "3"]


def test_only_declared_packages_can_be_imported():
    script = calls(python("import msgspec\nmsgspec.json.encode([1])"))
    options = {"dataset": rows(1), "unsafe": True}
    assert tool_results(run_replies(vf.PythonEnv(pip_install_packages="msgspec", **options), script)) == ["b'[1]'"]
    [error] = tool_results(run_replies(vf.PythonEnv(**options), script))
    assert error.endswith("ModuleNotFoundError: No module named 'msgspec'")


def test_a_missing_package_is_reported_at_the_start():
    with pytest.raises(vf.ConfigError, match="'nonesuch', which is not installed; pip install nonesuch"):
        vf.PythonEnv(dataset=rows(1), pip_install_packages="json nonesuch")


@pytest.mark.broad
def test_sixty_four_concurrent_rollouts_leave_no_resources():
    script = [calls(python("n = 20")), calls(python("n += 1")), calls(python("n * 2")), "0"]
    run_replies(vf.PythonEnv(dataset=rows(1), unsafe=True), *script)
    held_before = resource_counts()
    env = vf.PythonEnv(dataset=rows(64), unsafe=True, rubric=vf.Rubric([correct]))
    records = generate_sync(env, replies_in_order(*script), max_concurrent=64)
    assert [tool_results(record) for record in records] == [["[no output]", "[no output]", "42"]] * 64
    assert no_new_resources(held_before)


def test_rollouts_wait_for_a_free_sandbox():
    env = vf.PythonEnv(dataset=rows(6), unsafe=True, max_sandboxes=2)
    records = generate_sync(env, replies_in_order(calls(python("6 * 7"))), max_concurrent=6)
    assert [tool_results(record) for record in records] == [["42"]] * 6


def test_a_reward_function_opens_another_sandbox_while_its_rollout_holds_one():
    async def passes_hidden_test(state: vf.State) -> float:
        async with await env.backend.open() as session:
            return float((await session.run_python("6 * 7")).value == "42")

    env = vf.PythonEnv(dataset=rows(6), unsafe=True, max_sandboxes=2, rubric=vf.Rubric([passes_hidden_test]))
    records = generate_sync(env, replies_in_order(calls(python("6 * 7"))), max_concurrent=6)
    assert [record.reward for record in records] == [1.0] * 6


@pytest.mark.broad
def test_an_endless_loop_does_not_block_other_rollouts():
    env = vf.PythonEnv(dataset=rows(16), unsafe=True, timeout_per_command_seconds=1)

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        if state["trajectory"]:
            return "done"
        return calls(python("while True: pass" if int(state["answer"]) % 4 == 0 else "1 + 1"))

    for record in generate_sync(env, scripted_client(policy), max_concurrent=16):
        endless = int(record.answer) % 4 == 0
        output = "stopped after 1 s\n[the sandbox was restarted: variables are gone]" if endless else "2"
        assert (tool_results(record), record.error) == ([output], None)


@pytest.mark.broad
def test_rollouts_that_time_out_while_they_wait_for_a_sandbox_do_not_occupy_it():
    options = {"dataset": rows(3), "unsafe": True, "max_sandboxes": 1, "timeout_seconds": 0.7}
    env = vf.PythonEnv(**options)
    records = generate_sync(env, replies_in_order(calls(python("import time; time.sleep(60)"))), max_concurrent=3)
    assert [(record.stop_condition, record.error) for record in records] == [("timeout_reached", None)] * 3
    env.timeout_seconds = None
    assert [tool_results(record) for record in generate_sync(env, replies_in_order(calls(python("1 + 1"))))] == [
        ["2"]
    ] * 3


@pytest.mark.broad
def test_an_environment_can_be_reused():
    env = env_of()
    assert [tool_results(run_replies(env, calls(python("1 + 1")))) for _ in range(2)] == [["2"], ["2"]]
    assert env.backend.is_clean


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra math")
def test_code_math_env_compares_boxed_answers_by_value():
    dataset = [{"question": "What is 1/2 + 1/4?", "answer": "\\frac{3}{4}"}]
    script = calls(python("from fractions import Fraction\nFraction(1, 2) + Fraction(1, 4)"))
    env = vf.CodeMathEnv(dataset=dataset, backend=CountingBackend())
    assert "\\boxed{}" in env.get_dataset()[0]["prompt"][0].content
    for answer, reward in (("\\boxed{0.75}", 1.0), ("\\boxed{0.5}", 0.0)):
        record = run_replies(env, script, answer)
        assert (record.error, record.reward, tool_results(record)) == (None, reward, ["Fraction(3, 4)"])
    custom = vf.CodeMathEnv(dataset=rows(1), backend=CountingBackend(), rubric=vf.Rubric([correct]), system_prompt=None)
    assert run_replies(custom, "0").reward == 1.0


@pytest.mark.slow
def test_the_benchmark_runs_and_leaves_no_resources():
    script = Path(__file__).resolve().parents[2] / "benchmarks/python_env.py"
    arguments = ["--rollouts", "40", "--rounds", "1"]
    process = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)
    assert process.stdout.endswith("left behind: nothing\n"), process.stdout
