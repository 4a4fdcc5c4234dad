"""v0's data helpers: extraction of answers, prompts of rows, example datasets, and tables without the package `datasets`."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rove.compat.verifiers.release import fixed
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError

BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
# The spaces are v0's: published scores were measured with them.
THINK_BOXED_SYSTEM_PROMPT = (
    "Think step-by-step inside <think>...</think> tags.     Then, give your final answer inside \\boxed{}."
)


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""Return the content of the last complete `\boxed{…}`; if there is none, the text, or "" if `strict`."""
    _, command, after_command = text.rpartition("\\boxed{")
    content = _until_closing_brace(after_command) if command else None
    if content is not None:
        return content
    return "" if strict else text


def extract_first_boxed_answer(text: str) -> str:
    r"""Return the content of the first `\boxed{…}`, as `extract_boxed_answer` did until 0.1.4; the text without one."""
    _, _, after_command = text.partition("\\boxed{")
    content = _until_closing_brace(after_command)
    return text if content is None else content


def _until_closing_brace(text: str) -> str | None:
    """Return the text before the brace that closes an opening brace before the text; None if there is no such brace."""
    depth = 1
    for position, char in enumerate(text):
        # An answer such as \frac{1}{2} contains braces, so the first closing brace may not end the box.
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        if depth == 0:
            return text[:position]
    return None


def extract_hash_answer(text: str) -> str:
    """Return the text between the first `####` and the next one or the end; the whole text without one."""
    return text.split("####")[1].strip() if "####" in text else text


class Table(Sequence[dict[str, Any]]):
    """Rows with the part of Hugging Face's `Dataset` API that v0 uses, for environments whose rows are a list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self.rows = [dict(row) for row in rows]

    @property
    def column_names(self) -> list[str]:
        """Names of all columns."""
        names: dict[str, None] = {}
        for row in self.rows:
            names.update(dict.fromkeys(row))
        return list(names)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [row.get(key) for row in self.rows]
        return Table(self.rows[key]) if isinstance(key, slice) else self.rows[key]

    def map(self, func: Callable[..., Mapping[str, Any]], with_indices: bool = False, **ignored: Any) -> Table:
        """Add to every row the columns that `func` returns for the row."""
        rows: list[dict[str, Any]] = []
        for index, row in enumerate(self.rows):
            added = func(row, index) if with_indices else func(row)
            rows.append({**row, **added})
        return Table(rows)

    def filter(self, func: Callable[[dict[str, Any]], bool], **ignored: Any) -> Table:
        """Return the rows for which `func` is true."""
        return Table([row for row in self.rows if func(row)])

    def select(self, indices: Sequence[int]) -> Table:
        """Return the rows at these indices."""
        return Table([self.rows[i] for i in indices])

    def shuffle(self, seed: int | None = None) -> Table:
        """Return the rows in random order."""
        return Table(random.Random(seed).sample(self.rows, len(self.rows)))

    def repeat(self, times: int) -> Table:
        """Return all rows several times."""
        return Table(self.rows * times)

    def add_column(self, name: str, values: Sequence[Any]) -> Table:
        """Add a column."""
        return Table([{**row, name: value} for row, value in zip(self.rows, values, strict=True)])

    def remove_columns(self, names: Sequence[str]) -> Table:
        """Remove columns."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            rows.append({name: value for name, value in row.items() if name not in names})
        return Table(rows)

    def rename_column(self, old: str, new: str) -> Table:
        """Rename a column."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            rows.append({new if name == old else name: value for name, value in row.items()})
        return Table(rows)

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as a list."""
        return [dict(row) for row in self.rows]


def make_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a Hugging Face `Dataset` if the package `datasets` is installed, else as a `Table`."""
    try:
        return importlib.import_module("datasets").Dataset.from_list(list(rows))
    except ImportError:
        return Table(rows)


def as_table(source: Any) -> Any:
    """Return a `Dataset` unchanged, or a list of dicts as a `Table`."""
    if hasattr(source, "column_names"):
        return source
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        return Table(source)
    raise ConfigError(
        f"a dataset cannot be a {type(source).__name__}; expected a Hugging Face Dataset or a list of dicts"
    )


def with_prompts(dataset: Any, system_prompt: str | None, few_shot: Any, map_kwargs: Mapping[str, Any]) -> Any:
    """Add a column `prompt` made from `question`; prepend the system prompt to existing prompts without one."""
    if "prompt" not in dataset.column_names:
        leading = [{"role": "system", "content": system_prompt}] if system_prompt else []
        leading += list(few_shot or [])

        def add_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
            return {"prompt": [*leading, {"role": "user", "content": row["question"]}]}

        return dataset.map(add_prompt, **map_kwargs)
    # As in v0, few-shot messages are only for rows with a question.
    if system_prompt is None:
        return dataset

    def add_system_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        assert isinstance(prompt, list), f"prompt must be a list of messages with a system_prompt, got {type(prompt)}"
        has_own = bool(prompt) and prompt[0].get("role") == "system"
        return {"prompt": prompt if has_own else [{"role": "system", "content": system_prompt}, *prompt]}

    return dataset.map(add_system_prompt, **map_kwargs)


def with_ids(dataset: Any) -> Any:
    """Add a numeric column `example_id`; a non-numeric one becomes `src_id`, and `env_id` is removed."""
    if "env_id" in dataset.column_names:
        dataset = dataset.remove_columns(["env_id"])
    if "example_id" in dataset.column_names and not isinstance(dataset["example_id"][0], int):
        dataset = dataset.rename_column("example_id", "src_id")
    if "example_id" not in dataset.column_names:
        dataset = dataset.add_column("example_id", range(len(dataset)))
    return dataset


def as_info(value: Any) -> dict[str, Any]:
    """Return the info of a row as a dict; the row may have it as JSON."""
    value = json.loads(value) if isinstance(value, str) else value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"info is {value!r}; expected a dict or its JSON")
    return dict(value)


LETTERS = "ABCDEFGHIJ"


class _Source(NamedTuple):
    path: str
    split: str
    read: Callable[[Mapping[str, Any]], dict[str, str]]
    names: tuple[str | None, ...] = (None,)
    """Configurations of the dataset, concatenated."""
    predicate: Callable[[Mapping[str, Any]], bool] | None = None


def _columns(question: str, answer: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    return lambda row: {"question": row[question], "answer": row[answer]}


def _aime2024(row: Mapping[str, Any]) -> dict[str, str]:
    return {"question": row["problem"], "answer": str(int(row["answer"]))}


def _aime2025(row: Mapping[str, Any]) -> dict[str, str]:
    # One answer of the second part is "336^\circ".
    number = filter(lambda char: char.isdigit() or char == ".", row["answer"])
    return {"question": row["question"], "answer": "".join(number)}


def _gpqa(row: Mapping[str, Any]) -> dict[str, str]:
    wrong = [row[f"Incorrect Answer {i}"] for i in (1, 2, 3)]
    order = list(LETTERS[:4])
    # v0 uses the process's random generator, so the order of the options differs between runs.
    generator = random.Random(derive_seed(0, row["Question"])) if fixed() else random
    generator.shuffle(order)
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


_problem = _columns("problem", "answer")
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
    "openrs_easy": _Source("knoveleng/open-rs", "train", _problem, predicate=lambda row: row["level"] == "Easy"),
    "openrs_hard": _Source("knoveleng/open-rs", "train", _problem, predicate=lambda row: row["level"] == "Hard"),
    "prime_code": _Source(
        "PrimeIntellect/verifiable-coding-problems",
        "train",
        _columns("prompt", "verification_info"),
        predicate=lambda row: row["prompt"].startswith(_PYTHON),
    ),
}


def load_example_dataset(name: str = "gsm8k", split: str | None = None, n: int | None = None, seed: int = 0) -> Any:
    """Load a well-known dataset with the columns `question` and `answer`; needs the package `datasets` and network access.

    Args:
        n: number of rows, shuffled by `seed`. Default: all, in order.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in _SOURCES:
        raise ValueError(f"Dataset {name} is not among the examples; they are {', '.join(_SOURCES)}")
    source = _SOURCES[name]
    datasets = importlib.import_module("datasets")
    parts: list[Any] = []
    for name_of_part in source.names:
        # Without this argument, `datasets` may prompt on stdin whether to run a repository's code, and piped input can accept.
        splits = datasets.load_dataset(source.path, name_of_part, trust_remote_code=False)
        parts.append(splits[split or source.split])
    dataset = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if source.predicate is not None:
        dataset = dataset.filter(source.predicate)
    if n is not None and n > 0:
        dataset = dataset.shuffle(seed=seed).select(range(n))
    rows = [source.read(row) for row in dataset]
    return datasets.Dataset.from_list(rows)
