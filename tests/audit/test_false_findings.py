"""Sound environments about which the audit had a finding, each with a counterpart that has the defect."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import write_environment

import rove as vf
from rove.audit.answer_checks import check_hedging, check_monotonicity
from rove.audit.auditor import AuditOptions, audit
from rove.audit.data_checks import check_contradictions
from rove.audit.grader_checks import check_robustness
from rove.audit.order_checks import check_refused_forms
from rove.audit.power import visible_shares
from rove.audit.replies import corruptions
from rove.audit.reward_checks import check_blind_replies
from rove.audit.similarity import similarity
from rove.audit.subject import Subject
from rove.audit.tool_checks import with_values
from rove.audit.traces import arguments_of
from rove.core.findings import Severity
from rove.core.records import ErrorInfo
from rove.envs.tool import example_call
from tests.audit.test_checks import exact, findings, prepared, sums, text

WORDS = [
    "amber",
    "birch",
    "cedar",
    "daisy",
    "elder",
    "fern",
    "grass",
    "hazel",
    "iris",
    "jade",
    "kelp",
    "lotus",
    "maple",
    "nettle",
    "olive",
    "poppy",
]


def lists(grade: Any, count: int = 12) -> vf.Environment:
    """Return an environment whose answers are long lists of words, graded by `grade(reply, answer)`."""

    def correct(completion: Any, answer: str) -> float:
        return float(grade(text(completion), answer))

    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(30):
        words = rng.sample(WORDS, count)
        rows.append({"question": f"List {number}: sort {' '.join(words)}", "answer": " ".join(sorted(words))})
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))


def equal_letters(reply: str, answer: str) -> float:
    """Return the share of equal letters, as reasoning-gym's emoji_mystery does."""
    pairs = zip(reply, answer, strict=False)
    return sum(letter == right_letter for letter, right_letter in pairs) / max(len(reply), len(answer), 1)


def grade_with_one_error(reply: str, answer: str) -> bool:
    """Accept an answer with an error in one letter."""
    num_equal = sum(letter == right_letter for letter, right_letter in zip(reply, answer, strict=False))
    return len(reply) == len(answer) and num_equal >= len(answer) - 1


@pytest.mark.parametrize(
    ("grade", "severities"),
    [
        (equal_letters, []),
        (grade_with_one_error, [Severity.HIGH]),
        (lambda reply, answer: answer in reply, [Severity.LOW]),  # the right answer twice is a right answer
        (lambda reply, answer: sorted(reply) == sorted(answer), [Severity.HIGH]),
    ],
)
async def test_partial_credit_for_wrong_variants(grade: Any, severities: list[Severity]) -> None:
    assert [finding.severity for finding in await findings(check_monotonicity, lists(grade))] == severities


def equal_words(reply: str, answer: str) -> float:
    """Return the share of words in their place, less a little for words after them."""
    words, right_words = reply.split(), answer.split()
    pairs = zip(words, right_words, strict=False)
    return sum(word == right_word for word, right_word in pairs) / (0.9 * len(right_words) + 0.1 * len(words))


def any_candidate(reply: str, answer: str) -> float:
    return 1.0 if reply == answer else 0.9 * (answer in reply)


@pytest.mark.parametrize(
    ("grade", "severities"),
    [
        (equal_words, [Severity.LOW]),
        (any_candidate, [Severity.HIGH]),
        (lambda reply, answer: reply.startswith(answer), [Severity.HIGH]),
    ],
)
async def test_partial_credit_for_words_after_the_right_answer(grade: Any, severities: list[Severity]) -> None:
    assert [finding.severity for finding in await findings(check_hedging, lists(grade))] == severities


GUESSING = """
import rove as vf

class Guessing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        reply = messages[-1]["content"]
        is_right = PAID
        state["right"] = state.get("right", False) or is_right
        if is_right:
            state["final_env_response"] = "Right."
        return "Another number."

def right(state):
    return float(state.get("right", False))

def load_environment():
    rows = [{"question": f"Round {n}: guess my number between 100 and 999.", "answer": str(100 + 7 * n)} for n in range(30)]
    return Guessing(dataset=rows, rubric=vf.Rubric([right]), max_turns=4)
"""


@pytest.mark.parametrize(
    ("paid", "is_found"), [("reply == state['answer']", False), ("reply == state['answer'] or len(messages) > 6", True)]
)
async def test_a_game_that_the_right_answer_ends_in_one_turn(paid: str, is_found: bool, tmp_path: Path) -> None:
    write_environment(tmp_path, "guessing", GUESSING.replace("PAID", paid))
    report = await audit("guessing", str(tmp_path), options=AuditOptions(num_examples=6, only=("blind-game",)))
    assert report.skipped == {}
    assert [finding.id for finding in report.findings] == ["blind-game"] * is_found


class _Busy(Subject):
    """A machine on which the first rollouts with the reply `reply` exceed a time limit; each time, if `is_lasting`."""

    def __init__(self, subject: Subject, type_: str, is_lasting: bool, failing_row: int):
        super().__init__(subject.env, subject.count, subject.deadline)
        self.rows = subject.rows
        self.type = type_
        self.is_lasting = is_lasting
        self.failing_row = failing_row

    async def measure(self, name: str, *args: Any, **options: Any) -> Any:
        measured = await super().measure(name, *args, **options)
        is_failing = name == "strange reply: a word" or (self.is_lasting and name.endswith("again"))
        for position, record in enumerate(measured.records):
            if is_failing and record.example_id == self.failing_row:
                error = ErrorInfo("rollout", self.type, "a time limit")
                measured.records[position] = msgspec.structs.replace(record, error=error)
        return measured


@pytest.mark.parametrize("type_", ["WorkerError", "TimeoutError"])
@pytest.mark.parametrize("is_lasting", [False, True])
async def test_a_time_limit_is_a_finding_only_if_it_is_exceeded_again(type_: str, is_lasting: bool) -> None:
    subject, base = await prepared(sums(exact))
    busy = _Busy(subject, type_, is_lasting, failing_row=2)
    reported = [finding async for finding in check_robustness(busy, base)]
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_lasting


def grade_kilometers(reply: str, answer: str) -> bool:
    return reply.strip() in (answer, answer.split()[0])


def grade_first_letter(reply: str, answer: str) -> bool:
    return reply[:1] == answer[:1]


def grade_label(reply: str, answer: str) -> bool:
    match = re.fullmatch(r"\(?([A-D])(?:[).:].*)?", reply)
    return match is not None and match[1] == answer[0]


@pytest.mark.parametrize(
    ("answers", "grade", "severities"),
    [
        ([f"{n} km" for n in range(150, 180)], grade_kilometers, []),
        ([f"{n} km" for n in range(150, 180)], lambda reply, answer: reply[:1] == answer[:1], [Severity.HIGH]),
        ([f"{'ABCD'[n % 4]}) {word}" for n, word in enumerate(WORDS * 2)], grade_label, []),
        (WORDS * 2, grade_first_letter, [Severity.HIGH]),
    ],
)
async def test_the_number_or_the_label_of_an_answer_is_no_wrong_variant(
    answers: list[str], grade: Any, severities: list[Severity]
) -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(grade(text(completion), answer))

    rows = [{"question": f"Riddle {number}?", "answer": answer} for number, answer in enumerate(answers)]
    reported = await findings(check_monotonicity, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [finding.severity for finding in reported] == severities


@pytest.mark.parametrize("num_digits", [400, 5000])
def test_answers_of_many_digits_have_wrong_variants(num_digits: int) -> None:
    answer = "9" * num_digits
    variants = corruptions(answer, random.Random(0))
    assert variants and answer not in variants.values()


def test_long_texts_are_compared_with_all_their_letters() -> None:
    answer = "".join(random.Random(0).choices("abcdefghij", k=280))
    assert similarity(f"{answer[:140]}q{answer[141:]}", answer) > 0.99


def test_questions_with_frequent_answers_do_not_contradict_each_other() -> None:
    def row(question: str, answer: str) -> dict[str, Any]:
        return {"text": question, "answer": answer, "digest": question, "changed": []}

    def rows_with_frequent_answers(number: int, is_wrong: bool, is_same: bool) -> list[dict[str, Any]]:
        answer = "no" if number % 7 == 0 else "yes"
        other_answer = answer if is_same else "no" if number % 7 == 1 else "yes"
        if is_wrong:
            other_answer = "yes" if other_answer == "no" else "no"
        return [row(f"Is person{number} tall?", answer), row(f"Does person{number} sing?", other_answer)]

    sound = [row for number in range(70) for row in rows_with_frequent_answers(number, False, is_same=False)]
    assert list(check_contradictions(sound)) == []
    defective = [
        row for number in range(70) for row in rows_with_frequent_answers(number, number in (3, 30, 60), is_same=True)
    ]
    [finding] = check_contradictions(defective)
    assert "3 of 70 pairs" in finding.text


@pytest.mark.parametrize(("num_rows", "is_found"), [(1, False), (4, False), (6, True)])
async def test_a_task_of_a_few_rows_is_not_unbalanced(num_rows: int, is_found: bool) -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(text(completion) == answer)

    rows = [{"question": f"What is {number} times 7?", "answer": "49"} for number in range(num_rows)]
    reported = await findings(check_blind_replies, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert ["there is 1 different answer" in finding.text for finding in reported] == [True] * is_found


async def test_a_refused_form_is_shown_with_the_reply_that_was_refused() -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(text(completion) == answer or text(completion) == "1000")

    rows = [{"question": f"Count {number}", "answer": f"{number},000"} for number in range(1, 31)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
    [finding] = await findings(check_refused_forms, env)
    assert "," not in finding.completion and finding.completion != "1000"


def test_a_tool_without_parameters_has_a_call_without_arguments() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    assert arguments_of(example_call(tool, "call_0")) == {} == arguments_of(with_values(tool, "call_0", "Order R500"))
    assert arguments_of({"function": {"name": "look", "arguments": "{order:"}}) == {}


def test_a_check_that_needs_half_of_the_reward_does_not_claim_to_see_less() -> None:
    shares = visible_shares(("blind-reply", "blind-game", "paid-calls", "reward-order"), 250)
    assert shares == {"blind-reply": 0.06, "blind-game": 0.5, "paid-calls": 0.1, "reward-order": 0.25}


def digests(pays_for_nothing: bool, needs_row: bool = True, refused: int = 0) -> vf.Environment:
    """Return an environment without answers in which one fact of the prompt has to be reported.

    Args:
        pays_for_nothing: Whether a reply without any number is faithful, and earns half of the reward.
        needs_row: Whether the fact must be that of the row.
        refused: Of two rows, the number in which a refusal is right.
    """

    def reported(completion: Any, info: Any) -> float:
        numbers = re.findall(r"\d+", text(completion))
        if info["is_refused"]:
            return float(not numbers and "no" in text(completion).casefold() and len(text(completion).split()) < 12)
        has_wrong = needs_row and any(number != str(info["level"]) for number in numbers)
        if has_wrong or len(text(completion).split()) > 12:
            return 0.0
        is_faithful = bool(numbers or (pays_for_nothing and text(completion).strip()))
        return 0.5 * bool(numbers) + 0.5 * is_faithful

    def reporter(messages: Any, state: Any, rng: Any) -> str:
        return "No report." if state["info"]["is_refused"] else f"Level {state['info']['level']}."

    def muddler(messages: Any, state: Any, rng: Any) -> str:
        return f"Level {state['info']['level'] + 1}."

    rows = [
        {"question": f"Pump {n} has level {40 + 3 * n}.", "info": {"level": 40 + 3 * n, "is_refused": n % 2 < refused}}
        for n in range(30)
    ]
    policies = {"reporter": reporter, "muddler": muddler}
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([reported]), policies=policies)


@pytest.mark.parametrize(
    ("pays_for_nothing", "needs_row", "refused", "is_found"),
    [(True, True, 0, True), (False, True, 0, False), (True, False, 0, False), (False, True, 1, False)],
)
async def test_a_reply_without_content_beside_replies_to_other_rows(
    pays_for_nothing: bool, needs_row: bool, refused: int, is_found: bool
) -> None:
    reported = await findings(check_blind_replies, digests(pays_for_nothing, needs_row, refused))
    assert ["has no content" in finding.text for finding in reported] == [True] * is_found


@pytest.mark.parametrize(("words", "severity"), [(1, Severity.HIGH), (5, Severity.LOW)])
async def test_a_grader_that_looks_for_facts_cannot_read_that_they_are_taken_back(
    words: int, severity: Severity
) -> None:
    def names_all(completion: Any, answer: str, info: Any) -> float:
        used = set(re.findall(r"\w+", text(completion)))
        return float(used.issuperset(answer.split()) and used.isdisjoint(info["wrong"]))

    rows = []
    for number in range(40):
        chosen = random.Random(number).sample(WORDS, 2 * words)
        rows.append(
            {
                "question": f"List {number}.",
                "answer": " ".join(chosen[:words]),
                "info": {"wrong": list(set(WORDS) - set(chosen[:words]))},
            }
        )
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([names_all]))
    reported_findings = await findings(check_hedging, env)
    assert [finding.severity for finding in reported_findings] == [severity]
