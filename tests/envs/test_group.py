"""Tests of EnvGroup: each member runs and scores its own examples as it does outside of the group."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import Quiz, Talk, generate_sync, oracle, rows, scripted_client, without_times

import rove as vf
from rove.core.errors import ConfigError


def shout(completion: vf.Messages) -> float:
    return float(completion[-1]["content"].isupper())


class Steps(vf.MultiTurnEnv):
    """Logs its cleanups and teardowns in `log`."""

    def __init__(self, log: list[str] | None = None, **kwargs: Any):
        super().__init__(
            **{
                "dataset": [{"question": f"s{i}"} for i in range(2)],
                "max_turns": 3,
                "system_prompt": "Count.",
                **kwargs,
            }
        )
        self.log = [] if log is None else log

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        return "next"

    @vf.cleanup
    def tidy(self, state: vf.State) -> None:
        self.log.append("cleanup")

    @vf.teardown
    def close(self) -> None:
        self.log.append("teardown")


def dice(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    return str(rng.random())


def without_env_and_example_id(record: vf.RolloutRecord) -> vf.RolloutRecord:
    return msgspec.structs.replace(without_times(record), env_id="", example_id=0)


def test_a_group_gives_the_same_rollouts_as_its_members_alone() -> None:
    envs = [Quiz(2), Steps(), Talk(2, count=2, dataset=rows(2, level="hard"))]
    group = vf.EnvGroup(envs, ["quiz", "steps", "talk"])
    grouped = generate_sync(group, scripted_client(dice), rollouts_per_example=2, seed=7)
    separate = [
        record
        for env in (Quiz(2), Steps())
        for record in generate_sync(env, scripted_client(dice), rollouts_per_example=2, seed=7)
    ]
    assert [record.example_id for record in grouped] == [i // 2 for i in range(12)]
    assert [record.env_id for record in grouped] == ["quiz"] * 4 + ["steps"] * 4 + ["talk"] * 4
    assert [without_env_and_example_id(record) for record in grouped[:8]] == [
        without_env_and_example_id(record) for record in separate
    ]
    # If two members have the same row, the later one gets another key.
    assert {record.example_key.partition("#")[2] for record in grouped[8:]} == {"2"}


def test_members_keep_their_prompts_limits_and_rewards() -> None:
    diary: list[str] = []
    group = vf.EnvGroup([Quiz(1), Steps(diary, rubric=vf.Rubric([shout]))], ["quiz", "steps"])
    quiz, first, second = generate_sync(group, scripted_client("0"))
    assert (len(quiz.steps), len(first.steps)) == (1, 3) and second.stop_condition == "max_turns_reached"
    assert quiz.prompt[0]["role"] == "user" and first.prompt[0] == {"role": "system", "content": "Count."}
    assert quiz.scores is not None and set(quiz.scores.rewards) == {"correct"}  # absent, not 0
    assert (
        first.scores is not None and first.scores.rewards == {"shout": 0.0} and first.scores.metrics["num_turns"] == 3
    )
    assert diary == ["cleanup", "cleanup", "teardown"]
    assert group.rubric.names == ["correct", "num_turns", "shout"]


def test_members_keep_their_parsers_and_group_rewards() -> None:
    @vf.group_reward
    def best(completions) -> list[float]:
        lengths = [len(completion[-1]["content"]) for completion in completions]
        return [float(length == max(lengths)) for length in lengths]

    def read(parser, completion, answer) -> float:
        return float(parser.parse_answer(completion) == answer)

    tagged = Quiz(
        1, dataset=[{"question": "t", "answer": "a"}], rubric=vf.Rubric([read]), parser=vf.XMLParser(["answer"])
    )
    ranked = Quiz(1, dataset=[{"question": "r"}], rubric=vf.Rubric([best]))
    group = vf.EnvGroup([tagged, ranked], ["tagged", "ranked"])
    replies = iter(["<answer>a</answer>", "a", "short", "longer"])
    records = generate_sync(
        group, scripted_client(lambda messages, state, rng: next(replies)), rollouts_per_example=2, max_concurrent=1
    )
    assert [record.reward for record in records] == [1.0, 0.0, 0.0, 1.0]


def test_env_id_is_a_column_and_in_info_while_a_rollout_runs() -> None:
    calls: list[Any] = []

    def note(env_id, info, state) -> float:
        calls.append((env_id, info, state["info"]["env_id"]))
        return 1.0

    group = vf.EnvGroup([Quiz(1, rubric=vf.Rubric([note])), vf.EnvGroup([Quiz(1, rubric=vf.Rubric([note]))], ["deep"])])
    records = generate_sync(group, scripted_client("0"))
    assert calls == [
        ("env_0", {"env_id": "env_0"}, "env_0"),
        ("env_1/deep", {"env_id": ["env_1", "deep"]}, ["env_1", "deep"]),
    ]
    assert [record.info for record in records] == [{}, {}]  # the info of the row, without env_id
    assert [example["env_id"] for example in group.get_dataset()] == ["env_0", "env_1/deep"]


def test_nested_groups_use_full_paths_as_env_ids() -> None:
    diary: list[str] = []
    # The names repeat on every level, so only the full path identifies the environment.
    inner = vf.EnvGroup([Steps(diary), vf.EnvGroup([Quiz(1)], ["x"])], ["y", "x"])
    inner.rubric.add_metric(shout)
    outer = vf.EnvGroup([inner, Quiz(2)], ["x", "y"])
    outer.add_rubric(vf.Rubric([lambda completion: 10.0]))
    assert outer.count_examples() == 5
    records = generate_sync(outer, scripted_client(oracle))
    assert [record.env_id for record in records] == ["x/y", "x/y", "x/x/x", "y", "y"]
    assert [record.reward for record in records] == [10.0, 10.0, 11.0, 11.0, 11.0]
    assert [bool(record.scores and "shout" in record.scores.metrics) for record in records] == [True] * 3 + [False] * 2
    assert diary == ["cleanup", "cleanup", "teardown"]


def test_a_failing_member_does_not_affect_the_others() -> None:
    class Broken(Quiz):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> Any:
            raise KeyError("no such thing")

        @vf.teardown
        def stumble(self) -> None:
            raise OSError("still open")

    diary: list[str] = []
    group = vf.EnvGroup([Broken(1), Quiz(1), Steps(diary)], ["broken", "fine", "steps"])
    records: list[Any] = []
    with pytest.raises(OSError, match="still open"):
        generate_sync(group, scripted_client("0"), on_record=records.append)
    by_env = {record.env_id: record for record in records}
    assert by_env["broken"].error.phase == "setup_state" and by_env["fine"].reward == 1.0
    assert diary.count("teardown") == 1


def test_members_keep_their_time_limits() -> None:
    async def slow(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        await asyncio.sleep(0.2 if len(messages) > 2 else 0.0)
        return "x"

    group = vf.EnvGroup([Talk(3, timeout_seconds=0.05), Talk(2, dataset=[{"question": "other"}])], ["short", "long"])
    short, long = generate_sync(group, scripted_client(slow))
    assert (short.stop_condition, long.stop_condition) == ("timeout_reached", "has_final_env_response")


def test_the_first_n_examples_of_a_group_can_be_loaded_and_counted() -> None:
    group = vf.EnvGroup([Quiz(2), Quiz(3)])
    assert [len(group.get_dataset(n)) for n in (-1, 0, 1, 2, 4, 9)] == [5, 0, 1, 2, 4, 5]
    assert [group.count_examples(n) for n in (-1, 0, 1, 4, 9)] == [5, 0, 1, 4, 5]
    endless = Quiz(dataset=lambda: iter(rows(3)))
    assert vf.EnvGroup([Quiz(2), endless]).count_examples() is None
    with_eval = Quiz(2, eval_dataset=rows(1))
    assert len(vf.EnvGroup([with_eval, Quiz(2)]).get_eval_dataset()) == 3


def test_a_group_has_the_scripted_policies_that_all_members_have() -> None:
    policies = {"oracle": oracle, "other": oracle}
    inner = vf.EnvGroup([Quiz(2, policies={"oracle": lambda *_: "1"})], ["a"])
    group = vf.EnvGroup([Quiz(1, policies=policies), inner], ["a", "b"])
    assert set(group.policies) == {"oracle"}
    assert [record.reward for record in generate_sync(group, scripted_client(group.policies["oracle"]))] == [
        1.0,
        0.0,
        1.0,
    ]


def test_the_summary_reports_the_reward_per_environment() -> None:
    group = vf.EnvGroup([Quiz(1), vf.EnvGroup([Quiz(3)], ["inner"])], ["easy", "hard"])
    summary = asyncio.run(vf.evaluate(group, scripted_client("0"), rollouts_per_example=2))
    results = {name: (result.mean, result.examples, result.rollouts) for name, result in summary.environments.items()}
    assert results == {"easy": (1.0, 1, 2), "hard/inner": (pytest.approx(1 / 3), 3, 6)}
    assert asyncio.run(vf.evaluate(Quiz(1), scripted_client("0"))).environments == {}


def test_a_group_can_be_rescored(tmp_path: Path) -> None:
    def group(rubric: vf.Rubric) -> vf.EnvGroup:
        return vf.EnvGroup([Quiz(2, rubric=rubric), vf.EnvGroup([Steps(rubric=rubric)], ["inner"])], ["quiz", "steps"])

    asyncio.run(vf.evaluate(group(vf.Rubric()), scripted_client("A"), run=tmp_path / "run"))
    with vf.Run(tmp_path / "run") as run:
        summary = asyncio.run(vf.rescore(group(vf.Rubric([shout])), run, into=tmp_path / "again"))
    means = {name: result.mean for name, result in summary.environments.items()}
    assert summary.failed == 0 and means == {"quiz": 1.0, "steps/inner": 0.0}


def test_members_and_names_are_part_of_the_identity() -> None:
    def identity(count: int = 1, names: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
        return vf.EnvGroup([Talk(max_turns=count), Quiz(1)], names).identity

    assert identity() == identity()
    assert identity() != identity(2) and identity() != identity(names=("a", "c"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vf.EnvGroup([]), "at least one"),
        (lambda: vf.EnvGroup(["quiz"]), "load_environment"),
        (lambda: vf.EnvGroup([Quiz()], ["a", "b"]), "2 env_names for 1"),
        (lambda: vf.EnvGroup([Quiz(), Quiz()], ["a", "a"]), r"\['a'\]"),
        (lambda: vf.EnvGroup([Quiz()], ["a/b"]), "without '/'"),
        (lambda: vf.EnvGroup([Quiz(), Quiz(sampling_args={"top_p": 0.5})]), "pass sampling_args="),
    ],
)
def test_invalid_arguments_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_sampling_args_are_those_of_all_members_or_of_the_group() -> None:
    envs = [Quiz(sampling_args={"top_p": 0.5}), Quiz(sampling_args={"top_p": 0.5})]
    assert vf.EnvGroup(envs).sampling_args == {"top_p": 0.5}
    assert vf.EnvGroup([*envs, Quiz()], sampling_args={"top_p": 1.0}).sampling_args == {"top_p": 1.0}


trees = st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6)


@given(trees.filter(lambda tree: isinstance(tree, list)))
def test_any_tree_of_groups_runs_every_leaf(tree: list[Any]) -> None:
    leaves: list[int] = []

    def build(node: Any) -> vf.Environment:
        if isinstance(node, list):
            return vf.EnvGroup([build(child) for child in node])
        leaves.append(node)
        name = f"leaf{len(leaves)}"
        return Quiz(dataset=[{"question": f"{name}-{i}", "answer": name} for i in range(node)])

    group = build(tree)
    if sum(leaves):
        records = generate_sync(
            group, scripted_client(lambda messages, state, rng: messages[-1].content.partition("-")[0])
        )
        assert [record.reward for record in records] == [1.0] * sum(leaves)
        assert len({record.env_id for record in records}) == sum(leaf > 0 for leaf in leaves)


PACKAGE = """
import rove as vf

def load_environment(num_examples: int = 4, seed: int = 0) -> vf.Environment:
    members = [vf.load_environment(name, num_examples=num_examples, seed=seed) for name in ("reverse_text", "double_check")]
    return vf.EnvGroup(members)
"""


@pytest.mark.slow
def test_a_package_with_a_group_works_in_rl_and_eval(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "both.py").write_text(PACKAGE)
    env_vars = {**os.environ, "OMP_NUM_THREADS": "1"}

    def rove(words: str) -> str:
        command = [sys.executable, "-m", "rove.cli.main", *words.split()]
        process = subprocess.run(command, cwd=tmp_path, env=env_vars, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    rove("model new --env both -o models/tiny")
    rove("rl both -m models/tiny --steps 1 --batch-size 16 -r 2 -t 4 --run-dir runs/both")
    records = list(vf.Run(tmp_path / "runs/both").rollouts())
    assert {record.env_id for record in records} == {"reverse_text", "double_check"}
    output = rove("eval both -m models/tiny -n -1 -r 1 -t 4 --json")
    assert set(json.loads(output)["environments"]) == {"reverse_text", "double_check"}
