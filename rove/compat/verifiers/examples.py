"""Well-known datasets as v0's examples have them: `question` and `answer`. They come from the Hugging Face hub."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rove.compat.verifiers.data import extract_boxed_answer, extract_hash_answer
from rove.compat.verifiers.mode import fixed
from rove.core.digest import derive_seed

LETTERS = "ABCDEFGHIJ"


class _Source(NamedTuple):
    path: str
    split: str
    read: Callable[[Mapping[str, Any]], dict[str, str]]
    names: tuple[str | None, ...] = (None,)
    """Parts of it that are read one after the other."""
    keeps: Callable[[Mapping[str, Any]], bool] | None = None


def _problem(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["problem"], "answer": row["answer"]}


def _aime2024(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["problem"], "answer": str(int(row["answer"]))}


def _aime2025(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["question"], "answer": "".join(c for c in row["answer"] if c.isdigit() or c == ".")}


def _gpqa(row: Mapping[str, Any]) -> dict[str, str]:
    wrong = [row[f"Incorrect Answer {i}"] for i in (1, 2, 3)]
    order = list(LETTERS[:4])
    # v0 shuffles by the process's random numbers, so that no two runs ask the same.
    (random.Random(derive_seed(0, row["Question"])) if fixed() else random).shuffle(order)
    options = dict(zip(order, [row["Correct Answer"], *wrong], strict=True))
    lines = "\n".join(f"{letter}: {options[letter]}" for letter in LETTERS[:4])
    return {"question": f"Question: {row['Question']}\n\n{lines}", "answer": order[0]}


def _gsm8k(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["question"], "answer": extract_hash_answer(row["answer"])}


def _math(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["problem"], "answer": extract_boxed_answer(row["solution"])}


def _choices(question: str, options: list[str]) -> str:
    lines = (f"\n{letter}: {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"Question: {question}\n{''.join(lines)}"


def _mmlu(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": _choices(row["question"], row["choices"]), "answer": LETTERS[row["answer"]]}


def _mmlu_pro(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": _choices(row["question"], row["options"]), "answer": row["answer"]}


def _openbookqa(row: Mapping[str, Any]) -> dict[str, str]:
    choices = zip(row["choices"]["label"], row["choices"]["text"], strict=True)
    lines = "\n".join(f"{label}. {text}" for label, text in choices)
    return {"question": f"Question: {row['question_stem']}\n\nChoices:\n{lines}", "answer": row["answerKey"]}


def _prime_code(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["prompt"], "answer": row["verification_info"]}


_PYTHON = "Solve the following coding problem using the programming language python:"
_SOURCES = {
    "aime2024": _Source("HuggingFaceH4/aime_2024", "train", _aime2024),
    "aime2025": _Source("opencompass/AIME2025", "test", _aime2025, ("AIME2025-I", "AIME2025-II")),
    "amc2023": _Source("knoveleng/AMC-23", "train", _problem),
    "gpqa_diamond": _Source("Idavidrein/gpqa", "train", _gpqa, ("gpqa_diamond",)),
    "gpqa_main": _Source("Idavidrein/gpqa", "train", _gpqa, ("gpqa_main",)),
    "gsm8k": _Source("openai/gsm8k", "test", _gsm8k, ("main",)),
    "math": _Source("chiayewken/competition_math", "train", _math),
    "math500": _Source("HuggingFaceH4/MATH-500", "test", _problem),
    "mmlu": _Source("cais/mmlu", "dev", _mmlu, ("all",)),
    "mmlu_pro": _Source("TIGER-Lab/MMLU-Pro", "validation", _mmlu_pro),
    "openbookqa": _Source("allenai/openbookqa", "train", _openbookqa, ("main",)),
    "openrs": _Source("knoveleng/open-rs", "train", _problem),
    "openrs_easy": _Source("knoveleng/open-rs", "train", _problem, keeps=lambda row: row["level"] == "Easy"),
    "openrs_hard": _Source("knoveleng/open-rs", "train", _problem, keeps=lambda row: row["level"] == "Hard"),
    "prime_code": _Source(
        "PrimeIntellect/verifiable-coding-problems",
        "train",
        _prime_code,
        keeps=lambda row: row["prompt"].startswith(_PYTHON),
    ),
}


def load_example_dataset(name: str = "gsm8k", split: str | None = None, n: int | None = None, seed: int = 0) -> Any:
    """A well-known dataset with the columns `question` and `answer`; needs the package `datasets` and the network.

    Args:
        n: so many rows of it, shuffled by `seed`. Default: all, in order.

    Raises:
        ValueError: it is not one of those.
    """
    if name not in _SOURCES:
        raise ValueError(f"Dataset {name} is not among the examples; they are {', '.join(_SOURCES)}")
    source = _SOURCES[name]
    datasets = importlib.import_module("datasets")
    args = [(source.path,) if part is None else (source.path, part) for part in source.names]
    parts = [datasets.load_dataset(*one, trust_remote_code=False)[split or source.split] for one in args]
    dataset = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if source.keeps is not None:
        dataset = dataset.filter(source.keeps)
    if n is not None and n > 0:
        dataset = dataset.shuffle(seed=seed).select(range(n))
    rows = [source.read(row) for row in dataset]
    return datasets.Dataset.from_list(rows)
