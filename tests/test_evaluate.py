"""Evaluating, generating, resuming, and making a dataset of what came out."""

from __future__ import annotations

import asyncio

import pytest
from toys import Quiz, right, roll, says

import rove as vf
from rove.evaluate import all_text
from rove.runs import Run


class Flaky:
    """A player that fails on its `failing`-th calls, counted from 0, and otherwise knows the answer."""

    def __init__(self, *failing: int):
        self.failing = failing
        self.calls: list[str] = []

    def __call__(self, messages, state, rng):
        self.calls.append(f"{state['answer']}")
        if len(self.calls) - 1 in self.failing:
            raise vf.InfraError("gone")
        return state["answer"]


def started(path) -> Run:
    run = Run(path)
    run.start("eval", {}, {})
    return run


def places(records) -> list[tuple[int, int]]:
    return [(record.example_id, record.rollout_index) for record in records]


def test_records_come_in_the_order_of_examples_and_siblings():
    async def player(messages, state, rng):
        for _ in range(rng.randrange(9)):
            await asyncio.sleep(0)
        return "hi"

    records = roll(Quiz(4), says(player), rollouts_per_example=3)
    assert places(records) == [(i, j) for i in range(4) for j in range(3)]


def test_only_so_many_examples():
    assert places(roll(Quiz(4), says("hi"), num_examples=2)) == [(0, 0), (1, 0)]
    assert len(roll(Quiz(4), says("hi"))) == 4


def test_evaluation_rows_are_used_unless_training_rows_are_asked_for():
    env = Quiz(dataset=[{"question": "train"}], eval_dataset=[{"question": "eval"}])
    assert roll(env, says("hi"))[0].prompt == [vf.UserMessage("eval")]
    assert roll(env, says("hi"), train=True)[0].prompt == [vf.UserMessage("train")]


def test_errors_are_counted_apart_from_rewards():
    summary = asyncio.run(vf.evaluate(Quiz(4), says(Flaky(1)), max_concurrent=1))
    assert (summary["rollouts"], summary["scored"], summary["failed"]) == (4, 3, 1)
    assert summary["reward"]["mean"] == 1.0
    assert summary["functions"]["correct"] == {"mean": 1.0, "half_width": 0.0, "weight": 1.0}
    assert summary["errors"] == {"model: InfraError": 1}
    assert summary["stops"] == {"answered": 3}


def test_the_observer_sees_every_record():
    seen = []
    records = roll(Quiz(3), says(right), on_record=seen.append)
    assert sorted(places(seen)) == places(records)


# Run folders


def test_every_rollout_is_kept_as_it_finishes(tmp_path):
    with started(tmp_path) as run:
        kept = []
        records = roll(
            Quiz(3),
            says(right),
            run=run,
            max_concurrent=1,
            on_record=lambda record: kept.append(len(list(run.rollouts()))),
        )
        assert kept == [1, 2, 3]
        assert list(run.rollouts()) == records


def test_resuming_skips_what_is_finished_and_runs_failures_again(tmp_path):
    with started(tmp_path) as run:
        first = Flaky(1, 4)
        roll(Quiz(3), says(first), rollouts_per_example=2, run=run, max_concurrent=1)
        assert len(first.calls) == 6
    with started(tmp_path) as run:
        second, seen = Flaky(), []
        records = roll(Quiz(3), says(second), rollouts_per_example=2, run=run, max_concurrent=1, on_record=seen.append)
        assert second.calls == ["0", "2"]
        assert places(records) == [(i, j) for i in range(3) for j in range(2)]
        assert all(record.reward == 1.0 for record in records)
        assert sorted(places(seen)) == places(records)  # each once: what was kept, then what was run
    with started(tmp_path) as run:
        third = Flaky()
        assert roll(Quiz(3), says(third), rollouts_per_example=2, run=run) == records
        assert third.calls == []


def test_resuming_after_a_stop_gives_the_records_of_an_uninterrupted_run(tmp_path):
    def player(messages, state, rng):
        return f"{rng.random()}"

    whole = roll(Quiz(5), says(player), rollouts_per_example=2)

    class StopError(Exception):
        pass

    seen = []

    def stop_after_three(record):
        seen.append(record)
        if len(seen) == 3:
            raise StopError

    with started(tmp_path) as run, pytest.raises(StopError):
        roll(Quiz(5), says(player), rollouts_per_example=2, run=run, on_record=stop_after_three, max_concurrent=1)
    with started(tmp_path) as run:
        assert len(list(run.rollouts())) == 3
        resumed = roll(Quiz(5), says(player), rollouts_per_example=2, run=run)
    assert [record.completion for record in resumed] == [record.completion for record in whole]
    assert [record.seed for record in resumed] == [record.seed for record in whole]


def test_more_examples_and_siblings_may_be_asked_for_later(tmp_path):
    with started(tmp_path) as run:
        roll(Quiz(2), says(right), run=run)
    with started(tmp_path) as run:
        more = Flaky()
        assert len(roll(Quiz(3), says(more), rollouts_per_example=2, run=run)) == 6
        assert len(more.calls) == 4
        fewer, seen = Flaky(), []
        assert places(roll(Quiz(1), says(fewer), run=run, on_record=seen.append)) == [(0, 0)]
        assert (fewer.calls, places(seen)) == ([], [(0, 0)])


def test_a_group_that_is_not_complete_is_run_again_as_a_whole(tmp_path):
    sizes = []

    @vf.group_reward
    def size(states) -> list[float]:
        sizes.append(len(states))
        return [float(len(states))] * len(states)

    def env():
        return Quiz(2, rubric=vf.Rubric([size]))

    with started(tmp_path) as run:
        roll(env(), says(Flaky(1)), rollouts_per_example=3, run=run, max_concurrent=1)
    assert sizes == [2, 3]
    with started(tmp_path) as run:
        again, seen = Flaky(), []
        records = roll(env(), says(again), rollouts_per_example=3, run=run, max_concurrent=1, on_record=seen.append)
    assert again.calls == ["0", "0", "0"]
    assert [record.reward for record in records] == [3.0] * 6
    assert sorted(places(seen)) == places(records)  # the old records of the group are not counted beside the new


def test_a_changed_row_is_a_new_one(tmp_path):
    with started(tmp_path) as run:
        roll(Quiz(2), says(right), run=run)
        changed = Quiz(dataset=[{"question": "q0", "answer": "0"}, {"question": "q1", "answer": "one"}])
        player = Flaky()
        assert [record.answer for record in roll(changed, says(player), run=run)] == ["0", "one"]
        assert player.calls == ["one"]


def test_the_summary_of_a_run_is_written_when_it_is_complete(tmp_path):
    with started(tmp_path) as run:
        assert run.summary() is None
        summary = asyncio.run(vf.evaluate(Quiz(2), says(right), run=run, rollouts_per_example=2))
        assert run.summary() == summary


def test_the_last_success_of_a_rollout_counts(tmp_path):
    records = roll(Quiz(1), says(Flaky(0))) + roll(Quiz(1), says("wrong")) + roll(Quiz(1), says(right))
    with started(tmp_path) as run:
        run.append_rollout(records[0])
        assert run.finished() == {}
        for record in records[1:]:
            run.append_rollout(record)
        assert list(run.finished().values()) == records[2:]


# Datasets


def test_a_dataset_holds_the_scored_rollouts_that_are_good_enough():
    def player(messages, state, rng):
        if state["answer"] == "1":
            raise vf.InfraError("gone")
        return state["answer"] if state["answer"] != "2" else "wrong"

    env = Quiz(dataset=[{"question": f"q{i}", "answer": str(i), "info": {"i": i}} for i in range(4)])
    records = roll(env, says(player))
    assert [row["answer"] for row in vf.make_dataset(records)] == ["0", "2", "3"]
    assert [row["answer"] for row in vf.make_dataset(records, min_reward=1.0)] == ["0", "3"]
    assert vf.make_dataset(records, min_reward=1.5) == []
    assert vf.make_dataset(records)[1] == {
        "prompt": [{"role": "user", "content": "q2"}],
        "completion": [{"role": "assistant", "content": "wrong"}],
        "reward": 0.0,
        "answer": "2",
        "info": {"i": 2},
        "metrics": {"correct": 0.0, "num_turns": 1.0},
    }


def test_a_dataset_becomes_a_hugging_face_dataset_and_asks_the_same_again():
    from datasets import Dataset

    rows = vf.make_dataset(roll(Quiz(2), says(right)))
    again = Quiz(dataset=Dataset.from_list(rows))
    assert [example["prompt"] for example in again.get_dataset()] == [[vf.UserMessage("q0")], [vf.UserMessage("q1")]]


def test_all_text():
    assert all_text(roll(Quiz(2, system_prompt="Be brief."), says("hi"))) == [
        *("Be brief.", "q0", "hi"),
        *("Be brief.", "q1", "hi"),
    ]


def test_sampling_of_the_environment_holds_where_the_caller_says_nothing() -> None:
    seen = []

    class Listening:
        max_concurrent = 1

        async def respond(self, request):
            seen.append(request.sampling)
            return vf.Response(vf.AssistantMessage("x"))

        async def close(self):
            pass

    env = vf.SingleTurnEnv(
        dataset=[{"question": "?"}], sampling_args={"max_completion_tokens": 100, "temperature": 0.5}
    )
    for args in (None, {"temperature": None, "max_tokens": 5}):
        env.generate_sync(Listening(), "some-model", sampling_args=args)
    assert [(s.max_tokens, s.temperature) for s in seen] == [(100, 0.5), (5, 0.5)]


def test_the_model_is_the_second_positional_argument() -> None:
    summary = vf.SingleTurnEnv(dataset=[{"question": "?"}]).evaluate_sync(
        vf.ScriptedClient(lambda messages, state, rng: "x"), "name", num_examples=1
    )
    assert summary["scored"] == 1
