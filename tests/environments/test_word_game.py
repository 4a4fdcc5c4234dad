"""Tests of environments/word_game: hints, levels, splits, games, and scripted policies."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row
from toy_envs import generate_sync, scripted_client

import rove as vf

vf.load_environment("word_game")
game: Any = importlib.import_module("word_game")

few_letters = st.text("abcd", min_size=5, max_size=5)  # few letters, so that they repeat


def words_of(examples: list[dict[str, Any]]) -> set[str]:
    return {example["answer"] for example in examples}


def values(record: vf.RolloutRecord) -> dict[str, float]:
    assert record.error is None, record.error
    assert record.scores is not None
    return {**record.scores.rewards, **record.scores.metrics}


def guesses(*replies: str) -> Any:
    """Return a client that sends these guesses in order; "WORD" stands for the word."""

    def policy(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        guess = replies[len(state["trajectory"])]
        return f"<think>.</think><guess>{state['answer'] if guess == 'WORD' else guess}</guess>"

    return scripted_client(policy)


def test_the_words_are_unique_and_have_five_lowercase_letters():
    assert len(game.WORDS) > 800
    assert sorted(set(game.WORDS)) == game.WORDS
    assert all(len(word) == 5 and word.isascii() and word.islower() and word.isalpha() for word in game.WORDS)


def color_by_definition(guess: str, word: str, position: int) -> str:
    """Return the color of a letter. It is yellow if the word has more of it than green ones and earlier non-green ones use."""
    letter = guess[position]
    if word[position] == letter:
        return "g"
    green = sum(a == b == letter for a, b in zip(guess, word))
    earlier = sum(guess[i] == letter != word[i] for i in range(position))
    return "y" if green + earlier < word.count(letter) else "."


@given(few_letters, few_letters)
def test_hints_match_the_definition(guess, word):
    hint = game.hint(guess, word)
    assert hint == "".join(color_by_definition(guess, word, position) for position in range(5))
    assert (hint == "ggggg") == (guess == word)


@given(few_letters, few_letters)
def test_the_number_of_colored_letters_is_the_number_in_both_words(guess, word):
    hint = game.hint(guess, word)
    for letter in "abcd":
        colored = sum(guessed == letter and color != "." for guessed, color in zip(guess, hint))
        assert colored == min(guess.count(letter), word.count(letter))


@each_row(
    ("guess", "word", "expected"),
    [
        ("eerie", "there", "y.y.g"),
        ("geese", "eagle", "yy..g"),
        ("allow", "level", ".yy.."),
        ("speed", "abide", "..y.y"),
        ("array", "carry", "yyg.g"),
        ("crane", "crane", "ggggg"),
    ],
)
def test_hints_with_repeated_letters(guess, word, expected):
    assert game.hint(guess, word) == expected


@given(few_letters, st.lists(few_letters, max_size=4))
def test_the_word_fits_every_hint(word, guess_words):
    history = [(guess, game.hint(guess, word)) for guess in guess_words]
    assert game.fits(word, history)
    for guess, hint in history:
        assert game.fits(guess, history) <= (hint == "ggggg")


def test_levels_order_the_words_from_common_to_rare_letters():
    parts = game.levels()
    assert sorted(word for part in parts for word in part) == game.WORDS
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for easier, harder in itertools.pairwise(parts):
        assert min(map(game.commonness, easier)) >= max(map(game.commonness, harder))


@pytest.mark.parametrize("level", [1, 3, 5])
def test_examples_have_only_words_of_the_chosen_level(level):
    env = vf.load_environment("word_game", min_level=level, max_level=level)
    assert words_of(env.get_dataset()) | words_of(env.get_eval_dataset()) == set(game.levels()[level - 1])
    assert {example["info"]["level"] for example in env.get_dataset()} == {level}


def test_training_and_evaluation_share_no_word_for_any_seed():
    train, evaluation = set(), set()
    for seed in range(3):
        env = vf.load_environment("word_game", num_examples=1000, seed=seed)
        train |= words_of(env.get_dataset())
        evaluation |= words_of(env.get_eval_dataset())
    assert not train & evaluation
    assert train | evaluation == set(game.WORDS)


def test_every_word_occurs_once_before_any_repeats():
    count = sum(len(part) - len(part[::5]) for part in game.levels())
    answers = [example["answer"] for example in vf.load_environment("word_game", num_examples=2 * count).get_dataset()]
    assert sorted(answers[:count]) == sorted(set(answers)) == sorted(answers[count:])
    assert answers[:count] != answers[count:]


def test_messages_and_scores_of_a_won_game():
    env = vf.load_environment("word_game", num_examples=20)
    for record in generate_sync(env, guesses("Adieu", " SOUTH ", "WORD")):
        replies = [message["content"] for message in record.completion if message["role"] == "user"]
        last_lines = [text.splitlines()[-1] for text in replies]
        assert last_lines == ["You have 5 guesses left.", "You have 4 guesses left.", "You found the word."]
        assert [line.split()[0] for line in replies[0].splitlines()[:5]] == list("ADIEU")
        assert replies[2].splitlines()[:5] == [f"{letter.upper()} green" for letter in record.answer]
        colors = [game.COLORS[color] for color in game.hint("south", record.answer)]
        assert [line.split()[1] for line in replies[1].splitlines()[:5]] == colors
        assert record.stop_condition == "has_final_env_response"
        assert values(record)["early"] == 0.5
        assert record.reward == pytest.approx(1 + 0.2 * 0.5 + 0.2 * values(record)["format"])


def test_a_lost_game_reveals_the_word():
    for record in generate_sync(
        vf.load_environment("word_game", num_examples=5, max_turns=2), guesses("zzzzz", "zzzzz")
    ):
        assert record.completion[1]["content"].splitlines()[-1] == "You have 1 guess left."
        ending = f"You have no guesses left. The word was {record.answer.upper()}."
        assert record.completion[-1]["content"].splitlines()[-1] == ending
        assert (values(record)["solved"], record.reward) == (0, pytest.approx(0.2))


def test_the_last_guess_counts():
    for record in generate_sync(
        vf.load_environment("word_game", num_examples=5, max_turns=2), guesses("zzzzz", "WORD")
    ):
        assert (values(record)["solved"], values(record)["early"]) == (1, 0)


@pytest.mark.parametrize("guess", ["", "four", "sixsix", "a b c", "12345", "ab-cd", "ééééé", "abcd²"])
def test_invalid_guesses_use_turns_give_no_hint_and_have_one_penalty(guess):
    for record in generate_sync(vf.load_environment("word_game", num_examples=5), guesses(guess, guess, "WORD")):
        complaint = "Invalid guess. Write exactly five letters from A to Z, for example <guess>crane</guess>.\n"
        assert [m["content"] for m in record.completion[1:4:2]] == [
            f"{complaint}You have 5 guesses left.",
            f"{complaint}You have 4 guesses left.",
        ]
        assert record.reward == pytest.approx(1 + 0.2 * 0.5 + 0.2 * values(record)["format"] - 0.1)


def test_guesses_that_ignore_hints_are_counted():
    for record in generate_sync(vf.load_environment("word_game", num_examples=20), guesses("zzzzz", "zzzzz", "WORD")):
        assert values(record)["fitting"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_scripted_policies_have_the_documented_success_rates():
    rates = {}
    for name in ("solver", "novice", "random_word"):
        env = vf.load_environment("word_game", num_examples=150)
        records = generate_sync(env, scripted_client(env.policies[name]))
        rates[name] = sum(values(record)["solved"] for record in records) / len(records)
        if name == "solver":
            assert all(values(record)["fitting"] == 1 for record in records)
    assert rates["solver"] > 0.95 > 0.4 > rates["novice"] > 0.1 > rates["random_word"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_level": 0}, "need 1 <= min_level <= max_level <= 5"),
        ({"min_level": 4, "max_level": 3}, "need 1 <= min_level <= max_level <= 5"),
        ({"max_level": 6}, "need 1 <= min_level <= max_level <= 5"),
        ({"max_turns": 0}, "max_turns is 0; expected 1 guess or more"),
        ({"max_turn": 3}, "did you mean 'max_turns'"),
    ],
)
def test_invalid_settings_are_rejected(options, complaint):
    with pytest.raises(vf.ConfigError, match=complaint):
        vf.load_environment("word_game", **options)
