"""Collect the first inputs of the targets, and keep those that run lines which no smaller input runs.

    python -m tests.fuzz.seeds [TARGET …]      rewrites tests/fuzz/corpora, also with the new inputs in build/fuzz

Candidates are the kept inputs, what `make fuzz` has found, the literals in tests (as they are, and as JSON), code blocks of the
documentation, and TOML and Python files. A corpus is a JSONL file: each line is an input as text, or {"base64": …}.
"""

from __future__ import annotations

import ast
import functools
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.binary_seeds import binary_seeds, json_of
from tests.fuzz.corpora import kept_inputs, write_corpus
from tests.fuzz.message_seeds import message_seeds
from tests.fuzz.target import Target, check
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
SUFFIXES = (".py", ".md", ".toml", ".json", ".jsonl")
MAX_SEED_BYTES = 8_000
MAX_TEXTS = 600
"""Maximum literals that are tried for a target."""
MAX_KEPT = 40
"""Maximum inputs in the kept corpus of a target."""
_CODE_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@functools.cache
def _binary_seeds() -> dict[str, list[bytes]]:
    return binary_seeds()


def candidates(target: Target) -> set[bytes]:
    """Return the inputs from which a corpus is chosen."""
    inputs = {b"", b"{}", *kept_inputs(target.name)}
    inputs.update(_binary_seeds().get(target.name, []), message_seeds().get(target.name, []))
    inputs.update(file.read_bytes() for file in (BUILD / target.name / "corpus").glob("*"))
    texts: set[bytes] = set()
    for path in target.seeds:
        for file in _files(path):
            texts.update(_texts_in(file))
    # Of texts with the same beginning and about the same length, one is enough: most are equal cases of a table.
    different = {(text[:12], len(text) // 30): text for text in sorted(texts)}
    inputs.update(random.Random(0).sample(list(different.values()), min(len(different), MAX_TEXTS)))
    return {data for data in inputs if len(data) <= MAX_SEED_BYTES}


def _files(name: str) -> Iterator[Path]:
    """Yield the text files of a folder of the repository, or the file itself."""
    path = (ROOT / name).resolve()
    # A name that is a single character is a forgotten comma in `seeds=("tests/x")`; "/" would be the whole file system.
    if len(name) < 2 or not path.is_relative_to(ROOT) or path == ROOT:
        raise ValueError(f"the seeds {name!r} are not a folder of the repository; expected a name like 'tests/wire'")
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.suffix in SUFFIXES and not file.is_symlink() and not file.is_relative_to(ROOT / "tests" / "fuzz"):
            yield file


@functools.cache
def _texts_in(file: Path) -> list[bytes]:
    text = file.read_text(encoding="utf-8", errors="replace")
    texts = [text.encode()]
    if file.suffix == ".md":
        texts += [match[1].encode() for match in _CODE_BLOCK.finditer(text)]
    elif file.suffix == ".jsonl":
        texts += map(str.encode, text.splitlines())
    elif file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            texts += _literals(node)
    return texts


def _literals(node: ast.AST) -> list[bytes]:
    """Return a literal as it is and as JSON."""
    if not isinstance(node, ast.Constant | ast.Dict | ast.List):
        return []
    value = _value(node)
    encoded = json_of(value)
    texts = [] if encoded is None else [encoded]
    if isinstance(value, str):
        texts.append(value.encode(errors="replace"))
    elif isinstance(value, bytes):
        texts.append(value)
    return texts


def _value(node: ast.AST | None) -> Any:
    """Return the value of a literal; every part of it that is computed becomes a text."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = [(_value(key), _value(value)) for key, value in zip(node.keys, node.values, strict=True)]
        return {str(key): value for key, value in pairs}
    return "text"


_reported: set[str] = set()
Step = tuple[str, int, int]
"""File, line, and the line before it."""


def steps_of(target: Target, data: bytes) -> set[Step]:
    """Return the steps between lines of rove that an input takes; the whole process is slower while it runs."""
    steps: set[Step] = set()
    package = str(ROOT / "rove")

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(package):
            return None
        previous = frame.f_lineno

        def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal previous
            if event == "line":
                steps.add((file, frame.f_lineno, previous))
                previous = frame.f_lineno
            return trace_line

        return trace_line

    sys.settrace(trace)
    try:
        check(target, data)
    except Exception as error:
        sys.settrace(None)
        kind = f"{target.name}: {type(error).__name__}: {str(error)[:200]}"
        if kind not in _reported:
            _reported.add(kind)
            print(f"{kind} for {data[:60]!r}", flush=True)
        return set()
    finally:
        sys.settrace(None)
    return steps


def choose(target: Target) -> list[bytes]:
    """Return the smallest candidates that together take the steps of all candidates, at most `MAX_KEPT`."""
    chosen: list[bytes] = []
    taken: set[Step] = set()
    gains: list[tuple[int, bytes]] = []
    for data in sorted(candidates(target), key=lambda data: (len(data), data)):
        new = steps_of(target, data) - taken
        if new:
            taken |= new
            gains.append((len(new), data))
    gains.sort(key=lambda gain: -gain[0])
    chosen = [data for _, data in gains[:MAX_KEPT]]
    return sorted(chosen, key=lambda data: (len(data), data))


if __name__ == "__main__":
    for name in sys.argv[1:] or list(TARGETS):
        inputs = choose(TARGETS[name])
        write_corpus(name, inputs)
        print(f"{name}: {len(inputs)} inputs, {sum(map(len, inputs)):,} bytes", flush=True)
