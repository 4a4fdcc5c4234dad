"""Rescoring: new scores for saved rollouts without a model; rollouts that cannot be replayed get no score."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import Quiz, Talk, generate_sync, oracle, rows, scripted_client, without_times

import rove as vf
from rove.core.protocols import Request, Response
from rove.core.records import ErrorInfo, Outcome, RolloutRecord
from rove.rollouts.rescore import rescored_identity
from rove.runs.run import Run
from rove.statistics import Price


def evaluated_run(path: Path, env: vf.Environment, client: vf.Client, **options: Any) -> Run:
    """Evaluate an environment and return the run."""
    asyncio.run(vf.evaluate(env, client, run=path, **options))
    return Run(path)


def rescore(env: vf.Environment, source: Run, into: Any, **options: Any) -> tuple[dict[str, Any], list[RolloutRecord]]:
    """Rescore a run; return the summary and all saved records in order."""
    with source:
        summary = asyncio.run(vf.rescore(env, source, into=into, **options))
    path = into.path if isinstance(into, Run) else into
    return summary, in_order(Run(path).rollouts())


def in_order(records: Any) -> list[RolloutRecord]:
    return sorted(records, key=lambda record: (record.example_id, record.rollout_index))


def error_of(record: RolloutRecord) -> ErrorInfo:
    """Return the error of a rollout that could not be replayed."""
    assert record.scores is None
    assert record.error is not None
    return record.error


def constant_rubric(value: float) -> vf.Rubric:
    rubric = vf.Rubric()
    rubric.add_reward_func(lambda completion: value, name="constant")
    return rubric


def random_numbers(messages: vf.Messages, state: vf.State, rng: Any) -> str:
    """A policy that answers with random numbers."""
    return " ".join(str(rng.random()) for _ in range(rng.randrange(1, 4)))


# Unchanged rollouts


def without_scoring_time(record: RolloutRecord) -> RolloutRecord:
    """Return the record without its scoring time, the only part that may change with an unchanged rubric."""
    return msgspec.structs.replace(record, timing=msgspec.structs.replace(record.timing, scoring=0.0))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), group_size=st.integers(1, 3), policy=st.sampled_from(["random", "optimal", "teacher"]))
def test_an_unchanged_rubric_gives_the_same_records_and_summary(tmp_path_factory, seed, group_size, policy):
    folder = tmp_path_factory.mktemp("runs")
    env = vf.load_environment("tictactoe", num_examples=4)
    client = scripted_client(env.policies[policy])
    options = {"rollouts_per_example": group_size, "seed": seed, "sampling_args": {"temperature": 0.5}}
    source = evaluated_run(folder / "a", env, client, **options)
    summary, records = rescore(env, source, folder / "b")
    assert [without_scoring_time(record) for record in records] == [
        without_scoring_time(record) for record in in_order(source.rollouts())
    ]
    old = source.summary()
    assert old is not None
    new = msgspec.json.decode(msgspec.json.encode(summary.to_dict()))  # nan becomes None, as in the file
    assert {name: value for name, value in new.items() if name != "rescored"} == old
    assert new["rescored"] == {"run": str(folder / "a"), "failed": 0, "gone": 0}
    assert Run(folder / "b").summary() == new


def test_a_changed_rubric_can_read_state_that_is_not_in_the_records(tmp_path):
    env = vf.load_environment("tictactoe", num_examples=6)
    source = evaluated_run(tmp_path / "a", env, scripted_client(env.policies["random"]))
    changed = vf.load_environment("tictactoe", num_examples=6)
    changed.add_rubric(vf.Rubric())
    changed.rubric.add_reward_func(lambda state: float(state["board"].count("O")), weight=0.5, name="taken")
    _, records = rescore(changed, source, tmp_path / "b")
    assert len(records) == 6
    for old, new in zip(in_order(source.rollouts()), records, strict=True):
        assert old.scores is not None
        assert new.scores is not None
        assert new.scores.rewards["taken"] == new.completion[-1]["content"].split("\n", 1)[1].count("O")
        assert new.scores.reward == pytest.approx(old.scores.reward + 0.5 * new.scores.rewards["taken"])


class FullResponseClient:
    """A client whose responses have all optional fields; every second response is truncated."""

    max_concurrent = 4

    def __init__(self):
        self.num_requests = 0

    async def respond(self, request: Request) -> Response:
        self.num_requests += 1
        tokens = vf.StepTokens([1, 2], [3], [-0.5], policy_version=7)
        reason = "length" if self.num_requests % 2 else "stop"
        return Response(vf.AssistantMessage("hm", reasoning_content="?"), vf.Usage(5, 3), reason, tokens, ["HTTP 500"])

    async def close(self):
        pass


def test_steps_usage_and_timing_of_the_model_are_kept(tmp_path):
    client = FullResponseClient()
    source = evaluated_run(
        tmp_path / "a", Quiz(2), client, sampling_args={"temperature": 0.5}, price={"input": 1e6, "output": 0.0}
    )
    summary, records = rescore(Quiz(2, rubric=constant_rubric(0.25)), source, tmp_path / "b")
    assert client.num_requests == 2
    old = in_order(source.rollouts())
    assert [record.steps for record in records] == [record.steps for record in old]
    assert [record.is_truncated for record in records] == [record.is_truncated for record in old]
    assert {record.is_truncated for record in records} == {True, False}
    for a, b in zip(old, records, strict=True):
        assert (b.usage, b.temperature, b.seed) == (a.usage, 0.5, a.seed)
        assert (b.timing.total, b.timing.model) == (a.timing.total, a.timing.model)
    assert summary.reward.mean == 0.25
    assert summary.cost.total == 10.0  # the price of the run, unless another is given
    assert rescore(Quiz(2), source, tmp_path / "c", price=Price(2e6, 0.0))[0].cost.total == 20.0


def test_the_default_pass_threshold_is_that_of_the_run(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client(oracle), pass_threshold=0.5)
    passed = rescore(Quiz(2, rubric=constant_rubric(0.5)), source, tmp_path / "b")[0].pass_at_k[1].mean
    assert passed == 1.0
    stricter = rescore(Quiz(2, rubric=constant_rubric(0.5)), source, tmp_path / "c", pass_threshold=0.6)[0]
    assert (stricter.pass_threshold, stricter.pass_at_k[1].mean) == (0.6, 0.0)


def test_an_environment_that_edits_responses_can_be_replayed(tmp_path):
    class ResponseEditingEnv(Talk):
        async def env_response(self, messages, state, **kwargs):
            messages[-1]["content"] = messages[-1]["content"].strip(". ")
            return await super().env_response(messages, state)

    source = evaluated_run(
        tmp_path / "a", ResponseEditingEnv(3), scripted_client(lambda messages, state, rng: f" {rng.random()}. ")
    )
    summary, _ = rescore(ResponseEditingEnv(3, rubric=constant_rubric(1.0)), source, tmp_path / "b")
    assert (summary.scored, summary.failed) == (1, 0)


def test_values_that_json_cannot_represent_are_compared_as_they_were_saved(tmp_path):
    class UnserializableEnv(Talk):
        async def env_response(self, messages, state, **kwargs):
            await super().env_response(messages, state)
            return vf.UserMessage(
                [{"type": "text", "text": "half a pair: \ud800"}], extra={"range": (1, 2), "set": {3}}
            )

    source = evaluated_run(tmp_path / "a", UnserializableEnv(2), scripted_client("hi"))
    assert rescore(UnserializableEnv(2), source, tmp_path / "b")[0].scored == 1


def test_rollouts_of_raw_texts_are_replayed(tmp_path):
    class Story(Talk):
        async def env_response(self, messages, state, **kwargs):
            await super().env_response(messages, state)
            return " and then"

    def story(turns: int, **kwargs: Any) -> Story:
        return Story(turns, dataset=[{"prompt": "Once"}], message_type="completion", **kwargs)

    source = evaluated_run(tmp_path / "a", story(3), scripted_client(random_numbers))
    _, [record] = rescore(story(3, rubric=constant_rubric(1.0)), source, tmp_path / "b")
    assert (record.reward, record.completion) == (1.0, next(iter(source.rollouts())).completion)
    _, [shorter] = rescore(story(2), source, tmp_path / "c")
    assert "after turn 2: the rollout ends" in error_of(shorter).message


# Selection of rollouts


def test_failed_rollouts_and_missing_examples_are_counted_but_not_scored(tmp_path):
    def flaky(messages, state, rng):
        if state["answer"] == "1":
            raise vf.InfraError("gone")
        return state["answer"]

    source = evaluated_run(tmp_path / "a", Quiz(4), scripted_client(flaky), rollouts_per_example=2)
    moved = Quiz(dataset=[{"question": "new", "answer": "9"}, *rows(3)])  # a new row first, and the last row removed
    summary, records = rescore(moved, source, tmp_path / "b")
    assert (summary.rollouts, summary.scored) == (4, 4)
    assert (summary.rescored.failed, summary.rescored.gone) == (2, 2)
    assert [(record.example_id, record.answer) for record in records] == [(1, "0"), (1, "0"), (3, "2"), (3, "2")]


def test_the_last_record_of_a_repeated_rollout_counts(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(1), scripted_client("0"))
    [record] = source.rollouts()
    repeated = msgspec.structs.replace(
        record,
        completion=[vf.AssistantMessage("x")],
        steps=[msgspec.structs.replace(record.steps[0], completion=[vf.AssistantMessage("x")])],
    )
    with source:
        source.append_rollout(repeated)
    _, [new] = rescore(Quiz(1), source, tmp_path / "b")
    assert (new.completion, new.reward) == ([vf.AssistantMessage("x")], 0.0)


def test_equal_rows_keep_their_own_rollouts(tmp_path):
    def fail_on_first_example(messages, state, rng):
        if state["example_id"] == 0:
            raise vf.InfraError("gone")
        return "0"

    twice = Quiz(dataset=rows(1) * 2)
    source = evaluated_run(tmp_path / "a", twice, scripted_client(fail_on_first_example))
    summary, [record] = rescore(twice, source, tmp_path / "b")
    assert (record.example_id, record.seed) == (1, next(r.seed for r in source.rollouts() if r.error is None))
    assert (summary.rescored.failed, summary.rescored.gone) == (1, 0)


def test_an_endless_dataset_is_read_up_to_the_number_of_examples_of_the_run(tmp_path):
    def endless(count: int):
        return ({"question": f"q{i}", "answer": str(i)} for i in itertools.count(count))

    source = evaluated_run(tmp_path / "a", Quiz(dataset=lambda: endless(0)), scripted_client(oracle), num_examples=3)
    summary, _ = rescore(Quiz(dataset=lambda: endless(1)), source, tmp_path / "b")
    assert (summary.scored, summary.rescored.gone) == (2, 1)


def test_a_run_over_training_rows_is_matched_with_training_rows(tmp_path):
    env = Quiz(dataset=rows(2), eval_dataset=[{"question": "other"}])
    source = evaluated_run(tmp_path / "a", env, scripted_client(oracle), train=True)
    assert rescore(env, source, tmp_path / "b")[0].scored == 2


# Groups


def best_of_group(log: list[int]) -> vf.Rubric:
    @vf.group_reward
    def best(states, completions):
        log.append(len(states))
        max_length = max(len(completion[-1]["content"]) for completion in completions)
        return [float(len(completion[-1]["content"]) == max_length) for completion in completions]

    return vf.Rubric([best])


def test_group_rewards_omit_group_members_that_failed(tmp_path):
    def sometimes_fails(messages, state, rng):
        text = random_numbers(messages, state, rng)
        if state["answer"] == "1" and rng.random() < 0.5:
            raise vf.InfraError("gone")
        return text

    source = evaluated_run(tmp_path / "a", Quiz(3), scripted_client(sometimes_fails), rollouts_per_example=4)
    failed = sum(record.error is not None for record in source.rollouts())
    assert 0 < failed < 4
    sizes: list[int] = []
    _, records = rescore(Quiz(3, rubric=best_of_group(sizes)), source, tmp_path / "b")
    assert sorted(sizes) == sorted([4, 4, 4 - failed])
    for _, group in itertools.groupby(records, key=lambda record: record.example_id):
        assert sum(record.reward or 0.0 for record in group) >= 1.0


def test_group_rewards_omit_group_members_that_cannot_be_replayed(tmp_path):
    source = evaluated_run(tmp_path / "a", Talk(2), scripted_client(random_numbers), rollouts_per_example=3)
    changed_seed = next(iter(source.rollouts())).seed

    class Changed(Talk):
        async def env_response(self, messages, state, **kwargs):
            response = await super().env_response(messages, state)
            return "go home" if state["seed"] == changed_seed else response

    sizes: list[int] = []
    summary, records = rescore(Changed(2, rubric=best_of_group(sizes)), source, tmp_path / "b")
    assert sizes == [2]
    assert (summary.scored, summary.failed) == (2, 1)
    assert [record.seed for record in records if record.error] == [changed_seed]


# Replays that differ


class Changed(Talk):
    """`Talk` with three turns that replaces the environment's response at turn `turn` by the result of `change`."""

    def __init__(self, turn: int, change: Callable[[vf.State], Any], **kwargs: Any):
        super().__init__(3, **kwargs)
        self.turn = turn
        self.change = change

    async def env_response(self, messages, state, **kwargs):
        response = await super().env_response(messages, state)
        return self.change(state) if len(state["trajectory"]) == self.turn else response


def ends(state: vf.State) -> str:
    state["final_env_response"] = "bye"
    return ""


def continues(state: vf.State) -> str:
    state["final_env_response"] = None
    return "bye"


def breaks(state: vf.State) -> str:
    raise KeyError("board")


@pytest.mark.parametrize(
    ("turn", "change", "phase", "message"),
    [
        (1, lambda state: "go home", "replay", "replay differs at turn 2: message 3 is now 'go home', was 'go on'"),
        (2, lambda state: ["go on", "?"], "replay", "replay differs at turn 3: 6 messages now, 5 then"),
        (
            2,
            ends,
            "replay",
            "replay differs after turn 2: the rollout ends (has_final_env_response); the recorded rollout has",
        ),
        (
            3,
            continues,
            "replay",
            "replay differs at turn 4: one more answer is requested; the rollout had ended there (",
        ),
        (2, breaks, "env_response", "'board'"),
    ],
)
def test_an_environment_that_behaves_differently_gives_an_error_and_no_score(tmp_path, turn, change, phase, message):
    source = evaluated_run(tmp_path / "a", Talk(3), scripted_client("hi"))
    summary, [record] = rescore(Changed(turn, change, rubric=constant_rubric(1.0)), source, tmp_path / "b")
    error = error_of(record)
    assert (error.phase, error.type) == (phase, "ReplayError" if phase == "replay" else "KeyError")
    assert error.message.startswith(message)
    assert (summary.rollouts, summary.scored, summary.failed) == (1, 0, 1)
    assert record.steps == next(iter(source.rollouts())).steps[: len(record.steps)]


def test_a_different_final_message_is_detected(tmp_path):
    source = evaluated_run(tmp_path / "a", Talk(1), scripted_client("hi"))

    class LongFarewellEnv(Talk):
        async def env_response(self, messages, state, **kwargs):
            state["final_env_response"] = "bye, " + "go away " * 40

    _, [record] = rescore(LongFarewellEnv(1), source, tmp_path / "b")
    assert error_of(record).message.startswith(
        "replay differs in its last messages: message 2 is now 'bye, go away go away "
    )
    assert len(error_of(record).message) < 300


def test_a_replay_error_that_the_environment_catches_is_still_reported(tmp_path):
    class ErrorCatchingEnv(Talk):
        words = ("a", "b")

        async def run(self, state, turn):
            await self.setup_state(state)
            for word in self.words:
                with suppress(vf.Error):
                    state["completion"] += [await turn(state, [vf.UserMessage(word)])]

    class ExtraRequestEnv(ErrorCatchingEnv):
        words = ("a", "other", "b")

    source = evaluated_run(tmp_path / "a", ErrorCatchingEnv(), scripted_client("hi"))
    _, [record] = rescore(ExtraRequestEnv(rubric=constant_rubric(1.0)), source, tmp_path / "b")
    assert "at turn 2: message 1 is now 'other', was 'b'" in error_of(record).message


def test_different_tool_calls_are_shown_if_the_texts_are_equal(tmp_path):
    class ToolCallEnv(Talk):
        call = "a"

        async def env_response(self, messages, state, **kwargs):
            await super().env_response(messages, state)
            return [vf.AssistantMessage("", tool_calls=[{"id": self.call}])]

    class OtherToolCallEnv(ToolCallEnv):
        call = "b"

    source = evaluated_run(tmp_path / "a", ToolCallEnv(2), scripted_client("hi"))
    _, [record] = rescore(OtherToolCallEnv(2), source, tmp_path / "b")
    assert "'id': 'b'" in error_of(record).message
    assert "'id': 'a'" in error_of(record).message


# Rollouts that a limit ended


class OverlongPolicy:
    """A policy whose third prompt is too long."""

    def __call__(self, messages, state, rng):
        if len(state["trajectory"]) == 2:
            raise vf.OverlongPromptError("too long")
        return random_numbers(messages, state, rng)


@pytest.mark.parametrize(
    ("client", "options", "ending"),
    [
        (scripted_client(random_numbers), {"limits": {"max_turns": 2}}, ("max_turns_reached", False, 2)),
        (
            scripted_client(random_numbers),
            {"limits": {"max_total_tokens": 5}},
            ("max_total_tokens_reached", True, None),
        ),
        (scripted_client(random_numbers), {"limits": {"max_cost": 1e-6}, "price": {"input": 1.0, "output": 1.0}}, None),
        (scripted_client(OverlongPolicy()), {}, ("prompt_too_long", True, 2)),
    ],
)
def test_a_replay_ends_where_a_limit_ended_the_rollout_and_is_scored(tmp_path, client, options, ending):
    source = evaluated_run(tmp_path / "a", Talk(9), client, **options)
    [old] = source.rollouts()
    if ending is not None:
        assert (old.stop_condition, old.is_truncated) == ending[:2]
    _, [new] = rescore(Talk(9, rubric=constant_rubric(1.0)), source, tmp_path / "b")
    assert (new.stop_condition, new.is_truncated, new.error) == (old.stop_condition, old.is_truncated, None)
    assert new.completion == old.completion
    assert new.reward == 1.0


@pytest.mark.parametrize("limit", ["max_turns", "max_total_completion_tokens"])
def test_a_limit_of_the_environment_ends_the_replay_at_the_same_turn(tmp_path, limit):
    source = evaluated_run(tmp_path / "a", Talk(**{limit: 2}), scripted_client("hi"))
    [old] = source.rollouts()
    for name, env in (("same", Talk(**{limit: 2})), ("wider", Talk(**{limit: 5})), ("none", Talk(max_turns=9))):
        _, [new] = rescore(env, source, tmp_path / name)
        assert (new.stop_condition, new.is_truncated) == (f"{limit}_reached", old.is_truncated)
        assert new.completion == old.completion
        assert new.error is None
    _, [narrower] = rescore(Talk(**{limit: 1}), source, tmp_path / "narrower")
    assert f"after turn 1: the rollout ends ({limit}_reached)" in error_of(narrower).message


def test_a_rollout_that_timed_out_waiting_for_the_model_ends_there_again(tmp_path):
    async def slow(messages, state, rng):
        if len(state["trajectory"]) == 1:
            await asyncio.Event().wait()
        return "hi"

    source = evaluated_run(tmp_path / "a", Talk(3), scripted_client(slow), limits={"timeout_seconds": 0.2})
    _, [record] = rescore(Talk(3, rubric=constant_rubric(1.0)), source, tmp_path / "b")
    assert (record.stop_condition, record.is_truncated, record.reward) == ("timeout_reached", True, 1.0)
    assert [message["content"] for message in record.completion] == ["hi", "go on"]


def test_a_rollout_that_timed_out_in_the_environment_is_not_scored(tmp_path):
    class Slow(Talk):
        hang = True

        async def env_response(self, messages, state, **kwargs):
            if self.hang and len(state["trajectory"]) == 2:
                await asyncio.Event().wait()
            return await super().env_response(messages, state)

    source = evaluated_run(tmp_path / "a", Slow(2), scripted_client("hi"), limits={"timeout_seconds": 0.2})
    quick = Slow(2)
    quick.hang = False
    _, [record] = rescore(quick, source, tmp_path / "b")
    assert "after turn 2: it was cut off there, in the middle of the environment's own work" in error_of(record).message
    longer = Slow(3)
    longer.hang = False
    _, [record] = rescore(longer, source, tmp_path / "c")
    assert "in its last messages: 4 messages now, 3 then" in error_of(record).message


def test_a_replay_has_no_time_limit(tmp_path):
    source = evaluated_run(tmp_path / "a", Talk(2), scripted_client("hi"))
    summary, _ = rescore(Talk(2, timeout_seconds=1e-9), source, tmp_path / "b")
    assert (summary.scored, summary.stops) == (1, {"has_final_env_response": 1})


# Run folders


def test_an_interrupted_rescoring_can_be_resumed(tmp_path):
    class StopError(Exception):
        pass

    results_seen: list[RolloutRecord | Outcome] = []

    def stop_after_two(record):
        results_seen.append(record)
        if len(results_seen) == 2:
            raise StopError

    source = evaluated_run(tmp_path / "a", Quiz(5), scripted_client(random_numbers))
    calls: list[str] = []

    def judge(completion):
        calls.append(completion[-1]["content"])
        return 0.5

    env = Quiz(5, rubric=vf.Rubric([judge]))
    with pytest.raises(StopError):
        rescore(env, source, tmp_path / "b", on_record=stop_after_two, max_concurrent=1)
    assert Run(tmp_path / "b").summary() is None
    num_saved = len(list(Run(tmp_path / "b").rollouts()))
    assert num_saved == 2
    calls.clear()
    reported: list[RolloutRecord | Outcome] = []
    summary, records = rescore(env, source, tmp_path / "b", on_record=reported.append)
    assert (len(calls), len(records), summary.scored) == (3, 5, 5)
    assert sorted(type(record).__name__ for record in reported) == ["Outcome"] * 2 + ["RolloutRecord"] * 3
    calls.clear()
    assert rescore(env, source, tmp_path / "b")[0].to_dict() == summary.to_dict()
    assert calls == []
    assert rescore(env, source, tmp_path / "b", overwrite=True)[0].scored == len(calls) == 5


def test_new_rollouts_of_the_source_are_added_and_their_groups_scored_again(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client(random_numbers), rollouts_per_example=2)
    sizes: list[int] = []
    env = Quiz(2, rubric=best_of_group(sizes))
    rescore(env, source, tmp_path / "b")
    source = evaluated_run(tmp_path / "a", Quiz(3), scripted_client(random_numbers), rollouts_per_example=3)
    summary, _ = rescore(env, source, tmp_path / "b")
    assert summary.scored == 6
    assert summary.rescored.gone == 3
    assert sizes == [2, 2, 3, 3]


def test_a_rollout_that_the_source_has_repeated_is_scored_again(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client("0"))
    rescore(Quiz(2), source, tmp_path / "b")
    record = next(iter(source.rollouts()))
    [step] = record.steps
    step = msgspec.structs.replace(step, completion=[vf.AssistantMessage("x")], seconds=step.seconds + 1.0)
    with source:
        source.append_rollout(msgspec.structs.replace(record, steps=[step], completion=step.completion))
    summary, records = rescore(Quiz(2), source, tmp_path / "b")
    assert (summary.scored, len(records)) == (2, 3)
    assert summary.reward.mean == 0.0


def test_rescoring_cannot_resume_with_another_environment_or_source(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client(oracle))
    rescore(Quiz(2), source, tmp_path / "b")
    with pytest.raises(vf.RunError, match="holds a different run") as caught:
        rescore(Talk(1), source, tmp_path / "b")
    assert "env: was 'Quiz#" in str(caught.value)
    other_run = evaluated_run(tmp_path / "c", Quiz(2), scripted_client(oracle), seed=1)
    with pytest.raises(vf.RunError, match="rescored: was"):
        rescore(Quiz(2), other_run, tmp_path / "b")
    config, old = Run(tmp_path / "b").config(), source.config()
    assert config["kind"] == "eval"
    assert config["config"] == old["config"]
    assert {**config["identity"]} == {**old["identity"], "rescored": rescored_identity(Quiz(2), source)["rescored"]}


def test_a_rescored_run_can_be_rescored(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client(oracle))
    rescore(Quiz(2, rubric=constant_rubric(0.5)), source, tmp_path / "b")
    summary, records = rescore(Quiz(2), Run(tmp_path / "b"), tmp_path / "c")
    assert summary.reward.mean == 1.0
    assert [without_times(record) for record in records] == [
        without_times(record) for record in in_order(source.rollouts())
    ]


def test_a_started_run_is_used_as_it_is(tmp_path):
    source = evaluated_run(tmp_path / "a", Quiz(2), scripted_client(oracle))
    with Run(tmp_path / "mine") as run:
        run.start("eval", {}, {"my": "own"})
        summary, records = rescore(Quiz(2), source, run)
        assert (summary.scored, len(records)) == (2, 2)
        assert run.config()["identity"] == {"my": "own"}


@pytest.mark.parametrize("started", [True, False])
def test_a_run_is_not_rescored_into_itself(tmp_path, started):
    source = evaluated_run(tmp_path / "a", Quiz(1), scripted_client(oracle))
    into = Run(tmp_path / "a") if started else tmp_path / "x" / ".." / "a"
    (tmp_path / "x").mkdir()
    with pytest.raises(vf.ConfigError, match="cannot be rescored into itself"):
        rescore(Quiz(1), source, into, overwrite=True)
    assert len(list(source.rollouts())) == 1


@pytest.mark.parametrize("name", ["max_concurrent", "max_scoring"])
def test_numbers_out_of_range_are_rejected_before_a_folder_is_created(tmp_path, name):
    source = evaluated_run(tmp_path / "a", Quiz(1), scripted_client(oracle))
    with pytest.raises(vf.ConfigError, match=f"{name} is 0; expected an integer, 1 or more"):
        rescore(Quiz(1), source, tmp_path / "b", **{name: 0})
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("kind", "config"), [("rl", {"seed": 0}), ("eval", {})])
def test_only_evaluations_whose_seed_is_known_are_rescored(tmp_path, kind, config):
    with Run(tmp_path / "a") as run:
        run.start(kind, config, {})
    with pytest.raises(vf.RunError, match="is not the run of an evaluation"):
        rescore(Quiz(1), run, tmp_path / "b")
    with pytest.raises(vf.RunError, match="is not a run folder"):
        rescore(Quiz(1), Run(tmp_path / "nowhere"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_the_environment_is_torn_down_and_every_rollout_cleaned_up(tmp_path):
    class Closing(Talk):
        closed = 0

        @vf.teardown
        def close(self) -> None:
            self.closed += 1

        @vf.cleanup
        def after(self, state: vf.State) -> None:
            cleaned.append(state["log"][-1])

    cleaned: list[str] = []
    source = evaluated_run(tmp_path / "a", Talk(1, count=2), scripted_client("hi"))
    env = Closing(1, count=2)
    rescore(env, source, tmp_path / "b")
    assert (env.closed, len(cleaned)) == (1, 2)


def test_a_run_saved_by_generate_can_be_rescored(tmp_path):
    records = generate_sync(Quiz(2), scripted_client(oracle), run=tmp_path / "a")
    summary, rescored_records = rescore(Quiz(2), Run(tmp_path / "a"), tmp_path / "b")
    assert summary.scored == len(records) == len(rescored_records)


def test_rollouts_that_failed_only_in_a_reward_function_are_scored_again(tmp_path):
    def asserts(completion, answer):
        assert completion[-1].content == answer
        return 1.0

    def mended(completion, answer):
        return float(completion[-1].content == answer)

    source = evaluated_run(tmp_path / "a", Quiz(4, rubric=vf.Rubric([asserts])), scripted_client("0"))
    assert sum(record.error is not None for record in source.rollouts()) == 3
    summary, records = rescore(Quiz(4, rubric=vf.Rubric([mended])), source, tmp_path / "b")
    assert sorted(record.reward for record in records) == [0.0, 0.0, 0.0, 1.0]
    assert (summary.scored, summary.failed) == (4, 0)
