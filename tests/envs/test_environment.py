"""What every environment does: its arguments, its data, its hooks, its rubrics."""

from __future__ import annotations

import asyncio

import pytest
from toys import Quiz, Talk, right, roll, rows, says

import rove as vf
from rove.core.errors import ConfigError


def test_an_unknown_keyword_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"Quiz has no argument 'system_promt'; did you mean 'system_prompt'\?"):
        Quiz(system_promt="Be brief.")
    with pytest.raises(ConfigError, match=r"Talk has no argument 'max_turn'; did you mean 'max_turns'\?"):
        Talk(max_turn=3)


def test_an_unknown_keyword_like_nothing_lists_what_there_is():
    with pytest.raises(
        ConfigError, match=r"no argument 'zzz'; known: .*dataset, .*max_turns, .*timeout_seconds, turns"
    ):
        Talk(zzz=1)


def test_a_dataset_is_needed():
    with pytest.raises(ConfigError, match="Quiz needs a dataset: pass dataset= or eval_dataset="):
        Quiz(dataset=None)


def test_environment_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        vf.Environment(dataset=rows(1))  # pyright: ignore[reportAbstractUsage]


def test_each_dataset_replaces_a_missing_other():
    only_train = Quiz(dataset=[{"question": "train"}])
    assert only_train.get_eval_dataset()[0]["question"] == "train"
    only_eval = Quiz(dataset=None, eval_dataset=[{"question": "eval"}])
    assert only_eval.get_dataset()[0]["question"] == "eval"
    both = Quiz(dataset=[{"question": "train"}], eval_dataset=[{"question": "eval"}])
    assert (both.get_dataset()[0]["question"], both.get_eval_dataset()[0]["question"]) == ("train", "eval")


def test_examples_carry_the_environments_instructions():
    env = Quiz(2, system_prompt="Be brief.", few_shot=[vf.UserMessage("hi"), vf.AssistantMessage("ho")])
    assert [m.content for m in env.get_dataset(1)[0]["prompt"]] == ["Be brief.", "hi", "ho", "q0"]
    assert [example["example_id"] for example in env.get_dataset()] == [0, 1]


def test_the_dataset_builder_waits_for_the_first_use():
    built = []

    def build():
        built.append(1)
        return rows(2)

    env = Quiz(dataset=build, eval_dataset=build)
    assert built == []
    env.get_eval_dataset(1)
    env.get_eval_dataset()
    assert built == [1]


def test_the_parser_is_the_rubrics_unless_given():
    parser = vf.XMLParser(["answer"])
    assert Quiz(rubric=vf.Rubric(parser=parser)).parser is parser
    other = vf.Parser()
    assert Quiz(rubric=vf.Rubric(parser=parser), parser=other).parser is other


# Completion mode


def test_message_type_is_chat_or_completion():
    assert Quiz().message_type == "chat"
    assert Quiz(message_type="completion").get_dataset(1)[0]["prompt"] == "q0"
    with pytest.raises(ConfigError, match="message_type is 'completions'; expected 'chat' or 'completion'"):
        Quiz(message_type="completions")


@pytest.mark.parametrize("given", [{"system_prompt": "Be brief."}, {"few_shot": [vf.UserMessage("hi")]}])
def test_a_raw_text_has_no_place_for_instructions(given):
    with pytest.raises(
        ConfigError,
        match=f"{next(iter(given))} cannot be used with message_type 'completion'.*write it into the prompts",
    ):
        Quiz(message_type="completion", **given)


class Retelling(vf.Environment):
    """Asks twice, and tells the rubric what it likes."""

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


@pytest.mark.parametrize(
    ("account", "pieces"),
    [
        ("a then a", [("assistant", "a"), ("user", " then "), ("assistant", "a")]),
        ("a then a.", [("assistant", "a"), ("user", " then "), ("assistant", "a"), ("user", ".")]),
        ("in short: a", [("assistant", "in short: a")]),
        ([vf.AssistantMessage("a")], [("assistant", "a")]),
        (None, []),
    ],
)
def test_a_record_tells_who_wrote_which_piece_as_far_as_anybody_knows(account, pieces):
    [record] = roll(Retelling(account), says("a"))
    assert record.error is None, record.error
    assert record.prompt == [vf.UserMessage("q0")]
    assert [(message["role"], message["content"]) for message in record.completion] == pieces


# Hooks


class Hooked(Quiz):
    """Every hook writes its name down; those named in `failing` raise."""

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


def test_hooks_run_by_priority_then_name_and_teardown_once_at_the_end():
    env = Hooked()
    roll(env, says("0"), rollouts_per_example=2)
    assert env.log == [*CLEANUPS, *CLEANUPS, "down_c", "down_b"]


def test_a_failing_hook_does_not_keep_the_others_from_running():
    env = Hooked(failing=("z_first", "b_bare", "down_c"))
    with pytest.raises(RuntimeError, match="down_c failed"):
        roll(env, says("0"))
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_a_hook_that_panics_does_not_either():
    class PanicException(BaseException):
        """As extension modules raise."""

    env = Hooked(failing=("z_first",))
    env.kind = PanicException
    [record] = roll(env, says("0"))
    assert record.error is not None and record.error.type == "PanicException"
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_a_failing_cleanup_fails_its_rollout():
    [record] = roll(Hooked(failing=("b_bare", "c_same")), says("0"))
    assert record.scores is None
    assert record.error is not None
    assert (record.error.phase, record.error.message) == ("cleanup", "b_bare failed")


@pytest.mark.parametrize("error", [KeyError("x"), vf.ModelError("x"), vf.OverlongPromptError("x"), TimeoutError()])
def test_cleanup_runs_whatever_the_model_did(error):
    def broken(messages, state, rng):
        raise error

    env = Hooked()
    roll(env, says(broken))
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


def test_the_error_of_the_rollout_is_kept_before_that_of_its_cleanup():
    def broken(messages, state, rng):
        raise KeyError("mine")

    [record] = roll(Hooked(failing=("z_first",)), says(broken))
    assert record.error is not None
    assert (record.error.phase, record.error.type) == ("model", "KeyError")


def test_teardown_runs_after_a_run_that_stopped_at_a_failure():
    def broken(messages, state, rng):
        raise KeyError("x")

    env = Hooked()
    with pytest.raises(vf.Error, match="KeyError"):
        roll(env, says(broken), fail_fast=True)
    assert env.log == [*CLEANUPS, "down_c", "down_b"]


class Holding(vf.Rubric):
    """Counts its teardowns."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.closed = 0

    async def teardown(self) -> None:
        self.closed += 1


class Lasting(Quiz):
    """Counts its teardowns; its rollouts end when they are told."""

    def __init__(self, **kwargs):
        super().__init__(1, **kwargs)
        self.downs = 0

    @vf.teardown
    def down(self) -> None:
        self.downs += 1


def until(event: asyncio.Event) -> vf.ScriptedClient:
    async def wait(messages, state, rng) -> str:
        await event.wait()
        return "0"

    return says(wait)


async def test_the_last_of_two_runs_tears_their_environment_down():
    rubric, end = Holding(), asyncio.Event()
    env = Lasting(rubric=rubric)
    longer = asyncio.create_task(env.generate(until(end)))
    await asyncio.sleep(0)
    await env.generate(says("0"))
    assert (env.downs, rubric.closed) == (0, 0)
    end.set()
    await longer
    assert (env.downs, rubric.closed) == (1, 1)
    await env.generate(says("0"))
    assert (env.downs, rubric.closed) == (2, 2)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_rubric_of_two_environments_goes_with_the_last_run(grouped: bool):
    shared, own, end = Holding(), Holding(), asyncio.Event()
    one = Lasting(rubric=vf.RubricGroup([shared, own]) if grouped else shared)
    two = Lasting(rubric=shared)
    longer = asyncio.create_task(two.generate(until(end)))
    await asyncio.sleep(0)
    await one.generate(says("0"))
    assert (one.downs, two.downs, shared.closed, own.closed) == (1, 0, 0, int(grouped))
    end.set()
    await longer
    assert (two.downs, shared.closed) == (1, 1)


async def test_a_member_of_a_group_goes_with_the_last_run():
    rubric, end = Holding(), asyncio.Event()
    member, other = Lasting(rubric=rubric), Lasting()
    longer = asyncio.create_task(vf.EnvGroup([member, other]).generate(until(end)))
    await asyncio.sleep(0)
    await member.generate(says("0"))
    assert (member.downs, rubric.closed) == (0, 0)
    end.set()
    await longer
    assert (member.downs, other.downs, rubric.closed) == (1, 1, 1)


def test_the_rubrics_teardown_runs_too():
    first, second = Holding(), Holding()
    env = Hooked(rubric=first, failing=("down_b",))
    env.add_rubric(second)
    with pytest.raises(RuntimeError, match="down_b failed"):
        asyncio.run(env.tear_down())
    assert first.closed
    assert second.closed


def test_hooks_of_the_base_class_are_inherited_and_can_be_overridden():
    class Child(Hooked):
        @vf.cleanup(priority=-9)
        def z_first(self, state):  # pyright: ignore[reportIncompatibleMethodOverride]
            self.note("child's")

        def c_same(self, state):  # no mark: no hook any more
            self.note("never")

    env = Child()
    roll(env, says("0"))
    assert env.log[:-2] == ["b_bare", "a_last", "child's"]


async def test_the_first_stop_that_holds_names_the_condition():
    asked = []

    class Stops(Quiz):
        @vf.stop(priority=2)
        async def never(self, state):
            asked.append("never")
            return False

        @vf.stop
        def b_true(self, state):
            asked.append("b_true")
            return True

        @vf.stop
        async def a_falsy(self, state):
            asked.append("a_falsy")
            return 0

        @vf.stop(priority=-1)
        def late(self, state):
            asked.append("late")
            return True

    state = vf.State(trajectory=[])
    assert await Stops().check_stops(state)
    assert state["stop_condition"] == "b_true"
    assert asked == ["never", "a_falsy", "b_true"]


async def test_without_a_stop_that_holds_nothing_is_named():
    state = vf.State(trajectory=[], stop_condition=None)
    assert not await Quiz().check_stops(state)
    assert state["stop_condition"] is None


# Rubrics


def test_added_rubrics_add_up():
    def shout(completion) -> float:
        return float(completion[-1].content.isupper())

    def length(completion) -> int:
        return len(completion[-1].content)

    env = Quiz(dataset=[{"question": "q", "answer": "YES"}])
    env.add_rubric(vf.Rubric([shout], weights=[0.5]))
    metrics = vf.Rubric()
    metrics.add_metric(length)
    env.add_rubric(metrics)
    [record] = roll(env, says("YES"))
    assert record.scores is not None
    assert record.scores.reward == 1.5
    assert record.scores.rewards == {"correct": 1.0, "shout": 1.0}
    assert record.scores.metrics == {"num_turns": 1.0, "length": 3.0}


def test_a_rubric_that_repeats_a_name_is_refused():
    with pytest.raises(ConfigError, match=r"\['num_turns'\] are in more than one rubric"):
        Quiz().add_rubric(Talk().rubric)


def test_adding_a_rubric_leaves_the_given_group_as_it_was():
    group = vf.RubricGroup([vf.Rubric()])
    Quiz(rubric=group)
    assert group.names == []


def test_an_environment_without_a_rubric_scores_zero():
    [record] = roll(Talk(turns=1), says("hi"))
    assert record.reward == 0.0


# Delegates


def test_the_shortcuts_do_what_the_functions_do():
    env = Quiz(3)
    records = env.generate_sync(says(right))
    assert [record.reward for record in records] == [1.0, 1.0, 1.0]
    assert env.make_dataset(records) == vf.make_dataset(records)
    mine, theirs = env.evaluate_sync(says(right)), asyncio.run(vf.evaluate(env, says(right)))
    assert {**mine, "latency": 0} == {**theirs, "latency": 0}


def test_the_parser_of_the_environment_reaches_every_rubric_that_has_none() -> None:
    mine, own = vf.XMLParser(["answer"]), vf.Parser()
    bare, given = vf.Rubric(), vf.Rubric(parser=own)
    grouped = Quiz(rubric=vf.RubricGroup([vf.Rubric(parser=mine), bare]))
    assert grouped.parser is mine and bare.parser is mine
    for env in (Quiz(parser=mine), Quiz(rubric=vf.Rubric(parser=mine)), grouped):
        later = vf.Rubric()
        env.add_rubric(later)
        env.add_rubric(given)
        assert later.parser is mine and given.parser is own


def test_the_parser_of_the_environment_reaches_a_rubric_that_has_none() -> None:
    given = []

    def look(parser: vf.Parser) -> float:
        given.append(parser)
        return 1.0

    mine, own = vf.XMLParser(["a"], answer_field="a"), vf.XMLParser(["b"], answer_field="b")
    for rubric in (vf.Rubric([look]), vf.Rubric([look], parser=own)):
        env = vf.SingleTurnEnv(dataset=[{"question": "?"}], parser=mine, rubric=rubric)
        env.evaluate_sync(vf.ScriptedClient(lambda messages, state, rng: "x"))
    assert given == [mine, own]
