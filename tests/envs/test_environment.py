"""Tests of the base class of environments: arguments, datasets, hooks, and rubrics."""

from __future__ import annotations

import asyncio

import pytest
from tiers import each_row
from toy_envs import Quiz, Talk, generate_sync, oracle, rows, scripted_client

import rove as vf
from rove.core.errors import ConfigError


def test_an_unknown_argument_is_rejected_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"Quiz has no argument 'system_promt'; did you mean 'system_prompt'\?"):
        Quiz(system_promt="Be brief.")
    with pytest.raises(ConfigError, match=r"Talk has no argument 'max_turn'; did you mean 'max_turns'\?"):
        Talk(max_turn=3)


def test_an_unknown_argument_without_a_similar_name_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"no argument 'zzz'; known: .*dataset, .*max_turns, .*timeout_seconds, turns"
    ):
        Talk(zzz=1)


def test_a_dataset_is_required():
    with pytest.raises(ConfigError, match="Quiz needs a dataset: pass dataset= or eval_dataset="):
        Quiz(dataset=None)


def test_environment_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        vf.Environment(dataset=rows(1))  # pyright: ignore[reportAbstractUsage]


def test_a_missing_dataset_falls_back_to_the_other_one():
    only_train = Quiz(dataset=[{"question": "train"}])
    assert only_train.get_eval_dataset()[0]["question"] == "train"
    only_eval = Quiz(dataset=None, eval_dataset=[{"question": "eval"}])
    assert only_eval.get_dataset()[0]["question"] == "eval"
    with_both = Quiz(dataset=[{"question": "train"}], eval_dataset=[{"question": "eval"}])
    assert (with_both.get_dataset()[0]["question"], with_both.get_eval_dataset()[0]["question"]) == ("train", "eval")


def test_examples_contain_the_system_prompt_and_the_few_shot_messages():
    env = Quiz(2, system_prompt="Be brief.", few_shot=[vf.UserMessage("hi"), vf.AssistantMessage("ho")])
    assert [m.content for m in env.get_dataset(1)[0]["prompt"]] == ["Be brief.", "hi", "ho", "q0"]
    assert [example["example_id"] for example in env.get_dataset()] == [0, 1]


def test_the_dataset_builder_is_called_at_the_first_use():
    calls = []

    def build():
        calls.append(1)
        return rows(2)

    env = Quiz(dataset=build, eval_dataset=build)
    assert calls == []
    env.get_eval_dataset(1)
    env.get_eval_dataset()
    assert calls == [1]


def test_the_parser_defaults_to_that_of_the_rubric():
    parser = vf.XMLParser(["answer"])
    assert Quiz(rubric=vf.Rubric(parser=parser)).parser is parser
    other_parser = vf.Parser()
    assert Quiz(rubric=vf.Rubric(parser=parser), parser=other_parser).parser is other_parser


# Completion mode


def test_message_type_is_chat_or_completion():
    assert Quiz().message_type == "chat"
    assert Quiz(message_type="completion").get_dataset(1)[0]["prompt"] == "q0"
    with pytest.raises(ConfigError, match="message_type is 'completions'; expected 'chat' or 'completion'"):
        Quiz(message_type="completions")


@pytest.mark.parametrize("arguments", [{"system_prompt": "Be brief."}, {"few_shot": [vf.UserMessage("hi")]}])
def test_completion_mode_rejects_system_prompt_and_few_shot(arguments):
    with pytest.raises(
        ConfigError,
        match=f"{next(iter(arguments))} cannot be used with message_type 'completion'.*write it into the prompts",
    ):
        Quiz(message_type="completion", **arguments)


class CustomCompletionEnv(vf.Environment):
    """Queries the model twice and sets `account` as the completion."""

    def __init__(self, account):
        super().__init__(dataset=rows(1), message_type="completion")
        self.account = account

    async def run(self, state, turn):
        text: vf.Messages = [vf.UserMessage(state["prompt"])]
        text.append(await turn(state, text))
        text.append(vf.UserMessage(" then "))
        text.append(await turn(state, text))
        if self.account is not None:
            state["completion"] = self.account


@each_row(
    ("account", "pieces"),
    [
        ("a then a", [("assistant", "a"), ("user", " then "), ("assistant", "a")]),
        ("a then a.", [("assistant", "a"), ("user", " then "), ("assistant", "a"), ("user", ".")]),
        ("in short: a", [("assistant", "in short: a")]),
        ([vf.AssistantMessage("a")], [("assistant", "a")]),
        (None, []),
    ],
)
def test_a_completion_text_is_split_by_author_where_the_steps_match_it(account, pieces):
    [record] = generate_sync(CustomCompletionEnv(account), scripted_client("a"))
    assert record.error is None, record.error
    assert record.prompt == [vf.UserMessage("q0")]
    assert [(message["role"], message["content"]) for message in record.completion] == pieces


# Hooks


class HookLoggingQuiz(Quiz):
    """Every hook logs its name; those named in `failing` raise."""

    def __init__(self, failing: tuple[str, ...] = (), **kwargs):
        super().__init__(count=1, **kwargs)
        self.failing = failing
        self.kind: type[BaseException] = RuntimeError
        self.log: list[str] = []

    def note(self, name: str) -> None:
        self.log.append(name)
        if name in self.failing:
            raise self.kind(f"{name} failed")

    @vf.cleanup
    async def b_bare(self, state):
        self.note("b_bare")

    @vf.cleanup(priority=5)
    def z_first(self, state):
        self.note("z_first")

    @vf.cleanup(priority=-1)
    async def a_last(self, state):
        self.note("a_last")

    @vf.cleanup()
    def c_same(self, state):
        self.note("c_same")

    @vf.teardown
    async def down_b(self):
        self.note("down_b")

    @vf.teardown(priority=1)
    def down_c(self):
        self.note("down_c")


CLEANUPS = ["z_first", "b_bare", "c_same", "a_last"]


def test_hooks_run_by_priority_then_name_and_teardown_runs_once():
    env = HookLoggingQuiz()
    generate_sync(env, scripted_client("0"), rollouts_per_example=2)
    assert env.log == [*CLEANUPS, *CLEANUPS, "down_c", "down_b"]


def test_the_other_hooks_run_after_a_failing_hook():
    env = HookLoggingQuiz(failing=("z_first", "b_bare", "down_c"))
    with pytest.raises(RuntimeError, match="down_c failed"):
        generate_sync(env, scripted_client("0"))
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_the_other_hooks_run_after_a_hook_that_raises_a_base_exception():
    class PanicException(BaseException):
        """A direct subclass of BaseException, as extension modules raise."""

    env = HookLoggingQuiz(failing=("z_first",))
    env.kind = PanicException
    [record] = generate_sync(env, scripted_client("0"))
    assert record.error is not None and record.error.type == "PanicException"
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_a_failing_cleanup_fails_its_rollout():
    [record] = generate_sync(HookLoggingQuiz(failing=("b_bare", "c_same")), scripted_client("0"))
    assert record.scores is None
    assert record.error is not None
    assert (record.error.phase, record.error.message) == ("cleanup", "b_bare failed")


@pytest.mark.parametrize("error", [KeyError("x"), vf.ModelError("x"), vf.OverlongPromptError("x"), TimeoutError()])
def test_cleanup_runs_after_any_model_error(error):
    def broken(messages, state, rng):
        raise error

    env = HookLoggingQuiz()
    generate_sync(env, scripted_client(broken))
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_the_rollouts_error_is_recorded_instead_of_a_later_cleanup_error():
    def broken(messages, state, rng):
        raise KeyError("mine")

    [record] = generate_sync(HookLoggingQuiz(failing=("z_first",)), scripted_client(broken))
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("model", "KeyError")


def test_teardown_runs_after_a_run_that_stopped_with_fail_fast():
    def broken(messages, state, rng):
        raise KeyError("x")

    env = HookLoggingQuiz()
    with pytest.raises(vf.Error, match="KeyError"):
        generate_sync(env, scripted_client(broken), fail_fast=True)
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


class RubricWithTeardown(vf.Rubric):
    """Counts its teardowns."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.closed = 0

    async def teardown(self) -> None:
        self.closed += 1


class QuizWithTeardown(Quiz):
    """Counts its teardowns."""

    def __init__(self, **kwargs):
        super().__init__(1, **kwargs)
        self.num_teardowns = 0

    @vf.teardown
    def down(self) -> None:
        self.num_teardowns += 1


def wait_for(event: asyncio.Event) -> vf.ScriptedClient:
    async def respond(messages, state, rng) -> str:
        await event.wait()
        return "0"

    return scripted_client(respond)


async def test_teardown_waits_for_the_last_concurrent_run_of_an_environment():
    rubric, finish = RubricWithTeardown(), asyncio.Event()
    env = QuizWithTeardown(rubric=rubric)
    long_run = asyncio.create_task(env.generate(wait_for(finish)))
    await asyncio.sleep(0)
    await env.generate(scripted_client("0"))
    assert (env.num_teardowns, rubric.closed) == (0, 0)
    finish.set()
    await long_run
    assert (env.num_teardowns, rubric.closed) == (1, 1)
    await env.generate(scripted_client("0"))
    assert (env.num_teardowns, rubric.closed) == (2, 2)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_shared_rubric_is_torn_down_after_the_last_run_of_both_environments(grouped: bool):
    shared, own_rubric, finish = RubricWithTeardown(), RubricWithTeardown(), asyncio.Event()
    first_env = QuizWithTeardown(rubric=vf.RubricGroup([shared, own_rubric]) if grouped else shared)
    second_env = QuizWithTeardown(rubric=shared)
    long_run = asyncio.create_task(second_env.generate(wait_for(finish)))
    await asyncio.sleep(0)
    await first_env.generate(scripted_client("0"))
    assert (first_env.num_teardowns, second_env.num_teardowns, shared.closed, own_rubric.closed) == (
        1,
        0,
        0,
        int(grouped),
    )
    finish.set()
    await long_run
    assert (second_env.num_teardowns, shared.closed) == (1, 1)


async def test_a_group_member_is_torn_down_after_the_last_run_that_uses_it():
    rubric, finish = RubricWithTeardown(), asyncio.Event()
    member, other_member = QuizWithTeardown(rubric=rubric), QuizWithTeardown()
    group_run = asyncio.create_task(vf.EnvGroup([member, other_member]).generate(wait_for(finish)))
    await asyncio.sleep(0)
    await member.generate(scripted_client("0"))
    assert (member.num_teardowns, rubric.closed) == (0, 0)
    finish.set()
    await group_run
    assert (member.num_teardowns, other_member.num_teardowns, rubric.closed) == (1, 1, 1)


def test_all_rubrics_are_torn_down_even_if_a_teardown_hook_fails():
    first, second = RubricWithTeardown(), RubricWithTeardown()
    env = HookLoggingQuiz(rubric=first, failing=("down_b",))
    env.add_rubric(second)
    with pytest.raises(RuntimeError, match="down_b failed"):
        asyncio.run(env.tear_down())
    assert first.closed
    assert second.closed


def test_hooks_are_inherited_and_can_be_overridden():
    class HookOverridingEnv(HookLoggingQuiz):
        @vf.cleanup(priority=-9)
        def z_first(self, state):  # pyright: ignore[reportIncompatibleMethodOverride]
            self.note("child's")

        def c_same(self, state):  # without the decorator it is no longer a hook
            self.note("never")

    env = HookOverridingEnv()
    generate_sync(env, scripted_client("0"))
    assert env.log[:-2] == ["b_bare", "a_last", "child's"]


async def test_the_first_true_stop_condition_is_recorded():
    checked = []

    class Stops(Quiz):
        @vf.stop(priority=2)
        async def never(self, state):
            checked.append("never")
            return False

        @vf.stop
        def b_true(self, state):
            checked.append("b_true")
            return True

        @vf.stop
        async def a_falsy(self, state):
            checked.append("a_falsy")
            return 0

        @vf.stop(priority=-1)
        def late(self, state):
            checked.append("late")
            return True

    state = vf.State(trajectory=[])
    assert await Stops().check_stops(state)
    assert state["stop_condition"] == "b_true"
    assert checked == ["never", "a_falsy", "b_true"]


async def test_no_stop_condition_is_recorded_if_none_is_true():
    state = vf.State(trajectory=[], stop_condition=None)
    assert not await Quiz().check_stops(state)
    assert state["stop_condition"] is None


# Rubrics


def test_scores_of_added_rubrics_are_summed():
    def shout(completion) -> float:
        return float(completion[-1].content.isupper())

    def length(completion) -> int:
        return len(completion[-1].content)

    env = Quiz(dataset=[{"question": "q", "answer": "YES"}])
    env.add_rubric(vf.Rubric([shout], weights=[0.5]))
    metrics = vf.Rubric()
    metrics.add_metric(length)
    env.add_rubric(metrics)
    [record] = generate_sync(env, scripted_client("YES"))
    assert record.scores is not None
    assert record.scores.reward == 1.5
    assert record.scores.rewards == {"correct": 1.0, "shout": 1.0}
    assert record.scores.metrics == {"num_turns": 1.0, "length": 3.0}


def test_a_rubric_with_a_duplicate_name_is_rejected():
    with pytest.raises(ConfigError, match=r"\['num_turns'\] are in more than one rubric"):
        Quiz().add_rubric(Talk().scoring_rubric)


def test_the_environment_does_not_modify_the_given_rubric_group():
    group = vf.RubricGroup([vf.Rubric()])
    Quiz(rubric=group)
    assert group.names == []


def test_an_environment_without_a_rubric_scores_zero():
    [record] = generate_sync(Talk(turns=1), scripted_client("hi"))
    assert record.reward == 0.0


# Methods that call module functions


def test_methods_return_the_same_results_as_the_functions():
    env = Quiz(3)
    records = env.generate_sync(scripted_client(oracle))
    assert [record.reward for record in records] == [1.0, 1.0, 1.0]
    assert env.make_dataset(records) == vf.make_dataset(records)
    from_method, from_function = (
        env.evaluate_sync(scripted_client(oracle)),
        asyncio.run(vf.evaluate(env, scripted_client(oracle))),
    )
    assert {**from_method.to_dict(), "latency": 0} == {**from_function.to_dict(), "latency": 0}


def test_rubrics_without_a_parser_get_that_of_the_environment() -> None:
    env_parser, rubric_parser = vf.XMLParser(["answer"]), vf.Parser()
    without_parser, with_parser = vf.Rubric(), vf.Rubric(parser=rubric_parser)
    grouped = Quiz(rubric=vf.RubricGroup([vf.Rubric(parser=env_parser), without_parser]))
    assert grouped.parser is env_parser and without_parser.parser is env_parser
    for env in (Quiz(parser=env_parser), Quiz(rubric=vf.Rubric(parser=env_parser)), grouped):
        added = vf.Rubric()
        env.add_rubric(added)
        env.add_rubric(with_parser)
        assert added.parser is env_parser and with_parser.parser is rubric_parser


def test_reward_functions_get_the_rubrics_parser_or_that_of_the_environment() -> None:
    parsers = []

    def record_parser(parser: vf.Parser) -> float:
        parsers.append(parser)
        return 1.0

    env_parser, rubric_parser = vf.XMLParser(["a"], answer_field="a"), vf.XMLParser(["b"], answer_field="b")
    for rubric in (vf.Rubric([record_parser]), vf.Rubric([record_parser], parser=rubric_parser)):
        env = vf.SingleTurnEnv(dataset=[{"question": "?"}], parser=env_parser, rubric=rubric)
        env.evaluate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))
    assert parsers == [env_parser, rubric_parser]
