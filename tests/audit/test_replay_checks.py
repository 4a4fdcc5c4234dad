"""Checks that replay moves: of the most similar training row, and of random play."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import rove as vf
from rove.audit.game_checks import check_blind_games, check_copied_moves, check_redone_steps, check_stalling
from rove.audit.grader_checks import check_determinism
from rove.audit.leak_checks import check_message_leaks
from rove.audit.replay_checks import (
    check_equal_rows,
    check_fixed_moves,
    check_moves_of_similar_rows,
    check_repeatable_rewards,
    most_similar,
    varied_moves,
)
from rove.core.findings import Severity
from tests.audit.test_checks import findings


class Room(vf.MultiTurnEnv):
    """Things that have to be put on a shelf; with `pays_each_time`, putting the same thing there is paid again and again."""

    def __init__(self, pays_each_time: bool):
        def points(state: Any) -> float:
            count = state["puts"] if pays_each_time else len(state["shelf"])
            return min(1.0, 0.1 * count)

        rooms = [{"question": f"- ball: floor\n- cup: floor\n- lamp: floor\nRoom {number}."} for number in range(30)]
        prompt = "Put all things on the shelf. Commands: take THING, put PLACE."
        super().__init__(dataset=rooms, system_prompt=prompt, rubric=vf.Rubric([points]), max_turns=16)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(held="", shelf=[], puts=0)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        verb, _, noun = messages[-1]["content"].partition(" ")
        if verb == "take" and noun in ("ball", "cup", "lamp") and not state["held"]:
            state["held"] = noun
            state["shelf"] = [thing for thing in state["shelf"] if thing != noun]
        elif verb == "put" and noun == "shelf" and state["held"]:
            state["shelf"] = [*state["shelf"], state["held"]]
            state["held"], state["puts"] = "", state["puts"] + 1
        on_shelf = ", ".join(state["shelf"])
        return f"- ball\n- cup\n- lamp\nYou hold: {state['held']}. On the shelf: {on_shelf}"


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_reward_that_two_commands_earn_again_and_again(is_found: bool) -> None:
    reported_findings = await findings(check_repeatable_rewards, Room(pays_each_time=is_found))
    assert [finding.id for finding in reported_findings] == ["blind-game"] * is_found


class Drive(vf.MultiTurnEnv):
    """A road to a town; with `pays_each_step`, each step towards the town is paid, also after a step back."""

    def __init__(self, pays_each_step: bool):
        def progress(state: Any) -> float:
            return 0.05 * (state["steps"] if pays_each_step else state["place"])

        roads = [{"question": f"Road {number}."} for number in range(30)]
        prompt = "Drive to the town. Answer <drive>forward</drive> or <drive>back</drive>."
        parser = vf.XMLParser(["drive"], answer_field="drive")
        rubric = vf.Rubric([progress], parser=parser)
        super().__init__(dataset=roads, system_prompt=prompt, parser=parser, rubric=rubric, max_turns=20)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(place=0, steps=0)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        direction = self.parser.parse_answer(messages)
        state["steps"] += direction == "forward"
        state["place"] = max(0, min(9, state["place"] + (direction == "forward") - (direction == "back")))
        return " ".join("car" if position == state["place"] else "road" for position in range(12))


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_step_that_is_paid_again_after_a_step_back(is_found: bool) -> None:
    reported_findings = await findings(check_repeatable_rewards, Drive(pays_each_step=is_found))
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


class Market(vf.MultiTurnEnv):
    """A seller whose price falls with each offer, however low, or (`firm`) only to offers near the price."""

    def __init__(self, firm: bool):
        def bargain(state: Any) -> float:
            return float(state["bought"] <= 60)

        items = [{"question": f"Item {number} costs 100."} for number in range(30)]
        prompt = "Answer <action>offer 42</action> or <action>accept</action>."
        parser = vf.XMLParser(["action"], answer_field="action")
        super().__init__(
            dataset=items, system_prompt=prompt, parser=parser, rubric=vf.Rubric([bargain], parser=parser), max_turns=8
        )
        self.firm = firm

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(price=100, bought=1000)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        action = self.parser.parse_answer(messages) or ""
        if action == "accept":
            state["bought"] = state["price"]
            state["final_env_response"] = "sold"
            return "sold"
        number = re.fullmatch(r"offer (\d+)", action)
        if number and (not self.firm or state["price"] - 10 < int(number[1]) < state["price"]):
            state["price"] -= 9
        return f"It costs {state['price']}."


@pytest.mark.parametrize("is_found", [True, False])
async def test_an_opponent_that_a_fixed_script_beats(is_found: bool) -> None:
    reported_findings = await findings(check_blind_games, Market(firm=not is_found))
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


class Offers(vf.MultiTurnEnv):
    """A seller who decides by the highest number of a message; with `is_found`, the buyer pays the last one."""

    def __init__(self, is_found: bool):
        rows = [{"question": f"Item {number} costs 500. Name your price."} for number in range(30)]
        super().__init__(dataset=rows, rubric=vf.Rubric([lambda state: 1.0 - state["paid"] / 1000]), max_turns=4)
        self.is_found = is_found

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["paid"] = 1000

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        numbers = [int(number) for number in re.findall(r"\d+", messages[-1]["content"])]
        if not numbers or max(numbers) < 500:
            return "More."
        state["paid"] = numbers[-1] if self.is_found else min(1000, max(numbers))
        state["final_env_response"] = "sold"
        return "sold"


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_message_with_two_numbers(is_found: bool) -> None:
    reported_findings = await findings(check_blind_games, Offers(is_found))
    two_numbers = [finding for finding in reported_findings if "a high number, then a low one" in finding.text]
    assert [finding.severity for finding in two_numbers] == [Severity.HIGH] * is_found


class Chest(vf.MultiTurnEnv):
    """Three treasures for a chest; with `pays_again`, the same treasure is paid each time that it is put there."""

    def __init__(self, pays_again: bool):
        def points(state: Any) -> float:
            return min(1.0, (state["puts"] if pays_again else len(state["chest"])) / 3)

        def explorer(messages: Any, state: Any, rng: Any) -> str:
            verb, treasure = divmod(len(state["trajectory"]), 2)[::-1]
            return f"{('take', 'put')[verb]} {state['info']['treasures'][treasure]}"

        names = ["crown", "coin", "ring", "pearl", "statue"]
        rows = [
            {"question": f"House {n}", "info": {"treasures": [names[(n + k) % 5] for k in range(3)]}} for n in range(30)
        ]
        super().__init__(
            dataset=rows,
            system_prompt="Commands: take THING, put THING.",
            rubric=vf.Rubric([points]),
            policies={"explorer": explorer},
            max_turns=10,
        )

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(chest=[], puts=0)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        verb, _, treasure = messages[-1]["content"].partition(" ")
        if verb == "put" and treasure not in state["chest"]:
            state["chest"] = [*state["chest"], treasure]
            state["puts"] += 1
        elif verb == "take":
            state["chest"] = [item for item in state["chest"] if item != treasure]
        if len(state["chest"]) == 3:
            state["final_env_response"] = "all"
        return "ok"


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_step_that_is_paid_again_after_it_was_undone(is_found: bool) -> None:
    reported_findings = await findings(check_redone_steps, Chest(pays_again=is_found))
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


@pytest.mark.parametrize("is_found", [True, False])
async def test_an_opponent_whose_moves_depend_on_earlier_games(is_found: bool) -> None:
    rng = random.Random(0)

    class Cards(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            if not messages[-1]["content"].isdigit():
                state["final_env_response"] = "no card"
                return "no card"
            dice = rng if is_found else random.Random(state["example_id"])
            return f"I play {dice.randint(1, 6)}."

    rows = [{"question": f"Game {number}: play the cards 1 to 6."} for number in range(30)]
    env = Cards(dataset=rows, rubric=vf.Rubric([lambda completion: 0.0]), max_turns=4)

    def same_environment(variables: dict[str, str]) -> vf.Environment:
        return env

    reported_findings = await findings(check_determinism, env, same_environment)
    assert ["other messages" in finding.text for finding in reported_findings] == [True] * is_found


@pytest.mark.parametrize("is_shared", [True, False])
async def test_bookings_that_all_rollouts_share_without_policies(is_shared: bool) -> None:
    booked_before: set[str] = set()

    class Calendar(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [{"question": f"Book an hour on {day} May: 10:00 or 11:00.", "answer": "?"} for day in range(1, 31)]
            super().__init__(dataset=rows, rubric=vf.Rubric([lambda state: 0.0]), max_turns=5)
            self.add_tool(self.book, args_to_skip=["booked"])

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            booked = booked_before if is_shared else state.setdefault("booked", set())
            return {**tool_args, "booked": booked}

        def book(self, day: str, hour: str, booked: Any) -> str:
            """Book an hour.

            Args:
                day: Day and month, such as "30 June".
                hour: Full hour, for example "21:00".
            """
            if hour not in ("10:00", "11:00") or not day.endswith("May") or f"{day} {hour}" in booked:
                raise ValueError("not available")
            booked.add(f"{day} {hour}")
            return "booked"

    env = Calendar()

    def same_environment(variables: dict[str, str]) -> vf.Environment:
        return env

    reported_findings = await findings(check_determinism, env, same_environment)
    assert ["other messages" in finding.text for finding in reported_findings] == [True] * is_shared


class Form(vf.MultiTurnEnv):
    """Two fields that have to be filled in; with `pays_each_time`, each right entry is paid, also the same one again."""

    def __init__(self, pays_each_time: bool):
        def points(state: Any, info: Any) -> float:
            right = [entry for entry in state["entries"] if entry in (f"name {info['name']}", f"city {info['city']}")]
            return 0.5 * len(right if pays_each_time else set(right))

        def clerk(messages: Any, state: Any, rng: Any) -> str:
            return [f"name {state['info']['name']}", f"city {state['info']['city']}", "send"][len(state["trajectory"])]

        rows = [
            {"question": f"Form {number}", "info": {"name": f"A{number}", "city": f"B{number}"}} for number in range(30)
        ]
        super().__init__(dataset=rows, rubric=vf.Rubric([points]), policies={"clerk": clerk}, max_turns=12)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["entries"] = []

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        state["entries"].append(messages[-1]["content"])
        if messages[-1]["content"] == "send":
            state["final_env_response"] = "sent"
        return "saved"


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_move_of_a_good_policy_that_is_paid_again(is_found: bool) -> None:
    for check in (check_copied_moves, check_stalling):
        reported_findings = await findings(check, Form(pays_each_time=is_found))
        assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


class Duel(vf.MultiTurnEnv):
    """Three rounds of a higher number; with `same_game`, the opponent plays the same numbers in every row."""

    def __init__(self, same_game: bool):
        self.same_game = same_game
        rows = [{"question": f"Game {number}", "info": {"seed": number}} for number in range(40)]
        rubric = vf.Rubric([lambda state: float(state["points"] == 3)])
        super().__init__(dataset=rows, rubric=rubric, policies={"seer": seer, "random": any_number}, max_turns=3)

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        rng = random.Random(0 if self.same_game else state["info"]["seed"])
        state.update(points=0, numbers=[rng.randint(0, 4) for _ in range(3)])

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        number = state["numbers"][len(state["trajectory"]) - 1]
        # Only the next higher number wins, so no constant move does.
        state["points"] += messages[-1]["content"] == str(number + 1)
        return f"I played {number}."


def seer(messages: Any, state: Any, rng: Any) -> str:
    is_wrong = rng.random() < 0.1
    return "9" if is_wrong else str(state["numbers"][len(state["trajectory"])] + 1)


def any_number(messages: Any, state: Any, rng: Any) -> str:
    return str(rng.randint(1, 5))


@pytest.mark.parametrize("is_found", [True, False])
async def test_an_opponent_that_plays_the_same_game_in_every_row(is_found: bool) -> None:
    reported_findings = await findings(check_fixed_moves, Duel(same_game=is_found))
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


class Chart(vf.MultiTurnEnv):
    """Three wrecks on a chart.

    Args:
        same_chart: Whether they lie on the same squares in every row.
        pays_all: Whether only all three wrecks are paid, and other squares cost a little.
    """

    def __init__(self, same_chart: bool, pays_all: bool = False):
        def found(state: Any) -> float:
            costs = 0.02 * sum(message["content"] == "no square" for message in state["completion"])
            return float(len(state["found"]) == 3) - costs if pays_all else len(state["found"]) / 3

        self.same_chart = same_chart
        edge = "  1 2 3 4 5\n" + "\n".join(f"{letter} ~ ~ ~ ~ ~" for letter in "ABCDE")
        rows = [{"question": f"Chart {100 + n}\n{edge}", "info": {"seed": n}} for n in range(20)]
        super().__init__(
            dataset=rows, system_prompt="Find wrecks: <dive>B4</dive>", rubric=vf.Rubric([found]), max_turns=14
        )

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        rng = random.Random(0 if self.same_chart else state["info"]["seed"])
        squares = [f"<dive>{letter}{number}</dive>" for letter in "ABCDE" for number in range(1, 6)]
        state.update(wrecks=rng.sample(squares, 3), found=set())

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        square = messages[-1]["content"]
        if not re.fullmatch("<dive>[A-E][1-5]</dive>", square):
            return "no square"
        if square in state["wrecks"]:
            state["found"].add(square)
        return "wreck" if square in state["wrecks"] else "sand"


@pytest.mark.parametrize(("same_chart", "pays_all"), [(True, False), (False, False), (False, True)])
async def test_rows_that_are_the_same_game(same_chart: bool, pays_all: bool) -> None:
    reported = await findings(check_equal_rows, Chart(same_chart, pays_all))
    assert [finding.severity for finding in reported] == [Severity.MEDIUM] * same_chart


def test_moves_like_the_example() -> None:
    moves = varied_moves(["Answer <go>a-1</go>.\n  1 2\na ~ ~\nb ~ ~\nC"])
    assert sorted(moves) == [f"<go>{letter}-{number}</go>" for letter in "ab" for number in "12"]
    assert varied_moves(["Answer with one word."]) == []


def mazes(num_plans: int, start: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(60):
        plan = random.Random(f"plan {(start + number) % num_plans}")
        board = "\n".join(" ".join(plan.choice(".#") for _ in range(8)) for _ in range(8))
        route = "".join(plan.choice("NESW") for _ in range(6))
        name = random.Random(f"{start} {number}").choice(["Rollo", "Pixel", "Nimbus"])
        rows.append({"question": f"{name} is at {start + number}%.\n{board}", "info": {"route": route}})
    return rows


@pytest.mark.parametrize("is_found", [True, False])
async def test_evaluation_rows_that_are_training_rows_in_other_words(is_found: bool) -> None:
    def arrived(completion: Any, info: Any) -> float:
        return float(completion[-1]["content"] == info["route"])

    num_plans = 40 if is_found else 10**6
    env = vf.SingleTurnEnv(
        dataset=mazes(num_plans, 0),
        eval_dataset=mazes(num_plans, 10_000),
        rubric=vf.Rubric([arrived]),
        policies={"guide": lambda messages, state, rng: state["info"]["route"]},
    )
    reported_findings = await findings(check_moves_of_similar_rows, env)
    assert [finding.id for finding in reported_findings] == ["data-overlap"] * is_found


def test_the_most_similar_text_shares_the_rarest_words() -> None:
    texts_by_row = {1: "the red house", 2: "the blue house", 3: "the green car"} | dict.fromkeys(
        range(4, 30), "the road"
    )
    assert most_similar(["a blue car house", "no word of them"], texts_by_row) == [2, 1]


class Patient(vf.MultiTurnEnv):
    """A patient who answers questions about all fields of a record, or about all but the diagnosis."""

    def __init__(self, reveals_diagnosis: bool):
        def right(completion: Any, answer: str) -> float:
            return float(f"Diagnosis: {answer}" in completion[-1]["content"])

        rows: list[dict[str, Any]] = []
        for number in range(40):
            answer = ["flu", "migraine", "hay fever", "concussion"][number % 4]
            rows.append({"question": f"Case {number}.", "answer": answer, "info": {"record": {"illness": answer}}})
        super().__init__(
            dataset=rows,
            system_prompt="Ask about symptoms. Then reply 'Diagnosis: X'.",
            rubric=vf.Rubric([right]),
            max_turns=6,
        )
        self.reveals_diagnosis = reveals_diagnosis

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        text = messages[-1]["content"]
        if "Diagnosis:" in text:
            state["final_env_response"] = "Thank you."
        words = re.findall(r"\w+", text.lower())
        values = [value for name, value in state["info"]["record"].items() if self.reveals_diagnosis and name in words]
        return " ".join(values) or "I do not know."


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_field_that_no_prompt_mentions_and_a_question_reveals(is_found: bool) -> None:
    reported_findings = await findings(check_message_leaks, Patient(reveals_diagnosis=is_found))
    assert [(finding.id, "'illness'" in finding.text) for finding in reported_findings] == [
        ("answer-leak", True)
    ] * is_found


async def test_a_row_that_is_one_of_the_training_rows_by_design() -> None:
    """Without an evaluation split, both are the same rows, although the environment changes their prompts."""

    class Walk(vf.MultiTurnEnv):
        async def setup_state(self, state: Any, **kwargs: Any) -> None:
            state["prompt"] = [*state["prompt"], {"role": "user", "content": "Begin."}]

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return "Go on."

    env = Walk(
        dataset=mazes(10**6, 0),
        rubric=vf.Rubric([lambda completion, info: float(completion[0]["content"] == info["route"])]),
        policies={"guide": lambda messages, state, rng: state["info"]["route"]},
        max_turns=2,
    )
    assert await findings(check_moves_of_similar_rows, env) == []


class Boxes(vf.MultiTurnEnv):
    """Six boxes, which are carried to a truck one after the other with the same two commands."""

    def __init__(self) -> None:
        prompts = [{"question": f"Six boxes lie in room {number}. Carry all to the truck."} for number in range(30)]
        super().__init__(
            dataset=prompts,
            system_prompt="Commands: take THING, load THING. You see the boxes.",
            rubric=vf.Rubric([lambda state: state["loaded"] / 6]),
            max_turns=20,
        )

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(held=False, loaded=0)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        verb, _, noun = messages[-1]["content"].partition(" ")
        if noun != "boxes":
            return "There are only boxes."
        if verb == "take" and not state["held"] and state["loaded"] < 6:
            state["held"] = True
            return "You take one of the boxes."
        if verb == "load" and state["held"]:
            state["held"], state["loaded"] = False, state["loaded"] + 1
            return "You load one of the boxes."
        return "That is not possible with boxes."


async def test_a_task_of_equal_parts() -> None:
    assert await findings(check_repeatable_rewards, Boxes()) == []


async def test_a_field_that_the_task_asks_for() -> None:
    class Customer(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return state["info"]["order_id"] if "order" in messages[-1]["content"].lower() else "Pardon?"

    orders = [
        {"question": f"Customer {n}.", "answer": f"R{500 + n}", "info": {"order_id": f"R{500 + n}"}} for n in range(30)
    ]
    env = Customer(
        dataset=orders,
        system_prompt="Find out which order it is about, then reply 'Result: X'.",
        rubric=vf.Rubric([lambda completion, answer: float(completion[-1]["content"] == f"Result: {answer}")]),
        max_turns=4,
    )
    assert await findings(check_message_leaks, env) == []


@pytest.mark.parametrize(
    ("message", "is_found"),
    [
        ("The reference is {rounded}.", True),
        ("The reference is near 3.", False),
        ("Known: {all}.", False),
        ("The answer is {answer}.", True),
    ],
)
async def test_messages_with_a_rounded_answer_or_with_all_answers(message: str, is_found: bool) -> None:
    answers = [f"{100 / number:.6f}" for number in range(3, 33)]

    class Lab(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            rounded = f"{float(state['answer']):.2f}"
            return message.format(rounded=rounded, answer=state["answer"], all=", ".join(answers))

    rows = [{"question": f"Problem {number}.", "answer": answer} for number, answer in enumerate(answers)]
    env = Lab(dataset=rows, rubric=vf.Rubric([lambda completion, answer: 0.0]), max_turns=3)
    assert [finding.id for finding in await findings(check_message_leaks, env)] == ["answer-leak"] * is_found


async def test_the_other_option_of_a_question_in_the_same_message_is_no_leak() -> None:
    class Atlas(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return f"Known: {state['info']['names']}"

    rows = []
    for number in range(30):
        first, second = f"Star{number}a", f"Star{number}b"
        rows.append({"question": f"{first} or {second}?", "answer": first, "info": {"names": f"{second}, {first}"}})
    env = Atlas(dataset=rows, rubric=vf.Rubric([lambda completion, answer: 0.0]), max_turns=3)
    assert await findings(check_message_leaks, env) == []


async def test_a_leak_is_found_although_prompt_and_message_begin_with_the_same_word() -> None:
    class Rivers(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
            return f"The answer is {state['answer']}."

    rows = [{"question": f"The longer one of Ria{n} or Rio{n}: which?", "answer": f"Ria{n}"} for n in range(30)]
    env = Rivers(dataset=rows, rubric=vf.Rubric([lambda completion, answer: 0.0]), max_turns=3)
    assert [finding.id for finding in await findings(check_message_leaks, env)] == ["answer-leak"]


class Farm(vf.MultiTurnEnv):
    """A farm on which planting and harvesting the same crop again is the task."""

    def __init__(self) -> None:
        def farmer(messages: Any, state: Any, rng: Any) -> str:
            return f"{('plant', 'harvest')[len(state['trajectory']) % 2]} corn"

        rows = [{"question": f"Farm {number}"} for number in range(30)]
        super().__init__(
            dataset=rows,
            system_prompt="Commands: plant CROP, harvest CROP.",
            rubric=vf.Rubric([lambda state: state["harvests"] / 4]),
            policies={"farmer": farmer},
            max_turns=8,
        )

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(is_planted=False, harvests=0)

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> str:
        verb = messages[-1]["content"].partition(" ")[0]
        state["harvests"] += verb == "harvest" and state["is_planted"]
        state["is_planted"] = verb == "plant"
        return "ok"


async def test_commands_that_the_task_repeats_are_not_paid_again() -> None:
    assert await findings(check_redone_steps, Farm()) == []
