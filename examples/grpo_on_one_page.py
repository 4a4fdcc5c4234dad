"""GRPO on one page: a language model learns Tic-Tac-Toe, with plain torch and transformers.

This file has the same algorithm as `rove rl`, without everything that makes it fast, general and safe to interrupt;
docs/grpo_on_one_page.md lists what that is. From rove, it takes only the game: rules, opponent, prompt and format.

One training step:

1. Sample.     The model finishes the same game several times; these are a group. A step has several groups.
2. Reward.     Each game gets a number: who won, and whether the answers had the format.
3. Advantage.  A game's reward minus the mean reward of its group.
4. Mask.       Only tokens that the model sampled are trained. Prompts and the opponent's moves are not.
5. Loss.       Make the tokens of games with a positive advantage more likely, the others less likely.
6. Step.       Gradient, AdamW, and the next step samples with the new weights.

The initial model must know the format, because a model that never wins has nothing to compare. Start after SFT:

    rove model new --env tictactoe --output models/ttt
    rove eval tictactoe -m scripted:teacher -n 14000 -r 1 --train --run-dir runs/data -a '{"num_examples": 14000}'
    rove sft --data runs/data -m models/ttt --min-reward 0.6 --run-dir runs/sft
    python examples/grpo_on_one_page.py runs/sft/final --output models/grpo
    rove eval tictactoe -m models/grpo -n 1000 -r 1 -T 0
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# An environment is an ordinary Python module. Its functions are the rules of the game.
sys.path.append(str(Path(__file__).resolve().parents[1] / "environments" / "tictactoe"))
import tictactoe

PARSER = tictactoe.load_environment().parser
"""Reads the move in `<think>…</think><move>4</move>`, and scores the format."""
MAX_TURNS = 8


class Game:
    """One game: the board, and the conversation as tokens.

    The conversation is kept as the tokens that the model saw and sampled. Tokenizing its text again could give other
    tokens, and the loss would then train tokens that the model did not sample.
    """

    def __init__(self, example: dict[str, Any], tokenizer: Any):
        self.opponent = example["info"]  # its seed and strength: the same for all games of a group
        self.tokenizer = tokenizer
        self.board = tictactoe.EMPTY
        self.is_over = False
        self.has_invalid_move = False
        self.format_scores: list[float] = []

        if random.Random(self.opponent["seed"]).choice("XO") == "O":
            self.move("O", tictactoe.opponent_move(self.board, **self.opponent))

        system_prompt = {"role": "system", "content": tictactoe.SYSTEM_PROMPT}
        self.ids = self.render(system_prompt, {"role": "user", "content": tictactoe.show(self.board)})
        self.mask = [False] * len(self.ids)  # True: sampled by the model
        self.logprobs = [0.0] * len(self.ids)  # of the sampled tokens, when they were sampled

    def render(self, *messages: dict[str, str]) -> list[int]:
        """Return the tokens of messages and of the start of the model's answer."""
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)

    def move(self, player: str, square: int) -> None:
        """Put X or O on a square."""
        self.board = tictactoe.place(self.board, square, player)

    def add_answer(self, ids: list[int], logprobs: list[float]) -> None:
        """Make the model's move, then the opponent's, and show the new board to the model."""
        self.ids += ids
        self.mask += [True] * len(ids)
        self.logprobs += logprobs

        has_ended = ids[-1] == self.tokenizer.eos_token_id  # otherwise, the answer was cut off
        text = self.tokenizer.decode(ids[:-1] if has_ended else ids)
        self.format_scores.append(PARSER.format_score(text))

        answer = PARSER.parse_answer(text)
        if answer in [str(square) for square in tictactoe.free_squares(self.board)]:
            self.move("X", int(answer))
            if tictactoe.result(self.board) is None:
                self.move("O", tictactoe.opponent_move(self.board, **self.opponent))
            message = tictactoe.show(self.board)
        else:
            self.has_invalid_move = True
            message = f"Invalid move.\n{tictactoe.show(self.board)}"

        self.is_over = tictactoe.result(self.board) is not None or len(self.format_scores) == MAX_TURNS
        if self.is_over:
            return

        # The template of this model renders each message by itself. A template that rewrites earlier messages, such as
        # one that removes their reasoning, would need a new sequence here.
        end = [] if has_ended else [self.tokenizer.eos_token_id]
        prompt = end + self.render({"role": "user", "content": message})
        self.ids += prompt
        self.mask += [False] * len(prompt)
        self.logprobs += [0.0] * len(prompt)

    def reward(self) -> float:
        """Return 1 for a win and 0.5 for a draw, plus 0.2 for the format, minus 0.1 for an invalid move."""
        outcome = {"X": 1.0, "draw": 0.5}.get(tictactoe.result(self.board) or "", 0.0)
        format_score = sum(self.format_scores) / len(self.format_scores)
        return outcome + 0.2 * format_score - 0.1 * self.has_invalid_move


@torch.no_grad()
def sample_answers(
    model: Any, prompts: Sequence[Sequence[int]], end_id: int, temperature: float, max_tokens: int
) -> list[tuple[list[int], list[float]]]:
    """Continue each prompt until the end token; return the sampled tokens and their log-probabilities."""
    # Pad on the left, so that all answers begin in the same column.
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor([[end_id] * count + list(prompt) for count, prompt in zip(padding, prompts)])
    attention = torch.tensor([[0] * count + [1] * (longest - count) for count in padding])
    positions = (attention.cumsum(1) - 1).clamp(min=0)

    answers: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    cache = None
    for _ in range(max_tokens):
        output = model(
            input_ids=ids, attention_mask=attention, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        next_logprobs = (output.logits[:, -1].float() / temperature).log_softmax(1)
        ids = torch.multinomial(next_logprobs.exp(), 1)
        sampled_logprobs = next_logprobs.gather(1, ids)

        is_running = False
        for answer, token, logprob in zip(answers, ids[:, 0].tolist(), sampled_logprobs[:, 0].tolist()):
            answer_ids, answer_logprobs = answer
            if answer_ids and answer_ids[-1] == end_id:
                continue  # this answer is complete; what is sampled in its row is not used
            answer_ids.append(token)
            answer_logprobs.append(logprob)
            is_running = is_running or token != end_id
        if not is_running:
            break

        attention = torch.cat([attention, torch.ones_like(ids)], dim=1)
        positions = positions[:, -1:] + 1
    return answers


def sample_games(model: Any, games: Sequence[Game], temperature: float, max_tokens: int) -> None:
    """Sample the model's answers until all games are over, one turn of all unfinished games at a time."""
    while True:
        active = [game for game in games if not game.is_over]
        if not active:
            return
        prompts = [game.ids for game in active]
        end_id = active[0].tokenizer.eos_token_id
        answers = sample_answers(model, prompts, end_id, temperature, max_tokens)
        for game, (ids, logprobs) in zip(active, answers):
            game.add_answer(ids, logprobs)


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Return how much better each game is than its group: rewards [groups, games] to advantages of the same shape.

    The group's mean is what the model usually earns against this opponent, so that a strong opponent is no reason to
    unlearn a good move. GRPO also divides by the group's standard deviation. This example and rove do not (Dr. GRPO, arXiv
    2503.20783), because examples that are almost always won or lost would then count most.
    """
    return rewards - rewards.mean(dim=1, keepdim=True)


def policy_loss(
    model: Any, games: Sequence[Game], advantages: torch.Tensor, temperature: float, clip: float = 0.2
) -> torch.Tensor:
    """Return the clipped policy loss of games with advantages [games], the mean over all tokens that the model sampled."""
    # Padding on the right needs no attention mask: earlier tokens do not see it, and it is not trained.
    longest = max(len(game.ids) for game in games)
    ids = torch.zeros(len(games), longest, dtype=torch.long)
    mask = torch.zeros(len(games), longest, dtype=torch.bool)
    old_logprobs = torch.zeros(len(games), longest)
    for row, game in enumerate(games):
        ids[row, : len(game.ids)] = torch.tensor(game.ids)
        mask[row, : len(game.ids)] = torch.tensor(game.mask)
        old_logprobs[row, : len(game.ids)] = torch.tensor(game.logprobs)

    # The logits at one token predict the next token, so everything else shifts by one. They are divided by the
    # temperature, as in sampling: the trained policy is the one that sampled.
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float() / temperature
    ids, mask, old_logprobs = ids[:, 1:], mask[:, 1:], old_logprobs[:, 1:]
    logprobs = logits.log_softmax(2).gather(2, ids[:, :, None])[:, :, 0]

    # The ratio is 1 for the weights that sampled, and its gradient is that of the log-probability. Clipping matters
    # if you train several steps on the same games: a token may not move further than this in one batch.
    ratio = (logprobs - old_logprobs).exp()
    clipped_ratio = ratio.clamp(1 - clip, 1 + clip)
    objective = torch.minimum(ratio * advantages[:, None], clipped_ratio * advantages[:, None])

    # Divide by the tokens of the whole batch, not by those of each game: every token counts equally (DAPO, 2503.14476).
    return -objective[mask].sum() / mask.sum()


def train(
    model: Any,
    tokenizer: Any,
    examples: Sequence[dict[str, Any]],
    steps: int,
    num_groups: int = 32,
    group_size: int = 8,
    learning_rate: float = 3e-4,
    temperature: float = 1.0,
    max_tokens: int = 32,
    seed: int = 0,
    on_step: Callable[[int, float], None] = lambda step, reward: None,
) -> list[float]:
    """Train a model in place; return the mean reward of each step.

    Step n samples games from `examples[n * num_groups : (n + 1) * num_groups]`, `group_size` of each.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    mean_rewards: list[float] = []
    for step in range(steps):
        # 1. Sample.
        games = []
        for group in range(num_groups):
            example = examples[(step * num_groups + group) % len(examples)]
            games += [Game(example, tokenizer) for _ in range(group_size)]
        sample_games(model, games, temperature, max_tokens)

        # 2. Reward.
        rewards = torch.tensor([game.reward() for game in games]).view(num_groups, group_size)
        mean_rewards.append(rewards.mean().item())

        # 3. Advantage. A group of equal rewards teaches nothing, and its tokens would only dilute the mean of the loss.
        advantages = group_advantages(rewards)
        groups = (rewards.amax(dim=1) - rewards.amin(dim=1) > 1e-6).nonzero()[:, 0].tolist()
        trained_games: list[Game] = []
        for group in groups:
            trained_games += games[group * group_size : (group + 1) * group_size]

        if trained_games:
            # 4. and 5. Mask and loss.
            loss = policy_loss(model, trained_games, advantages[groups].flatten(), temperature)

            # 6. Step. The rate rises for five steps, because AdamW's first estimates of the variance are rough, and
            # then falls to a tenth. Clipping the gradient keeps one
            # unusual batch from moving the weights far.
            warmup = min(1.0, (step + 1) / 5)
            decay = 1.0 - 0.9 * min(1.0, step / max(1, steps - 1))
            optimizer.param_groups[0]["lr"] = learning_rate * warmup * decay
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        on_step(step + 1, mean_rewards[-1])
    return mean_rewards


def main() -> None:
    """Train the model of a folder, and write the result to another."""
    arguments = argparse.ArgumentParser(description="Train a model in Tic-Tac-Toe with GRPO.")
    arguments.add_argument("model", help="folder of the initial model, which knows the format")
    arguments.add_argument("--output", required=True, help="folder for the trained model")
    arguments.add_argument("--steps", type=int, default=100, help="optimizer steps (default: 100)")
    arguments.add_argument(
        "--num-groups", type=int, default=32, help="groups per step, of eight games each (default: 32)"
    )
    arguments.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    options = arguments.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    count = options.steps * options.num_groups
    examples = tictactoe.load_environment(num_examples=count, num_groups=options.num_groups).get_dataset()

    def show(step: int, reward: float) -> None:
        print(f"step {step}/{options.steps}  reward {reward:.3f}", flush=True)

    train(model, tokenizer, examples, options.steps, options.num_groups, seed=options.seed, on_step=show)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
