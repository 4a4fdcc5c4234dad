"""Evaluation, generation, resuming runs, and datasets of rollouts."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from fault_endpoint import FaultEndpoint, HttpResponse
from tiers import each_row
from toy_envs import Quiz, Talk, generate_sync, oracle, scripted_client

import rove as vf
from rove.clients.limiter import Limiter
from rove.core.records import Outcome
from rove.rollouts.evaluate import conversation_texts
from rove.runs.run import Run
from rove.statistics import Price


class Flaky:
    """A policy that fails on the calls numbered in `failing`, counted from 0, and otherwise gives the right answer."""

    def __init__(self, *failing: int):
        self.failing = failing
        self.calls: list[str] = []

    def __call__(self, messages, state, rng):
        self.calls.append(f"{state['answer']}")
        if len(self.calls) - 1 in self.failing:
            raise vf.InfraError("gone")
        return state["answer"]


def start_run(path) -> Run:
    run = Run(path)
    run.start("eval", {}, {})
    return run


def positions(records) -> list[tuple[int, int]]:
    return [(record.example_id, record.rollout_index) for record in records]


def test_records_are_in_the_order_of_examples_and_group_members():
    async def policy(messages, state, rng):
        for _ in range(rng.randrange(9)):
            await asyncio.sleep(0)
        return "hi"

    records = generate_sync(Quiz(4), scripted_client(policy), rollouts_per_example=3)
    assert positions(records) == [(i, j) for i in range(4) for j in range(3)]


def test_num_examples_limits_the_examples():
    assert positions(generate_sync(Quiz(4), scripted_client("hi"), num_examples=2)) == [(0, 0), (1, 0)]
    assert len(generate_sync(Quiz(4), scripted_client("hi"))) == 4


def test_an_evaluation_starts_no_more_tasks_than_rollouts():
    tasks: list[int] = []

    async def policy(messages, state, rng):
        tasks.append(len(asyncio.all_tasks()))
        return "hi"

    assert (
        len(generate_sync(Quiz(4), scripted_client(policy, max_concurrent=256), num_examples=2, rollouts_per_example=2))
        == 4
    )
    assert max(tasks) < 20


def test_examples_can_be_skipped():
    assert positions(generate_sync(Quiz(5), scripted_client("hi"), skip_examples=3)) == [(3, 0), (4, 0)]
    assert positions(generate_sync(Quiz(5), scripted_client("hi"), skip_examples=1, num_examples=2)) == [(1, 0), (2, 0)]
    whole = {record.example_id: record for record in generate_sync(Quiz(5), scripted_client("hi"))}
    for record in generate_sync(Quiz(5), scripted_client("hi"), skip_examples=2):  # the same rollouts as without
        assert (record.example_key, record.seed) == (
            whole[record.example_id].example_key,
            whole[record.example_id].seed,
        )
    with pytest.raises(vf.ConfigError, match="no rows after the first 5; there is nothing to evaluate"):
        generate_sync(Quiz(5), scripted_client("hi"), skip_examples=5)
    with pytest.raises(vf.ConfigError, match="skip_examples is -1; expected an integer, 0 or more"):
        generate_sync(Quiz(5), scripted_client("hi"), skip_examples=-1)


def test_evaluation_rows_are_used_unless_training_rows_are_requested():
    env = Quiz(dataset=[{"question": "train"}], eval_dataset=[{"question": "eval"}])
    assert generate_sync(env, scripted_client("hi"))[0].prompt == [vf.UserMessage("eval")]
    assert generate_sync(env, scripted_client("hi"), train=True)[0].prompt == [vf.UserMessage("train")]


def test_errors_are_counted_separately_from_rewards():
    summary = asyncio.run(vf.evaluate(Quiz(4), scripted_client(Flaky(1)), max_concurrent=1))
    assert (summary.rollouts, summary.scored, summary.failed) == (4, 3, 1)
    assert summary.reward.mean == 1.0
    assert summary.to_dict()["functions"]["correct"] == {
        "mean": 1.0,
        "low": pytest.approx(0.2924017738212865),  # three of three
        "high": 1.0,
        "caveat": None,
        "weight": 1.0,
    }
    assert summary.errors == {"model: InfraError": 1}
    assert summary.stops == {"answered": 3}


def test_on_record_receives_every_record():
    records_seen = []
    records = generate_sync(Quiz(3), scripted_client(oracle), on_record=records_seen.append)
    assert sorted(positions(records_seen)) == positions(records)


# Run folders


def test_every_rollout_is_saved_when_it_finishes(tmp_path):
    with start_run(tmp_path) as run:
        saved_counts = []
        records = generate_sync(
            Quiz(3),
            scripted_client(oracle),
            run=run,
            max_concurrent=1,
            on_record=lambda record: saved_counts.append(len(list(run.rollouts()))),
        )
        assert saved_counts == [1, 2, 3]
        assert list(run.rollouts()) == records


def test_resuming_skips_finished_rollouts_and_repeats_failed_ones(tmp_path):
    with start_run(tmp_path) as run:
        first = Flaky(1, 4)
        generate_sync(Quiz(3), scripted_client(first), rollouts_per_example=2, run=run, max_concurrent=1)
        assert len(first.calls) == 6
    with start_run(tmp_path) as run:
        second, records_seen = Flaky(), []
        records = generate_sync(
            Quiz(3),
            scripted_client(second),
            rollouts_per_example=2,
            run=run,
            max_concurrent=1,
            on_record=records_seen.append,
        )
        assert second.calls == ["0", "2"]
        assert positions(records) == [(i, j) for i in range(3) for j in range(2)]
        assert all(record.reward == 1.0 for record in records)
        assert sorted(positions(records_seen)) == positions(
            records
        )  # each once: first the saved records, then the new ones
    with start_run(tmp_path) as run:
        third = Flaky()
        assert generate_sync(Quiz(3), scripted_client(third), rollouts_per_example=2, run=run) == records
        assert third.calls == []


def test_resuming_after_a_stop_gives_the_records_of_an_uninterrupted_run(tmp_path):
    def policy(messages, state, rng):
        return f"{rng.random()}"

    uninterrupted = generate_sync(Quiz(5), scripted_client(policy), rollouts_per_example=2)

    class StopError(Exception):
        pass

    records_seen = []

    def stop_after_three(record):
        records_seen.append(record)
        if len(records_seen) == 3:
            raise StopError

    with start_run(tmp_path) as run, pytest.raises(StopError):
        generate_sync(
            Quiz(5),
            scripted_client(policy),
            rollouts_per_example=2,
            run=run,
            on_record=stop_after_three,
            max_concurrent=1,
        )
    with start_run(tmp_path) as run:
        assert len(list(run.rollouts())) == 3
        resumed = generate_sync(Quiz(5), scripted_client(policy), rollouts_per_example=2, run=run)
    assert [record.completion for record in resumed] == [record.completion for record in uninterrupted]
    assert [record.seed for record in resumed] == [record.seed for record in uninterrupted]


def test_a_run_can_be_extended_with_examples_and_group_members(tmp_path):
    with start_run(tmp_path) as run:
        generate_sync(Quiz(2), scripted_client(oracle), run=run)
    with start_run(tmp_path) as run:
        more_client = Flaky()
        assert len(generate_sync(Quiz(3), scripted_client(more_client), rollouts_per_example=2, run=run)) == 6
        assert len(more_client.calls) == 4
        fewer, records_seen = Flaky(), []
        assert positions(generate_sync(Quiz(1), scripted_client(fewer), run=run, on_record=records_seen.append)) == [
            (0, 0)
        ]
        assert (fewer.calls, positions(records_seen)) == ([], [(0, 0)])


def test_an_incomplete_group_is_repeated_as_a_whole(tmp_path):
    sizes = []

    @vf.group_reward
    def size(states) -> list[float]:
        sizes.append(len(states))
        return [float(len(states))] * len(states)

    def env():
        return Quiz(2, rubric=vf.Rubric([size]))

    with start_run(tmp_path) as run:
        generate_sync(env(), scripted_client(Flaky(1)), rollouts_per_example=3, run=run, max_concurrent=1)
    assert sizes == [2, 3]
    with start_run(tmp_path) as run:
        resumed, records_seen = Flaky(), []
        records = generate_sync(
            env(),
            scripted_client(resumed),
            rollouts_per_example=3,
            run=run,
            max_concurrent=1,
            on_record=records_seen.append,
        )
    assert resumed.calls == ["0", "0", "0"]
    assert [record.reward for record in records] == [3.0] * 6
    assert sorted(positions(records_seen)) == positions(records)  # the old records of the group are not reported


def test_a_changed_row_counts_as_a_new_example(tmp_path):
    with start_run(tmp_path) as run:
        generate_sync(Quiz(2), scripted_client(oracle), run=run)
        changed = Quiz(dataset=[{"question": "q0", "answer": "0"}, {"question": "q1", "answer": "one"}])
        policy = Flaky()
        assert [record.answer for record in generate_sync(changed, scripted_client(policy), run=run)] == ["0", "one"]
        assert policy.calls == ["one"]


def test_the_summary_of_a_run_is_written_when_it_is_complete(tmp_path):
    with start_run(tmp_path) as run:
        assert run.summary() is None
        summary = asyncio.run(vf.evaluate(Quiz(2), scripted_client(oracle), run=run, rollouts_per_example=2))
        # As JSON, where a limit that does not exist is null.
        assert run.summary() == msgspec.json.decode(msgspec.json.encode(summary.to_dict()))
        assert summary.run is run


def test_the_last_success_of_a_rollout_counts(tmp_path):
    records = (
        generate_sync(Quiz(1), scripted_client(Flaky(0)))
        + generate_sync(Quiz(1), scripted_client("wrong"))
        + generate_sync(Quiz(1), scripted_client(oracle))
    )
    with start_run(tmp_path) as run:
        run.append_rollout(records[0])
        assert list(run.finished()) == []
        for record in records[1:]:
            run.append_rollout(record)
        assert list(run.finished()) == records[2:]


# Datasets


def test_a_dataset_contains_the_scored_rollouts_with_at_least_min_reward():
    def policy(messages, state, rng):
        if state["answer"] == "1":
            raise vf.InfraError("gone")
        return state["answer"] if state["answer"] != "2" else "wrong"

    env = Quiz(dataset=[{"question": f"q{i}", "answer": str(i), "info": {"i": i}} for i in range(4)])
    records = generate_sync(env, scripted_client(policy))
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


def test_a_dataset_can_be_a_hugging_face_dataset_for_an_environment():
    from datasets import Dataset

    rows = vf.make_dataset(generate_sync(Quiz(2), scripted_client(oracle)))
    env = Quiz(dataset=Dataset.from_list(rows))
    assert [example["prompt"] for example in env.get_dataset()] == [[vf.UserMessage("q0")], [vf.UserMessage("q1")]]


def test_conversation_texts_contain_all_messages():
    assert conversation_texts(generate_sync(Quiz(2, system_prompt="Be brief."), scripted_client("hi"))) == [
        "Be brief.\nq0\nhi",
        "Be brief.\nq1\nhi",
    ]


def test_sampling_args_of_the_environment_apply_unless_the_caller_overrides_them() -> None:
    sampling_args_seen = []

    class RecordingClient:
        max_concurrent = 1

        async def respond(self, request):
            sampling_args_seen.append(request.sampling_params)
            return vf.Response(vf.AssistantMessage("x"))

        async def close(self):
            pass

    env = vf.SingleTurnEnv(
        dataset=[{"question": "?"}], sampling_args={"max_completion_tokens": 100, "temperature": 0.5}
    )
    for args in (None, {"temperature": None, "max_tokens": 5}):
        env.generate_sync(RecordingClient(), "some-model", sampling_args=args)
    assert [(s.max_tokens, s.temperature) for s in sampling_args_seen] == [(100, 0.5), (5, 0.5)]


def test_the_model_is_the_second_positional_argument() -> None:
    summary = vf.SingleTurnEnv(dataset=[{"question": "?"}]).evaluate_sync(
        vf.ScriptedClient(lambda messages, state, rng: "x"), "name", num_examples=1
    )
    assert summary.scored == 1


# Limits


def client_with_usage(count: int) -> vf.Client:
    """Return a client whose responses use 10 prompt tokens and `count` completion tokens."""

    class ClientWithUsage(vf.ScriptedClient):
        async def respond(self, request):
            response = await super().respond(request)
            return msgspec.structs.replace(response, usage=vf.Usage(10, count))

    return ClientWithUsage(lambda messages, state, rng: "hi")


@each_row(
    ("limits", "turns", "stop", "truncated"),
    [
        ({"max_turns": 2}, 2, "max_turns_reached", False),
        ({"max_total_tokens": 30}, 2, "max_total_tokens_reached", True),
        ({"max_total_tokens": 31}, 3, "max_total_tokens_reached", True),
        ({"max_cost": 0.002}, 2, "max_cost_reached", True),
        ({"max_turns": 9, "max_cost": 9.0}, 5, "has_final_env_response", False),
    ],
)
def test_a_rollout_that_reaches_a_limit_is_scored_as_it_is(limits, turns, stop, truncated):
    env = Talk(turns=5, rubric=vf.Rubric([lambda state: float(len(state["trajectory"]))]))
    price = Price(input=0.0, output=200.0)
    [record] = generate_sync(env, client_with_usage(5), limits=limits, price=price)
    assert (record.reward, record.stop_condition, record.is_truncated, record.error) == (turns, stop, truncated, None)


def test_a_time_limit_of_the_run_overrides_a_longer_one_of_the_environment():
    async def slow_later(messages, state, rng):
        await asyncio.sleep(10 if state["trajectory"] else 0)
        return "hi"

    env = Talk(turns=5, timeout_seconds=60)
    [record] = generate_sync(env, scripted_client(slow_later), limits=vf.Limits(timeout_seconds=0.05))
    assert (record.stop_condition, record.is_truncated, record.error) == ("timeout_reached", True, None)


def test_a_timeout_before_the_first_response_is_an_error():
    async def never(messages, state, rng):
        await asyncio.Event().wait()

    [record] = generate_sync(Talk(turns=1), scripted_client(never), limits=vf.Limits(timeout_seconds=0.05))
    assert (record.reward, record.error and record.error.type) == (None, "InfraError")


@pytest.mark.parametrize("answers", [0, 1])
async def test_a_rollout_that_is_rate_limited_until_its_timeout_gets_no_score(answers):
    refused = HttpResponse(429, "busy", {"Retry-After": "30"})
    async with FaultEndpoint(lambda number, body: "ok" if number < answers else refused) as server:
        client = vf.OpenAIClient(server.base_url)
        async with asyncio.timeout(20):  # the requested pause does not delay the end of the run
            [record] = await vf.generate(Talk(turns=3), client, limits={"timeout_seconds": 0.5})
        await client.close()
    assert record.scores is None
    assert record.error is not None
    assert record.error.type == "InfraError"
    assert len(record.steps) == answers


async def test_a_slow_setup_is_not_taken_for_a_slow_endpoint():
    class Slow(Talk):
        async def setup_state(self, state: vf.State, **kwargs: object) -> None:
            await asyncio.sleep(30)

    [record] = await vf.generate(Slow(turns=1), scripted_client("hello"), limits={"timeout_seconds": 0.1})
    assert record.error is not None and "0.1 s passed in setup_state" in record.error.message


def test_a_budget_stops_new_rollouts_and_includes_earlier_costs(tmp_path):
    options = {"price": Price(input=0.0, output=1e6), "max_concurrent": 1, "run": tmp_path / "run"}
    env = Quiz(10)
    first = asyncio.run(vf.evaluate(env, client_with_usage(1), **options, budget=3))
    assert (first.scored, first.not_run, first.cost.total) == (3, 7, 3.0)
    assert Run(tmp_path / "run").summary() is None  # the run is not complete
    second = asyncio.run(vf.evaluate(env, client_with_usage(1), **options, budget=5))
    assert (second.scored, second.not_run) == (5, 5)
    last = asyncio.run(vf.evaluate(env, client_with_usage(1), **options))
    assert (last.scored, last.not_run) == (10, 0)
    assert Run(tmp_path / "run").summary()["cost"]["total"] == 10.0


def test_a_spent_budget_does_not_hide_what_is_finished(tmp_path):
    """A failed rollout is still to be repeated, but there is no money for it."""
    options = {"price": Price(input=0.0, output=1e6), "max_concurrent": 1, "run": tmp_path / "run", "budget": 4}
    env = Quiz(10)
    env.rubric = vf.Rubric([lambda example_id: 1.0 if example_id != 1 else 1 / 0])
    first = asyncio.run(vf.evaluate(env, client_with_usage(1), **options))
    assert (first.rollouts, first.scored, first.not_run) == (4, 3, 6)
    second = asyncio.run(vf.evaluate(env, client_with_usage(1), **options))
    assert (second.scored, second.not_run) == (3, 7)  # the failed one counts as not run


@pytest.mark.parametrize("options", [{"budget": 1.0}, {"limits": {"max_cost": 1.0}}])
def test_cost_limits_require_a_price(options):
    with pytest.raises(vf.ConfigError, match="needs a price"):
        generate_sync(Quiz(), scripted_client("hi"), **options)


@pytest.mark.parametrize(("max_errors", "num_rollouts"), [(2, 3), (0.5, 20)])
def test_a_run_with_too_many_errors_stops_early_and_keeps_its_records(max_errors, num_rollouts, tmp_path):
    def always_fails(messages, state, rng):
        raise vf.InfraError("the endpoint is gone")

    with pytest.raises(
        vf.TooManyErrorsError, match=rf"{num_rollouts} of {num_rollouts} rollouts failed.*\n.*the endpoint is gone"
    ):
        generate_sync(
            Quiz(40), scripted_client(always_fails), max_errors=max_errors, max_concurrent=1, run=tmp_path / "run"
        )
    assert len(list(Run(tmp_path / "run").rollouts())) == num_rollouts


@pytest.mark.parametrize("max_errors", [20, 0.5])
def test_a_run_with_as_many_errors_as_allowed_continues(max_errors):
    def fails_every_other_time(messages, state, rng):
        if state["example_id"] % 2:
            raise vf.InfraError("not now")
        return "hi"

    records = generate_sync(Quiz(40), scripted_client(fails_every_other_time), max_errors=max_errors, max_concurrent=1)
    assert sum(record.error is not None for record in records) == 20


async def test_max_scoring_limits_concurrent_scoring():
    at_once = most = 0

    async def judge(completion):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return 1.0

    summary = await vf.evaluate(
        Quiz(20, rubric=vf.Rubric([judge])), scripted_client("hi"), max_concurrent=10, max_scoring=3
    )
    assert (summary.scored, most) == (20, 3)


@each_row(
    ("options", "message"),
    [
        ({"num_exmples": 3}, "did you mean 'num_examples'"),
        ({"num_examples": 0}, "num_examples is 0"),
        ({"rollouts_per_example": 0}, "rollouts_per_example is 0"),
        ({"limits": {"max_turns": 0}}, "max_turns is 0"),
        ({"limits": {"max_tunrs": 1}}, "max_tunrs"),
        ({"max_errors": -1}, "max_errors is -1"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(vf.ConfigError, match=message):
        generate_sync(Quiz(), scripted_client("hi"), **options)


# Run folders from Python


def test_a_folder_resumes_only_the_same_run(tmp_path):
    folder = tmp_path / "run"
    generate_sync(Quiz(2), scripted_client(oracle), run=folder)
    calls = Flaky()
    generate_sync(Quiz(3), scripted_client(calls, name="scripted"), run=folder)
    assert calls.calls == ["2"]
    with pytest.raises(vf.RunError, match=r"seed: was 0, now 1"):
        generate_sync(Quiz(2), scripted_client(oracle), run=folder, seed=1)
    with pytest.raises(vf.RunError, match=r"sampling.temperature: was None, now 0.5"):
        generate_sync(Quiz(2), scripted_client(oracle), run=folder, sampling_args={"temperature": 0.5})
    with pytest.raises(vf.RunError, match=r"model: was 'scripted:scripted', now 'scripted:other'"):
        generate_sync(Quiz(2), scripted_client(oracle, name="other"), run=folder)


def test_saved_rollouts_count_in_the_summary_without_their_texts(tmp_path):
    folder = tmp_path / "run"
    records_seen: list[object] = []
    original = asyncio.run(vf.evaluate(Quiz(30), scripted_client(oracle), run=folder, rollouts_per_example=2))
    resumed = asyncio.run(
        vf.evaluate(
            Quiz(30), scripted_client("never asked"), run=folder, rollouts_per_example=2, on_record=records_seen.append
        )
    )
    assert {**resumed.to_dict(), "latency": 0} == {**original.to_dict(), "latency": 0}
    assert {type(record) for record in records_seen} == {Outcome}
    assert len(records_seen) == 60


# Adaptive limits


async def test_rollouts_start_when_the_endpoint_admits_them(tmp_path):
    running = most = 0

    class ConcurrencyCounter(Quiz):
        async def setup_state(self, state, **kwargs):
            nonlocal running, most
            running += 1
            most = max(most, running)

        @vf.cleanup
        def count(self, state):
            nonlocal running
            running -= 1

    class RateLimitedServer(vf.ScriptedClient):
        """A server that rejects requests beyond 16 at a time."""

        limiter = Limiter(4, adaptive=True, maximum=64)

        async def respond(self, request):
            admitted = await self.limiter.acquire()
            await asyncio.sleep(0.002)
            self.limiter.release(admitted, "refused" if self.limiter.under_way > 16 else "answered")
            return await super().respond(request)

    server = RateLimitedServer(oracle)
    summary = await vf.evaluate(ConcurrencyCounter(200), server, run=tmp_path / "run")
    assert summary.scored == 200
    assert most <= 2 * 16
    assert server.limiter.under_way == server.limiter._reserved == 0
    lines = (tmp_path / "run" / "limits.jsonl").read_text().splitlines()
    assert len(lines) == len(server.limiter.history) - 1  # the initial limit is not logged
    assert {"seconds", "limit", "reason"} == json.loads(lines[0]).keys()


# Regressions


def group_size(states):
    """Reward each group member with the number of members."""
    return [float(len(states))] * len(states)


def test_a_group_that_was_saved_only_in_part_is_repeated(tmp_path):
    env = Quiz(1, rubric=vf.Rubric([vf.group_reward(group_size)]))
    folder = tmp_path / "run"
    generate_sync(env, scripted_client("hi"), rollouts_per_example=2, run=folder)
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    generate_sync(
        env, scripted_client("hi"), rollouts_per_example=4, run=folder
    )  # a larger group: all rollouts are repeated
    everything = (folder / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    assert len(everything) == 6
    (folder / "rollouts.jsonl").write_bytes(b"".join(everything[:5]))  # as if killed before the last of four
    records = generate_sync(env, scripted_client("hi"), rollouts_per_example=4, run=folder)
    assert [record.reward for record in records] == [4.0] * 4
    assert len(lines) == 2


def test_a_later_failure_replaces_an_earlier_score(tmp_path):
    env = Quiz(1, rubric=vf.Rubric([vf.group_reward(group_size)]))
    folder = tmp_path / "run"

    def client_failing_at(member):
        def policy(messages, state, rng):
            client_failing_at.calls += 1
            if client_failing_at.calls % 3 == member:
                raise vf.InfraError("gone")
            return "hi"

        client_failing_at.calls = -1
        return scripted_client(policy, name="one")

    first = generate_sync(env, client_failing_at(2), rollouts_per_example=3, max_concurrent=1, run=folder)
    second = generate_sync(env, client_failing_at(0), rollouts_per_example=3, max_concurrent=1, run=folder)
    assert [[r.reward for r in records] for records in (first, second)] == [[2.0, 2.0, None], [None, 2.0, 2.0]]
    assert [r.rollout_index for r in Run(folder).finished()] == [1, 2]


def test_a_run_cannot_be_resumed_with_another_rubric(tmp_path):
    generate_sync(Quiz(1, rubric=vf.Rubric([lambda state: 0.0])), scripted_client("hi"), run=tmp_path / "run")
    with pytest.raises(vf.RunError, match="rubric"):
        generate_sync(Quiz(1, rubric=vf.Rubric([lambda state: 1.0])), scripted_client("hi"), run=tmp_path / "run")


def test_finished_rollouts_are_saved_when_a_run_stops(tmp_path):
    def observer(record):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        generate_sync(Quiz(30), scripted_client("hi"), run=tmp_path / "run", on_record=observer)
    num_saved = len(list(Run(tmp_path / "run").rollouts()))
    with pytest.raises(vf.TooManyErrorsError):
        generate_sync(Quiz(30), scripted_client(Flaky(*range(99)), name="x"), run=tmp_path / "other", max_errors=1)
    assert num_saved >= 1
    assert len(list(Run(tmp_path / "other").rollouts())) >= 2


def test_the_budget_ends_a_run_over_an_endless_dataset(tmp_path):
    def endless():
        while True:
            yield {"question": "again"}

    options = {"price": Price(0.0, 1e6), "budget": 5.0, "max_concurrent": 1, "run": tmp_path / "run"}
    summary = asyncio.run(vf.evaluate(Quiz(dataset=endless()), client_with_usage(1), **options))
    assert (summary.scored, summary.not_run) == (5, None)
    assert summary.cost.spent == 5.0


def test_an_empty_dataset_is_rejected():
    with pytest.raises(vf.ConfigError, match="has no rows"):
        generate_sync(Quiz(dataset=[]), scripted_client("hi"))


def test_a_state_that_cannot_become_a_record_is_an_error_of_its_rollout():
    class TrajectoryBreakingEnv(Quiz):
        async def setup_state(self, state, **kwargs):
            if state["example_id"] == 1:
                state["trajectory"].append(None)

    records = generate_sync(TrajectoryBreakingEnv(3), scripted_client(oracle))
    assert [record.error is None for record in records] == [True, False, True]


def test_an_example_with_failed_rollouts_has_the_same_weight_as_any_other():
    def policy(messages, state, rng):
        if state["example_id"] == 1 and len(policy.calls) < 3:
            policy.calls.append(1)
            raise vf.InfraError("gone")
        return "0"

    policy.calls = []
    summary = asyncio.run(vf.evaluate(Quiz(2), scripted_client(policy), rollouts_per_example=4))
    assert (summary.scored, summary.reward.mean) == (5, 0.5)


async def test_the_limiter_does_not_write_into_a_finished_run(tmp_path):
    async with FaultEndpoint() as server:
        client = vf.OpenAIClient(server.base_url)
        await vf.evaluate(Quiz(40), client, run=tmp_path / "run")
        assert client.limiter.on_change is None
        await client.close()


def test_a_rubric_without_reward_functions_causes_a_warning():
    rubric = vf.Rubric()
    rubric.add_metric(lambda completion: 1.0)
    env = vf.SingleTurnEnv(dataset=[{"question": "a", "answer": "a"}], rubric=rubric)
    with pytest.warns(UserWarning, match="SingleTurnEnv has no reward function, so that every reward is 0"):
        assert env.evaluate_sync(scripted_client(lambda *_: "a")).reward.mean == 0
