"""The kept corpora: a JSONL file for each target, with an input in each line as text, or as {"base64": …}."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path

CORPORA = Path(__file__).with_name("corpora")


def kept_inputs(target: str) -> list[bytes]:
    """Return the kept corpus of a target."""
    file = CORPORA / f"{target}.jsonl"
    if not file.exists():
        return []
    values = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [value.encode() if isinstance(value, str) else base64.b64decode(value["base64"]) for value in values]


def write_corpus(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the kept corpus of a target."""
    lines: list[str] = []
    for data in inputs:
        try:
            lines.append(json.dumps(data.decode(), ensure_ascii=True))
        except UnicodeDecodeError:
            lines.append(json.dumps({"base64": base64.b64encode(data).decode()}))
    CORPORA.mkdir(exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    (CORPORA / f"{target}.jsonl").write_text(text, encoding="utf-8", newline="\n")
