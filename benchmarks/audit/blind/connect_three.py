"""Connect three: drop stones into a 4 x 4 frame; three in a row win. The model plays X and moves second."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SIZE = 4
SYSTEM_PROMPT = (
    "You play X in a game of connect three. The players take turns and drop a stone into one of the columns 1 to 4; it falls "
    "to the lowest free square. Three of your stones in a line (across, down or diagonal) win. Reply <column>2</column>"
)
Board = list[list[str]]
DIRECTIONS = [(0, 1), (1, 0), (1, 1), (1, -1)]


def empty_board() -> Board:
    return [["."] * SIZE for _ in range(SIZE)]


def free_columns(board: Board) -> list[int]:
    """Return the columns that are not full."""
    return [column for column in range(SIZE) if board[0][column] == "."]


def drop(board: Board, column: int, player: str) -> Board:
    """Return the board after a move."""
    after = [row[:] for row in board]
    row = max(row for row in range(SIZE) if after[row][column] == ".")
    after[row][column] = player
    return after


def winner(board: Board) -> str | None:
    """Return the player who has three in a line, or None."""
    for row in range(SIZE):
        for column in range(SIZE):
            for down, across in DIRECTIONS:
                squares = [(row + step * down, column + step * across) for step in range(3)]
                if all(0 <= r < SIZE and 0 <= c < SIZE for r, c in squares):
                    stones = {board[r][c] for r, c in squares}
                    if len(stones) == 1 and stones != {"."}:
                        return stones.pop()
    return None


def show(board: Board) -> str:
    """Return the board as text."""
    return "\n".join([" ".join(row) for row in board] + [" ".join(str(column + 1) for column in range(SIZE))])


def wins_for(board: Board, player: str) -> list[int]:
    """Return the columns with which a player wins at once."""
    return [column for column in free_columns(board) if winner(drop(board, column, player)) == player]


def opponent_move(board: Board, seed: str, care: float) -> int:
    """Win or block if the opponent pays attention, otherwise take any column."""
    rng = random.Random(f"{seed}:{board}")
    if rng.random() < care:
        good = wins_for(board, "O") or wins_for(board, "X")
        if good:
            return rng.choice(good)
    return rng.choice(free_columns(board))


def attacker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Win or block if possible, otherwise prefer the middle and give the opponent no winning move."""
    board = state["board"]
    good = wins_for(board, "X") or wins_for(board, "O")
    if not good:
        free = free_columns(board)
        safe = [column for column in free if not wins_for(drop(board, column, "X"), "O")] or free
        good = [column for column in safe if column in (1, 2)] or safe
    return f"<column>{rng.choice(good) + 1}</column>"


def dropper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take any free column."""
    return f"<column>{rng.choice(free_columns(state['board'])) + 1}</column>"


class ConnectEnv(vf.MultiTurnEnv):
    """An environment with a scripted opponent who moves first."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state["board"] = drop(empty_board(), opponent_move(empty_board(), **info), "O")
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(show(state["board"]))]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        column = self.parser.parse_answer(messages)
        board = state["board"]
        if column not in ("1", "2", "3", "4") or int(column) - 1 not in free_columns(board):
            state["final_env_response"] = "This move is not possible. The game is over."
            return None
        board = drop(board, int(column) - 1, "X")
        if winner(board) is None and free_columns(board):
            board = drop(board, opponent_move(board, **state["info"]), "O")
        state["board"] = board
        if winner(board) or not free_columns(board):
            state["final_env_response"] = f"{show(board)}\nThe game is over."
            return None
        return show(board)


def result(state: vf.State) -> float:
    """Return 1 for a win, 0.5 for a game without a winner, 0 for a loss."""
    return {"X": 1.0, None: 0.5, "O": 0.0}[winner(state["board"])]


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(winner(state["board"]) == "X")


def _rows(count: int, seed: str, low: float, high: float) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {"seed": f"{seed}:{index}", "care": round(rng.uniform(low, high), 3)}
        rows.append({"question": show(empty_board()), "info": info})
    return rows


def load_environment(
    num_examples: int = 500, seed: int = 0, min_care: float = 0.5, max_care: float = 1.0
) -> vf.Environment:
    """Return an environment with games of connect three.

    Args:
        num_examples: Number of games for training, and for evaluation.
        seed: Random seed of the games.
        min_care, max_care: Range of the probability with which the opponent looks for a win or a block.
    """
    parser = vf.XMLParser(["column"], answer_field="column")
    rubric = vf.Rubric([result], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    rubric.add_metric(won)
    return ConnectEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", min_care, max_care),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", min_care, max_care),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"attacker": attacker, "dropper": dropper},
        max_turns=9,
    )
