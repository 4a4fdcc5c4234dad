"""Running rollouts: failure is data, siblings are apart, and the same seed gives the same records."""

from __future__ import annotations

import asyncio
import random

import pytest
from api_endpoint import ApiEndpoint, text_completion
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Quiz, Talk, correct, right, roll, rows, says, timeless

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


# What goes wrong


class Fragile(Talk):
    """Rollouts of the rows named in `state["answer"]` fail at the place the row names; the others are fine."""

    def __init__(self):
        places = ["setup_state", "model", "env_response", "stop", "cleanup", "reward", "fine", "fine"]
        rubric = vf.Rubric()
        rubric.add_reward_func(self.judge)
        super().__init__(turns=1, dataset=[{"question": "q", "answer": place} for place in places], rubric=rubric)

    def break_at(self, place: str, state: vf.State) -> None:
        if state["answer"] == place:
            raise KeyError(f"broken {place}")

    async def setup_state(self, state, **kwargs):
        self.break_at("setup_state", state)
        await super().setup_state(state)

    async def env_response(self, messages, state, **kwargs):
        self.break_at("env_response", state)
        return await super().env_response(messages, state)

    @vf.stop
    def breaking(self, state):
        self.break_at("stop", state)

    @vf.cleanup
    async def breaking_cleanup(self, state):
        self.break_at("cleanup", state)

    def judge(self, state):
        self.break_at("reward", state)
        return 1.0

    def player(self, messages, state, rng):
        self.break_at("model", state)
        return "hi"


def test_an_error_is_kept_with_its_phase_and_traceback_and_hurts_no_sibling():
    env = Fragile()
    records = roll(env, says(env.player))
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
        assert "in break_at" in record.error.traceback


def test_errors_list_what_was_tried():
    def gone(messages, state, rng):
        raise vf.InfraError("gave up", attempts=["HTTP 500", "HTTP 503"])

    [record] = roll(Quiz(1), says(gone))
    assert record.error is not None
    assert (record.error.phase, record.error.attempts) == ("model", ["HTTP 500", "HTTP 503"])


def test_foreign_errors_with_attempts_of_their_own_are_no_trouble():
    class RetryError(Exception):
        attempts = 3

    def gone(messages, state, rng):
        raise RetryError("gave up")

    [record] = roll(Quiz(1), says(gone))
    assert record.error is not None
    assert record.error.attempts == []


def test_what_was_played_before_the_error_is_kept():
    class Late(Talk):
        async def env_response(self, messages, state, **kwargs):
            if len(state["trajectory"]) == 2:
                raise KeyError("board")
            return "go on"

    [record] = roll(Late(), says("hi"))
    assert len(record.steps) == 2
    assert [message["content"] for message in record.completion] == ["hi", "go on", "hi"]
    assert record.usage.completion_tokens == 2


@pytest.mark.parametrize("place", ["env_response", "reward"])
def test_a_cancellation_that_user_code_lets_out_is_an_error_like_any_other(place):
    """Libraries that cancel tasks of their own leak it; it must not pass for a cancelled run."""

    async def leak(state):
        if state["example_id"] == 0:
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task

    class Leaky(Talk):
        async def env_response(self, messages, state, **kwargs):
            if place == "env_response":
                await leak(state)
            return await super().env_response(messages, state)

    async def reward(state):
        if place == "reward":
            await leak(state)
        return 1.0

    first, second = roll(Leaky(turns=1, count=2, rubric=vf.Rubric([reward])), says("hi"))
    assert first.error is not None
    assert (first.error.phase.split()[0], first.error.type) == (place, "CancelledError")
    assert second.reward == 1.0


def test_a_sibling_cannot_change_what_the_others_are_asked():
    class Careless(Talk):
        async def setup_state(self, state, **kwargs):
            await super().setup_state(state)
            state["prompt"].append(vf.UserMessage("and more"))
            state["info"]["seen"] = True

    env = Careless(turns=1, dataset=rows(1, info={"level": 1}))
    records = roll(env, says("hi"), rollouts_per_example=3, max_concurrent=1)
    assert [len(record.prompt) for record in records] == [2, 2, 2]
    assert [record.info for record in records] == [{"level": 1}] * 3
    assert env.get_dataset()[0]["info"] == {"level": 1}


def test_fail_fast_raises_the_first_failure():
    env = Fragile()
    with pytest.raises(
        RolloutError, match=r"(?s)^setup_state: KeyError: 'broken setup_state' \(example 0\)\nTraceback"
    ) as caught:
        roll(env, says(env.player), fail_fast=True, max_concurrent=1)
    assert caught.value.record.example_id == 0


# Group rewards


@vf.group_reward
def share_of_group(completions) -> list[float]:
    """Each answer as a share of all the group's answers."""
    total = sum(float(completion[-1].content) for completion in completions)
    return [float(completion[-1].content) / total for completion in completions]


def test_group_rewards_see_the_survivors_only():
    turn = iter(["1", "boom", "3"] * 2)

    def player(messages, state, rng):
        answer = next(turn)
        if answer == "boom":
            raise KeyError("boom")
        return answer

    env = Quiz(2, rubric=vf.Rubric([share_of_group, correct]))
    records = roll(env, says(player), rollouts_per_example=3, max_concurrent=1)
    assert [record.scores and record.scores.rewards["share_of_group"] for record in records] == [0.25, None, 0.75] * 2
    assert [record.scores and record.scores.rewards["correct"] for record in records] == [0, None, 0, 1, None, 0]
    assert [record.error and record.error.type for record in records] == [None, "KeyError", None] * 2


def test_a_group_reward_that_fails_fails_the_survivors_of_its_group_only():
    @vf.group_reward
    def picky(answers) -> list[float]:
        if answers[0] == "0":
            raise KeyError("boom")
        return [1.0] * len(answers)

    records = roll(Quiz(2, rubric=vf.Rubric([picky])), says(right), rollouts_per_example=2)
    assert [record.error and (record.error.phase, record.error.type) for record in records] == [
        ("reward picky", "KeyError"),
        ("reward picky", "KeyError"),
        None,
        None,
    ]
    assert [record.reward for record in records] == [None, None, 1.0, 1.0]


def test_a_group_of_failures_asks_no_group_reward():
    @vf.group_reward
    def never(states) -> list[float]:
        raise AssertionError("called")

    def broken(messages, state, rng):
        raise KeyError("boom")

    records = roll(Quiz(1, rubric=vf.Rubric([never])), says(broken), rollouts_per_example=2)
    assert [record.error and record.error.phase for record in records] == ["model", "model"]


def test_group_rewards_keep_the_order_of_the_siblings_whoever_finishes_first():
    async def player(messages, state, rng):
        index = len(gates)
        gates.append(asyncio.Event())
        if index < 3:
            await gates[index].wait()  # each waits for the one that starts after it
        if index:
            gates[index - 1].set()
        return str(index + 1)

    gates: list[asyncio.Event] = []
    seen: list[list[str]] = []

    @vf.group_reward
    def watch(completions) -> list[float]:
        seen.append([completion[-1].content for completion in completions])
        return [0.0] * len(completions)

    records = roll(Quiz(1, rubric=vf.Rubric([watch])), says(player), rollouts_per_example=4, max_concurrent=4)
    assert seen == [[record.completion[0]["content"] for record in records]] == [["1", "2", "3", "4"]]


# Concurrency


@st.composite
def workloads(draw) -> tuple[int, int, int]:
    """(width, examples, siblings) with a whole number of full rounds of `width` rollouts."""
    width, rounds = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    total = width * rounds
    siblings = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    return width, total // siblings, siblings


@given(workloads(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_as_many_rollouts_run_as_asked_never_more_and_never_fewer(workload, grouped):
    width, examples, siblings = workload
    running = peak = 0

    async def main() -> list[vf.RolloutRecord]:
        barrier = asyncio.Barrier(width)  # opens only when `width` rollouts are at it together

        async def player(messages, state, rng):
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await barrier.wait()
            running -= 1
            return state["answer"]

        env = Quiz(examples, rubric=vf.Rubric([share_of_group if grouped else correct]))
        async with asyncio.timeout(20):
            return await collect(env, says(player), plan(examples_of(env), siblings), max_concurrent=width)

    records = asyncio.run(main())
    assert len(records) == examples * siblings
    assert peak == width


def test_the_client_says_how_many_it_likes():
    peak = running = 0

    async def player(messages, state, rng):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return "hi"

    roll(Quiz(10), says(player, max_concurrent=3))
    assert peak == 3


async def test_work_is_taken_as_it_is_needed_and_records_come_as_they_are_ready():
    taken = []
    env = Quiz(100)

    def groups():
        for group in plan(examples_of(env), 1):
            taken.append(group)
            yield group

    seen = 0
    records = run_groups(env, says("hi"), groups(), max_concurrent=2)
    async for _ in records:
        seen += 1
        if seen == 5:
            break
    await records.aclose()
    assert 5 <= len(taken) < 100


# Nothing is left behind


async def left_over() -> set[asyncio.Task]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore[reportReturnType]


class Held(Talk):
    """Counts the rollouts that hold something."""

    held = 0

    async def setup_state(self, state, **kwargs):
        await super().setup_state(state)
        self.held += 1

    @vf.cleanup
    async def let_go(self, state):
        await asyncio.sleep(0)
        self.held -= 1


async def first_quick_then_stuck(messages, state, rng):
    if state["example_id"] > 0:
        await asyncio.Event().wait()
    return "hi"


async def test_closing_the_generator_ends_every_rollout():
    env = Held(turns=1, count=6)
    records = run_groups(env, says(first_quick_then_stuck), plan(examples_of(env), 2), max_concurrent=5)
    await anext(records)
    assert env.held > 0
    await records.aclose()
    assert await left_over() == set()
    assert env.held == 0


async def test_cancelling_a_run_ends_every_rollout():
    env = Held(turns=1, count=6)
    started = asyncio.Event()
    task = asyncio.create_task(
        vf.generate(env, says(first_quick_then_stuck), max_concurrent=5, on_record=lambda record: started.set())
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left_over() == set()
    assert env.held == 0


async def test_a_run_that_stops_at_a_failure_ends_every_rollout():
    async def player(messages, state, rng):
        if state["example_id"] > 0:
            await asyncio.Event().wait()
        raise KeyError("boom")

    env = Held(count=6)
    with pytest.raises(RolloutError):
        await vf.generate(env, says(player), max_concurrent=5, fail_fast=True)
    assert await left_over() == set()
    assert env.held == 0


async def test_a_run_whose_observer_fails_ends_every_rollout_before_teardown():
    class Watched(Held):
        at_teardown = -1

        @vf.teardown
        def look(self):
            self.at_teardown = self.held

    def observer(record):
        raise OSError("disk full")

    env = Watched(turns=1, count=6)
    with pytest.raises(OSError, match="disk full"):
        await vf.generate(env, says(first_quick_then_stuck), max_concurrent=5, on_record=observer)
    assert env.at_teardown == 0
    assert await left_over() == set()


async def test_a_source_of_work_that_fails_ends_every_rollout():
    env = Held(turns=1, count=3)

    def groups():
        yield from plan(examples_of(env), 1)
        raise OSError("file gone")

    with pytest.raises(OSError, match="file gone"):
        await collect(env, says(first_quick_then_stuck), groups(), max_concurrent=5)  # pyright: ignore[reportArgumentType]
    assert await left_over() == set()
    assert env.held == 0


# Seeds and keys


def test_equal_rows_have_keys_and_seeds_of_their_own():
    groups = list(plan(Quiz(dataset=rows(1) * 3).get_dataset(), 2))
    keys = [group[0].key for group in groups]
    assert keys[1:] == [f"{keys[0]}#2", f"{keys[0]}#3"]
    assert [[job.index for job in group] for group in groups] == [[0, 1]] * 3
    records = roll(
        Quiz(dataset=rows(1) * 3), says(lambda messages, state, rng: str(rng.random())), rollouts_per_example=2
    )
    assert len({record.completion[0]["content"] for record in records}) == 6


def test_a_row_has_the_same_key_in_every_run():
    key = list(plan(Quiz(2).get_dataset(), 1))[1][0].key
    assert key == list(plan(Quiz(dataset=[*rows(5)][::-1]).get_dataset(), 4))[3][0].key


def test_siblings_share_the_environments_seed_and_not_their_own():
    def show(messages, state, rng):
        return f"{state['env_seed']} {state['seed']}"

    records = roll(Quiz(2), says(show), rollouts_per_example=3)
    env_seeds, seeds = zip(*(record.completion[0]["content"].split() for record in records), strict=True)
    assert len(set(env_seeds)) == 2
    assert len(set(env_seeds[:3])) == 1
    assert len(set(seeds)) == 6
    assert [str(record.seed) for record in records] == list(seeds)


@given(st.lists(st.integers() | st.text(), min_size=1, max_size=4))
def test_derived_seeds_fit_and_depend_on_every_part(parts):
    seed = derive_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*parts)
    assert seed != derive_seed(*parts, 0)


def test_derived_seeds_are_those_of_every_machine():
    assert derive_seed(0, "key", 1) == 3935083377705503212


async def dawdling(messages, state, rng):
    """Answers from `rng` alone, after a wait that differs from run to run."""
    for _ in range(random.randrange(4)):
        await asyncio.sleep(0)
    return f"{rng.random()}"


@given(st.integers(0, 2**32), st.lists(st.integers(1, 12), min_size=2, max_size=2, unique=True))
@settings(max_examples=15, deadline=None)
def test_the_same_seed_gives_the_same_records_whatever_runs_beside(seed, widths):
    runs = [
        roll(
            Talk(turns=2, count=3, rubric=vf.Rubric([share_of_group])),
            says(lambda messages, state, rng: dawdling(messages, state, rng)),
            rollouts_per_example=3,
            seed=seed,
            max_concurrent=width,
        )
        for width in widths
    ]
    first, second = ([encode_record(timeless(record)) for record in records] for records in runs)
    assert first == second


def test_another_seed_gives_other_records():
    first, second = (roll(Quiz(1), says(dawdling), seed=seed)[0] for seed in (1, 2))
    assert first.completion != second.completion
    assert first.example_key == second.example_key


# What the client is told


def test_a_request_carries_the_last_turns_tokens_and_message():
    seen: list[vf.Request] = []

    class Counting:
        max_concurrent = 1

        async def respond(self, request):
            seen.append(request)
            turn = len(seen)
            message = vf.AssistantMessage(f"turn {turn}")
            return vf.Response(message, vf.Usage(1, 2), "stop", vf.StepTokens([turn], [turn], [0.0]))

        async def close(self):
            pass

    env = Talk(turns=3, sampling_args={"temperature": 0.5, "max_tokens": 9})
    [record] = roll(env, Counting(), model="m", sampling_args={"max_tokens": 7})
    assert [request.previous for request in seen] == [
        None,
        vf.StepTokens([1], [1], [0.0]),
        vf.StepTokens([2], [2], [0.0]),
    ]
    assert all(request.sampling_params == vf.SamplingParams(temperature=0.5, max_tokens=7) for request in seen)
    assert all(request.model == "m" for request in seen)
    assert len({request.seed for request in seen}) == 3
    assert record.usage == vf.Usage(3, 6)
    assert record.temperature == 0.5
    assert [step.tokens for step in record.steps] == [vf.StepTokens([n], [n], [0.0]) for n in (1, 2, 3)]


async def test_a_raw_text_grows_turn_by_turn_at_an_endpoint():
    class Counted(vf.MultiTurnCompletionEnv):
        async def env_response(self, messages, state, **kwargs):
            return f"<{len(messages)}>"

    env = Counted(dataset=[{"question": "abc"}], max_turns=3, sampling_args={"max_tokens": 5})
    async with ApiEndpoint("/v1/completions", text_completion, reply=lambda body: "de") as server:
        client = vf.OpenAIClient(server.base_url)
        [record] = await vf.generate(env, client, "tiny")
        await client.close()
    assert server.bodies == [
        {"model": "tiny", "prompt": text, "max_tokens": 5} for text in ("abc", "abcde<5>", "abcde<5>de<10>")
    ]
    assert record.error is None
    assert [message["content"] for message in record.completion] == ["de", "<5>", "de", "<10>", "de", "<16>"]


def test_records_name_the_training_step():
    env = Quiz(1)
    [record] = asyncio.run(collect(env, says("0"), plan(examples_of(env), 1), step=7))
    assert record.step == 7


class PanicException(BaseException):
    """As extension modules raise."""


@pytest.mark.parametrize("kind", [SystemExit, PanicException])
def test_code_that_exits_or_panics_fails_its_own_rollout_only(kind: type[BaseException]) -> None:
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
def test_what_must_end_the_program_does(kind: type[BaseException]) -> None:
    def leaves() -> float:
        raise kind

    env = vf.SingleTurnEnv(dataset=[{"question": "?"}], rubric=vf.Rubric([leaves]))
    with pytest.raises(kind):
        env.generate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))


def test_a_record_survives_what_an_environment_puts_into_its_state() -> None:
    class Odd(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State, **kwargs: object) -> None:
            state["is_truncated"] = 1

    [record] = Odd(dataset=[{"question": "?"}]).generate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))
    assert record.is_truncated is True


# A foreign agent's turns


class Counted:
    """Answers with numbered words and tokens, and keeps what it was asked; several at once wait for each other."""

    max_concurrent = 8

    def __init__(self, together: int = 1):
        self.asked: list[Request] = []
        self._all_there = asyncio.Barrier(together)

    async def respond(self, request: Request) -> Response:
        self.asked.append(request)
        number = len(self.asked)
        await self._all_there.wait()
        return Response(vf.AssistantMessage(f"answer {number}"), tokens=vf.StepTokens([number], [number], [0.0]))

    async def close(self) -> None:
        """Nothing to free."""


def rollout_state() -> vf.State:
    return vf.State(input={"prompt": []}, trajectory=[], seed=7, is_truncated=False)


def user(text: str) -> vf.Message:
    return vf.UserMessage(text)


async def test_a_conversation_goes_on_from_the_step_it_shares_most_with():
    client, state = Counted(), rollout_state()
    turn = make_turn(client, "", SamplingParams())
    first = await turn(state, [user("agent")])
    await turn(state, [user("helper")])
    await turn(state, [user("agent"), first, user("more")])
    await turn(state, [user("agent"), vf.AssistantMessage("rewritten"), user("more")])
    previous = [request.previous and request.previous.prompt_ids for request in client.asked]
    assert previous == [None, [1], [1], [3]]  # of equals the last: the renderer sees whether it fits


async def test_turns_at_once_have_random_streams_of_their_own_and_count_as_turns():
    client, state = Counted(together=3), rollout_state()
    turn = make_turn(client, "", SamplingParams(), Allowance(vf.Limits(max_turns=3)))
    turns = [turn(state, [user(name)]) for name in "abcd"]
    *answers, refused = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(refused, vf.LimitReachedError) and str(refused) == "max_turns_reached"
    assert len({request.seed for request in client.asked}) == 3
    assert [request.seed for request in client.asked] == [derive_seed(7, number) for number in range(3)]
    steps = {step.prompt[0]["content"]: step.completion[0]["content"] for step in state["trajectory"]}
    assert steps == {name: answer["content"] for name, answer in zip("abc", answers, strict=True)}


async def test_what_an_agent_asks_with_goes_over_the_run():
    client, state = Counted(), rollout_state()
    turn = make_turn(client, "", SamplingParams(temperature=1.0, max_tokens=5, stop=["a"]))
    tools = [{"type": "function", "function": {"name": "f"}}]
    state["tools"] = tools
    await turn(
        state, [user("a")], agent_request=Request([], SamplingParams(max_tokens=9, stop=["b", "a"]), tools=tools)
    )
    await turn(state, [user("b")], agent_request=Request([], SamplingParams(max_tokens=2, temperature=0.0)))
    assert [request.sampling_params for request in client.asked] == [
        SamplingParams(temperature=1.0, max_tokens=5, stop=["a", "b"]),
        SamplingParams(temperature=0.0, max_tokens=2, stop=["a"]),
    ]
    assert [step.tools for step in state["trajectory"]] == [None, []]
    assert [request.tools for request in client.asked] == [tools, None]


async def test_training_refuses_what_changes_the_distribution_and_nothing_else():
    client, state = Counted(), rollout_state()
    turn = make_turn(client, "", SamplingParams(temperature=1.0, max_tokens=5), for_training=True)
    same = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, presence_penalty=0.0, max_tokens=3, stop=["a"], seed=3)
    await turn(state, [user("a")], agent_request=Request([], same))
    refused = [
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
    for changed in refused:
        [name] = changed
        with pytest.raises(ConfigError, match=f"the agent requests {name} = .*remove '{name}' from agent_sampling"):
            await turn(state, [user("a")], agent_request=Request([], SamplingParams(**changed)))
    assert len(client.asked) == len(state["trajectory"]) == 1
    assert set(SamplingParams.__struct_fields__) - {name for changed in refused for name in changed} == {
        *("max_tokens", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "prompt_logprobs")
    }  # a new parameter has to be sorted into one of the two
