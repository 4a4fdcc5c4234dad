"""Test pages with real processes: games against a model that the test trains, and a running `rove rl`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, Tab, chromium, serve_command, serve_viewer
from commands import start_rove

from rove.envs.loading import load_environment
from rove.rollouts.export import RunRows
from rove.runs.run import Run
from rove.runs.token_stats import read_tokens

pytestmark = pytest.mark.slow


def run_rove(folder: Path, *words: str) -> str:
    """Run rove in a separate process, because the browser's driver occupies this one's event loop; return its output."""
    command = [str(Path(sys.executable).with_name("rove")), *words]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def untrained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an untrained model with the tokenizer of tic-tac-toe."""
    folder = tmp_path_factory.mktemp("new")
    run_rove(folder, "model", "new", "--env", "tictactoe", "-o", "model")
    return folder / "model"


@pytest.fixture(scope="module")
def trained_model(untrained_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the model with SFT on the teacher's games except losses; it breaks the rules in about one game in a hundred."""
    folder = tmp_path_factory.mktemp("trained")
    games = '{"num_examples": 3000, "num_groups": 32}'
    data = "eval tictactoe -m scripted:teacher -n 3000 -r 1 --train --run-dir games -a"
    run_rove(folder, *data.split(), games)
    sft = f"sft --data games -m {untrained_model} --min-reward 0.6 --epochs 4 --learning-rate 2e-3 --run-dir sft"
    run_rove(folder, *sft.split(), *["--micro_batch_tokens", "2048", "--bf16_backward", "true", "--threads", "1"])
    return folder / "sft/final"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def open_tab(browser: Any, url: str, size: tuple[int, int] = WIDE) -> Tab:
    tab = Tab(browser, url, size)
    tab.page.set_default_timeout(60_000)
    tab.page.goto(url)
    return tab


def play_until_over(tab: Tab, pick: int) -> None:
    """Click free squares, from the front (0) or the back (-1), until the game is over."""
    page = tab.page
    squares, over = page.locator(".large .board button"), page.get_by_role("button", name="Save this game")
    for _ in range(9):
        squares.or_(over).first.wait_for()
        if over.is_visible():
            return
        free = squares.count()
        squares.nth(pick).click()
        squares.nth(free - 1).wait_for(state="detached")
    over.wait_for()


def final_board(record: Any) -> tuple[str, bool]:
    """Return the last board of a saved game, replayed from both players' moves, and whether every move was legal."""
    env = load_environment("tictactoe")
    rules = sys.modules[type(env).__module__]
    responses = [m["content"] for m in record.completion if m["role"] == "assistant"]
    model_moves = [int(match[1]) if (match := re.search(r"<move>([0-8])</move>", text)) else -1 for text in responses]
    person_moves = [int(step.completion[0]["content"]) for step in record.model_roles["opponent"]]
    board, is_legal = rules.EMPTY, True
    starts = "X" if "O" not in record.prompt[-1]["content"] else "O"
    while rules.result(board) is None and (model_moves or person_moves):
        player = starts if board.count("X") == board.count("O") else "XO"[starts == "X"]
        square = (model_moves if player == "X" else person_moves).pop(0)
        if not (0 <= square <= 8 and board[square] == "."):
            return board, False
        board = rules.place(board, square, player)
    return board, is_legal and not model_moves and not person_moves


def test_a_person_plays_a_trained_model_in_every_role_and_the_games_are_training_data(
    browser: Any, trained_model: Path, untrained_model: Path, tmp_path: Path
):
    arguments = ("play", "tictactoe", "-m", str(trained_model), "--web", "--seed", "4", "--run-dir", "kept", "-t", "32")
    with serve_command(tmp_path, *arguments) as url:
        tab = open_tab(browser, url)
        page = tab.page
        verdicts = []
        for pick in (-1, 0):
            play_until_over(tab, pick)
            verdicts.append(page.locator(".verdict").inner_text())
            assert page.locator(".thought").count() > 0  # the reasoning is shown
            page.get_by_role("button", name="Save this game").click()
            tab.wait("saved in kept")
            if pick:
                page.get_by_role("button", name="Play again").click()
                page.get_by_text("saved in kept").wait_for(state="detached")

        page.locator('[data-key="role"]').select_option("model")  # the person plays the model's role
        page.get_by_role("button", name="Play again").click()
        page.get_by_label("think").fill("the middle")
        play_until_over(tab, 0)
        page.get_by_role("button", name="Save this game").click()
        tab.wait("saved in kept-by-person")

        page.locator('[data-key="role"]').select_option("none")  # the person only watches
        page.get_by_role("button", name="Play again").click()
        page.get_by_text(", you watch").wait_for()
        page.get_by_role("button", name="Save this game").wait_for()
        assert tab.page_errors == [] and tab.overflow <= 0

    rules = sys.modules[type(load_environment("tictactoe")).__module__]
    for game, verdict in zip(Run(tmp_path / "kept").rollouts(), verdicts, strict=True):
        board, is_legal = final_board(game)
        assert is_legal and game.scores is not None
        assert (game.scores.rewards["invalid_move"], game.scores.rewards["format"]) == (0.0, 1.0)
        assert rules.RESULTS[rules.result(board)] in verdict
        won, drawn, lost = (game.scores.metrics[name] for name in ("won", "drawn", "lost"))
        assert {"X": won, "draw": drawn, "O": lost}[rules.result(board)] == 1.0
    [row] = RunRows(Run(tmp_path / "kept-by-person"))
    assert row["completion"][0]["content"].startswith("<think>the middle</think><move>")
    sft = f"sft --data kept -m {untrained_model} --epochs 1 --batch-size 1 --run-dir sft"
    assert "1 conversations, 1 steps" in run_rove(tmp_path, *sft.split())  # the other game is the validation split


def test_a_person_plays_the_word_game_on_a_board(browser: Any, tmp_path: Path):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    with serve_command(tmp_path, "play", "word_game", "--web", "--seed", "3", "--run-dir", "kept") as url:
        tab = open_tab(browser, url, NARROW)
        page = tab.page
        guess = page.get_by_label("guess")
        for number in range(6):
            guess.wait_for()
            assert page.evaluate("document.activeElement.dataset.key") == "answer guess"  # the field has the focus
            page.keyboard.type("crane" if number else "tiger")
            page.keyboard.press("Enter")
            page.locator("article.assistant").nth(number).wait_for()
            page.locator(".large .cell.wrong, .large .cell.near, .large .cell.right").nth(5 * number + 4).wait_for()
        page.get_by_role("button", name="Save this game").wait_for()
        assert "You have no guesses left. The word was" in page.locator(".verdict").inner_text()
        options = {"runOnly": ["wcag2a", "wcag2aa"]}
        assert axe.Axe().run(page, options=options).violations_count == 0 and tab.overflow <= 0
        assert tab.page_errors == []
        page.get_by_role("button", name="Save this game").click()
        tab.wait("saved in kept")
    [game] = Run(tmp_path / "kept").rollouts()
    assert [[text for text, _ in row] for row in game.renderings[max(game.renderings)].rows][1] == list("CRANE")
    with serve_viewer(tmp_path) as url:
        tab = Tab(browser, url)
        page = tab.open("rollout?run=kept&line=0")
        assert page.locator("article .board").count() == 7
        name = page.locator(".board").last.get_attribute("aria-label")
        assert name is not None and re.match(r"board: T \w+, I \w+, G \w+, E \w+, R \w+; C ", name)
        assert tab.page_errors == []


def test_a_live_rl_run_is_followed_until_it_stops(browser: Any, untrained_model: Path, tmp_path: Path):
    run = tmp_path / "runs/live"
    arguments = f"rl tictactoe -m {untrained_model} --steps 500 --batch-size 16 -r 4 -t 12 --threads 1 --run-dir {run}"
    with start_rove(tmp_path, *arguments.split()) as training:
        try:
            (tmp_path / "runs").mkdir(exist_ok=True)
            with serve_viewer(tmp_path / "runs") as url:
                tab = Tab(browser, url)
                page = tab.page
                page.set_default_timeout(120_000)
                tab.open("")
                page.get_by_role("link", name="live").first.wait_for()  # the row appears without reloading the page
                page.locator(".status", has_text="running").wait_for()
                page = tab.open("training?run=live")
                page.evaluate("window.stays = 1")
                curve = '.curves[data-key="reward"]'
                points = f"Number(document.querySelector('{curve}')?.dataset.points ?? 0)"
                page.wait_for_function(f"() => {points} >= 2")
                first = page.evaluate(points)
                page.wait_for_function(f"() => {points} >= {first + 2}")
                assert page.evaluate("window.stays") == 1  # the page was not reloaded
                assert int(page.locator("#steps").inner_text().split()[0]) >= first + 2
                assert page.locator(".status").first.inner_text() == "running"
                training.send_signal(signal.SIGINT)
                page.locator(".status", has_text="stopped").wait_for()
                check_token_stats(tab, run)
                assert tab.page_errors == []
        finally:
            training.kill()


def check_token_stats(tab: Tab, run: Path) -> None:
    step = next(step for step in range(1, 500) if read_tokens(run, step))
    recorded = {(step, rollout.example_key, rollout.rollout_index) for rollout in read_tokens(run, step)}
    lines = {key: line.number for key, line in Run(run).ledger()[0].items() if key[0] == step}
    page = tab.open(f"rollout?run=live&line={lines[next(iter(recorded))]}&tab=tokens&color=ratio")
    title = page.locator(".token[title*=ratio]").first.get_attribute("title")
    assert title is not None and "trainer's log-probability" in title and "entropy" in title
    assert page.locator(".token.p0[title*=ratio]").count() > 0  # the embedded engine agrees with the trainer
    page.get_by_label("Color by").select_option("entropy")
    page.get_by_text("nats").first.wait_for()
    unrecorded = [number for key, number in lines.items() if key not in recorded]
    page = tab.open(f"rollout?run=live&line={unrecorded[0]}&tab=tokens&color=entropy")
    page.get_by_text("not of this one").locator("a").first.click()
    page.get_by_text("mean entropy").wait_for()
