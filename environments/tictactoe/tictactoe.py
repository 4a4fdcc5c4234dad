"""Tic-tac-toe: the model plays X against an opponent whose strength ranges from random to perfect.

A board is a string of nine characters, one per square: "X", "O" or ".". Squares are numbered 0 to 8, row by row.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import rove as vf

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
EMPTY = "." * 9
SYSTEM_PROMPT = "Play X in tic-tac-toe. Answer <think>why</think><move>free square</move>"
RESULTS = {"X": "You win.", "O": "You lose.", "draw": "Draw."}


def free_squares(board: str) -> list[int]:
    """Return the free squares."""
    return [square for square in range(9) if board[square] == "."]


def place(board: str, square: int, player: str) -> str:
    """Return the board after `player` takes `square`."""
    return board[:square] + player + board[square + 1 :]


def result(board: str) -> str | None:
    """Return "X" or "O" if that player has a line, "draw" if the board is full, and None if the game is not over."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None if "." in board else "draw"


@functools.cache
def value(board: str, player: str) -> int:
    """Return the minimax value for X with `player` to move; earlier wins and later losses have higher values."""
    end = result(board)
    if end is not None:
        return {"X": 10, "O": -10, "draw": 0}[end] + {"X": 1, "O": -1, "draw": 0}[end] * board.count(".")
    opponent = "O" if player == "X" else "X"
    values = [value(place(board, square, player), opponent) for square in free_squares(board)]
    return max(values) if player == "X" else min(values)


@functools.cache
def best_moves(board: str, player: str) -> list[int]:
    """Return all moves with the best minimax value."""
    opponent = "O" if player == "X" else "X"
    values = {square: value(place(board, square, player), opponent) for square in free_squares(board)}
    best = (max if player == "X" else min)(values.values())
    return [square for square in values if values[square] == best]


def threats(board: str, player: str) -> list[tuple[int, int, int]]:
    """Return the lines that `player` can complete now, as (own square, own square, free square)."""
    threatening_lines = []
    for line in LINES:
        free = [square for square in line if board[square] == "."]
        own_squares = [square for square in line if board[square] == player]
        if len(own_squares) == 2 and len(free) == 1:
            threatening_lines.append((own_squares[0], own_squares[1], free[0]))
    return threatening_lines


def show(board: str) -> str:
    """Return the board as the model sees it."""
    squares = [str(i) if board[i] == "." else board[i] for i in range(9)]
    return "\n".join(" " + " ".join(squares[row : row + 3]) for row in (0, 3, 6))


def read(text: str) -> str:
    """Return the board in a text that the model sees."""
    return "".join("." if square.isdigit() else square for row in text.split("\n")[-3:] for square in row.split())


def draw(board: str) -> vf.Rendering:
    """Return the board as people see it."""
    looks = {"X": "first", "O": "second"}
    squares = [(str(i), "free") if s == "." else (s, looks[s]) for i, s in enumerate(board)]
    return vf.Rendering([squares[row : row + 3] for row in (0, 3, 6)])


def opponent_move(board: str, seed: int, random_move_prob: float, punish: bool = False) -> int:
    """Return O's move, a deterministic function of the arguments; with `punish`, O never misses a win."""
    rng = random.Random(f"{seed}:{board}")
    is_random = rng.random() < random_move_prob
    wins = punish and value(board, "O") < 0
    return rng.choice(free_squares(board) if is_random and not wins else best_moves(board, "O"))


def _answer(reason: str, square: int) -> str:
    return f"<think>{reason} {square}</think><move>{square}</move>"


def random_policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random free square."""
    return _answer("Any square:", rng.choice(free_squares(state["board"])))


def optimal_policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random minimax-best square."""
    return _answer("Best is", rng.choice(best_moves(state["board"], "X")))


def teacher_policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Win or block in one move; otherwise prefer the center (80%), then the first free square (70%). Overlook forks."""
    board = state["board"]
    for player, plan in (("X", "win"), ("O", "block")):
        lines = threats(board, player)
        if lines:
            first, second, square = rng.choice(lines)
            return _answer(f"{player} has {first} {second}, {plan}", square)
    free = free_squares(board)
    if 4 in free and rng.random() < 0.8:
        return _answer("No threat:", 4)
    return _answer("No threat:", free[0] if rng.random() < 0.7 else rng.choice(free))


class TicTacToeEnv(vf.MultiTurnEnv):
    """An environment in which the model plays X; O is scripted, or a person in `rove play`."""

    two_player = True

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        starter = info.get("starter") or random.Random(info["seed"]).choice("XO")
        board = await self._opponent_plays(state, EMPTY) if starter == "O" else EMPTY
        state.update(board=board, invalid=False)
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(show(board))]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = self.parser.parse_answer(messages)
        board = state["board"]
        if not (move and move in "012345678" and len(move) == 1 and board[int(move)] == "."):
            state["invalid"] = True
            feedback = f"Invalid move.\n{show(board)}"
            state["final_env_response"] = feedback if state["info"].get("punish") else None
            return feedback
        board = place(board, int(move), "X")
        if result(board) is None:
            board = await self._opponent_plays(state, board)
        state["board"] = board
        end = result(board)
        if end is None:
            return show(board)
        state["final_env_response"] = f"{RESULTS[end]}\n{show(board)}"
        return None

    def render(self, state: vf.State) -> vf.Rendering:
        return draw(state["board"])

    def openings(self) -> list[dict[str, Any]]:
        return [{"question": show(EMPTY), "info": {"starter": starter}} for starter in "XO"]

    def check_answer(self, messages: vf.Messages, answer: str) -> dict[str, bool]:
        board, move = read(messages[-1]["content"]), self.parser.parse_answer(answer)
        wins, blocks = ([str(square) for _, _, square in threats(board, player)] for player in "XO")
        safe = [str(square) for square in free_squares(board) if value(place(board, square, "X"), "O") >= 0]
        checks = {"wins in one taken": wins, "threats blocked": [] if wins else blocks, "moves that do not lose": safe}
        return {name: move in squares for name, squares in checks.items() if squares}

    async def _opponent_plays(self, state: vf.State, board: str) -> str:
        if self.opponent is not None:
            move = int(await self.opponent(show(board), list(map(str, free_squares(board))), draw(board)))
        else:
            move = opponent_move(board, **state["info"])
        return place(board, move, "O")


def win(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a draw, and 0 otherwise."""
    return {"X": 1.0, "draw": 0.5}.get(result(state["board"]) or "", 0.0)


def won(state: vf.State) -> float:
    return float(result(state["board"]) == "X")


def drawn(state: vf.State) -> float:
    return float(result(state["board"]) == "draw")


def lost(state: vf.State) -> float:
    """Return 1 if O has a line or the game was not finished in time."""
    return float(result(state["board"]) not in ("X", "draw"))


def invalid_move(state: vf.State) -> float:
    """Return 1 if any move of the game was invalid."""
    return float(state["invalid"])


def _rows(count: int, seed: str, bounds: tuple[float, float], num_groups: int, **info: Any) -> list[dict[str, Any]]:
    rows, (low, high) = [], bounds
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        share = (index % num_groups + rng.random()) / num_groups
        row = {"seed": rng.getrandbits(32), "random_move_prob": low + share * (high - low), **info}
        rows.append({"question": show(EMPTY), "info": row})
    return rows


def load_environment(
    num_examples: int = 1000,
    seed: int = 0,
    min_random_move_prob: float = 0.0,
    max_random_move_prob: float = 1.0,
    num_groups: int = 1,
    punish: bool = False,
    max_turns: int = 8,
) -> vf.Environment:
    """Return an environment of tic-tac-toe games against opponents of varying strength.

    Args:
        num_examples: Number of games in the dataset.
        seed: Random seed of the dataset; evaluation games are drawn separately from training games.
        min_random_move_prob, max_random_move_prob: Range of the probability that O takes a random square, not a best one.
        num_groups: Number of equal parts of this range; every `num_groups` consecutive games contain each part once.
        punish: O never misses a win, and an invalid move loses the game.
        max_turns: Maximum model turns.
    """
    low, high = min_random_move_prob, max_random_move_prob
    if not 0 <= low <= high <= 1:
        raise vf.ConfigError(f"need 0 <= min_random_move_prob <= max_random_move_prob <= 1, got {low} and {high}")
    if num_groups < 1:
        raise vf.ConfigError(f"num_groups is {num_groups}; expected 1 or more")
    options, punish_option = ((low, high), num_groups), {"punish": True} if punish else {}
    parser = vf.XMLParser(["think", "move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(win, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    rubric.add_reward_func(invalid_move, weight=-0.1)
    for metric in (won, drawn, lost):
        rubric.add_metric(metric)
    return TicTacToeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", *options, **punish_option),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", *options, **punish_option),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"random": random_policy, "optimal": optimal_policy, "teacher": teacher_policy},
        max_turns=max_turns,
    )
