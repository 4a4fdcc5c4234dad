"""Do the answers of runs still read as language? Their log-probability under another model, and their form.

    python benchmarks/fluency.py smollm2-135m runs/demo-quick-seed0/eval/base runs/demo-quick-seed0/eval/RL [--permuted]

For each run: the mean log-probability per word of its answers under the model (in nats; ordinary text of the model's own is the
first row's), the share of sentences that begin with a capital letter, the share of distinct sentences, and words per sentence.
The limits of the scale: `--permuted` adds the answers of each run with their words in random order.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from rove.models.load import LoadedModel, load_model
from rove.runs.run import Run
from rove.train.batch import can_pack, micro_batches
from rove.train.sequences import sequences_from_messages
from rove.train.trainer import token_logprobs

Conversation = tuple[list[dict[str, object]], str]
"""A prompt and the answer."""


def answers(run: Path) -> list[Conversation]:
    """Return the prompts and answers of an evaluation of single-turn rollouts."""
    found = []
    for record in Run(run).rollouts():
        if record.error is None:
            found.append((list(record.prompt), str(record.completion[-1]["content"])))
    return found


def permuted(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Return the same answers with their words in random order."""
    rng = random.Random(0)
    return [(prompt, " ".join(rng.sample(text.split(), len(text.split())))) for prompt, text in conversations]


def logprob_per_word(loaded: LoadedModel, conversations: Sequence[Conversation]) -> float:
    """Return the log-probability of all answers divided by their words."""
    sequences = []
    for prompt, text in conversations:
        sequences += sequences_from_messages(loaded.renderer, [*prompt, {"role": "assistant", "content": text}])
    total = 0.0
    for batch in micro_batches(sequences, 2048, pack=can_pack(loaded.model)):
        with torch.inference_mode():
            total += float(token_logprobs(loaded.model, batch)[0].sum())
    return total / sum(len(text.split()) for _, text in conversations)


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", help="the model that judges")
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
            capital = sum(one[0].isupper() for one in sentences) / len(sentences)
            words = sum(len(one.split()) for one in sentences) / len(sentences)
            value = logprob_per_word(loaded, conversations)
            distinct = len({one.lower() for one in sentences}) / len(sentences)
            print(f"{name:44} {value:9.2f} {capital:8.2f} {distinct:8.2f} {words:14.1f}")


if __name__ == "__main__":
    main()
