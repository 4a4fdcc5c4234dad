"""Rollouts: errors become records, group members are isolated, and equal seeds give equal records."""

from __future__ import annotations

import asyncio
import random

import pytest
from api_endpoint import ApiEndpoint, text_completion
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import Quiz, Talk, correct, generate_sync, oracle, rows, scripted_client, without_times

import rove as vf
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.protocols import Request, Response, SamplingParams
from rove.rollouts.groups import RolloutError, run_groups
from rove.rollouts.runner import Allowance, Job, make_turn, plan
from rove.runs.serialization import encode_record


def examples_of(env: vf.Environment) -> list[dict]:
    return env.get_dataset()


async def collect(env: vf.Environment, client: vf.Client, groups: list[list[Job]], **options) -> list[vf.RolloutRecord]:
    return [record async for record in run_groups(env, client, groups, **options)]


# Errors


class PhaseFailingEnv(Talk):
    """A rollout fails in the phase that the answer of its row names; rollouts with the answer "fine" succeed."""

    def __init__(self):
        positions = ["setup_state", "model", "env_response", "stop", "cleanup", "reward", "fine", "fine"]
        rubric = vf.Rubric()
        rubric.add_reward_func(self.judge)
        super().__init__(
            turns=1, dataset=[{"question": "q", "answer": position} for position in positions], rubric=rubric
        )

    def fail_at(self, position: str, state: vf.State) -> None:
        if state["answer"] == position:
            raise KeyError(f"broken {position}")

    async def setup_state(self, state, **kwargs):
        self.fail_at("setup_state", state)
        await super().setup_state(state)

    async def env_response(self, messages, state, **kwargs):
        self.fail_at("env_response", state)
        return await super().env_response(messages, state)

    @vf.stop
    def breaking(self, state):
        self.fail_at("stop", state)

    @vf.cleanup
    async def breaking_cleanup(self, state):
        self.fail_at("cleanup", state)

    def judge(self, state):
        self.fail_at("reward", state)
        return 1.0

    def policy(self, messages, state, rng):
        self.fail_at("model", state)
        return "hi"


def test_an_error_is_recorded_with_phase_and_traceback_and_fails_only_its_rollout():
    env = PhaseFailingEnv()
    records = generate_sync(env, scripted_client(env.policy))
    assert len(records) == 8
    for record in records:
        if record.answer == "fine":
            assert record.error is None
            assert record.reward == 1.0
            continue
        assert record.scores is None
        assert record.error is not None
        phase = "reward judge" if record.answer == "reward" else record.answer
        assert (record.error.phase, record.error.type) == (phase, "KeyError")
        assert record.error.message == f"'broken {record.answer}'"
        assert "in fail_at" in record.error.traceback


def test_errors_list_their_attempts():
    def always_fails(messages, state, rng):
        raise vf.InfraError("gave up", attempts=["HTTP 500", "HTTP 503"])

    [record] = generate_sync(Quiz(1), scripted_client(always_fails))
    assert record.error is not None
    assert (record.error.phase, record.error.attempts) == ("model", ["HTTP 500", "HTTP 503"])


def test_an_attempts_attribute_of_foreign_errors_is_ignored():
    class RetryError(Exception):
        attempts = 3

    def always_fails(messages, state, rng):
        raise RetryError("gave up")

    [record] = generate_sync(Quiz(1), scripted_client(always_fails))
    assert record.error is not None
    assert record.error.attempts == []


def test_the_steps_before_an_error_are_kept():
    class FailsInSecondTurn(Talk):
        async def env_response(self, messages, state, **kwargs):
            if len(state["trajectory"]) == 2:
                raise KeyError("board")
            return "go on"

    [record] = generate_sync(FailsInSecondTurn(), scripted_client("hi"))
    assert len(record.steps) == 2
    assert [message["content"] for message in record.completion] == ["hi", "go on", "hi"]
    assert record.usage.completion_tokens == 2


@pytest.mark.parametrize("position", ["env_response", "reward"])
def test_a_cancellation_leaked_by_user_code_is_an_ordinary_error(position):
    """Some libraries leak the cancellation of their own tasks; it must not look like a cancelled run."""

    async def leak(state):
        if state["example_id"] == 0:
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task

    class CancellationLeakingEnv(Talk):
        async def env_response(self, messages, state, **kwargs):
            if position == "env_response":
                await leak(state)
            return await super().env_response(messages, state)

    async def reward(state):
        if position == "reward":
            await leak(state)
        return 1.0

    first, second = generate_sync(
        CancellationLeakingEnv(turns=1, count=2, rubric=vf.Rubric([reward])), scripted_client("hi")
    )
    assert first.error is not None
    assert (first.error.phase.split()[0], first.error.type) == (position, "CancelledError")
    assert second.reward == 1.0


def test_a_rollout_cannot_change_the_prompts_of_its_group():
    class PromptEditingEnv(Talk):
        async def setup_state(self, state, **kwargs):
            await super().setup_state(state)
            state["prompt"].append(vf.UserMessage("and more"))
            state["info"]["seen"] = True

    env = PromptEditingEnv(turns=1, dataset=rows(1, info={"level": 1}))
    records = generate_sync(env, scripted_client("hi"), rollouts_per_example=3, max_concurrent=1)
    assert [len(record.prompt) for record in records] == [2, 2, 2]
    assert [record.info for record in records] == [{"level": 1}] * 3
    assert env.get_dataset()[0]["info"] == {"level": 1}


def test_fail_fast_raises_the_first_failure():
    env = PhaseFailingEnv()
    with pytest.raises(
        RolloutError, match=r"(?s)^setup_state: KeyError: 'broken setup_state' \(example 0\)\nTraceback"
    ) as caught:
        generate_sync(env, scripted_client(env.policy), fail_fast=True, max_concurrent=1)
    assert caught.value.record.example_id == 0


# Group rewards


@vf.group_reward
def share_of_group(completions) -> list[float]:
    """Reward each response with its share of the sum of the group's responses."""
    total = sum(float(completion[-1].content) for completion in completions)
    return [float(completion[-1].content) / total for completion in completions]


def test_group_rewards_receive_only_successful_rollouts():
    replies = iter(["1", "boom", "3"] * 2)

    def policy(messages, state, rng):
        answer = next(replies)
        if answer == "boom":
            raise KeyError("boom")
        return answer

    env = Quiz(2, rubric=vf.Rubric([share_of_group, correct]))
    records = generate_sync(env, scripted_client(policy), rollouts_per_example=3, max_concurrent=1)
    assert [record.scores and record.scores.rewards["share_of_group"] for record in records] == [0.25, None, 0.75] * 2
    assert [record.scores and record.scores.rewards["correct"] for record in records] == [0, None, 0, 1, None, 0]
    assert [record.error and record.error.type for record in records] == [None, "KeyError", None] * 2


def test_a_group_reward_that_fails_fails_only_the_rollouts_of_its_group():
    @vf.group_reward
    def picky(answers) -> list[float]:
        if answers[0] == "0":
            raise KeyError("boom")
        return [1.0] * len(answers)

    records = generate_sync(Quiz(2, rubric=vf.Rubric([picky])), scripted_client(oracle), rollouts_per_example=2)
    assert [record.error and (record.error.phase, record.error.type) for record in records] == [
        ("reward picky", "KeyError"),
        ("reward picky", "KeyError"),
        None,
        None,
    ]
    assert [record.reward for record in records] == [None, None, 1.0, 1.0]


def test_group_rewards_are_not_called_if_all_rollouts_failed():
    @vf.group_reward
    def never(states) -> list[float]:
        raise AssertionError("called")

    def broken(messages, state, rng):
        raise KeyError("boom")

    records = generate_sync(Quiz(1, rubric=vf.Rubric([never])), scripted_client(broken), rollouts_per_example=2)
    assert [record.error and record.error.phase for record in records] == ["model", "model"]


def test_group_rewards_receive_group_members_in_order_however_they_finish():
    async def policy(messages, state, rng):
        index = len(gates)
        gates.append(asyncio.Event())
        if index < 3:
            await gates[index].wait()  # each waits for the one that starts after it
        if index:
            gates[index - 1].set()
        return str(index + 1)

    gates: list[asyncio.Event] = []
    members_seen: list[list[str]] = []

    @vf.group_reward
    def watch(completions) -> list[float]:
        members_seen.append([completion[-1].content for completion in completions])
        return [0.0] * len(completions)

    records = generate_sync(
        Quiz(1, rubric=vf.Rubric([watch])), scripted_client(policy), rollouts_per_example=4, max_concurrent=4
    )
    assert members_seen == [[record.completion[0]["content"] for record in records]] == [["1", "2", "3", "4"]]


# Concurrency


@st.composite
def workloads(draw) -> tuple[int, int, int]:
    """Draw (width, examples, group size) whose rollouts fill whole rounds of `width` rollouts."""
    width, rounds = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    total = width * rounds
    group_size = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    return width, total // group_size, group_size


@given(workloads(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_exactly_max_concurrent_rollouts_run_at_a_time(workload, grouped):
    width, examples, group_size = workload
    running = peak = 0

    async def main() -> list[vf.RolloutRecord]:
        barrier = asyncio.Barrier(width)  # opens only when `width` rollouts run at the same time

        async def policy(messages, state, rng):
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await barrier.wait()
            running -= 1
            return state["answer"]

        env = Quiz(examples, rubric=vf.Rubric([share_of_group if grouped else correct]))
        async with asyncio.timeout(20):
            return await collect(env, scripted_client(policy), plan(examples_of(env), group_size), max_concurrent=width)

    records = asyncio.run(main())
    assert len(records) == examples * group_size
    assert peak == width


def test_the_default_concurrency_is_max_concurrent_of_the_client():
    peak = running = 0

    async def policy(messages, state, rng):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return "hi"

    generate_sync(Quiz(10), scripted_client(policy, max_concurrent=3))
    assert peak == 3


async def test_groups_are_read_lazily_and_records_are_yielded_when_ready():
    taken = []
    env = Quiz(100)

    def groups():
        for group in plan(examples_of(env), 1):
            taken.append(group)
            yield group

    examples_read = 0
    records = run_groups(env, scripted_client("hi"), groups(), max_concurrent=2)
    async for _ in records:
        examples_read += 1
        if examples_read == 5:
            break
    await records.aclose()
    assert 5 <= len(taken) < 100


# Cleanup


async def remaining_tasks() -> set[asyncio.Task]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore[reportReturnType]


class OpenRolloutCounter(Talk):
    """Counts the rollouts that were set up but not cleaned up yet."""

    num_open = 0

    async def setup_state(self, state, **kwargs):
        await super().setup_state(state)
        self.num_open += 1

    @vf.cleanup
    async def count_cleanup(self, state):
        await asyncio.sleep(0)
        self.num_open -= 1


async def first_quick_then_stuck(messages, state, rng):
    if state["example_id"] > 0:
        await asyncio.Event().wait()
    return "hi"


async def test_closing_the_generator_ends_every_rollout():
    env = OpenRolloutCounter(turns=1, count=6)
    records = run_groups(env, scripted_client(first_quick_then_stuck), plan(examples_of(env), 2), max_concurrent=5)
    await anext(records)
    assert env.num_open > 0
    await records.aclose()
    assert await remaining_tasks() == set()
    assert env.num_open == 0


async def test_cancelling_a_run_ends_every_rollout():
    env = OpenRolloutCounter(turns=1, count=6)
    started = asyncio.Event()
    task = asyncio.create_task(
        vf.generate(
            env, scripted_client(first_quick_then_stuck), max_concurrent=5, on_record=lambda record: started.set()
        )
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await remaining_tasks() == set()
    assert env.num_open == 0


async def test_a_run_that_stops_at_a_failure_ends_every_rollout():
    async def policy(messages, state, rng):
        if state["example_id"] > 0:
            await asyncio.Event().wait()
        raise KeyError("boom")

    env = OpenRolloutCounter(count=6)
    with pytest.raises(RolloutError):
        await vf.generate(env, scripted_client(policy), max_concurrent=5, fail_fast=True)
    assert await remaining_tasks() == set()
    assert env.num_open == 0


async def test_an_error_of_on_record_ends_every_rollout_before_teardown():
    class TeardownRecorder(OpenRolloutCounter):
        at_teardown = -1

        @vf.teardown
        def look(self):
            self.at_teardown = self.num_open

    def observer(record):
        raise OSError("disk full")

    env = TeardownRecorder(turns=1, count=6)
    with pytest.raises(OSError, match="disk full"):
        await vf.generate(env, scripted_client(first_quick_then_stuck), max_concurrent=5, on_record=observer)
    assert env.at_teardown == 0
    assert await remaining_tasks() == set()


async def test_an_error_of_the_iterator_of_groups_ends_every_rollout():
    env = OpenRolloutCounter(turns=1, count=3)

    def groups():
        yield from plan(examples_of(env), 1)
        raise OSError("file gone")

    with pytest.raises(OSError, match="file gone"):
        await collect(env, scripted_client(first_quick_then_stuck), groups(), max_concurrent=5)  # pyright: ignore[reportArgumentType]
    assert await remaining_tasks() == set()
    assert env.num_open == 0


# Seeds and keys


def test_equal_rows_have_different_keys_and_seeds():
    groups = list(plan(Quiz(dataset=rows(1) * 3).get_dataset(), 2))
    keys = [group[0].key for group in groups]
    assert keys[1:] == [f"{keys[0]}#2", f"{keys[0]}#3"]
    assert [[job.index for job in group] for group in groups] == [[0, 1]] * 3
    records = generate_sync(
        Quiz(dataset=rows(1) * 3),
        scripted_client(lambda messages, state, rng: str(rng.random())),
        rollouts_per_example=2,
    )
    assert len({record.completion[0]["content"] for record in records}) == 6


def test_a_row_has_the_same_key_in_every_run():
    key = list(plan(Quiz(2).get_dataset(), 1))[1][0].key
    assert key == list(plan(Quiz(dataset=[*rows(5)][::-1]).get_dataset(), 4))[3][0].key


def test_group_members_share_the_environment_seed_but_not_the_rollout_seed():
    def show(messages, state, rng):
        return f"{state['env_seed']} {state['seed']}"

    records = generate_sync(Quiz(2), scripted_client(show), rollouts_per_example=3)
    env_seeds, seeds = zip(*(record.completion[0]["content"].split() for record in records), strict=True)
    assert len(set(env_seeds)) == 2
    assert len(set(env_seeds[:3])) == 1
    assert len(set(seeds)) == 6
    assert [str(record.seed) for record in records] == list(seeds)


@given(st.lists(st.integers() | st.text(), min_size=1, max_size=4))
def test_derived_seeds_have_63_bits_and_depend_on_every_part(parts):
    seed = derive_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*parts)
    assert seed != derive_seed(*parts, 0)


def test_derived_seeds_are_the_same_on_every_machine():
    assert derive_seed(0, "key", 1) == 3935083377705503212


async def slow_policy(messages, state, rng):
    """Answer from `rng` alone, after a wait that varies between runs."""
    for _ in range(random.randrange(4)):
        await asyncio.sleep(0)
    return f"{rng.random()}"


@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=2, max_size=2, unique=True))
@settings(max_examples=15, deadline=None)
def test_the_same_seed_gives_the_same_records_at_any_concurrency(seed, widths):
    runs = [
        generate_sync(
            Talk(turns=2, count=3, rubric=vf.Rubric([share_of_group])),
            scripted_client(lambda messages, state, rng: slow_policy(messages, state, rng)),
            rollouts_per_example=3,
            seed=seed,
            max_concurrent=width,
        )
        for width in widths
    ]
    first, second = ([encode_record(without_times(record)) for record in records] for records in runs)
    assert first == second


def test_another_seed_gives_other_records():
    first, second = (generate_sync(Quiz(1), scripted_client(slow_policy), seed=seed)[0] for seed in (1, 2))
    assert first.completion != second.completion
    assert first.example_key == second.example_key


# Requests to the client


def test_a_request_contains_the_tokens_of_the_previous_turn():
    requests: list[vf.Request] = []

    class TokenCountingClient:
        max_concurrent = 1

        async def respond(self, request):
            requests.append(request)
            turn = len(requests)
            message = vf.AssistantMessage(f"turn {turn}")
            return vf.Response(message, vf.Usage(1, 2), "stop", vf.StepTokens([turn], [turn], [0.0]))

        async def close(self):
            pass

    env = Talk(turns=3, sampling_args={"temperature": 0.5, "max_tokens": 9})
    [record] = generate_sync(env, TokenCountingClient(), model="m", sampling_args={"max_tokens": 7})
    assert [request.previous for request in requests] == [
        None,
        vf.StepTokens([1], [1], [0.0]),
        vf.StepTokens([2], [2], [0.0]),
    ]
    assert all(request.sampling_params == vf.SamplingParams(temperature=0.5, max_tokens=7) for request in requests)
    assert all(request.model == "m" for request in requests)
    assert len({request.seed for request in requests}) == 3
    assert record.usage == vf.Usage(3, 6)
    assert record.temperature == 0.5
    assert [step.tokens for step in record.steps] == [vf.StepTokens([n], [n], [0.0]) for n in (1, 2, 3)]


async def test_a_raw_text_grows_turn_by_turn_at_an_endpoint():
    class CountingEnv(vf.MultiTurnCompletionEnv):
        async def env_response(self, messages, state, **kwargs):
            return f"<{len(messages)}>"

    env = CountingEnv(dataset=[{"question": "abc"}], max_turns=3, sampling_args={"max_tokens": 5})
    async with ApiEndpoint("/v1/completions", text_completion, reply=lambda body: "de") as server:
        client = vf.OpenAIClient(server.base_url)
        [record] = await vf.generate(env, client, "tiny")
        await client.close()
    assert server.bodies == [
        {"model": "tiny", "prompt": text, "max_tokens": 5} for text in ("abc", "abcde<5>", "abcde<5>de<10>")
    ]
    assert record.error is None
    assert [message["content"] for message in record.completion] == ["de", "<5>", "de", "<10>", "de", "<16>"]


def test_records_contain_the_training_step():
    env = Quiz(1)
    [record] = asyncio.run(collect(env, scripted_client("0"), plan(examples_of(env), 1), step=7))
    assert record.step == 7


class PanicException(BaseException):
    """An exception as extension modules raise it, not derived from `Exception`."""


@pytest.mark.parametrize("kind", [SystemExit, PanicException])
def test_code_that_exits_or_panics_fails_only_its_own_rollout(kind: type[BaseException]) -> None:
    def leaves(answer: str) -> float:
        if answer == "1":
            raise kind(3)
        return 1.0

    env = vf.SingleTurnEnv(dataset=[{"question": "?", "answer": str(n)} for n in range(3)], rubric=vf.Rubric([leaves]))
    records = env.generate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))
    assert [record.reward for record in records] == [1.0, None, 1.0]
    assert records[1].error is not None
    assert (records[1].error.type, records[1].error.phase) == (kind.__name__, "reward leaves")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_keyboard_interrupt_and_generator_exit_are_not_caught(kind: type[BaseException]) -> None:
    def leaves() -> float:
        raise kind

    env = vf.SingleTurnEnv(dataset=[{"question": "?"}], rubric=vf.Rubric([leaves]))
    with pytest.raises(kind):
        env.generate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))


# Turns of an external agent


class NumberedClient:
    """Responds with numbered texts and tokens, and records its requests; `min_in_flight` requests wait for each other."""

    max_concurrent = 8

    def __init__(self, min_in_flight: int = 1):
        self.requests: list[Request] = []
        self._barrier = asyncio.Barrier(min_in_flight)

    async def respond(self, request: Request) -> Response:
        self.requests.append(request)
        number = len(self.requests)
        await self._barrier.wait()
        return Response(vf.AssistantMessage(f"answer {number}"), tokens=vf.StepTokens([number], [number], [0.0]))

    async def close(self) -> None:
        """Do nothing."""


def rollout_state() -> vf.State:
    return vf.State(input={"prompt": []}, trajectory=[], seed=7, is_truncated=False)


def user(text: str) -> vf.Message:
    return vf.UserMessage(text)


async def test_a_conversation_continues_the_step_with_the_longest_common_prefix():
    client, state = NumberedClient(), rollout_state()
    turn = make_turn(client, "", SamplingParams())
    first = await turn(state, [user("agent")])
    await turn(state, [user("helper")])
    await turn(state, [user("agent"), first, user("more")])
    await turn(state, [user("agent"), vf.AssistantMessage("rewritten"), user("more")])
    previous = [request.previous and request.previous.prompt_ids for request in client.requests]
    assert previous == [None, [1], [1], [3]]  # the last of equal matches; the renderer checks whether it fits


async def test_concurrent_turns_have_different_seeds_and_count_as_turns():
    client, state = NumberedClient(min_in_flight=3), rollout_state()
    turn = make_turn(client, "", SamplingParams(), Allowance(vf.Limits(max_turns=3)))
    turns = [turn(state, [user(name)]) for name in "abcd"]
    *answers, refused = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(refused, vf.LimitReachedError) and str(refused) == "max_turns_reached"
    assert len({request.seed for request in client.requests}) == 3
    assert [request.seed for request in client.requests] == [derive_seed(7, number) for number in range(3)]
    steps = {step.prompt[0]["content"]: step.completion[0]["content"] for step in state["trajectory"]}
    assert steps == {name: answer["content"] for name, answer in zip("abc", answers, strict=True)}


async def test_sampling_parameters_of_an_agent_are_merged_with_those_of_the_run():
    client, state = NumberedClient(), rollout_state()
    turn = make_turn(client, "", SamplingParams(temperature=1.0, max_tokens=5, stop=["a"]))
    tools = [{"type": "function", "function": {"name": "f"}}]
    state["tools"] = tools
    await turn(
        state, [user("a")], agent_request=Request([], SamplingParams(max_tokens=9, stop=["b", "a"]), tools=tools)
    )
    await turn(state, [user("b")], agent_request=Request([], SamplingParams(max_tokens=2, temperature=0.0)))
    assert [request.sampling_params for request in client.requests] == [
        SamplingParams(temperature=1.0, max_tokens=5, stop=["a", "b"]),
        SamplingParams(temperature=0.0, max_tokens=2, stop=["a"]),
    ]
    assert [step.tools for step in state["trajectory"]] == [None, []]
    assert [request.tools for request in client.requests] == [tools, None]


async def test_training_rejects_only_parameters_that_change_the_distribution():
    client, state = NumberedClient(), rollout_state()
    turn = make_turn(client, "", SamplingParams(temperature=1.0, max_tokens=5), for_training=True)
    same = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, presence_penalty=0.0, max_tokens=3, stop=["a"], seed=3)
    await turn(state, [user("a")], agent_request=Request([], same))
    rejected = [
        {"temperature": 0.2},
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logit_bias": {3: -100.0}},
        {"min_tokens": 4},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a"]}},
        {"extra": {"typical_p": 0.9}},
    ]
    for changed in rejected:
        [name] = changed
        with pytest.raises(ConfigError, match=f"the agent requests {name} = .*remove '{name}' from agent_sampling"):
            await turn(state, [user("a")], agent_request=Request([], SamplingParams(**changed)))
    assert len(client.requests) == len(state["trajectory"]) == 1
    assert set(SamplingParams.__struct_fields__) - {name for changed in rejected for name in changed} == {
        *("max_tokens", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "prompt_logprobs")
    }  # every new parameter must be added to one of the two lists
