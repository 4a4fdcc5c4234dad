"""Tests of the example environments: properties of all of them, then each environment."""

from __future__ import annotations

import collections
import functools
import importlib
import json
import os
import random
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row, first_quick, some_quick
from toy_envs import generate_sync, scripted_client

import rove as vf
from rove.envs.loading import environment_file, example_environments
from rove.envs.multi_turn import MultiTurnEnv

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(example_environments())
REWARDS = {
    "double_check": (0.0, 1.0),
    "lookup": (0.0, 1.0),
    "math_python": (0.0, 1.0),
    "needle": (0.0, 1.0),
    "reverse_text": (0.0, 1.2),
    "short_sentences": (0.0, 1.0),
    "sql_agent": (0.0, 1.0),
    "sums": (0.0, 1.0),
    "tictactoe": (-0.1, 1.2),
    "wiki_search": (0.0, 1.0),
    "word_game": (-0.1, 1.4),
}
"""The minimum and maximum reward of a rollout, by environment."""
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
POLICIES = [(name, player) for name in NAMES for player in vf.load_environment(name).policies]


@functools.cache
def module(name: str) -> Any:
    vf.load_environment(name)
    imported: ModuleType = importlib.import_module(name)
    return imported


def folder(name: str) -> Path:
    """Return the source folder of a package."""
    return environment_file("tictactoe").parents[1] / name


def project(name: str) -> dict[str, Any]:
    return tomllib.loads((folder(name) / "pyproject.toml").read_text())


def modules(name: str) -> list[str]:
    """Return the installed files of a package."""
    single = folder(name) / f"{name}.py"
    files = [single] if single.exists() else (folder(name) / name).glob("*.py")
    return sorted(str(file.relative_to(folder(name))) for file in files)


# All environments


def test_every_folder_is_an_environment():
    folders = [path.name for path in folder("tictactoe").parent.iterdir() if (path / "README.md").exists()]
    assert sorted(folders) == NAMES == sorted(REWARDS)


@pytest.mark.parametrize("name", first_quick(NAMES, 3, broad=None))
def test_pyproject_declares_the_package_and_its_modules_are_short(name):
    metadata = project(name)
    assert metadata["project"]["name"] == name.replace("_", "-")
    first, *extra_requirements = metadata["project"]["dependencies"]
    assert first == "rove"
    assert set(extra_requirements) <= {requirement for extra in EXTRAS.values() for requirement in extra}
    assert all(len((folder(name) / file).read_text().splitlines()) < 250 for file in modules(name))


@pytest.mark.parametrize("name", first_quick(NAMES))
def test_the_wheel_contains_only_the_modules(name, tmp_path):
    pytest.importorskip("hatchling")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=folder(name), check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    assert sorted(file for file in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in file) == modules(name)


@pytest.mark.parametrize("name", first_quick(NAMES, 3, broad=None))
def test_the_readme_has_a_command_and_names_arguments_scores_and_policies(name):
    env = vf.load_environment(name)
    readme = (folder(name) / "README.md").read_text()
    assert f"rove eval {name.replace('_', '-')} -m scripted:" in readme
    arguments = list(module(name).load_environment.__annotations__)[:-1]
    for term in [*arguments, *env.rubric.names, *(f"scripted:{policy}" for policy in env.policies)]:
        assert f"`{term}`" in readme, term


@pytest.mark.parametrize("name", first_quick(NAMES, 3, broad=None))
def test_prompts_are_valid(name):
    for example in vf.load_environment(name, num_examples=20).get_dataset():
        roles = [message.role for message in example["prompt"]]
        assert roles in (["system", "user"], ["user"])
        assert all(isinstance(message.content, str) and message.content for message in example["prompt"])


@pytest.mark.parametrize("name", first_quick(NAMES, broad=3))
def test_the_seed_determines_the_examples(name):
    def examples(seed: int, part: str = "get_dataset", n: int = 20) -> list[dict]:
        return getattr(vf.load_environment(name, num_examples=n, seed=seed), part)()

    assert len(examples(3)) == 20
    assert examples(3) == examples(3)
    assert examples(3) == examples(3, n=30)[:20]  # a longer dataset starts with the shorter one
    assert examples(3) != examples(4)
    assert examples(3) != examples(3, "get_eval_dataset")


@pytest.mark.parametrize("name", first_quick(NAMES))
def test_the_examples_are_the_same_in_another_process(name):
    code = f"import rove; print(rove.load_environment({name!r}, num_examples=3).get_dataset())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == str(vf.load_environment(name, num_examples=3).get_dataset())


@pytest.mark.parametrize("num_examples", first_quick([2, 50], broad=0))
@pytest.mark.parametrize(("name", "player"), some_quick(POLICIES, 2))
def test_every_scripted_policy_keeps_the_format_and_gets_a_reward_in_range(name, player, num_examples):
    env = vf.load_environment(name, num_examples=num_examples)
    low, high = REWARDS[name]
    for record in generate_sync(env, scripted_client(env.policies[player]), rollouts_per_example=2):
        assert record.error is None, record.error
        assert record.scores is not None
        assert low <= record.scores.reward <= high
        answers = [m for m in env.parser.get_assistant_messages(record.completion) if not m.get("tool_calls")]
        assert all(env.parser.format_score(message["content"]) == 1.0 for message in answers)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "garbage",
    first_quick(["", "hello", "<answer><move><reversed_text>", "</answer></move></reversed_text>", "🙂" * 99]),
)
def test_garbage_gets_a_low_reward_and_no_error(name, garbage):
    env = vf.load_environment(name, num_examples=20)
    low, high = REWARDS[name]
    for record in generate_sync(env, scripted_client(garbage)):
        assert record.error is None, record.error
        assert record.scores is not None
        assert low <= record.scores.reward < (low + high) / 2


@pytest.mark.parametrize("name", NAMES)
def test_every_rollout_ends_within_eight_turns(name):
    env = vf.load_environment(name, num_examples=1)
    assert isinstance(env, MultiTurnEnv)
    [record] = generate_sync(env, scripted_client("<think>hm</think>"))
    assert record.stop_condition
    assert len(record.steps) <= 8


# reverse_text


def reverse(**options) -> Any:
    return vf.load_environment("reverse_text", **options)


def test_reverse_text_answers_are_the_reversed_phrases():
    for example in reverse(num_examples=200, min_words=2, max_words=4).get_dataset():
        assert example["answer"] == "".join(reversed(example["prompt"][-1].content))
        assert 2 <= len(example["answer"].split(" ")) <= 4


def test_reverse_text_rewards_similarity():
    env = reverse(num_examples=30)
    assert {record.reward for record in generate_sync(env, scripted_client(env.policies["oracle"]))} == {1.2}
    for record in generate_sync(env, scripted_client(env.policies["copycat"])):
        assert record.scores is not None
        assert record.scores.rewards["likeness"] < 1
        assert record.scores.metrics["exact"] == 0
    [record] = generate_sync(
        reverse(num_examples=1), scripted_client(lambda messages, state, rng: state["answer"])
    )  # the right text without tags
    assert record.reward == 0


letters = st.text("abc ", max_size=8)


@functools.cache
def longest_common_subsequence(a: str, b: str) -> int:
    """Return the length of the longest common subsequence, computed recursively from the definition."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common_subsequence(a[1:], b[1:])
    return max(longest_common_subsequence(a[1:], b), longest_common_subsequence(a, b[1:]))


@given(letters, letters)
def test_lcs_ratio_matches_the_definition(a, b):
    ratio = module("reverse_text").lcs_ratio(a, b)
    expected = 2 * longest_common_subsequence(a, b) / (len(a) + len(b)) if a or b else 1.0
    assert ratio == expected
    assert (ratio == 1) == (a == b)


@pytest.mark.parametrize("words", [(0, 3), (4, 3), (-1, -1)])
def test_reverse_text_rejects_invalid_lengths(words):
    with pytest.raises(vf.ConfigError, match="need 1 <= min_words <= max_words"):
        reverse(min_words=words[0], max_words=words[1])


# short_sentences


@each_row(
    ("answer", "reward"),
    [
        ("A castle is a strong house. Kings lived in it.", 1.0),
        ("A castle is a strong house. A castle is a strong house.", 0.5),  # a repeated sentence gets no reward
        ("No. No. No.", 0.0),  # too short to be sentences
        ("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen", 0.5),
        ("", 0.0),
    ],
)
def test_short_sentences_rewards_each_word_by_the_length_of_its_sentence(answer, reward):
    completion: Any = [vf.AssistantMessage(answer)]
    assert module("short_sentences").short_sentences(completion) == pytest.approx(reward)


def test_short_sentences_evaluates_with_things_outside_of_the_training_set():
    env = vf.load_environment("short_sentences")
    trained = " ".join(row["prompt"][-1].content for row in env.get_dataset())
    questions = [row["prompt"][-1].content for row in env.get_eval_dataset()]
    assert not [question for question in questions if question in trained]


# double_check


def double_check(policy, count: int = 30) -> list[vf.RolloutRecord]:
    env = vf.load_environment("double_check", num_examples=count)
    return generate_sync(env, scripted_client(env.policies[policy] if isinstance(policy, str) else policy))


def scores_of(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.scores is not None
    return {**record.scores.rewards, **record.scores.metrics}


def test_double_check_asks_again_once_and_scores_the_second_answer():
    for record in double_check("oracle"):
        assert [m["content"] for m in record.completion if m["role"] == "user"] == ["Are you sure?"]
        assert scores_of(record) == {"correct": 1, "first_correct": 1, "changed_mind": 0, "num_turns": 2}
        assert record.stop_condition == "answered_twice"
    for record in double_check("doubter"):
        assert scores_of(record) == {"correct": 0, "first_correct": 1, "changed_mind": 1, "num_turns": 2}


def test_double_check_rewards_a_corrected_answer():
    def correct_in_second_turn(messages, state, rng):
        return f"<answer>{state['answer'] if state['trajectory'] else 'no idea'}</answer>"

    for record in double_check(correct_in_second_turn):
        assert scores_of(record) == {"correct": 1, "first_correct": 0, "changed_mind": 1, "num_turns": 2}


def test_double_checks_answers_are_right():
    for record in double_check("oracle", count=300):
        a, sign, b = record.prompt[-1]["content"].removesuffix(" = ?").split()
        assert int(record.answer) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


@each_row(
    ("text", "number"),
    [("42", 42), (" -7 ", -7), ("+7", 7), ("1,024", 1024), ("7 apples", None), ("", None), ("4.0", None)],
)
def test_double_check_reads_numbers(text, number):
    assert module("double_check").whole_number(text) == number


# math_python


def problems(**options) -> Any:
    return vf.load_environment("math_python", **{"unsafe": True, **options})


@pytest.mark.parametrize("level", first_quick([1, 2, 3, 4, 5]))
def test_math_python_answers_match_programs_that_compute_them_directly(level):
    env = problems(num_examples=12, min_level=level, max_level=level)
    assert {example["info"]["level"] for example in env.get_dataset()} == {level}
    for record in generate_sync(env, scripted_client(env.policies["solver"])):
        assert record.error is None, record.error
        [output] = [m["content"] for m in record.completion if m["role"] == "tool"]
        assert (output, record.reward) == (record.answer, 1.0)


def test_math_python_has_all_levels():
    examples = problems(num_examples=100).get_dataset()
    assert {example["info"]["level"] for example in examples} == {1, 2, 3, 4, 5}


def test_math_python_guesses_use_no_sandbox_and_get_low_rewards():
    env = problems(num_examples=100)
    records = generate_sync(env, scripted_client(env.policies["guesser"]))
    assert sum(record.reward for record in records) < 5
    assert {scores_of(record)["sandbox_ready_wait_time"] for record in records} == {0.0}


@pytest.mark.broad
def test_math_python_lets_a_model_retry_after_errors():
    def persistent(messages, state, rng):
        program = state["info"]["program"]
        code = ["1 / 0", "found = None", f"exec({program!r})\nfound = 1", program, "found"][len(state["trajectory"])]
        if code == "found":
            return f"<think>\\boxed{{1}}</think>\\boxed{{{int(messages[-1].content):,}}}"
        function = {"name": "python", "arguments": json.dumps({"code": code})}
        return vf.AssistantMessage(None, tool_calls=[{"id": "1", "type": "function", "function": function}])

    for record in generate_sync(problems(num_examples=5), scripted_client(persistent)):
        assert (record.reward, len(record.steps)) == (1.0, 5)


@each_row(
    ("text", "number"),
    [
        ("\\boxed{42}", 42),
        ("\\boxed{1} no, \\boxed{ -7 }", -7),
        ("\\boxed{1,024}", 1024),
        ("42", None),
        ("\\boxed{7 ways}", None),
        ("\\boxed{4.0}", None),
        ("\\boxed{}", None),
        (f"\\boxed{{{'9' * 5000}}}", None),
    ],
)
def test_math_python_reads_numbers(text, number):
    assert module("math_python").boxed_number(text) == number


@pytest.mark.parametrize("levels", [(0, 3), (4, 3), (1, 6)])
def test_math_python_rejects_invalid_levels(levels):
    with pytest.raises(vf.ConfigError, match="need 1 <= min_level <= max_level <= 5"):
        problems(min_level=levels[0], max_level=levels[1])


# lookup


def calls(*tool_calls: tuple[str, dict[str, str]]) -> vf.AssistantMessage:
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in tool_calls]
    return vf.AssistantMessage(
        None,
        tool_calls=[{"id": str(i), "type": "function", "function": function} for i, function in enumerate(functions)],
    )


def lookup_rollouts(
    *turns: Callable[[dict[str, Any], str], vf.AssistantMessage], **options: Any
) -> list[vf.RolloutRecord]:
    """Run rollouts with functions of (info, last message) as the turns of the model."""

    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
        return turns[len(state["trajectory"])](state["info"], messages[-1].content)

    return generate_sync(vf.load_environment("lookup", **{"num_examples": 20, **options}), scripted_client(policy))


def test_lookup_shows_no_room_before_a_lookup_call():
    env: Any = vf.load_environment("lookup", num_examples=300)
    rooms, questions, tables = set(module("lookup").ROOMS), collections.Counter(), set()
    for example in env.get_dataset():
        info = example["info"]
        assert example["prompt"][-1].content == info["who"]
        assert example["answer"] == info["rooms"][info["who"]]
        assert not any(room in message.content for message in example["prompt"] for room in rooms)
        questions[info["who"], example["answer"]] += 1
        tables.add(tuple(info["rooms"].values()))
    assert len(tables) == 300
    assert (
        len({name for name, _ in questions}) == 8 and max(questions.values()) < 20
    )  # of 64 pairs: names do not predict rooms
    tables &= {tuple(example["info"]["rooms"].values()) for example in env.get_eval_dataset()}
    assert not tables
    definitions = str(env.tool_defs)
    assert "state" not in definitions and not any(room in definitions for room in rooms)


@pytest.mark.slow
def test_lookup_policies_have_the_documented_success_rates():
    env = vf.load_environment("lookup", num_examples=2000)
    for record in generate_sync(env, scripted_client(env.policies["solver"])):
        assert scores_of(record)["correct"] == 1
        assert [message["role"] for message in record.completion] == ["assistant", "tool"] * 2
        assert record.completion[1]["content"] == record.answer
        assert record.stop_condition == "has_answered"
    totals = collections.Counter()
    for record in generate_sync(env, scripted_client(env.policies["novice"])):
        totals.update(scores_of(record))
    assert 210 < totals["correct"] < 310
    assert 930 < totals["looked_up"] < 1070  # otherwise the policy guesses
    repeated_lookups = totals["lookup_calls"] - totals["looked_up"]
    assert 0.81 < repeated_lookups / totals["looked_up"] < 0.89
    assert totals["answer_calls"] == totals["answered"] == 2000


def test_lookup_rewards_only_answers_that_were_looked_up_before():
    other_names = {name: "Ben" if name == "Ada" else "Ada" for name in module("lookup").NAMES}
    lookup_right = lambda info: ("lookup", {"who": info["who"]})  # noqa: E731
    lookup_other = lambda info: ("lookup", {"who": other_names[info["who"]]})  # noqa: E731
    answer_right = lambda info: ("answer", {"room": info["rooms"][info["who"]]})  # noqa: E731

    def score(*turns: Any) -> set[tuple[float, float]]:
        return {(scores_of(r)["correct"], scores_of(r)["looked_up"]) for r in lookup_rollouts(*turns)}

    assert score(lambda info, room: calls(answer_right(info))) == {(0, 0)}
    assert score(lambda info, room: calls(answer_right(info), lookup_right(info))) == {(0, 0)}
    assert score(lambda info, room: calls(lookup_other(info)), lambda info, room: calls(answer_right(info))) == {(0, 0)}
    answer_wrong = lambda info, room: calls(("answer", {"room": room + "s"}))  # noqa: E731
    assert score(lambda info, room: calls(lookup_right(info)), answer_wrong) == {(0, 1)}
    answer_twice = lambda info, room: calls(("answer", {"room": room}), ("answer", {"room": "?"}))  # noqa: E731
    assert score(lambda info, room: calls(lookup_other(info), lookup_right(info)), answer_twice) == {(1, 1)}


def test_lookup_reports_unknown_names_and_ends_at_max_turns():
    lookup_unknown = lambda info, room: calls(("lookup", {"who": "Zoe"}))  # noqa: E731
    for record in lookup_rollouts(*[lookup_unknown] * 3, max_turns=3):
        results = [message["content"] for message in record.completion if message["role"] == "tool"]
        assert results == ["there is no person of that name"] * 3
        assert (record.stop_condition, record.reward) == ("max_turns_reached", 0)


# tictactoe


def game(**options) -> Any:
    return vf.load_environment("tictactoe", **{"num_examples": 200, **options})


@functools.cache
def outcome(board: str, player: str) -> int:
    """Return 1, 0 or -1 (X wins, draw, O wins) for optimal play of both sides, computed from the rules."""
    ttt = module("tictactoe")
    for line in ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)):
        taken = {board[i] for i in line}
        if taken in ({"X"}, {"O"}):
            return 1 if taken == {"X"} else -1
    if "." not in board:
        return 0
    opponent = "O" if player == "X" else "X"
    outcomes = [outcome(ttt.place(board, i, player), opponent) for i in range(9) if board[i] == "."]
    return max(outcomes) if player == "X" else min(outcomes)


@functools.cache
def positions() -> list[tuple[str, str]]:
    """Return every reachable (board, player to move) of unfinished games, for both starting players."""
    ttt = module("tictactoe")
    reachable: set[tuple[str, str]] = set()
    stack = [(ttt.EMPTY, "X"), (ttt.EMPTY, "O")]
    while stack:
        board, player = stack.pop()
        if (board, player) not in reachable and ttt.result(board) is None:
            reachable.add((board, player))
            opponent = "O" if player == "X" else "X"
            stack += [(ttt.place(board, square, player), opponent) for square in ttt.free_squares(board)]
    return sorted(reachable)


def test_best_moves_keep_the_minimax_value():
    ttt = module("tictactoe")
    assert len(positions()) > 8000
    for board, player in positions():
        opponent = "O" if player == "X" else "X"
        best = ttt.best_moves(board, player)
        assert best
        assert all(outcome(ttt.place(board, move, player), opponent) == outcome(board, player) for move in best)


@each_row(
    ("board", "player", "best"),
    [
        ("XX.OO....", "X", [2]),  # winning now beats winning later
        ("XX.OO....", "O", [5]),
        ("XX..O....", "O", [2]),  # a block
        ("....X....", "O", [0, 2, 6, 8]),
        ("X........", "O", [4]),
        ("O...X...O", "X", [1, 3, 5, 7]),  # a corner would let O fork
        ("XXOOO.X..", "X", [5]),
    ],
)
def test_best_moves_of_known_positions(board, player, best):
    assert module("tictactoe").best_moves(board, player) == best


def test_earlier_wins_and_later_losses_have_higher_values():
    ttt = module("tictactoe")
    won_now, won_late = ttt.value("XXXOO....", "O"), ttt.value("XXXOOXO.O", "O")
    assert won_now > won_late > 0 == ttt.value("XXOOOXXXO", "X")
    lost_now, lost_late = ttt.value("OOOXX.X..", "X"), ttt.value("OOOXXOX.X", "X")
    assert lost_now < lost_late < 0


@pytest.mark.broad
@pytest.mark.parametrize("random_move_prob", first_quick([0.0, 0.5, 1.0], broad=0))
def test_the_optimal_policy_never_loses(random_move_prob):
    env = game(min_random_move_prob=random_move_prob, max_random_move_prob=random_move_prob)
    totals = collections.Counter()
    for record in generate_sync(env, scripted_client(env.policies["optimal"]), rollouts_per_example=3):
        totals.update(scores_of(record))
    assert totals["lost"] == totals["invalid_move"] == 0
    assert totals["won"] + totals["drawn"] == 600
    if random_move_prob == 0:
        assert totals["drawn"] == 600


@pytest.mark.broad
def test_random_moves_never_beat_the_perfect_opponent():
    env = game(max_random_move_prob=0.0)
    totals = collections.Counter()
    for record in generate_sync(env, scripted_client(env.policies["random"]), rollouts_per_example=3):
        totals.update(scores_of(record))
    assert totals["won"] == 0
    assert totals["lost"] > 300


open_boards = st.deferred(lambda: st.sampled_from([board for board, player in positions() if player == "O"]))
probabilities = st.floats(0, 1)


@given(open_boards, st.integers(0, 2**32), probabilities)
@settings(deadline=None)
def test_the_opponents_reply_depends_only_on_seed_and_board(board, seed, probability):
    ttt = module("tictactoe")
    move = ttt.opponent_move(board, seed, probability)
    assert move in ttt.free_squares(board)
    assert ttt.opponent_move(board, seed, probability) == move
    assert ttt.opponent_move(board, seed, 0.0) in ttt.best_moves(board, "O")


def is_uniform(moves: list[int], squares: list[int]) -> bool:
    """Return whether the counts of the squares are uniform within five standard deviations."""
    counts = collections.Counter(moves)
    share = 1 / len(squares)
    slack = 5 * (len(moves) * share * (1 - share)) ** 0.5
    return set(counts) == set(squares) and all(abs(count - len(moves) * share) < slack for count in counts.values())


def test_the_opponent_chooses_uniformly():
    ttt = module("tictactoe")
    board = "....X...."
    perfect = [ttt.opponent_move(board, seed, 0.0) for seed in range(2000)]
    assert is_uniform(perfect, [0, 2, 6, 8])
    assert is_uniform([ttt.opponent_move(board, seed, 1.0) for seed in range(2000)], [0, 1, 2, 3, 5, 6, 7, 8])
    mixed = [ttt.opponent_move(board, seed, 0.5) for seed in range(2000)]
    sides = sum(move % 2 for move in mixed)  # half of the moves are random, and half of those are on a side
    assert 400 < sides < 600


@pytest.mark.broad
def test_the_opponent_replies_equally_to_all_group_members():
    """Within an example the same board always gets the same reply, so group members differ only by the model's moves."""
    replies: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    env = game(num_examples=30)
    for record in generate_sync(env, scripted_client(env.policies["random"]), rollouts_per_example=12):
        replies[record.example_key, "start"].add(record.prompt[-1]["content"])
        for step, reply in zip(record.steps, record.completion[1::2], strict=True):
            shown_board, answer = step.prompt[-1]["content"], step.completion[0]["content"].partition("<move>")[2]
            replies[record.example_key, shown_board + answer].add(reply["content"])
    assert all(len(distinct) == 1 for distinct in replies.values())
    assert len(replies) > 1000


@pytest.mark.slow
def test_the_opponent_starts_half_of_the_games():
    env = game(num_examples=1000)
    started = [record.prompt[-1]["content"].count("O") for record in generate_sync(env, scripted_client("resign"))]
    assert set(started) == {0, 1}
    assert 450 < sum(started) < 550


@given(st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_consecutive_games_cover_every_difficulty_bucket_once(num_groups, first_bound, second_bound, seed):
    low, high = sorted([first_bound, second_bound])
    options = {"min_random_move_prob": low, "max_random_move_prob": high, "num_groups": num_groups, "seed": seed}
    env = game(num_examples=3 * num_groups, **options)
    for examples in (env.get_dataset(), env.get_eval_dataset()):
        chances = [example["info"]["random_move_prob"] for example in examples]
        width = (high - low) / num_groups
        for start in range(0, len(chances), num_groups):
            for bucket, chance in enumerate(chances[start : start + num_groups]):
                assert low + bucket * width - 1e-9 <= chance <= low + (bucket + 1) * width + 1e-9


@pytest.mark.parametrize("times", first_quick([2, 1, 3], broad=None))
@pytest.mark.parametrize("move", ["X", "9", "-1", "01", "²", "", "taken"])
def test_invalid_moves_have_one_penalty_and_the_game_continues(move, times):
    env = game(num_examples=20)

    def invalid_then_optimal(messages, state, rng):
        if len(state["trajectory"]) < times:
            taken = next((i for i in range(9) if state["board"][i] != "."), "X")
            return f"<move>{taken if move == 'taken' else move}</move>"
        return env.policies["optimal"](messages, state, rng)

    for record in generate_sync(env, scripted_client(invalid_then_optimal)):
        scores = scores_of(record)
        assert scores["lost"] == 0
        assert record.reward == pytest.approx(scores["win"] + 0.2 * scores["format"] - 0.1)
        messages_to_model = [message["content"] for message in record.completion if message["role"] == "user"]
        boards = [text.removeprefix("Invalid move.\n") for text in messages_to_model[:times]]
        assert boards == [record.prompt[-1]["content"]] * times  # the board stays unchanged until a valid move
        assert not any(text.startswith("Invalid") for text in messages_to_model[times:])


def test_a_punishing_opponent_takes_every_win_and_an_invalid_move_loses():
    ttt = module("tictactoe")
    for board in (board for board, player in positions() if player == "O"):
        move = ttt.opponent_move(board, 3, 1.0, punish=True)
        if ttt.value(board, "O") < 0:
            assert move in ttt.best_moves(board, "O")
    for record in generate_sync(game(num_examples=10, punish=True), scripted_client("<think>.</think><move>X</move>")):
        assert len(record.steps) == 1
        assert record.completion[-1]["content"].startswith("Invalid move.\n")
        assert scores_of(record)["lost"] == 1
        assert record.reward == pytest.approx(0.1)


@given(st.sampled_from("XO."), st.data())
def test_reading_a_rendered_board_gives_the_same_board(first, data):
    board = first + data.draw(st.text("XO.", min_size=8, max_size=8))
    assert module("tictactoe").read(f"You lose.\n{module('tictactoe').show(board)}") == board


def test_a_game_has_at_most_eight_turns():
    for record in generate_sync(game(num_examples=10), scripted_client("pass")):
        assert len(record.steps) == 8
        assert record.stop_condition == "max_turns_reached"
        assert scores_of(record)["lost"] == 1
        assert record.reward == -0.1
    [short] = generate_sync(game(num_examples=1, max_turns=3), scripted_client("pass"))
    assert len(short.steps) == 3


def test_the_last_allowed_move_counts():
    """A game that is won in the last turn is scored as won."""
    env = game(num_examples=40, min_random_move_prob=1.0)

    def late(messages, state, rng):
        return "pass" if len(state["trajectory"]) < 5 else env.policies["optimal"](messages, state, rng)

    last_turn = [record for record in generate_sync(env, scripted_client(late)) if len(record.steps) == 8]
    assert last_turn
    assert any(scores_of(record)["won"] for record in last_turn)


def test_the_last_message_states_the_result():
    env = game(num_examples=60)
    for record in generate_sync(env, scripted_client(env.policies["random"])):
        scores = scores_of(record)
        endings = {"won": "You win.", "drawn": "Draw.", "lost": "You lose."}
        [ending] = [text for name, text in endings.items() if scores[name]]
        assert record.completion[-1]["content"].startswith(ending)
        assert scores["win"] == scores["won"] + 0.5 * scores["drawn"]


async def test_a_person_can_play_as_the_opponent():
    """As in `rove play`: the opponent gets the board and the legal moves, and the environment plays its move."""
    env = game(num_examples=20)
    legal_moves: list[list[str]] = []

    async def person(view: str, legal: list[str], board: vf.Rendering | None = None) -> str:
        legal_moves.append(legal)
        assert board is not None and [text for row in board.rows for text, look in row if look == "free"] == legal
        assert all(square in view for square in legal)
        return legal[-1]

    env.opponent = person
    for record in await vf.generate(env, scripted_client(env.policies["random"]), max_concurrent=1):
        assert record.error is None, record.error
    assert len(legal_moves) > 20


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_random_move_prob": 0.5, "max_random_move_prob": 0.2}, "need 0 <= min_random_move_prob"),
        ({"max_random_move_prob": 1.5}, "need 0 <= min_random_move_prob"),
        ({"num_groups": 0}, "num_groups is 0; expected 1 or more"),
    ],
)
def test_tictactoe_rejects_invalid_settings(options, complaint):
    with pytest.raises(vf.ConfigError, match=complaint):
        game(**options)


# needle


def needle(**options: Any) -> Any:
    return vf.load_environment("needle", **{"unsafe": True, "length": 20_000, **options})


def text_and_facts(example: dict[str, Any]) -> tuple[str, list[Any]]:
    info = example["info"]
    facts = module("needle").hidden(random.Random(info["seed"]), info["kind"])[2]
    return module("needle").haystack(vf.State(input=example)), facts


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_needle_facts_each_occur_once_in_the_text(level):
    env = needle(num_examples=15, min_level=level, max_level=level)
    for example in env.get_dataset():
        text, facts = text_and_facts(example)
        assert abs(len(text) - 20_000) < 1000
        assert text == text_and_facts(example)[0]
        assert len(set(facts)) == len(facts) > 50
        for kind, of, value in set(facts):
            sentences = [words.format(of=of, what=value) for words in module("needle").WORDINGS[kind]]
            occurrences = sum(text.count(words[0].upper() + words[1:]) for words in sentences)
            assert occurrences == 1, (kind, of, value)
        assert example["prompt"][1].content.count(" ") < 40


@pytest.mark.broad
@pytest.mark.parametrize("level", first_quick([1, 2, 3, 4], broad=0))
@pytest.mark.parametrize("player", ["solver", "recursive"])
def test_needle_policies_find_the_hidden_facts(level, player):
    env = needle(num_examples=12, min_level=level, max_level=level, length=90_000)
    for record in generate_sync(env, scripted_client(env.policies[player])):
        assert (record.error, record.reward) == (None, 1.0)
        assert scores_of(record)["sub_calls"] == (5 if player == "recursive" else 0)
        assert "90," in record.prompt[1]["content"] and len(str(record)) < 90_000 * (1 + 2 * (player == "recursive"))


@pytest.mark.slow
def test_needle_guesses_get_low_rewards():
    env = needle(num_examples=60)
    records = generate_sync(env, scripted_client(env.policies["novice"]))
    assert {scores_of(record)["answer_ready"] for record in records} == {1.0}
    assert sum(record.reward for record in records) < 20


def test_needle_has_all_levels_and_the_requested_length():
    examples = needle(num_examples=60).get_dataset()
    assert {example["info"]["kind"] for example in examples} == {"code", "seen", "keeper", "weight"}
    assert min(int(e["answer"]) for e in examples if e["info"]["kind"] == "seen") >= 3
    [example] = vf.load_environment("needle", num_examples=1).get_dataset()
    assert abs(len(text_and_facts(example)[0]) - 200_000) < 2000


@pytest.mark.broad
def test_needle_sub_calls_can_be_trained():
    env = needle(num_examples=4, length=15_000, train_sub_calls=True, max_turns=2)
    for record in generate_sync(env, scripted_client(env.policies["recursive"])):
        assert (record.reward, record.model_roles) == (1.0, {})
        roles = [step.prompt[0]["role"] for step in record.steps]
        assert roles == ["system", "user", "system"]


@pytest.mark.parametrize("levels", [(0, 3), (4, 3), (1, 5)])
def test_needle_rejects_invalid_levels(levels):
    with pytest.raises(vf.ConfigError, match="need 1 <= min_level <= max_level <= 4"):
        needle(min_level=levels[0], max_level=levels[1])
