"""Pawn endings: a game with pawns only, on a board of four by four squares.

A board is a string of 16 characters from a4 to d1, row by row: "P" is a white pawn, "p" a black one and "." a free square.
"""

from __future__ import annotations

import functools
import random
from itertools import combinations
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play White (P) and move up the board; Black is p. A pawn moves one square forward if it is free, or captures "
    "diagonally forward. You win with a pawn on rank 4 or when Black has no move; Black wins with a pawn on rank 1 or "
    "when you have no move. An illegal move loses. Answer with from and to, for example <move>b2b3</move>"
)
FILES = "abcd"
Move = tuple[int, int]


def name(square: int) -> str:
    return f"{FILES[square % 4]}{4 - square // 4}"


def moves(board: str, player: str) -> list[Move]:
    """Return the legal moves of "P" or "p"."""
    step, other = (-4, "p") if player == "P" else (4, "P")
    found = []
    for square in range(16):
        ahead = square + step
        if board[square] != player or not 0 <= ahead < 16:
            continue
        if board[ahead] == ".":
            found.append((square, ahead))
        for side in (-1, 1):
            if 0 <= square % 4 + side < 4 and board[ahead + side] == other:
                found.append((square, ahead + side))
    return found


def play(board: str, move: Move) -> str:
    squares = list(board)
    squares[move[1]], squares[move[0]] = squares[move[0]], "."
    return "".join(squares)


def winner(board: str, to_move: str) -> str | None:
    """Return the player who has won, or None."""
    if "P" in board[:4]:
        return "P"
    if "p" in board[12:]:
        return "p"
    return None if moves(board, to_move) else ("p" if to_move == "P" else "P")


@functools.cache
def wins(board: str, to_move: str) -> bool:
    """Return whether White wins with best play."""
    end = winner(board, to_move)
    if end is not None:
        return end == "P"
    results = (wins(play(board, move), "p" if to_move == "P" else "P") for move in moves(board, to_move))
    return any(results) if to_move == "P" else all(results)


def show(board: str) -> str:
    ranks = [f"{4 - rank} {' '.join(board[4 * rank : 4 * rank + 4])}" for rank in range(4)]
    return "\n".join([*ranks, f"  {' '.join(FILES)}"])


class PawnEndingsEnv(vf.MultiTurnEnv):
    """An environment in which the model plays White against a player who wins in one move or else moves at random."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(board=state["info"]["board"], winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        legal = {name(a) + name(b): (a, b) for a, b in moves(state["board"], "P")}
        move = legal.get(self.parser.parse_answer(messages))
        if move is None:
            return self._end(state, "p", "That move is not legal. Black wins.")
        board = state["board"] = play(state["board"], move)
        if winner(board, "p") == "P":
            return self._end(state, "P", "White wins.")
        rng = random.Random(f"{state['info']['seed']}:{board}")
        replies = [play(board, reply) for reply in moves(board, "p")]
        board = state["board"] = rng.choice([reply for reply in replies if winner(reply, "P") == "p"] or replies)
        end = winner(board, "P")
        return self._end(state, end, "White wins." if end == "P" else "Black wins.") if end else show(board)

    def _end(self, state: vf.State, player: str, message: str) -> None:
        state["winner"] = player
        state["final_env_response"] = message


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "P")


def master(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a winning move, if there is one."""
    legal = moves(state["board"], "P")
    good = [move for move in legal if wins(play(state["board"], move), "p")]
    a, b = rng.choice(good or legal)
    return f"<move>{name(a)}{name(b)}</move>"


def patzer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play a random legal move."""
    a, b = rng.choice(moves(state["board"], "P"))
    return f"<move>{name(a)}{name(b)}</move>"


@functools.cache
def positions() -> tuple[str, ...]:
    """Return start positions with one winning move among several, without mirror images."""
    found = set()
    for white in combinations(range(8, 16), 3):
        for black in combinations(range(8), 3):
            board = "".join("P" if square in white else "p" if square in black else "." for square in range(16))
            mirror = "".join(board[4 * rank : 4 * rank + 4][::-1] for rank in range(4))
            legal = moves(board, "P")
            if len(legal) > 1 and sum(wins(play(board, move), "p") for move in legal) == 1:
                found.add(min(board, mirror))
    return tuple(sorted(found))


def _rows(boards: list[str], count: int, seed: str) -> list[dict[str, Any]]:
    return [
        {"question": show(board), "info": {"board": board, "seed": f"{seed}:{index}"}}
        for index, board in enumerate(boards[:count])
    ]


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment with pawn endings that White can win.

    Args:
        num_examples: Number of positions in each dataset, at most half of all positions.
        seed: Random seed of the order and of Black's moves; the same position always gets the same reply in an example.
    """
    boards = list(positions())
    random.Random("split").shuffle(boards)
    half = len(boards) // 2
    train, held_out = boards[:half], boards[half:]
    random.Random(seed).shuffle(train)
    parser = vf.XMLParser(["move"], answer_field="move")
    return PawnEndingsEnv(
        dataset=_rows(train, num_examples, f"{seed}:train"),
        eval_dataset=_rows(held_out, num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"master": master, "patzer": patzer},
        max_turns=10,
    )
