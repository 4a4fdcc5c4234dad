"""Change inputs in ways that a change of random bytes hardly ever finds.

JSON stays JSON, so that the checks behind the decoder are reached. A repeated part shows time that grows with the square of the
size. Everything else is left to the fuzzer's own mutations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(
        "",
        "0",
        " ",
        "null",
        "{}",
        "[]",
        "\0",
        "\ud800",
        "\u2028",
        "é",
        "9" * 5000,
        "NaN",
        "stop",
        "user",
        "assistant",
        "text",
    ),
    *([], {}, [[]], [None], [{}], {"": None}, {"type": "text"}, {"role": "user", "content": None}, [1, "a", None, {}]),
]
MAX_DEPTH = 3_000
"""Nesting depth of the deepest value that a mutation makes."""


def mutated(data: bytes, words: Sequence[str], max_size: int, rng: random.Random) -> bytes | None:
    """Return a changed input of at most `max_size` bytes; None to leave the change to the fuzzer."""
    kinds: list[Callable[[], bytes | None]] = [
        lambda: _json(data, rng),
        lambda: _json_lines(data, rng),
        lambda: _word(data, words, rng),
        lambda: _repeated(data, max_size, rng),
    ]
    [change] = rng.choices([*kinds, lambda: None], weights=[8, 4, 3, 1, 8])
    result = change()
    return None if result is None else result[:max_size]


def _json(data: bytes, rng: random.Random) -> bytes | None:
    try:
        value = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = _changed(value, rng)
        # Without spaces, as most of the programs that write JSON; half of the surrogate pairs stay escapes.
        return json.dumps(value, separators=(",", ":"), ensure_ascii=rng.random() < 0.7).encode(errors="replace")
    except (ValueError, RecursionError):
        return None


def _json_lines(data: bytes, rng: random.Random) -> bytes | None:
    """Change a line that is JSON, also between other lines."""
    lines = data.split(b"\n")
    starts = [number for number, line in enumerate(lines) if line[:1] in (b"{", b"[", b'"')]
    if not starts:
        return None
    number = rng.choice(starts)
    changed = _json(lines[number], rng)
    if changed is None:
        return None
    lines[number] = changed
    if rng.random() < 0.2:
        lines.insert(number, changed)
    return b"\n".join(lines)


def _changed(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one change at a random place."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not items or rng.random() < 0.15:
        return _replaced(value, rng)
    key, item = rng.choice(items)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    kind = rng.random()
    if kind < 0.1:
        del copy[key]
    elif kind < 0.2:
        _, replacement = rng.choice(items)
        copy[key] = replacement
    elif kind < 0.25 and isinstance(copy, list):
        copy.insert(key, item)
    elif kind < 0.25:
        copy[str(rng.choice(VALUES))[:100]] = item
    else:
        copy[key] = _changed(item, rng)
    return copy


def _replaced(value: Any, rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.05:
        return _nested(value, rng)
    if kind < 0.15:
        return [value]
    if kind < 0.2:
        return {"type": value}
    if isinstance(value, str) and kind < 0.5:
        position = rng.randint(0, len(value))
        return value[:position] + str(rng.choice(VALUES))[:100] + value[position:]
    return rng.choice(VALUES)


def _nested(value: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((40, 120, MAX_DEPTH))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _word(data: bytes, words: Sequence[str], rng: random.Random) -> bytes | None:
    if not words:
        return None
    position = rng.randint(0, len(data))
    end = rng.choice((position, position, min(len(data), position + rng.randint(0, 20))))
    return data[:position] + rng.choice(words).encode() + data[end:]


def _repeated(data: bytes, max_size: int, rng: random.Random) -> bytes | None:
    """Repeat a part up to the maximum size."""
    if not data:
        return None
    start = rng.randrange(len(data))
    part = data[start : start + rng.choice((1, 2, 3, 5, 10, 30, 100))]
    size = rng.choice((500, 5_000, max_size)) - len(data)
    return data[:start] + part * max(1, size // len(part)) + data[start:]
