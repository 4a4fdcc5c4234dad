"""The order of rewards, and right answers in another form."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rove as vf
from rove.audit.answer_checks import check_monotonicity
from rove.audit.baseline import Baseline
from rove.audit.order_checks import check_order, check_refused_forms
from rove.audit.reward_checks import check_blind_replies, check_statistics
from rove.audit.subject import Subject
from rove.core.findings import Finding, Severity
from tests.audit.test_checks import Parcel, exact, findings, sums, text


def order(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    return check_order(base)


def solver(messages: Any, state: Any, rng: Any) -> str:
    return f"It is {state['answer']}."


def tagged(messages: Any, state: Any, rng: Any) -> str:
    return f"<answer>{state['answer']}</answer>"


@pytest.mark.parametrize(("policy", "is_found"), [(tagged, False), (solver, True)])
async def test_a_policy_whose_right_answers_are_rejected(policy: Any, is_found: bool) -> None:
    reported = await findings(order, sums(exact, policies={"solver": policy}))
    assert [(finding.id, "rejected" in finding.text) for finding in reported] == [("reward-order", True)] * is_found


class Walk(vf.MultiTurnEnv):
    """A walk whose steps cost, or whose end is paid, even without a step."""

    def __init__(self, step: float, idle: float):
        def reward(state: Any) -> float:
            return state["steps"] * step + (1.0 if state["steps"] == 3 else 0.0 if state["steps"] else idle)

        walker, starter = (self.walker(count) for count in (3, 1))
        rows = [{"question": f"Walk {number}"} for number in range(30)]
        policies = {"walker": walker, "starter": starter}
        super().__init__(dataset=rows, rubric=vf.Rubric([reward]), policies=policies, max_turns=5)

    @staticmethod
    def walker(count: int) -> Any:
        return lambda messages, state, rng: "walk" if len(state["trajectory"]) < count else "stop"

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["steps"] = 0

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        if text([messages[-1]]) != "walk":
            state["final_env_response"] = "The end."
        state["steps"] += text([messages[-1]]) == "walk"
        return "Go on."


@pytest.mark.parametrize(
    ("step", "idle", "severities"),
    [
        (0.0, 0.0, []),
        (-0.1, 0.0, []),  # punished steps: a weak policy may earn less than nothing
        (-0.5, 0.0, [Severity.HIGH]),  # the task costs more than it pays
        (0.0, 0.6, [Severity.HIGH]),
        (0.0, 0.3, [Severity.MEDIUM]),
    ],
)
async def test_pay_for_doing_nothing(step: float, idle: float, severities: list[Severity]) -> None:
    assert [finding.severity for finding in await findings(order, Walk(step, idle))] == severities


async def test_a_sound_game_keeps_the_order() -> None:
    assert await findings(order, Parcel(pays_each_time=False)) == []


@pytest.mark.parametrize("is_free", [True, False])
async def test_words_that_a_task_without_answers_accepts_are_not_doing_nothing(is_free: bool) -> None:
    def short(completion: Any) -> float:
        return float(len(text(completion).split()) in range(0 if is_free else 1, 6))

    rows = [{"question": f"Write a short sentence about {number}."} for number in range(30)]
    policies = {"plain": lambda messages, state, rng: "It is short.", "long": lambda messages, state, rng: "long " * 9}
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([short]), policies=policies)
    assert [finding.severity for finding in await findings(order, env)] == [Severity.HIGH] * is_free


def fractions(prompt: str, grade: Any) -> vf.Environment:
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(40):
        upper, lower = rng.randrange(1, 9), rng.randrange(11, 90)
        rows.append(
            {"question": f"{prompt}\nTask {number}: {upper} by {lower}?", "answer": f"\\frac{{{upper}}}{{{lower}}}"}
        )

    def correct(completion: Any, answer: str) -> float:
        return float(grade(text(completion), answer))

    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))


def as_value(text: str) -> str:
    return text.replace("\\frac{", "").replace("}{", "/").replace("}", "")


@pytest.mark.parametrize(
    ("prompt", "grade", "is_found"),
    [
        ("Divide.", lambda reply, answer: reply == answer, True),
        ("Divide. Write \\frac{1}{2}.", lambda reply, answer: reply == answer, False),  # the prompt requests the form
        ("Divide.", lambda reply, answer: as_value(reply) == as_value(answer), False),
    ],
)
async def test_right_answers_in_a_plainer_form(prompt: str, grade: Any, is_found: bool) -> None:
    reported = await findings(check_refused_forms, fractions(prompt, grade))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(
    ("prompt", "answer", "is_found"),
    [
        ("{n} cups: give the price in euros with exactly two decimals.", "{n}.00", False),
        ("{n} cups: give the price in euros.", "{n}.00", True),
        ("Be brief.\n{n} cups: give the price in euros with two decimals.", "{n}.00", False),  # after a system prompt
        ("Write {n}001 with commas as thousands separators.", "{n},001", False),
        ("Write {n}001 as in 1,234.", "{n},001", False),
        ("Hello, write {n}001.", "{n},001", True),
        ("Write a capital letter and a period at its end: task {n}", "Task {n}.", False),
        ("Copy task {n}", "Task {n}.", True),
    ],
)
async def test_prompts_that_ask_for_the_form_in_their_last_line(prompt: str, answer: str, is_found: bool) -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(text(completion) == answer)

    rows = [{"question": prompt.format(n=n), "answer": answer.format(n=n)} for n in range(11, 51)]
    reported = await findings(check_refused_forms, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(
    ("example", "ignored", "is_found"),
    [
        ("Total: 1,020.40", "", True),
        ("Total: 1,020.40", ",", False),
        ("Total: 1020.40", "", False),
        ("Numbers: 512,733,91", "", False),  # a list, and no separators of thousands
    ],
)
async def test_right_answers_in_the_form_of_the_prompt(example: str, ignored: str, is_found: bool) -> None:
    def correct(completion: Any, answer: str) -> float:
        total = text(completion).replace(ignored, "") if ignored else text(completion)
        return float(total == answer)

    rows = [{"question": f"Add. Write: {example}\nBill {n}", "answer": f"{n * 397}.50"} for n in range(3, 40)]
    reported = await findings(check_refused_forms, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


class Ledger(vf.ToolEnv):
    """The total of a client, which a tool shows; the grader accepts only digits.

    Args:
        shown: The tool's result, with "N" for the total with separators.
    """

    def __init__(self, result_format: str, rule: str):
        totals = {f"C{n}": 1000 + 61 * n for n in range(30)}

        def look(client: str) -> str:
            """Show what a client owes."""
            return result_format.replace("N", f"{totals[client]:,}")

        def correct(completion: Any, answer: str) -> float:
            return float(text(completion) == answer)

        rows = [{"question": f"{rule} How much does client {c} owe?", "answer": str(n)} for c, n in totals.items()]
        super().__init__(
            tools=[look], dataset=rows, rubric=vf.Rubric([correct]), policies={"clerk": clerk}, max_turns=3
        )


def clerk(messages: Any, state: Any, rng: Any) -> Any:
    client = messages[-1].content.split()[-2] if not state["trajectory"] else ""
    return vf.tool_call("look", client=client) if client else state["answer"]


@pytest.mark.parametrize(
    ("result_format", "rule", "is_found"),
    [
        ("owes $N", "Look.", True),
        ("N EUR", "Look.", True),
        ("month,units\nN", "Look.", False),  # cells of a table
        ("[N]", "Look.", False),
        ("owes $N", "Look. Answer <answer>2417</answer>.", False),
        ("owes $N", "Look. Write digits only.", False),
    ],
)
async def test_right_answers_in_the_form_of_results(result_format: str, rule: str, is_found: bool) -> None:
    reported = await findings(check_refused_forms, Ledger(result_format, rule))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(("rule", "is_found"), [("Add.", True), ("Write digits only, without commas.", False)])
async def test_right_answers_in_the_form_of_some_questions(rule: str, is_found: bool) -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(text(completion) == answer)

    rows: list[dict[str, Any]] = []
    for n in range(3, 40):
        summands = f"{n * 1397:,} and 10" if n % 3 else f"{n} and 1000"
        rows.append({"question": f"{rule}\n{summands}?", "answer": str(n * 1397 + 10 if n % 3 else n + 1000)})
    reported = await findings(check_refused_forms, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(
    ("grade", "severities"),
    [
        (lambda completion, answer: 0.6 * bool(text(completion)) + 0.4 * exact(completion, answer), [Severity.HIGH]),
        (lambda completion, answer: 0.3 * bool(text(completion)) + 0.7 * exact(completion, answer), [Severity.MEDIUM]),
        (lambda completion, answer: 0.15 * bool(text(completion)) + 0.85 * exact(completion, answer), []),
        (
            lambda completion, answer: 0.5 * ("<answer>" in text(completion)) + 0.5 * exact(completion, answer),
            [Severity.HIGH],
        ),
        (
            lambda completion, answer: 0.5 * ("definitely" in text(completion)) + 0.5 * exact(completion, answer),
            [Severity.HIGH],
        ),
    ],
)
async def test_a_floor_that_the_grader_raises_hides_nothing(grade: Any, severities: list[Severity]) -> None:
    reported = await findings(check_blind_replies, sums(grade))
    assert [finding.severity for finding in reported] == severities


@pytest.mark.parametrize("share", [0.5, 0.8])
async def test_a_constant_answer_that_most_rows_have(share: float) -> None:
    answers = ["yes" if number % 10 < 10 * share else "no" for number in range(60)]
    rows = [{"question": f"Is {number} valid?", "answer": answer} for number, answer in enumerate(answers)]

    def correct(completion: Any, answer: str) -> float:
        return float(text(completion) == answer)

    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
    reported = await findings(check_blind_replies, env)
    assert [finding.severity >= Severity.MEDIUM for finding in reported] in ([[]] if share < 0.6 else [[True]])


async def test_wrong_variants_count_where_other_answers_are_accepted_too() -> None:
    def starts_like_a_number(completion: Any, answer: str) -> bool:
        return text(completion).strip("<answer>/")[:1].isdigit()

    [finding] = await findings(check_monotonicity, sums(starts_like_a_number))
    assert finding.severity is Severity.HIGH


async def test_a_reward_that_depends_on_the_row_only() -> None:
    def reward_by_row(completion: Any, answer: str) -> float:
        return int(answer) / 1000

    def reward_in_some_rows(completion: Any, answer: str) -> float:
        return float(answer[-1] in "123" or exact(completion, answer))

    for grade, severity in ((reward_by_row, Severity.HIGH), (reward_in_some_rows, Severity.MEDIUM)):
        env = sums(grade)
        reported = await findings(_after_blind_replies, env)
        assert severity in [finding.severity for finding in reported if "row" in finding.text]


async def _after_blind_replies(subject: Any, base: Any) -> Any:
    async for _ in check_blind_replies(subject, base):
        pass
    async for finding in check_statistics(subject, base):
        yield finding


@pytest.mark.parametrize(("cost", "is_found"), [(0.01, False), (0.3, True)])
async def test_a_cost_of_length_above_the_reward_of_right_answers(cost: float, is_found: bool) -> None:
    rows = [{"question": f"Write {'x' * count}.", "answer": "x" * count} for count in range(1, 5)] * 10

    def correct(completion: Any, answer: str) -> float:
        reply = text(completion)
        return float(reply == answer) - cost * len(reply)

    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
    reported = [finding for finding in await findings(order, env) if "the own answer earns less" in finding.text]
    assert len(reported) == is_found
