"""Rubrics: arguments of reward functions, combination of their values into a reward, and errors."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

import rove.rubrics.rubric as rubric_module
from rove.core.errors import ConfigError, Error, phase_of
from rove.core.messages import AssistantMessage, UserMessage
from rove.core.records import Scores
from rove.core.state import State
from rove.rubrics import Rubric, RubricGroup, group_reward
from rove.rubrics.parser import Parser, XMLParser
from rove.rubrics.rubric import merge_scores

numbers = st.floats(-1e6, 1e6)


def make_state(content: str = "4", row: dict | None = None, **fields) -> State:
    base = {"prompt": [UserMessage("2 + 2?")], "answer": "4", "info": {"level": 1}, "example_id": 0}
    return State(input=base | (row or {}), completion=[AssistantMessage(content)], trajectory=[], **fields)


def score(rubric: Rubric, state: State | None = None) -> Scores:
    return asyncio.run(rubric.score_rollout(state or make_state()))


def score_all(rubric: Rubric, states: list[State], scores: list[Scores] | None = None) -> list[Scores]:
    return asyncio.run(rubric.score_group(states, scores))


def constant(value, name: str):
    def func():
        return value

    func.__name__ = name
    return func


def correct(completion, answer) -> float:
    return float(completion[-1]["content"] == answer)


def length(completion) -> int:
    return len(completion[-1].content)


@group_reward
def rank(completions) -> list[float]:
    return [float(len(completion[-1].content)) for completion in completions]


# Rewards, weights, metrics


def test_reward_is_the_weighted_sum_and_metrics_do_not_count():
    rubric = Rubric([correct, length], weights=[1.0, 0.5])
    rubric.add_metric(constant(7, "seven"))
    assert rubric.names == ["correct", "length", "seven"]
    assert score(rubric) == Scores(
        reward=1.5,
        rewards={"correct": 1.0, "length": 1.0},
        weights={"correct": 1.0, "length": 0.5},
        metrics={"seven": 7.0},
    )


def test_weights_default_to_one_and_zero_weight_is_a_metric():
    assert score(Rubric([correct, length])).weights == {"correct": 1.0, "length": 1.0}
    scores = score(Rubric([correct, length], [1, 0]))
    assert (scores.rewards, scores.metrics) == ({"correct": 1.0}, {"length": 1.0})


def test_a_metric_with_a_weight_is_a_reward():
    rubric = Rubric()
    rubric.add_metric(length, weight=-0.5)
    assert score(rubric).reward == -0.5


def test_a_rubric_without_functions_scores_zero():
    assert score(Rubric()) == Scores(0.0, {}, {})
    assert Rubric().names == []


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 1.0, 1.0]])
def test_weights_must_match_the_functions(weights):
    with pytest.raises(ConfigError, match=f"{len(weights)} weights for 2 reward functions"):
        Rubric([correct, length], weights)


@pytest.mark.parametrize("weight", [math.nan, math.inf, "1", None])
def test_weights_must_be_finite_numbers(weight):
    with pytest.raises(ConfigError, match="weight of reward function 'correct'"):
        Rubric([correct], [weight])


@given(st.lists(st.tuples(numbers, numbers), max_size=6))
def test_reward_is_sum_of_weight_times_value(pairs):
    rubric = Rubric()
    for index, (weight, value) in enumerate(pairs):
        rubric.add_reward_func(lambda value=value: value, weight, name=f"f{index}")
    scores = score(rubric)
    assert scores.reward == pytest.approx(sum(weight * value for weight, value in pairs), abs=1e-3)
    assert scores.rewards | scores.metrics == {f"f{index}": value for index, (_, value) in enumerate(pairs)}
    assert scores.reward == pytest.approx(sum(scores.weights[n] * v for n, v in scores.rewards.items()), abs=1e-3)


@given(st.lists(st.tuples(numbers, numbers), max_size=6), st.randoms(use_true_random=False))
def test_order_of_functions_changes_nothing(pairs, random):
    named = [(f"f{index}", weight, value) for index, (weight, value) in enumerate(pairs)]

    def scored(items):
        rubric = Rubric()
        for name, weight, value in items:
            rubric.add_reward_func(lambda value=value: value, weight, name)
        return score(rubric)

    assert scored(random.sample(named, len(named))) == scored(named)


# Arguments


def test_standard_arguments_are_passed_by_name():
    parser = XMLParser(["answer"])
    received = {}

    def everything(parser, state, info, task, answer, completion, prompt):
        received.update(locals())
        return 1

    state = make_state(row={"task": "sums"})
    assert score(Rubric([everything], parser=parser), state).reward == 1.0
    assert received["state"] is state
    assert received["parser"] is parser
    assert (received["prompt"], received["completion"]) == (state["input"]["prompt"], state["completion"])
    assert (received["answer"], received["info"], received["task"]) == ("4", {"level": 1}, "sums")


def test_columns_state_keys_and_class_objects_are_injected():
    rubric = Rubric([lambda difficulty, turns, limit: difficulty + turns + limit])
    rubric.add_class_object("limit", 100)
    assert score(rubric, make_state(row={"difficulty": 1}, turns=10)).reward == 111


def test_precedence_class_object_then_column_then_state():
    rubric = Rubric([lambda x: x])
    assert score(rubric, make_state(row={"x": 2}, x=3)).reward == 2
    rubric.add_class_object("x", 1)
    assert score(rubric, make_state(row={"x": 2}, x=3)).reward == 1


def test_the_completion_of_the_rollout_takes_precedence_over_a_column():
    assert score(Rubric([correct]), make_state(row={"completion": "a dataset's own"})).reward == 1.0
    assert score(Rubric([correct]), make_state(answer="5")).reward == 0.0


def test_answer_and_info_have_defaults_when_the_row_has_none():
    state = State(input={"prompt": []}, completion=[])
    assert score(Rubric([lambda answer, info: answer == "" and info == {}]), state).reward == 1.0


def test_default_arguments_apply_unless_the_name_is_known():
    def func(threshold=0.25, task="none", answer="unused"):
        return threshold if (task, answer) == ("none", "4") else -1

    assert score(Rubric([func])).reward == 0.25
    assert score(Rubric([func]), make_state(row={"threshold": 0.75})).reward == 0.75


def test_kwargs_receive_all_known_names():
    received = {}

    def func(completion, missing=1, **kwargs):
        received.update(kwargs, missing=missing)
        return 0

    rubric = Rubric([func])
    rubric.add_class_object("judge", "J")
    state = make_state(row={"column": "C"}, turns=3)
    score(rubric, state)
    assert received.keys() == {
        *(
            "prompt",
            "answer",
            "info",
            "example_id",
            "column",
            "input",
            "trajectory",
            "turns",
            "judge",
            "parser",
            "state",
        ),
        "missing",
    }
    assert (received["column"], received["turns"], received["judge"], received["missing"]) == ("C", 3, "J", 1)
    assert received["state"] is state


def test_kwargs_omit_a_missing_completion_and_args_stay_empty():
    def func(*args, **kwargs):
        return len(args) + ("completion" in kwargs)

    assert score(Rubric([func]), State(input={"prompt": []})).metrics == {}
    assert score(Rubric([func]), State(input={"prompt": []})).reward == 0.0


def test_keyword_only_arguments_and_callables_of_all_kinds():
    class Judge:
        def __call__(self, *, completion):
            return 2.0

        async def later(self, completion):
            return 3.0

        @staticmethod
        def fixed():
            return 4.0

    rubric = Rubric([Judge(), Judge().later, Judge.fixed, lambda: 5])
    assert score(rubric).rewards == {"Judge": 2.0, "later": 3.0, "fixed": 4.0, "<lambda>": 5.0}


def test_async_functions_and_functions_returning_awaitables():
    async def slow(answer):
        await asyncio.sleep(0)
        return float(answer)

    rubric = Rubric([slow])
    rubric.add_reward_func(lambda answer: slow(answer), name="wrapped")
    assert score(rubric).rewards == {"slow": 4.0, "wrapped": 4.0}


def test_partials_keep_their_bound_arguments():
    def close(answer, target, scale=1.0):
        return scale * (answer == target)

    rubric = Rubric([functools.partial(close, target="4")])
    rubric.add_reward_func(functools.partial(close, answer="x", target="x", scale=2), name="bound")
    rubric.add_reward_func(
        functools.partial(lambda answer, **kw: (answer, kw["info"]) == ("x", 1), answer="x", info=1), name="kw"
    )
    assert score(rubric).rewards == {"close": 1.0, "bound": 2.0, "kw": 1.0}


def test_parser_can_be_replaced():
    rubric = Rubric([lambda parser, completion: parser.parse_answer(completion) == "4"])
    assert type(rubric.parser) is Parser
    assert score(rubric, make_state("<answer>4</answer>")).reward == 0.0
    rubric.add_class_object("parser", XMLParser(["answer"]))
    assert isinstance(rubric.parser, XMLParser)
    assert score(rubric, make_state("<answer>4</answer>")).reward == 1.0


def test_format_reward_of_a_parser_is_a_reward_function():
    parser = XMLParser(["answer"])
    rubric = Rubric([correct, parser.get_format_reward_func()], [1.0, 0.2], parser)
    assert score(rubric, make_state("<answer>4</answer>")).rewards == {"correct": 0.0, "format_reward": 1.0}


@pytest.mark.parametrize("name", ["answer", "state", "completions", "states"])
def test_class_objects_cannot_hide_the_rollout(name):
    with pytest.raises(ConfigError, match=f"class object '{name}' would hide"):
        Rubric().add_class_object(name, 1)


def test_an_unknown_required_name_is_an_error_that_lists_names():
    def func(dificulty):
        return 1

    with pytest.raises(
        ConfigError, match=r"'func' needs 'dificulty'.*did you mean 'difficulty'\?.*completion"
    ) as raised:
        score(Rubric([func]), make_state(row={"difficulty": 1}))
    assert phase_of(raised.value) == "reward func"
    with pytest.raises(ConfigError, match=r"known: answer, completion, example_id") as raised:
        score(Rubric([lambda zzz: 1]))
    assert str(raised.value).count("example_id") == 1


def test_the_error_for_an_undecorated_group_function_names_the_decorator():
    with pytest.raises(ConfigError, match=r"needs 'completions'.*@group_reward"):
        score(Rubric([lambda completions: [1.0]]))


def test_signatures_are_read_once(monkeypatch):
    calls = itertools.count()
    real = rubric_module.inspect.signature
    monkeypatch.setattr(rubric_module.inspect, "signature", lambda func: (next(calls), real(func))[1])
    rubric = Rubric([correct, length, rank])
    for _ in range(5):
        score_all(rubric, [make_state(), make_state()])
    assert next(calls) == 3


# Adding functions


def test_function_names_must_be_unique():
    rubric = Rubric([correct])
    with pytest.raises(ConfigError, match="named 'correct' exists already; pass name="):
        rubric.add_metric(correct)
    rubric.add_metric(correct, name="again")
    assert rubric.names == ["correct", "again"]
    with pytest.raises(ConfigError, match="'<lambda>'"):
        Rubric([lambda: 1, lambda: 2])


def test_functions_that_cannot_be_called_by_keyword_are_rejected():
    def positional(completion, /):
        return 1

    with pytest.raises(ConfigError, match="'completion' of reward function 'positional' is positional-only"):
        Rubric([positional])
    with pytest.raises(ConfigError, match="3 is not a reward function"):
        Rubric([3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="reward function 'dict' hides its arguments"):
        Rubric([dict])


def test_methods_of_a_subclass_can_be_reward_functions():
    class Game(Rubric):
        def __init__(self):
            super().__init__(funcs=[self.win], weights=[2.0])
            self.add_reward_func(self.draw, weight=0.5)
            self.add_reward_func(self.spread)
            self.bonus = 1.0

        def win(self, completion):
            return self.bonus

        async def draw(self, state):
            return 1

        @group_reward
        def spread(self, states):
            return [0.5 for _ in states]

    assert score(Game()).reward == 2.5
    assert [s.reward for s in score_all(Game(), [make_state()])] == [3.0]
    copied = copy.deepcopy(Game())
    copied.bonus = 0.0
    assert score(copied).reward == 0.5


# Values


@pytest.mark.parametrize("value", [True, 1, 1.0, Fraction(1)])
def test_numbers_of_all_kinds_count(value):
    result = score(Rubric([constant(value, "func")])).rewards["func"]
    assert (type(result), result) == (float, 1.0)


def test_numbers_of_other_libraries_count():
    class Scalar:
        def __float__(self):
            return 0.5

    assert score(Rubric([constant(Scalar(), "func")])).reward == 0.5


class _Matrix:
    def __float__(self):
        raise TypeError("only one-element arrays can be converted")


@pytest.mark.parametrize(
    "value",
    [None, math.nan, math.inf, -math.inf, "1.0", [1.0], {"a": 1.0}, 1j, 10**400, _Matrix(), object()],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_values_that_are_not_finite_numbers_are_errors(value, weight):
    with pytest.raises(Error, match=r"reward function 'func' returned .*; expected a finite number") as raised:
        score(Rubric([constant(value, "func")], [weight]))
    assert phase_of(raised.value) == "reward func"


@pytest.mark.parametrize("is_async", [False, True])
def test_exceptions_pass_through_with_their_phase(is_async):
    def broken(completion):
        raise KeyError("gone")

    async def broken_later(completion):
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone") as raised:
        score(Rubric([correct, broken_later if is_async else broken]))
    assert phase_of(raised.value) == ("reward broken_later" if is_async else "reward broken")


def test_scoring_does_not_modify_the_state():
    state = make_state(row={"difficulty": 2})
    state_before = copy.deepcopy(state)
    score_all(RubricGroup([Rubric([correct, rank]), Rubric([length])]), [state, make_state()])
    assert state == state_before
    assert state.keys() == state_before.keys()


# Groups


def test_group_functions_receive_plural_names_and_class_objects():
    received = {}

    @group_reward
    async def func(states, prompts, completions, answers, infos, tasks, parser, judge, scale=3):
        received.update(locals())
        return range(len(states))

    rubric = Rubric([func])
    rubric.add_class_object("judge", "J")
    states = [make_state("a", answer="1"), make_state("b", row={"task": "t"})]
    assert [s.reward for s in score_all(rubric, states)] == [0.0, 1.0]
    assert received["states"] == states
    assert received["prompts"] == [state["prompt"] for state in states]
    assert [completion[0].content for completion in received["completions"]] == ["a", "b"]
    assert (received["answers"], received["infos"], received["tasks"]) == (["1", "4"], [{"level": 1}] * 2, [None, "t"])
    assert (received["judge"], received["scale"], received["parser"]) == ("J", 3, rubric.parser)


def test_group_kwargs_receive_all_group_names():
    received = {}

    @group_reward
    def func(**kwargs):
        received.update(kwargs)
        return [0.0]

    score_all(Rubric([func]), [make_state()])
    assert received.keys() == {"states", "prompts", "completions", "answers", "infos", "tasks", "parser"}


def test_group_rewards_are_merged_into_the_scores_of_each_state():
    rubric = Rubric([correct, rank], [1.0, 0.1])
    states = [make_state("4"), make_state("abc")]
    assert rubric.has_group_rewards
    assert not Rubric([correct]).has_group_rewards
    individual = [score(rubric, state) for state in states]
    assert [s.rewards for s in individual] == [{"correct": 1.0}, {"correct": 0.0}]
    grouped = score_all(rubric, states, individual)
    assert grouped == score_all(rubric, states)
    assert grouped[1] == Scores(0.1 * 3, {"correct": 0.0, "rank": 3.0}, {"correct": 1.0, "rank": 0.1})
    assert grouped[0].reward == 1.1
    assert individual[0].rewards == {"correct": 1.0}


def test_group_metrics_are_added_and_extras_are_kept():
    rubric = Rubric([correct])
    rubric.add_metric(rank)
    existing = Scores(1.0, {"correct": 1.0}, {"correct": 1.0}, {"other": 2.0}, {"judge": "yes"})
    assert score_all(rubric, [make_state()], [existing]) == [
        Scores(1.0, {"correct": 1.0}, {"correct": 1.0}, {"other": 2.0, "rank": 1.0}, {"judge": "yes"})
    ]


@given(st.lists(st.tuples(numbers, numbers), max_size=5), numbers, numbers)
def test_group_values_reach_their_own_state(pairs, weight, group_weight):
    rubric = Rubric([lambda earned: earned], [weight])
    rubric.add_reward_func(group_reward(lambda states: [s["compared"] for s in states]), group_weight, name="group")
    states = [make_state(earned=earned, compared=compared) for earned, compared in pairs]
    for scores, (earned, compared) in zip(score_all(rubric, states), pairs, strict=True):
        assert (scores.rewards | scores.metrics) == {"<lambda>": earned, "group": compared}
        assert scores.reward == pytest.approx(weight * earned + group_weight * compared, abs=1e-3)


def test_group_reward_decorates_partials_callables_and_methods():
    def compare(states, by):
        return [by] * len(states)

    class Compare:
        @group_reward
        def __call__(self, states):
            return [2.0] * len(states)

    rubric = Rubric([functools.partial(group_reward(compare), by=1.0), Compare()])
    assert [s.rewards for s in score_all(rubric, [make_state()])] == [{"compare": 1.0, "Compare": 2.0}]


@each_row(
    ("value", "match"),
    [
        ([1.0], "returned 1 values for 2 states"),
        ([1.0, 2.0, 3.0], "returned 3 values for 2 states"),
        (1.0, "returned 1.0; expected a list of 2 numbers"),
        (None, "returned None; expected a list of 2 numbers"),
        ([1.0, None], "returned None; expected a finite number"),
        ([1.0, math.nan], "returned nan; expected a finite number"),
        ("ab", "returned 'a'; expected a finite number"),
    ],
)
def test_group_functions_return_one_number_per_state(value, match):
    @group_reward
    def func(states):
        return value

    with pytest.raises(Error, match=f"reward function 'func' {match}") as raised:
        score_all(Rubric([func]), [make_state(), make_state()])
    assert phase_of(raised.value) == "reward func"


def test_errors_of_group_functions_have_their_phase():
    @group_reward
    def broken(states):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError) as raised:
        score_all(Rubric([broken]), [make_state()])
    assert phase_of(raised.value) == "reward broken"
    with pytest.raises(ConfigError, match=r"needs 'answer'.*did you mean 'answers'"):
        score_all(Rubric([group_reward(lambda answer: [1.0])]), [make_state()])


def test_scores_must_match_the_states_and_no_states_are_allowed():
    with pytest.raises(ConfigError, match="1 scores for 2 states"):
        score_all(Rubric([rank]), [make_state(), make_state()], [Scores(0.0, {}, {})])
    assert score_all(Rubric([rank]), []) == []


def test_merging_the_same_function_twice_is_rejected():
    rubric = Rubric([rank])
    scores = score_all(rubric, [make_state()])
    with pytest.raises(ConfigError, match=r"two functions are named \['rank'\]"):
        score_all(rubric, [make_state()], scores)


def test_merging_no_scores_gives_a_reward_of_zero():
    assert merge_scores([]) == Scores(0.0, {}, {})


# RubricGroup


def test_rubric_group_sums_rewards_and_merges_values():
    # verifiers v0 handled this case wrongly: the rewards of the second rubric decide.
    first = Rubric([lambda earned: earned])
    second = Rubric([rank], [10.0])
    second.add_metric(length)
    group = RubricGroup([first, second])
    states = [make_state("a", earned=1.0), make_state("bb", earned=0.0)]
    assert group.names == ["<lambda>", "rank", "length"]
    assert group.has_group_rewards
    assert not RubricGroup([first]).has_group_rewards
    individual = [score(group, state) for state in states]
    assert individual[0] == Scores(1.0, {"<lambda>": 1.0}, {"<lambda>": 1.0}, {"length": 1.0})
    grouped = score_all(group, states)
    assert grouped == score_all(group, states, individual)
    assert [s.reward for s in grouped] == [11.0, 20.0]
    assert grouped[1].metrics == {"length": 2.0}


def test_rubric_groups_nest_and_are_rubrics():
    group = RubricGroup([RubricGroup([Rubric([correct])]), Rubric([rank])])
    assert isinstance(group, Rubric)
    assert [s.reward for s in score_all(group, [make_state()])] == [2.0]


def test_rubric_group_adds_to_its_first_rubric():
    first, second = Rubric(parser=XMLParser(["answer"])), Rubric([length])
    group = RubricGroup([first, second])
    group.add_reward_func(correct, 2.0)
    group.add_metric(lambda judge: judge, name="judged")
    group.add_class_object("judge", 0.5)
    assert group.parser is first.parser
    assert (first.names, second.names) == (["correct", "judged"], ["length"])
    assert score(group) == Scores(
        3.0, {"correct": 1.0, "length": 1.0}, {"correct": 2.0, "length": 1.0}, {"judged": 0.5}
    )


def test_rubric_group_rejects_an_empty_list_and_equal_names():
    with pytest.raises(ConfigError, match="at least one rubric"):
        RubricGroup([])
    with pytest.raises(ConfigError, match=r"\['correct'\] are in more than one rubric"):
        RubricGroup([Rubric([correct]), Rubric([correct])])
    group = RubricGroup([Rubric([correct]), Rubric([length])])
    with pytest.raises(ConfigError, match="named 'length' exists already"):
        group.add_reward_func(length)
    group.rubrics[0].add_metric(length)
    with pytest.raises(ConfigError, match=r"two functions are named \['length'\]"):
        score(group)


def test_rubric_group_tears_down_all_rubrics_even_after_a_failure():
    torn_down = []

    class RubricWithTeardown(Rubric):
        def __init__(self, name, fails=False):
            super().__init__()
            self.name, self.fails = name, fails

        async def teardown(self):
            torn_down.append(self.name)
            if self.fails:
                raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        asyncio.run(
            RubricGroup(
                [RubricWithTeardown("a"), RubricWithTeardown("b", fails=True), RubricWithTeardown("c")]
            ).teardown()
        )
    assert sorted(torn_down) == ["a", "b", "c"]
    assert asyncio.run(Rubric().teardown()) is None


def test_rubric_group_passes_the_parser_of_the_environment_to_its_rubrics() -> None:
    tagged, env_parser = XMLParser(["answer"]), Parser()
    group = RubricGroup([Rubric([correct]), Rubric(parser=env_parser)])
    group.adopt_parser(tagged)
    assert [rubric.parser for rubric in group.rubrics] == [tagged, env_parser] and group.parser is tagged
