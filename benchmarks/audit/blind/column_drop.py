"""Drop three: drop stones into columns; three stones in a line win."""

import random

import rove as vf

ROWS, COLUMNS = 4, 5
SYSTEM_PROMPT = (
    f"You and an opponent take turns dropping stones into {COLUMNS} columns of {ROWS} places. You have the X stones. "
    "Whoever has three stones in a row, a column or a diagonal wins. A win counts 1 and a draw counts a half. "
    "Reply with the column, <drop>1</drop> to <drop>5</drop>."
)


def lines():
    found = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                places = [(row + k * down, column + k * right) for k in range(3)]
                if all(0 <= r < ROWS and 0 <= c < COLUMNS for r, c in places):
                    found.append([r * COLUMNS + c for r, c in places])
    return found


LINES = lines()


def open_columns(board):
    return [column for column in range(COLUMNS) if board[column] == "."]


def drop(board, column, stone):
    row = max(row for row in range(ROWS) if board[row * COLUMNS + column] == ".")
    place = row * COLUMNS + column
    return board[:place] + stone + board[place + 1 :]


def winner(board):
    for line in LINES:
        stones = {board[place] for place in line}
        if len(stones) == 1 and stones != {"."}:
            return stones.pop()
    return None


def show(board):
    rows = [" ".join(board[row * COLUMNS : (row + 1) * COLUMNS]) for row in range(ROWS)]
    return "\n".join([*rows, "1 2 3 4 5"])


def opponent_column(board, seed):
    """Win if possible, else block; one move in ten is random. The same board always gets the same reply."""
    rng = random.Random(f"{seed}:{board}")
    columns = open_columns(board)
    if rng.random() > 0.1:
        for stone in "OX":
            for column in columns:
                if winner(drop(board, column, stone)) == stone:
                    return column
    return rng.choice(columns)


class DropThreeEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["board"] = state["info"]["board"]

    async def env_response(self, messages, state, **kwargs):
        reply = self.parser.parse_answer(messages) or ""
        columns = open_columns(state["board"])
        if reply not in {str(column + 1) for column in columns}:
            return self.finish(state, "You cannot drop a stone there.")
        board = drop(state["board"], int(reply) - 1, "X")
        if winner(board) is None and open_columns(board):
            board = drop(board, opponent_column(board, state["info"]["seed"]), "O")
        state["board"] = board
        if winner(board) is not None or not open_columns(board):
            return self.finish(state, show(board))
        return show(board)

    def finish(self, state, message):
        state["final_env_response"] = f"{message}\nThe game is over."


def score(state):
    """1 for a win, 0 for a loss, a half for a draw."""
    return {"X": 1.0, "O": 0.0, None: 0.5}[winner(state["board"])]


def make_row(index, seed):
    rng = random.Random(f"{seed}:{index}")
    board = "." * ROWS * COLUMNS
    if index % 3:
        board = drop(board, rng.randrange(COLUMNS), "O")
    return {"question": show(board), "info": {"board": board, "seed": f"{seed}:{index}"}}


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Games against an opponent who sees wins and threats.

    Args:
        num_examples: Number of games in each dataset; the opponent begins two thirds of them.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["drop"], answer_field="drop")
    return DropThreeEnv(
        dataset=lambda: [make_row(index, f"{seed}:train") for index in range(num_examples)],
        eval_dataset=lambda: [make_row(index, f"{seed}:eval") for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([score], parser=parser),
        max_turns=10,
    )
