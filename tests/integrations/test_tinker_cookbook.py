"""rove environments in tinker-cookbook: the same rewards as in `rove eval`, and failures that are never a reward of 0.

The tests need tinker-cookbook 0.6; `make test-trainers` installs it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from shipped_environments import ENVIRONMENTS

import rove as vf
from rove.core.errors import ConfigError
from rove.models.from_scratch import train_tokenizer
from rove.rollouts.groups import RolloutError

pytest.importorskip("tinker_cookbook")

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.data_processing import (  # pyright: ignore[reportMissingImports]
    assemble_training_data,
    compute_advantages,
)
from tinker_cookbook.rl.rollout_limits import RolloutLimits  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.rollout_runner import run_rollout  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.rollout_strategy import MinViableGroup  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.rollouts import do_group_rollout  # pyright: ignore[reportMissingImports]

from rove.integrations.tinker_cookbook import RoveDatasetBuilder, RoveEnv, RoveGroupBuilder, RoveSource

ROWS = int(os.environ.get("ROVE_COOKBOOK_ROWS", "150"))
MAX_CONCURRENT = 16

ODD_ENV = """
import rove as vf


def fails(completion, answer) -> float:
    if "breaks" in answer:
        raise ValueError("the reward broke")
    return float(len(completion))


@vf.group_reward
def relative(states) -> list[float]:
    return [0.0 for _ in states]


class Odd(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        state["trajectory"][-1]["reward"] = 0.25
        return "go on"


def load_environment(group=False, stop=None, rows=("fine",)):
    rubric = vf.Rubric([fails])
    if group:
        rubric.add_reward_func(relative)
    sampling = {} if stop is None else {"stop": [stop]}
    data = [{"question": text, "answer": text} for text in rows]
    return Odd(dataset=data, rubric=rubric, max_turns=3, sampling_args=sampling)
"""


class ScriptedCompleter(TokenCompleter):
    """A completer that replies with known tokens, or with the same text to every prompt."""

    def __init__(self, replies: dict[tuple[int, ...], list[int]] | None = None, default: list[int] | None = None):
        self.replies = replies or {}
        self.default = default

    async def __call__(self, model_input: Any, stop: list[int], *, max_tokens: int | None = None) -> TokensWithLogprobs:
        ids = self.replies.get(tuple(model_input.to_ints()), self.default)
        assert ids is not None, "a prompt that no scripted policy has answered"
        assert ids[-1] in stop
        return TokensWithLogprobs(list(ids), [-0.5] * len(ids))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tokenizer with one token per byte."""
    folder = tmp_path_factory.mktemp("cookbook") / "tokenizer"
    train_tokenizer(["<tool_call>"]).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def failing_environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of an environment that fails in some rows."""
    file = tmp_path_factory.mktemp("cookbook") / "odd.py"
    file.write_text(ODD_ENV, encoding="utf-8")
    return str(file)


def replies_of(record: vf.RolloutRecord, renderer: Any) -> dict[tuple[int, ...], list[int]]:
    """Return the tokens of the model's turns by their prompts."""
    replies: dict[tuple[int, ...], list[int]] = {}
    for sequence in vf.sequences_from_record(record, renderer=renderer):
        start = 0
        for position in range(1, len(sequence.ids) + 1):
            if position < len(sequence.ids) and sequence.mask[position] == sequence.mask[position - 1]:
                continue
            if sequence.mask[position - 1]:
                replies[tuple(sequence.ids[:start])] = sequence.ids[start:position]
            start = position
    return replies


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that are not wall times."""
    return {name: value for name, value in metrics.items() if not name.endswith("_time")}


async def compare(name: str, tokenizer: str) -> tuple[list[Any], list[Any]]:
    """Return the results of `rove eval` and of the cookbook for each row with the same replies, without wall times."""
    policies, arguments = ENVIRONMENTS[name]
    source = RoveSource(name, tokenizer, arguments, max_context=1 << 20)
    env, renderer = source.load()

    def answer(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
        return env.policies[policies[state["example_id"] % len(policies)]](messages, state, rng)

    records = await vf.generate(env, vf.ScriptedClient(answer), num_examples=ROWS)
    _, evaluation = await RoveDatasetBuilder(source=source, batch_size=1, group_size=1, num_eval_examples=ROWS)()
    assert evaluation is not None and len(evaluation) == len(records)
    running = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(position: int) -> Any:
        [builder] = evaluation.get_batch(position)
        async with running:
            return await do_group_rollout(builder, ScriptedCompleter(replies_of(records[position], renderer)))

    async with env.used_in_run():
        groups = await asyncio.gather(*map(run, range(len(records))))
    expected: list[Any] = []
    reported: list[Any] = []
    for record, group in zip(records, groups, strict=True):
        assert record.scores is not None, record.error
        expected.append(
            (record.scores.reward, len(record.steps), record.scores.rewards, without_times(record.scores.metrics))
        )
        [trajectory] = group.trajectories_G
        metrics = dict(trajectory.transitions[-1].metrics)
        del metrics[f"stop/{trajectory.stop_reason}"]
        rewards = {name.removeprefix("reward/"): metrics.pop(name) for name in list(metrics) if "reward/" in name}
        reported.append((*group.get_total_rewards(), len(trajectory.transitions), rewards, without_times(metrics)))
    return expected, reported


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_rewards_equal_those_of_rove_eval_row_by_row(name: str, tokenizer: str) -> None:
    expected, reported = asyncio.run(compare(name, tokenizer))
    assert reported == expected
    assert len({reward for reward, *_ in expected}) > 1 or name == "short_sentences"


def test_data_equal_the_sequences_of_the_records(tokenizer: str) -> None:
    source = RoveSource("tictactoe", tokenizer, {"num_examples": 4})

    async def run() -> tuple[Any, list[RoveEnv]]:
        dataset, _ = await RoveDatasetBuilder(source=source, batch_size=2, group_size=3)()
        assert len(dataset) == 2
        [builder, _] = pickle.loads(pickle.dumps(dataset.get_batch(1)))
        assert builder.logging_tags() == ["tictactoe"] and builder.row["example_id"] == 2
        envs: list[RoveEnv] = []
        make_envs = builder.make_envs

        async def keep_envs() -> Any:
            envs.extend(await make_envs())
            return envs

        builder.make_envs = keep_envs
        _, renderer = source.load()
        reply = [*renderer.encode("<think>x</think><move>5</move>"), max(renderer.stop_ids)]
        return await do_group_rollout(builder, ScriptedCompleter(default=reply)), envs

    group, envs = asyncio.run(run())
    data, metadata = assemble_training_data([group], compute_advantages([group]))
    assert len({env.record.seed for env in envs if env.record is not None}) == 3
    for datum, origin in zip(data, metadata, strict=True):
        record = envs[int(origin["traj_idx"])].record
        assert record is not None and record.steps
        [sequence] = vf.sequences_from_record(record)
        assert datum.model_input.to_ints() == sequence.ids[:-1]
        assert datum.loss_fn_inputs["target_tokens"].data == sequence.ids[1:]
        assert datum.loss_fn_inputs["mask"].data == [float(sampled) for sampled in sequence.mask[1:]]
        assert datum.loss_fn_inputs["logprobs"].data == [-0.5 * sampled for sampled in sequence.mask[1:]]


def test_failed_rollouts_have_no_reward(failing_environment: str, tokenizer: str) -> None:
    source = RoveSource(failing_environment, tokenizer, {"rows": ["fine", "breaks"]})
    _, renderer = source.load()
    completer = ScriptedCompleter(default=[*renderer.encode("yes"), max(renderer.stop_ids)])

    async def run() -> None:
        dataset, _ = await RoveDatasetBuilder(source=source, batch_size=2, group_size=2)()
        [fine, breaks] = dataset.get_batch(0)
        group = await do_group_rollout(fine, completer)
        assert group.get_total_rewards() == [6.0 + 3 * 0.25] * 2  # the rewards of turns count, too
        with pytest.raises(RolloutError, match="the reward broke"):
            await do_group_rollout(breaks, completer)
        # Retries are further members of the group, which have other seeds.
        attempts: list[RoveEnv] = []
        retried = RoveGroupBuilder(source, breaks.row, 2)
        retried.cleanup = lambda: asyncio.sleep(0)
        with pytest.raises(Exception, match="Only 0/2 rollouts succeeded"):
            await do_group_rollout(retried, completer, MinViableGroup(max_retries=1))
        attempts += retried._envs
        assert [env.index for env in attempts] == [0, 1, 2, 3]
        assert len({env.record.seed for env in attempts if env.record is not None}) == 3

    asyncio.run(run())


def test_rollouts_that_reach_a_limit_of_the_cookbook_are_scored(failing_environment: str, tokenizer: str) -> None:
    source = RoveSource(failing_environment, tokenizer)
    _, renderer = source.load()
    completer = ScriptedCompleter(default=[*renderer.encode("yes"), max(renderer.stop_ids)])
    row = source.load()[0].get_dataset()[0]

    async def run() -> None:
        builder = RoveGroupBuilder(source, row, 1)
        [env] = await builder.make_envs()
        trajectory = await run_rollout(completer, env, limits=RolloutLimits(max_turns=1))
        assert trajectory.stop_reason == "max_turns" and env.record is None
        [(reward, metrics)] = await builder.compute_group_rewards([trajectory], [env])
        assert reward == 2.0 + 0.25 and metrics["stop/max_turns"] == 1.0
        assert env.record is not None and len(env.record.steps) == 1
        # A rollout that the cookbook abandons ends with the group.
        [abandoned] = (await builder.make_envs())[:1]
        await abandoned.initial_observation()
        await builder.cleanup()
        assert abandoned.record is None

    asyncio.run(run())


def test_a_prompt_without_room_in_the_context_ends_the_rollout(failing_environment: str, tokenizer: str) -> None:
    async def first_observation(max_context: int) -> Any:
        source = RoveSource(failing_environment, tokenizer, max_context=max_context)
        env = RoveEnv(source, source.load()[0].get_dataset()[0])
        try:
            return await env.initial_observation()
        finally:
            await env.close()

    prompt, _ = asyncio.run(first_observation(1000))
    overflow = asyncio.run(first_observation(prompt.length))
    assert overflow.metrics["stop/context_overflow"] == 1.0


def test_what_the_cookbook_cannot_run_is_refused(failing_environment: str, tokenizer: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has group rewards \(relative\), but tinker-cookbook scores every rollout alone"
    ):
        RoveSource(failing_environment, tokenizer, {"group": True}).load()
    with pytest.raises(ConfigError, match="sets stop in its sampling_args, which tinker-cookbook does not have"):
        RoveSource(failing_environment, tokenizer, {"stop": "x"}).load()
    plain = train_tokenizer(["hello"])
    plain.chat_template = None
    plain.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no chat template, which rove needs to render messages"):
        RoveSource(failing_environment, str(tmp_path)).load()
