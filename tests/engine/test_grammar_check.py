"""Grammars of foreign requests are compiled in worker processes with limits of CPU time and memory first."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import bpe_tokenizer

from rove.core.errors import ConfigError, RejectedError
from rove.core.protocols import REQUESTER, SamplingParams
from rove.engine import grammar_check
from rove.engine.constraints import grammar_of
from rove.engine.grammar_check import GrammarChecker

SIMULTANEOUS_PATTERNS = {"type": "string", "allOf": [{"pattern": f".*a.{{{i}}}"} for i in range(24)]}
EXPENSIVE: dict[str, dict[str, Any]] = {
    "patterns that match at the same time": {"json": SIMULTANEOUS_PATTERNS},
    "the same in an object": {
        "json": {"type": "object", "properties": {"a": SIMULTANEOUS_PATTERNS}, "required": ["a"]}
    },
    "a large divisor": {"json": {"type": "integer", "multipleOf": 99999989}},
    "nested repeats of terminals": {"grammar": 'start: A\nA: B{100}\nB: C{100}\nC: "x"{100}'},
    "nested repeats of rules": {"grammar": 'start: a{1000}\na: b{1000}\nb: c{1000}\nc: "x"{1000}'},
    "terminals that match at the same time": {
        "grammar": "start: A\nA: /x.*a.{20}/ & /x.*b.{20}/ & /x.*c.{20}/ & ~/.*d.{10}/"
    },
    "many optional properties": {
        "json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1500)}}
    },
    "a recursion without end": {"json": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}},
    "nothing matches": {"json": {"type": "string", "enum": [1]}},
    "nested repeats": {"regex": "((((a{100}){100}){100}){100}){100}"},
    "a repeat with a huge count": {"regex": "a{99999999999999999999}"},
    "deep brackets": {"regex": "(" * 500 + "x" + ")" * 500},
    "deep brackets of Lark": {"grammar": "start: " + "(" * 500 + '"x"' + ")" * 500},
    "a regular expression in Lark": {"grammar": "start: A\nA: /((a{1000}){1000})/"},
}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "a long regular expression": {"regex": "ab" * 500_000},
    "many choices": {"choice": [str(i) for i in range(50_000)]},
    "a large enum": {"json": {"enum": list(range(50_000))}},
}
USUAL: dict[str, dict[str, Any]] = {
    "an object": {
        "json": {
            "type": "object",
            "properties": {
                "email": {"type": "string", "format": "email"},
                "when": {"type": "string", "format": "date-time"},
                "id": {"type": "string", "pattern": "^[a-z]{3,20}$", "maxLength": 10},
                "score": {"type": "number", "minimum": 0, "maximum": 1},
            },
            "required": ["email", "when", "id", "score"],
            "additionalProperties": False,
        }
    },
    "a recursive object": {
        "json": {
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "$ref": "#/$defs/node",
        }
    },
    "a long text": {"json": {"type": "string", "minLength": 1000, "maxLength": 50_000}},
    "a regular expression": {"regex": "[a-c]{3}-[0-9]+x"},
    "choices": {"choice": [f"option number {i}" for i in range(1000)]},
    "arithmetic": {"grammar": 'start: sum\nsum: product ("+" product)*\nproduct: N ("*" N)*\nN: /[0-9]{1,5}/'},
}


def grammar(requested: dict[str, Any]) -> str:
    written = grammar_of(SamplingParams(structured_outputs=requested))
    assert written is not None
    return written


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return bpe_tokenizer()


@pytest.fixture
def checker(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarChecker]:
    monkeypatch.setattr(grammar_check, "CPU_SECONDS", 1)
    monkeypatch.setattr(grammar_check, "MEMORY_BYTES", 256 << 20)
    checker = GrammarChecker(tokenizer, [tokenizer.eos_token_id])
    yield checker
    checker.close()


async def check_all(checker: GrammarChecker, requests: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what is wrong with each request, or ""."""
    problems = dict.fromkeys(requests, "")
    for name, requested in requests.items():
        try:
            await checker.check(grammar(requested))
        except ConfigError as error:
            problems[name] = str(error)
    return problems


@pytest.mark.parametrize("requested", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_grammar_beyond_the_limit_is_refused_before_it_is_compiled(requested: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"too large: .* expected at most 200,000: simplify it"):
        grammar(requested)


def test_a_broken_schema_is_refused():
    with pytest.raises(ConfigError, match="is not valid"):
        grammar({"json": '{"anyOf":[' * 100_000})


@pytest.mark.slow
async def test_an_expensive_grammar_is_refused_by_a_worker(checker: GrammarChecker):
    problems = await check_all(checker, EXPENSIVE)
    assert [name for name, problem in problems.items() if "is not possible: " not in problem] == []
    for name in ("patterns that match at the same time", "a large divisor"):
        assert "needs more than 1 s or 256 MiB to compile" in problems[name]
    assert "no text matches it" in problems["a recursion without end"]


async def test_usual_grammars_pass(checker: GrammarChecker):
    assert await check_all(checker, USUAL) == dict.fromkeys(USUAL, "")


async def test_a_result_is_kept_and_equal_grammars_are_checked_once(checker: GrammarChecker):
    tried: list[str] = []

    async def count(grammar: str) -> str:
        tried.append(grammar)
        await asyncio.sleep(0)
        return "it is bad" if grammar == "bad" else ""

    checker._try = count
    await asyncio.gather(*(checker.check("good") for _ in range(5)))
    for _ in range(2):
        with pytest.raises(ConfigError, match="it is bad; expected a form"):
            await checker.check("bad")
    assert tried == ["good", "bad"]


async def test_one_requester_cannot_occupy_all_workers(checker: GrammarChecker):
    running: list[str] = []
    finish = asyncio.Event()

    async def wait(grammar: str) -> str:
        running.append(grammar)
        await finish.wait()
        return ""

    async def request(client: str, text: str) -> None:
        REQUESTER.set(client)
        await checker.check(text)

    checker._try = wait
    greedy = [asyncio.create_task(request("a", f"a{i}")) for i in range(grammar_check.MAX_WAITING)]
    await asyncio.sleep(0.01)
    other_request = asyncio.create_task(request("b", "b0"))
    await asyncio.sleep(0.01)
    assert running == ["a0", "b0"]
    with pytest.raises(RejectedError, match="are being checked; expected fewer"):
        await asyncio.create_task(request("a", "another"))
    await asyncio.create_task(request_known(request, finish, greedy, other_request))
    assert sorted(running) == sorted(["b0", *(f"a{i}" for i in range(grammar_check.MAX_WAITING))])


async def request_known(request: Any, finish: asyncio.Event, greedy: list[Any], other_request: Any) -> None:
    finish.set()
    await asyncio.gather(*greedy, other_request)
    await request("a", "a0")  # known, so not checked again


def test_the_worker_needs_no_posix_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    worker = runpy.run_path(str(Path(grammar_check.__file__).with_name("grammar_worker.py")))
    worker["setup"](grammar_check.tokenizer_json(bpe_tokenizer()), [0])
    grammar = grammar_of(SamplingParams(structured_outputs={"choice": ["a"]}))
    assert worker["Session"]().check(grammar, grammar_check.LIMITS, cpu_seconds=3, mask_seconds=1.0) == ""
