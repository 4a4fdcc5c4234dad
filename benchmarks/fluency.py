"""Measure how fluent the answers of runs are: their log-probability under a model, and statistics of their sentences.

    python benchmarks/fluency.py smollm2-135m runs/demo-quick-seed0/eval/base runs/demo-quick-seed0/eval/RL [--permuted]

For each run, the script prints the mean log-probability of its answers under the model (nats per word), the share of sentences
that begin with a capital letter, the share of distinct sentences, and the number of words per sentence. For reference, pass the
run of the untrained model first. `--permuted` adds the answers of each run with their words in random order as a lower bound.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from rove import Run
from rove.models.load import LoadedModel, load_model
from rove.train.batch import can_pack, micro_batches
from rove.train.sequences import sequences_from_messages
from rove.train.trainer import token_logprobs

Conversation = tuple[list[dict[str, object]], str]
"""A prompt (messages) and the answer to it."""


def answers(run: Path) -> list[Conversation]:
    """Return the prompts and answers of the single-turn rollouts of a run; failed rollouts are excluded."""
    conversations = []
    for record in Run(run).rollouts():
        if record.error is None:
            conversations.append((list(record.prompt), str(record.completion[-1]["content"])))
    return conversations


def permuted(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Return the same answers with their words in random order."""
    rng = random.Random(0)
    return [(prompt, " ".join(rng.sample(text.split(), len(text.split())))) for prompt, text in conversations]


def logprob_per_word(loaded: LoadedModel, conversations: Sequence[Conversation]) -> float:
    """Return the total log-probability of the answers (nats), divided by their number of words."""
    sequences = []
    for prompt, text in conversations:
        sequences += sequences_from_messages(loaded.renderer, [*prompt, {"role": "assistant", "content": text}])
    total = 0.0
    for batch in micro_batches(sequences, 2048, pack=can_pack(loaded.model)):
        with torch.inference_mode():
            total += float(token_logprobs(loaded.model, batch)[0].sum())
    return total / sum(len(text.split()) for _, text in conversations)


def main() -> None:
    """Print a row per run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", help="model that computes the log-probabilities")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--permuted", action="store_true")
    options = parser.parse_args()
    loaded = load_model(options.model, device="cpu")
    print(f"{'run':44} {'nats/word':>9} {'capital':>8} {'distinct':>8} {'words/sentence':>14}")
    for run in options.runs:
        rows = {str(run)[-44:]: answers(run)}
        if options.permuted:
            rows["  with its words in random order"] = permuted(answers(run))
        for name, conversations in rows.items():
            sentences = [part for _, text in conversations for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]
            capital = sum(sentence[0].isupper() for sentence in sentences) / len(sentences)
            words = sum(len(sentence.split()) for sentence in sentences) / len(sentences)
            value = logprob_per_word(loaded, conversations)
            distinct = len({sentence.lower() for sentence in sentences}) / len(sentences)
            print(f"{name:44} {value:9.2f} {capital:8.2f} {distinct:8.2f} {words:14.1f}")


if __name__ == "__main__":
    main()
