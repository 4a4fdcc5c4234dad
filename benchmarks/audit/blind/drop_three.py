"""Drop three: drop pieces into columns of a 5x4 board; three in a row win."""

import random
import zlib
from typing import Any

import rove as vf

COLUMNS, ROWS = 5, 4
SYSTEM_PROMPT = (
    f"Drop pieces into a board with columns 1 to {COLUMNS} and {ROWS} rows. You are X and win with three of your pieces in "
    "a row, a column or a diagonal. Answer <column>number</column>. A full or unknown column ends the game."
)
LINES = [
    [(column + step * dc, row + step * dr) for step in range(3)]
    for column in range(COLUMNS)
    for row in range(ROWS)
    for dc, dr in ((1, 0), (0, 1), (1, 1), (1, -1))
    if column + 2 * dc < COLUMNS and 0 <= row + 2 * dr < ROWS
]


def winner(board):
    """Return the player with three in a row, or None."""
    for line in LINES:
        pieces = {board[column][row] if row < len(board[column]) else "." for column, row in line}
        if len(pieces) == 1 and pieces != {"."}:
            return pieces.pop()
    return None


def drop(board, column, player):
    return [pile + player if number == column else pile for number, pile in enumerate(board)]


def open_columns(board):
    return [column for column in range(COLUMNS) if len(board[column]) < ROWS]


def choose(board, player, rng):
    """Win if possible, else block, else drop anywhere."""
    for who in (player, "O" if player == "X" else "X"):
        for column in open_columns(board):
            if winner(drop(board, column, who)) == who:
                return column
    return rng.choice(open_columns(board))


def show(board):
    lines = [" ".join(pile[row] if row < len(pile) else "." for pile in board) for row in reversed(range(ROWS))]
    return "\n".join([*lines, " ".join(str(column + 1) for column in range(COLUMNS))])


class DropThreeEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["board"] = list(state["info"]["board"])
        state["winner"] = None

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text = (self.parser.parse_answer(messages) or "").strip()
        column = int(text) - 1 if text in list("12345") else None
        if column is None or column not in open_columns(state["board"]):
            return self.end(state, "That is not an open column. The game is over.")
        state["board"] = drop(state["board"], column, "X")
        if not self.over(state):
            info = state["info"]
            rng = random.Random(f"{info['seed']}|{state['board']}")
            careful = rng.random() < info["skill"]
            reply = choose(state["board"], "O", rng) if careful else rng.choice(open_columns(state["board"]))
            state["board"] = drop(state["board"], reply, "O")
        if self.over(state):
            state["winner"] = winner(state["board"])
            return self.end(state, f"{show(state['board'])}\nThe game is over.")
        return show(state["board"])

    def over(self, state):
        return winner(state["board"]) is not None or not open_columns(state["board"])

    def end(self, state, message):
        state["final_env_response"] = message
        return None


def result(state) -> float:
    """1 for a win, 0 for a loss, 0.5 for a game without a winner."""
    return {"X": 1.0, "O": 0.0}.get(state["winner"], 0.5)


def pieces_played(state) -> float:
    return float(sum(len(pile) for pile in state["board"]))


def make_rows(count, seed, evaluation):
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        board = [""] * COLUMNS
        for player in "XO" * rng.randint(1, 3):
            board = drop(board, rng.choice(open_columns(board)), player)
        held_out = zlib.crc32("/".join(board).encode()) % 4 == 0
        if winner(board) is None and held_out == evaluation:
            info = {"board": board, "skill": rng.choice([0.3, 0.6, 0.9]), "seed": rng.getrandbits(32)}
            rows.append({"question": show(board), "info": info})
    return rows


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Games against opponents that overlook 10% to 70% of their chances."""
    parser = vf.XMLParser(["column"], answer_field="column")
    rubric = vf.Rubric([result], parser=parser)
    rubric.add_metric(pieces_played)
    return DropThreeEnv(
        dataset=lambda: make_rows(num_examples, f"train {seed}", False),
        eval_dataset=lambda: make_rows(num_examples // 2, f"eval {seed}", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        max_turns=12,
    )
