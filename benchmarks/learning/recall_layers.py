"""Train the layers with which `rove train` starts new models: they find and copy symbols of the prompt.

    python benchmarks/learning/recall_layers.py -o rove/models/lfm2_tiny_recall.safetensors     # 25 to 40 CPU-minutes

A sequence lists pairs of keys and values and then asks for values, or shows examples of a transformation of lists. Each step
draws new random embeddings, so the layers cannot learn what a symbol means, only how to find it. For this reason, they also
work with the embeddings of a new tokenizer. The sequences become longer and more varied when the answers are right often
enough. docs/decisions/recall_layers.md has the reasons. Repeat the command to continue a stopped run.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from rove.models.from_scratch import new_model

SYMBOLS = 512
WIDTH = 128
"""Number of values of an embedding."""
QUERIES = 8
"""Number of questions about the pairs of a sequence: many, so that each sequence has much to learn from."""
BLOCKS = 5
"""Number of questions that stand before their pairs; the first shows the order and is not trained on."""
TWO_TURNS_SHARE = 0.3
"""Share of sequences in which a question names two keys, and two lists of pairs follow, each with its answer."""
VARIED_SHARE = 0.3
"""Share of layouts in which one of several symbols stands between a key and its value, as in "Ida has" and "Tom holds"."""
VALUE_FIRST_SHARE = 0.4
"""Share of sequences in which a value stands before its key, as in "Ida has the cup"."""
EXAMPLES = 6
"""Number of examples of a transformation; the first shows what to do and is not trained on."""
BATCH = 32
START_LEVEL = 4
UNTRAINED = -100
"""Target of a position that is not trained on."""
LEARNING_RATE = 2e-3
DECAY_SHARE = 0.3
"""Share of the steps, at the end, in which the learning rate falls to a twentieth."""
RECALL_SHARE, QUESTION_FIRST_SHARE = 0.5, 0.6
"""Share of steps with questions after the pairs, and with questions before them among the other steps."""
KINDS = ("copy", "copy", "reverse", "first", "last", "member", "without")


class Level(NamedTuple):
    """Maximum numbers of pairs in a sequence and of symbols in its parts."""

    pairs: int
    key: int
    value: int
    pair_before: int
    """Symbols before each key."""
    between: int
    """Symbols between each key and its value."""
    pair_after: int
    """Symbols after each value."""
    question_before: int
    """Symbols before the key of a question."""
    question_after: int
    """Symbols between the key of a question and the answer, in addition to one that is always there."""
    needed: float
    """Share of right symbols from which the next level begins. Some answers are a guess: where values stand relative to their
    keys differs from sequence to sequence."""


LEVELS = (
    Level(2, 1, 1, 0, 0, 0, 0, 0, needed=0.9),
    Level(3, 1, 1, 1, 0, 1, 1, 0, needed=0.9),
    Level(4, 1, 1, 1, 1, 1, 1, 1, needed=0.7),
    Level(5, 1, 2, 1, 1, 1, 2, 2, needed=0.67),
    Level(6, 1, 2, 2, 2, 2, 3, 3, needed=0.55),
    Level(8, 2, 2, 2, 2, 2, 4, 4, needed=0.5),
    Level(8, 2, 3, 3, 3, 3, 5, 6, needed=0.5),
    Level(10, 2, 3, 3, 4, 3, 6, 8, needed=1.01),
)


class Exercise(NamedTuple):
    """Symbols and, for each, the target: the symbol itself if it is trained on."""

    symbols: list[int]
    targets: list[int]

    def show(self, symbols: Sequence[int]) -> None:
        """Append symbols that are not trained on."""
        self.symbols.extend(symbols)
        self.targets.extend([UNTRAINED] * len(symbols))

    def train(self, symbols: Sequence[int]) -> None:
        """Append symbols that are trained on."""
        self.symbols.extend(symbols)
        self.targets.extend(symbols)


class Pool:
    """All symbols in random order, each given out once."""

    def __init__(self, rng: random.Random):
        self.symbols = rng.sample(range(SYMBOLS), SYMBOLS)

    def take(self, count: int) -> list[int]:
        """Return symbols that the sequence does not have yet."""
        return [self.symbols.pop() for _ in range(count)]


class Layout:
    """Where the parts of all pairs and questions of a sequence stand, and of which symbols they consist."""

    def __init__(self, rng: random.Random, pool: Pool, level: Level):
        self.rng = rng
        self.count = rng.randint(max(1, level.pairs // 2), level.pairs)
        self.key_length, self.value_length = rng.randint(1, level.key), rng.randint(1, level.value)
        self.pair_before, self.between, self.pair_after = (
            pool.take(rng.randint(0, most)) for most in (level.pair_before, level.between, level.pair_after)
        )
        self.question_before = pool.take(rng.randint(0, level.question_before))
        self.question_after = pool.take(rng.randint(1, level.question_after + 1))
        self.key_symbols, self.value_symbols = pool.take(max(2 * self.count, 4)), pool.take(rng.choice([4, 10, 10, 40]))
        self.is_value_first = rng.random() < VALUE_FIRST_SHARE
        self.alternatives = pool.take(3) if self.between and rng.random() < VARIED_SHARE else []

    def some_keys(self, count: int) -> list[tuple[int, ...]]:
        """Return different keys."""
        keys: list[tuple[int, ...]] = []
        while len(keys) < count:
            key = tuple(self.rng.sample(self.key_symbols, self.key_length))
            if key not in keys:
                keys.append(key)
        return keys

    def some_value(self) -> list[int]:
        """Return a value, which other keys may have as well."""
        return [self.rng.choice(self.value_symbols) for _ in range(self.value_length)]

    def pair(self, key: tuple[int, ...], value: list[int]) -> list[int]:
        """Return the symbols of a pair."""
        first, second = (value, key) if self.is_value_first else (key, value)
        between = self.between
        if self.alternatives:
            between = [self.rng.choice([self.between[0], *self.alternatives]), *self.between[1:]]
        return [*self.pair_before, *first, *between, *second, *self.pair_after]


def recall(rng: random.Random, level: Level) -> Exercise:
    """Return pairs of keys and values, and questions about them; in some sequences, later values replace earlier ones."""
    pool = Pool(rng)
    layout = Layout(rng, pool, level)
    keys = layout.some_keys(layout.count)
    sequence = Exercise([], [])
    sequence.show(pool.take(1))
    values: dict[tuple[int, ...], list[int]] = {}
    replaced = rng.sample(keys, len(keys) // 2) if level.pairs > 3 and rng.random() < 0.1 else []
    for key in [*keys, *replaced]:
        values[key] = layout.some_value()
        sequence.show(layout.pair(key, values[key]))
    sequence.show(pool.take(rng.randint(0, 2)))
    for key in rng.choices(keys, k=QUERIES):
        sequence.show([*layout.question_before, *key, *layout.question_after])
        sequence.train(values[key])
    return sequence


def question_first(rng: random.Random, level: Level) -> Exercise:
    """Return blocks of a question, pairs, and the answer, which is about the pairs of its own block.

    In some sequences a question names two keys, and a block has two lists of pairs, each followed by its answer.
    """
    pool = Pool(rng)
    layout = Layout(rng, pool, level)
    turns = 2 if level.pairs > 3 and rng.random() < TWO_TURNS_SHARE else 1
    end, then = pool.take(rng.randint(0, 1)), pool.take(rng.randint(1, 2))
    sequence = Exercise([], [])
    sequence.show(pool.take(1))
    for number in range(BLOCKS if turns == 1 else 3):
        counts = [rng.randint(1, max(2, layout.count // 2)) for _ in range(turns)]
        keys = layout.some_keys(sum(counts))
        values = {key: layout.some_value() for key in keys}
        lists = [keys] if turns == 1 else [keys[: counts[0]], keys[counts[0] :]]
        question_keys = [rng.choice(listed) for listed in lists]
        question = [*layout.question_before, *question_keys[0]]
        for key in question_keys[1:]:
            question += [*then, *key]
        sequence.show([*question, *layout.question_after[:1]])
        add = sequence.train if number else sequence.show
        for key, listed in zip(question_keys, lists, strict=True):
            for listed_key in listed:
                sequence.show(layout.pair(listed_key, values[listed_key]))
            sequence.show(layout.question_after)
            add(values[key])
            sequence.show(end)
    return sequence


def transform(rng: random.Random, level: Level) -> Exercise:
    """Return examples of one transformation of lists, such as reversing them."""
    pool = Pool(rng)
    kind = rng.choice(KINDS)
    alphabet = pool.take(rng.choice([6, 12, 30]))
    yes, no = pool.take(2)
    opening, middle, end = pool.take(rng.randint(0, 2)), pool.take(1), pool.take(1)
    sequence = Exercise([], [])
    sequence.show(pool.take(1))
    for number in range(EXAMPLES):
        items = [rng.choice(alphabet) for _ in range(rng.randint(1, level.pairs + 2))]
        question: list[int] = []
        if kind == "copy":
            answer = items
        elif kind == "reverse":
            answer = items[::-1]
        elif kind == "first":
            answer = items[:1]
        elif kind == "last":
            answer = items[-1:]
        elif kind == "without":
            question = [rng.choice(items)]
            answer = [item for item in items if item != question[0]]
        else:
            question = [rng.choice(alphabet if rng.random() < 0.5 else items)]
            answer = [yes if question[0] in items else no]
        sequence.show([*opening, *items, *middle, *question])
        add = sequence.train if number else sequence.show
        add([*answer, *end])
    return sequence


def batch_of(sequences: Sequence[Exercise]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return symbols and targets, both [B, T], filled up at the end."""
    longest = max(len(sequence.symbols) for sequence in sequences)
    symbols = torch.zeros(len(sequences), longest, dtype=torch.long)
    targets = torch.full_like(symbols, UNTRAINED)
    for row, sequence in enumerate(sequences):
        symbols[row, : len(sequence.symbols)] = torch.tensor(sequence.symbols)
        targets[row, : len(sequence.targets)] = torch.tensor(sequence.targets)
    return symbols, targets


class Training:
    """The layers, their optimizer, and how far the training has come."""

    def __init__(self, seed: int):
        self.model: Any = new_model(["a"], arch="lfm2", size="tiny", seed=seed).model
        self.model.config.use_cache = False
        self.weights = [weight for name, weight in self.model.named_parameters() if is_stored(name)]
        self.optimizer = torch.optim.AdamW(self.weights, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
        self.seed = seed
        self.step = self.level = 0
        self.right = 0.0
        """Moving average of the share of right symbols at this level."""

    def take_step(self, steps: int) -> float:
        """Train on a batch; return the loss."""
        rng = random.Random(f"{self.seed}:{self.step}")
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        embeddings = torch.randn(SYMBOLS, WIDTH, generator=generator) * WIDTH**-0.5  # as in a new model
        level = self.level if rng.random() < 0.7 else rng.randint(0, self.level)
        is_recall = self.level < 2 or rng.random() < RECALL_SHARE
        other_exercise = question_first if rng.random() < QUESTION_FIRST_SHARE else transform
        make = recall if is_recall else other_exercise
        symbols, targets = batch_of([make(rng, LEVELS[level]) for _ in range(BATCH)])
        hidden = self.model.model(inputs_embeds=embeddings[symbols]).last_hidden_state[:, :-1]
        targets = targets[:, 1:]
        trained = targets != UNTRAINED
        logits = hidden[trained] @ embeddings.t()
        loss = functional.cross_entropy(logits, targets[trained])
        remaining = 1 - self.step / steps
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (self.step + 1) / 50, max(0.05, remaining / DECAY_SHARE))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.step += 1
        if is_recall and level == self.level:
            share = (logits.argmax(-1) == targets[trained]).float().mean().item()
            self.right += 0.03 * (share - self.right)
        if self.right > LEVELS[self.level].needed:
            self.level, self.right = self.level + 1, 0.0
        return loss.item()

    def save(self, path: Path) -> None:
        """Write everything that is needed to continue."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": (self.step, self.level, self.right),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.level, self.right = state["progress"]


def is_stored(name: str) -> bool:
    """Return whether a weight belongs to the layers: embeddings, which are also the output layer, depend on the tokenizer."""
    return not name.startswith(("model.embed_tokens", "lm_head"))


def main() -> None:
    """Train, and write the layers in bf16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, type=Path, help="file to write")
    parser.add_argument("--steps", type=int, default=16_000, help="number of steps (default: 16000)")
    parser.add_argument("--start", type=Path, help="layers to continue from, which can recall up to level 4")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/recall_layers.pt"), help="file of a stopped run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(args.seed)
    if args.checkpoint.exists():
        training.load(args.checkpoint)
    elif args.start is not None:
        stored = {name: weight.float() for name, weight in load_file(args.start).items()}
        training.model.load_state_dict(stored, strict=False)
        training.level = START_LEVEL
    while training.step < args.steps:
        loss = training.take_step(args.steps)
        if training.step % 200 == 0 or training.step == args.steps:
            minutes = time.process_time() / 60
            print(
                f"step {training.step}  level {training.level}  loss {loss:.3f}  right {training.right:.3f}  "
                f"{minutes:.1f} CPU-minutes of this process",
                flush=True,
            )
            training.save(args.checkpoint)
    weights = training.model.state_dict().items()
    save_file({name: weight.bfloat16().contiguous() for name, weight in weights if is_stored(name)}, args.output)


if __name__ == "__main__":
    main()
