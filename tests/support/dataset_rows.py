"""Rows of a dataset, as `rove.audit.rows` describes them."""

from __future__ import annotations

from typing import Any


def dataset_row(text: str, answer: str = "", digest: str = "", changed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a row."""
    return {"text": text, "answer": answer, "digest": digest or f"{text}|{answer}", "changed": list(changed)}


def numbered_rows(
    first: int, count: int, template: str = "question {}", answer: str = "answer{}"
) -> list[dict[str, Any]]:
    """Return rows with consecutive numbers."""
    return [dataset_row(template.format(n), answer.format(n)) for n in range(first, first + count)]
