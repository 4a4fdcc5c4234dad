"""Tic-Tac-Toe against a random or minimax opponent, as the courses write it."""

import random

import verifiers as vf
from datasets import Dataset

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
SYSTEM_PROMPT = """You are playing Tic-Tac-Toe. You are X, your opponent is O.
The squares are numbered 0 to 8, row by row.
Answer as <think>your thoughts</think><move>the number of an empty square</move>."""


def winner(board):
    for a, b, c in LINES:
        if board[a] != " " and board[a] == board[b] == board[c]:
            return board[a]
    return "draw" if " " not in board else None


def show(board):
    squares = [board[i] if board[i] != " " else str(i) for i in range(9)]
    return "\n".join(" | ".join(squares[row : row + 3]) for row in (0, 3, 6))


class TicTacToeEnv(vf.MultiTurnEnv):
    def __init__(self, random_move_prob: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.random_move_prob = random_move_prob

    async def setup_state(self, state: vf.State, **kwargs) -> vf.State:
        state["board"] = [" "] * 9
        state["winner"] = None
        state["invalid"] = 0
        state["rng"] = random.Random(state["info"]["seed"])
        if state["info"]["opponent_starts"]:
            state["board"][state["rng"].randrange(9)] = "O"
            state["prompt"][-1] = vf.UserMessage(content=f"I start.\n{show(state['board'])}\nYour move.")
        return await super().setup_state(state, **kwargs)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        board = state["board"]
        move = self.parser.parse_answer(messages)
        if move is None or not move.isdigit() or int(move) > 8 or board[int(move)] != " ":
            state["invalid"] += 1
            return [{"role": "user", "content": f"Invalid move.\n{show(board)}\nYour move."}]
        board[int(move)] = "X"
        state["winner"] = winner(board)
        if state["winner"] is None:
            free = [i for i in range(9) if board[i] == " "]
            board[state["rng"].choice(free)] = "O"
            state["winner"] = winner(board)
        if state["winner"] is not None:
            state["final_env_response"] = [{"role": "user", "content": f"{show(board)}\nGame over: {state['winner']}."}]
            return state["final_env_response"]
        return [{"role": "user", "content": f"{show(board)}\nYour move."}]


def win_reward(state, **kwargs):
    return {"X": 1.0, "draw": 0.5}.get(state["winner"], 0.0)


def invalid_penalty(state, **kwargs):
    return -0.1 if state["invalid"] else 0.0


def load_environment(num_examples: int = 8, seed: int = 0, max_turns: int = 8, **kwargs) -> vf.Environment:
    rng = random.Random(seed)
    rows = [
        {
            "question": f"You start.\n{show([' '] * 9)}\nYour move.",
            "answer": "",
            "info": {"seed": rng.randrange(10**6), "opponent_starts": bool(i % 2)},
        }
        for i in range(num_examples)
    ]
    parser = vf.XMLParser(fields=["think", "move"], answer_field="move")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(win_reward, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    rubric.add_reward_func(invalid_penalty, weight=1.0)
    return TicTacToeEnv(
        dataset=Dataset.from_list(rows),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        max_turns=max_turns,
        **kwargs,
    )
