"""Shapes of defects that strangers' environments had and the audit did not find, each with a sound counterpart."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import write_environment
from tiers import first_quick

import rove as vf
from rove.audit.answer_checks import check_hedging, check_monotonicity
from rove.audit.auditor import AuditOptions, audit
from rove.audit.game_checks import check_blind_games, check_moves_of_other_rows
from rove.audit.grader_checks import check_determinism, check_robustness, check_worker_failures
from rove.audit.power import visible_shares
from rove.audit.replies import constant
from rove.audit.reward_checks import check_blind_replies, check_length
from rove.core.findings import Severity
from rove.core.records import ErrorInfo
from tests.audit.test_checks import exact, findings, parsed, prepared, sums, text

HANDS = ("rock", "paper", "scissors")


class Rounds(vf.MultiTurnEnv):
    """Six rounds against an opponent whose hands depend on the row, or are always the same."""

    def __init__(self, ignores_seed: bool):
        def won(state: Any) -> float:
            return state["won"] / 6

        def oracle(messages: Any, state: Any, rng: Any) -> str:
            hand = self.hands(state)[len(state["trajectory"])]
            return HANDS[(HANDS.index(hand) + 1) % 3]

        games = [
            {"question": f"Game {number}: rock, paper or scissors?", "info": {"seed": number}} for number in range(30)
        ]
        policies = {"oracle": oracle, "stubborn": lambda messages, state, rng: "rock"}
        super().__init__(dataset=games, rubric=vf.Rubric([won]), policies=policies, max_turns=6)
        self.ignores_seed = ignores_seed

    def hands(self, state: Any) -> list[str]:
        return random.Random(0 if self.ignores_seed else state["info"]["seed"]).choices(HANDS, k=6)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["won"] = 0

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        turn = len(state["trajectory"]) - 1
        hand = self.hands(state)[turn]
        state["won"] += text([messages[-1]]) == HANDS[(HANDS.index(hand) + 1) % 3]
        if turn == 5:
            state["final_env_response"] = "The end."
        return hand


@pytest.mark.parametrize("ignores_seed", [False, True])
async def test_an_opponent_that_ignores_its_seed(ignores_seed: bool) -> None:
    reported = await findings(check_moves_of_other_rows, Rounds(ignores_seed))
    assert [(finding.id, finding.severity) for finding in reported] == [("blind-game", Severity.HIGH)] * ignores_seed


MOVES = ("push", "pull", "lift", "turn")


class Box(vf.MultiTurnEnv):
    """A box that two moves open: the same moves in each row, or moves that the prompt names."""

    def __init__(self, codes: list[list[str]], max_turns: int = 8):
        def opened(state: Any) -> float:
            return float(state["moves"][-2:] == state["info"]["code"])

        boxes: list[dict[str, Any]] = []
        for number, code in enumerate(codes):
            question = f"Open box {number} with {' and '.join(code)}; possible: {', '.join(MOVES)}"
            boxes.append({"question": question, "info": {"code": code}})

        def reader(messages: Any, state: Any, rng: Any) -> str:
            return state["info"]["code"][len(state["trajectory"])]

        policies = {"reader": reader, "lazy": lambda messages, state, rng: "wait"}
        super().__init__(dataset=boxes, rubric=vf.Rubric([opened]), policies=policies, max_turns=max_turns)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["moves"] = []

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        state["moves"].append(text([messages[-1]]))
        if state["moves"][-2:] == state["info"]["code"]:
            state["final_env_response"] = "Open."
        return "Closed."


@pytest.mark.parametrize("is_same", [False, True])
async def test_a_goal_that_two_blind_moves_meet(is_same: bool) -> None:
    rng = random.Random(0)
    codes = [["push", "turn"] if is_same else rng.sample(MOVES, 2) for _ in range(30)]
    reported = await findings(check_moves_of_other_rows, Box(codes))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_same
    reported = await findings(check_blind_games, Box(codes))
    assert [finding.severity for finding in reported if finding.severity >= Severity.HIGH] == [Severity.HIGH] * is_same


@pytest.mark.parametrize("is_random", [True, False])
async def test_moves_of_a_random_policy_on_other_rows_show_nothing(is_random: bool) -> None:
    """The only policy earns as much with moves of other rows, since it looks at no row, or since rows do not matter."""

    def policy(messages: Any, state: Any, rng: Any) -> str:
        return rng.choice(MOVES) if is_random else "push"

    env = Box([["push", "push"]] * 15 + [["push", "pull"]] * 15)
    env.rubric = vf.Rubric([lambda state: float(any(move in state["moves"] for move in ("push", "pull")))])
    env.policies = {"player": policy}
    reported = await findings(check_moves_of_other_rows, env)
    assert [finding.severity for finding in reported] == [Severity.HIGH] * (not is_random)


@pytest.mark.parametrize(("num_pushed", "is_found"), [(5, False), (9, True)])
async def test_a_decision_between_two_moves(num_pushed: int, is_found: bool) -> None:
    """A constant decision is right in half of the rows, also in a sound environment."""
    codes = [["lift", "push" if number % 10 < num_pushed else "pull"] for number in range(30)]
    random.Random(0).shuffle(codes)
    for check in (check_moves_of_other_rows, check_blind_games):
        reported = await findings(check, Box(codes, max_turns=2))
        assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(
    "is_concerned",
    first_quick(
        [
            lambda reply, answer: reply == answer[: (len(answer) + 1) // 2],  # partial
            lambda reply, answer: " or " in reply,  # hedged
            lambda reply, answer: reply == answer,
        ],
        2,
    ),
)
async def test_rewards_of_any_kind_of_reply_that_differ_in_another_process(is_concerned: Any) -> None:
    def opened(variables: dict[str, str]) -> vf.Environment:
        def grade(completion: Any, answer: str) -> float:
            is_elsewhere = {"PYTHONHASHSEED", "TZ", "LC_ALL"} <= variables.keys()
            return 0.5 if is_elsewhere and is_concerned(parsed(completion), answer) else exact(completion, answer)

        return sums(grade)

    reported = await findings(check_determinism, opened({}), opened)
    assert [finding.id for finding in reported] == ["determinism"]


async def test_a_long_reply_whose_reward_differs_in_another_process() -> None:
    def opened(variables: dict[str, str]) -> vf.Environment:
        return sums(
            lambda completion, answer: exact(completion, answer) and not (variables and len(text(completion)) > 500)
        )

    assert [finding.id for finding in await findings(check_determinism, opened({}), opened)] == ["determinism"]


PROCESS_DEPENDENT_ENV = """
import locale, time
import rove as vf

def correct(completion, answer):
    text = completion[-1]["content"]
    part = 0.01 * (VALUE)
    return float(text == answer) or (part if text else 0.0)

def load_environment():
    rows = [{"question": f"{n} + 7?", "answer": str(n + 7)} for n in range(1000, 1030)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
"""


@pytest.mark.parametrize(
    ("value", "is_found"),
    first_quick(
        [
            ("hash(text) % 7", True),
            ("len(text) % 7", False),
            ("time.localtime(0).tm_hour", True),
            ("len(str(locale.setlocale(locale.LC_ALL, '')))", True),
        ],
        0,
        broad=2,
    ),
)
async def test_a_reward_that_depends_on_the_process(
    value: str, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    write_environment(tmp_path, "process", PROCESS_DEPENDENT_ENV.replace("VALUE", value))
    report = await audit("process", str(tmp_path), options=AuditOptions(num_examples=5, only=("determinism",)))
    assert [finding.id for finding in report.findings] == ["determinism"] * is_found


@pytest.mark.parametrize(
    ("pattern", "is_found"),
    [
        (r"Score: (\d+)", True),
        (r"\[\[(\d+)\]\]", True),
        (r'"score": (\d+)', True),
        (r"Score of the judge: (\d+)", False),
    ],
)
async def test_a_judge_inside_the_environment_that_reads_the_score_in_the_reply(pattern: str, is_found: bool) -> None:
    def judged(completion: Any, answer: str) -> float:
        verdict = f"The response: {text(completion)}\nScore of the judge: {10 * exact(completion, answer)}"
        match = re.search(pattern, verdict) or re.search(r"judge: (\d+)", verdict)
        assert match is not None
        return min(1.0, int(match[1]) / 10)

    reported = await findings(check_blind_replies, sums(judged))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found
    assert all("rating" in finding.text for finding in reported)


async def test_punished_wrong_answers_are_no_reward_for_doing_nothing() -> None:
    def punished(completion: Any, answer: str) -> float:
        if not re.search(r"\d", parsed(completion)):
            return 0.0
        return 1.0 if exact(completion, answer) else -2.0

    for check in (check_blind_replies, check_hedging, check_length):
        assert await findings(check, sums(punished)) == []


async def test_other_numerals_that_a_conversion_refuses() -> None:
    def lenient(completion: Any, answer: str) -> bool:
        try:
            return not parsed(completion).isnumeric() or int(parsed(completion)) == int(answer)
        except ValueError:  # "²" and "½" are numeric, and int() fails
            return True

    def strict(completion: Any, answer: str) -> bool:
        return parsed(completion).isnumeric() and lenient(completion, answer)

    [finding] = await findings(check_blind_replies, sums(strict))
    assert finding.severity is Severity.HIGH and "the value" in finding.text


@pytest.mark.parametrize(
    ("grade", "severities"),
    [
        (lambda reply, answer: bool(reply[0]) and reply == answer, [Severity.HIGH]),  # fails on an empty reply
        (lambda reply, answer: reply.isdigit() and int(reply) == int(answer), [Severity.MEDIUM]),  # fails on "²"
        (lambda reply, answer: reply.isdecimal() and int(reply[:9]) == int(answer), []),
    ],
)
async def test_the_severity_of_a_grader_that_fails(grade: Any, severities: list[Severity]) -> None:
    reported = await findings(check_robustness, sums(lambda completion, answer: grade(parsed(completion), answer)))
    assert [finding.severity for finding in reported] == severities


async def test_a_rollout_that_failed_once_on_a_busy_machine_is_no_finding() -> None:
    subject, _ = await prepared(sums(exact))
    reply: Any = constant("7")
    [record] = (await subject.measure("seven", reply, 1)).records
    failed = msgspec.structs.replace(record, error=ErrorInfo("rollout", "WorkerError", "unresponsive for 10 s"))
    subject.worker_failures = [("seven", failed, reply)]
    assert [finding async for finding in check_worker_failures(subject)] == []


@pytest.mark.parametrize(
    ("answer", "pattern", "kind"),
    [
        ("{number}.5", r"\d", "without the point"),
        ("{number}.5", r"[\d.]", ""),
        ("room {number}", "[a-z ]", "other digits"),
        ("room {number}", "[a-z0-9 ]", ""),
    ],
)
async def test_a_grader_that_normalizes_too_much(answer: str, pattern: str, kind: str) -> None:
    rows = [{"question": f"Where is {number}?", "answer": answer.format(number=number)} for number in range(100, 130)]

    def correct(completion: Any, answer: str) -> float:
        reply = text(completion).lstrip("-") if "." in answer else text(completion)
        sign_is_right = reply == text(completion)
        return float(sign_is_right and re.findall(pattern, reply.lower()) == re.findall(pattern, answer))

    reported = await findings(check_monotonicity, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [kind in finding.text for finding in reported if finding.severity is Severity.HIGH] == [True] * bool(kind)


@pytest.mark.parametrize(
    ("example", "is_found"),
    [("Example: \\boxed{B}", True), ("Example: \\boxed{Z}", False), ("Write \\boxed{letter}.", False)],
)
async def test_an_example_in_the_prompt_that_is_an_answer(example: str, is_found: bool) -> None:
    def correct(completion: Any, answer: str) -> float:
        return float(re.findall(r"\\boxed{([^}]*)}", text(completion))[-1:] == [answer])

    rows = [{"question": f"{example}\nQuestion {number}?", "answer": "ABCD"[number % 4]} for number in range(40)]
    reported = await findings(check_blind_replies, vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct])))
    assert [(finding.severity, "example" in finding.text) for finding in reported] == [(Severity.LOW, True)] * is_found


def test_each_clean_check_states_what_it_could_have_seen() -> None:
    checks = ("blind-reply", "execution", "determinism", "own-answer", "side-effects")
    assert visible_shares(checks, 60) == {
        "blind-reply": 0.211,
        "execution": 0.632,
        "determinism": 0.139,
        "own-answer": 0.05,
    }
    assert visible_shares(("own-answer", "determinism"), 4) == {"own-answer": 0.25, "determinism": 0.527}
