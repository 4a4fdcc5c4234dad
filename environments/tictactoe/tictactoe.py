"""Tic-tac-toe: the model plays X against an opponent between random and perfect.

A board is nine characters, "X", "O" or "." per square, squares numbered 0 to 8 by rows.
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
    """Squares nobody has taken."""
    return [square for square in range(9) if board[square] == "."]


def place(board: str, square: int, player: str) -> str:
    """The board after `player` takes `square`."""
    return board[:square] + player + board[square + 1 :]


def result(board: str) -> str | None:
    """ "X" or "O" when that player has a line, "draw" when the board is full, None while the game goes on."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None if "." in board else "draw"


@functools.cache
def value(board: str, player: str) -> int:
    """Minimax value for X with `player` to move; quicker wins and slower losses are better."""
    end = result(board)
    if end is not None:
        return {"X": 10, "O": -10, "draw": 0}[end] + {"X": 1, "O": -1, "draw": 0}[end] * board.count(".")
    other = "O" if player == "X" else "X"
    values = [value(place(board, square, player), other) for square in free_squares(board)]
    return max(values) if player == "X" else min(values)


@functools.cache
def best_moves(board: str, player: str) -> list[int]:
    """Every move that minimax cannot improve on."""
    other = "O" if player == "X" else "X"
    values = {square: value(place(board, square, player), other) for square in free_squares(board)}
    best = (max if player == "X" else min)(values.values())
    return [square for square in values if values[square] == best]


def threats(board: str, player: str) -> list[tuple[int, int, int]]:
    """Lines that `player` can complete now, as (mine, mine, the free square)."""
    found = []
    for line in LINES:
        free = [square for square in line if board[square] == "."]
        mine = [square for square in line if board[square] == player]
        if len(mine) == 2 and len(free) == 1:
            found.append((mine[0], mine[1], free[0]))
    return found


def show(board: str) -> str:
    """The board as the model sees it."""
    squares = [str(i) if board[i] == "." else board[i] for i in range(9)]
    return "\n".join(" " + " ".join(squares[row : row + 3]) for row in (0, 3, 6))


def read(text: str) -> str:
    """The board in what the model sees."""
    return "".join("." if square.isdigit() else square for row in text.split("\n")[-3:] for square in row.split())


def draw(board: str) -> vf.Rendering:
    """The board as people see it."""
    looks = {"X": "first", "O": "second"}
    squares = [(str(i), "free") if s == "." else (s, looks[s]) for i, s in enumerate(board)]
    return vf.Rendering([squares[row : row + 3] for row in (0, 3, 6)])


def opponent_move(board: str, seed: int, random_move_prob: float, punish: bool = False) -> int:
    """O's move, the same for the same board in the same example; with `punish` it never lets a win go."""
    rng = random.Random(f"{seed}:{board}")
    is_random = rng.random() < random_move_prob
    wins = punish and value(board, "O") < 0
    return rng.choice(free_squares(board) if is_random and not wins else best_moves(board, "O"))


def _answer(reason: str, square: int) -> str:
    return f"<think>{reason} {square}</think><move>{square}</move>"


def random_player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Any free square."""
    return _answer("Any square:", rng.choice(free_squares(state["board"])))


def optimal_player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A minimax move, uniformly among the best."""
    return _answer("Best is", rng.choice(best_moves(state["board"], "X")))


def teacher_player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Wins in one, blocks in one, likes the centre (80 %), else mostly the first free square; it does not see forks."""
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
    """The model is X; O is scripted, or a person under `rove play`."""

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
            told = f"Invalid move.\n{show(board)}"
            state["final_env_response"] = told if state["info"].get("punish") else None
            return told
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
        asked = {"wins in one taken": wins, "threats blocked": [] if wins else blocks, "moves that do not lose": safe}
        return {name: move in squares for name, squares in asked.items() if squares}

    async def _opponent_plays(self, state: vf.State, board: str) -> str:
        if self.opponent is not None:
            move = int(await self.opponent(show(board), list(map(str, free_squares(board))), draw(board)))
        else:
            move = opponent_move(board, **state["info"])
        return place(board, move, "O")


def win(state: vf.State) -> float:
    """1 for a win, 0.5 for a draw, else 0."""
    return {"X": 1.0, "draw": 0.5}.get(result(state["board"]) or "", 0.0)


def won(state: vf.State) -> float:
    return float(result(state["board"]) == "X")


def drawn(state: vf.State) -> float:
    return float(result(state["board"]) == "draw")


def lost(state: vf.State) -> float:
    """O has a line, or the game was not finished in time."""
    return float(result(state["board"]) not in ("X", "draw"))


def invalid_move(state: vf.State) -> float:
    """1 if any move of the game was invalid."""
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
    """Tic-tac-toe against opponents that play a random square with a probability between min and max, else a best move.

    Args:
        num_examples: games in the dataset.
        seed: of the dataset; the evaluation games differ from the training games of the same seed.
        min_random_move_prob, max_random_move_prob: range of the opponent's probability of a random square.
        num_groups: the range is cut into this many equal buckets, and `num_groups` games in a row hold each bucket once.
        punish: O never lets a win go, however random it plays, and an invalid move loses the game.
        max_turns: most model turns.
    """
    low, high = min_random_move_prob, max_random_move_prob
    if not 0 <= low <= high <= 1:
        raise vf.ConfigError(f"need 0 <= min_random_move_prob <= max_random_move_prob <= 1, got {low} and {high}")
    if num_groups < 1:
        raise vf.ConfigError(f"num_groups is {num_groups}; expected 1 or more")
    options, more = ((low, high), num_groups), {"punish": True} if punish else {}
    parser = vf.XMLParser(["think", "move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(win, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    rubric.add_reward_func(invalid_move, weight=-0.1)
    for metric in (won, drawn, lost):
        rubric.add_metric(metric)
    return TicTacToeEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", *options, **more),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", *options, **more),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"random": random_player, "optimal": optimal_player, "teacher": teacher_player},
        max_turns=max_turns,
    )
