"""MathRubric: equality of expressions, and isolation of hostile expressions in worker processes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_envs import Quiz, rows, scripted_client

import rove as vf
from rove.core.errors import ConfigError, Error, InfraError, RemoteError, WorkerError
from rove.rubrics.math import MathPool


def graded_records(pairs: list[tuple[str, str]], **options) -> list[vf.RolloutRecord]:
    """Return the records of rollouts that respond with the second text of each pair; the first is the right answer."""
    data = [{"question": f"q{i}", "answer": answer} for i, (answer, _) in enumerate(pairs)]
    responses = {f"q{i}": response for i, (_, response) in enumerate(pairs)}
    env = vf.SingleTurnEnv(dataset=data, rubric=vf.MathRubric(max_workers=2, **options))
    client = scripted_client(lambda messages, state, rng: responses[messages[-1].content])
    return asyncio.run(vf.generate(env, client))


EQUAL_PAIRS = [
    (r"\frac{1}{2}", r"Half of it, so \boxed{0.5}."),
    ("1,000", r"\boxed{1000}"),
    ("(x+1)^2", r"<think>\boxed{7}</think>\boxed{x^2+2x+1}"),
    (r"2\sqrt{2}", r"\boxed{\sqrt{8}}"),
    (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}"),
]
UNEQUAL_PAIRS = [
    ("7", r"\boxed{8}"),
    ("7", "it is 7, without a box"),
    ("7", r"\boxed{}"),
    ("7", ""),
    ("7", r"\boxed{seven or so, (((}"),
    ("7", r"<think>It could be \boxed{7} but let me"),
]


def test_only_mathematically_equal_answers_are_right() -> None:
    records = graded_records(EQUAL_PAIRS + UNEQUAL_PAIRS)
    assert [record.error for record in records] == [None] * 11
    assert [record.reward for record in records] == [1.0] * 5 + [0.0] * 6
    assert all(record.scores.weights == {"correct_answer": 1.0} for record in records if record.scores)


def test_a_parsed_answer_of_zero_is_an_answer() -> None:
    class Count(vf.Parser):
        def parse(self, text: str) -> int:
            return len(text)

    async def scores() -> list[float]:
        rubric = vf.MathRubric(parser=Count(), max_workers=1)
        try:
            return [await rubric.correct_answer(rubric.parser, reply, "0") for reply in ("", "word")]
        finally:
            await rubric.teardown()

    assert asyncio.run(scores()) == [1.0, 0.0]


HOSTILE = {
    "a tower of powers": r"9^{9^{9^{9^{9}}}}",
    "a factorial of a factorial": "((99999!)!)!",
    "ten thousand fractions in each other": r"\frac{1}{" * 10_000 + "1" + "}" * 10_000,
    "a deep nest of brackets": "(" * 20_000 + "1" + ")" * 20_000,
    "a long sum": "+".join(f"x^{{{i}}}" for i in range(8_000)),
    "a huge power to expand": "(a+b+c+d+e+f+g+h)^{400}",
    "a number of 40,000 digits": "7" * 40_000,
    "python": "__import__('os').system('touch hacked')",
}


SECONDS = 3.0
"""Time limit of a comparison: an easy one takes milliseconds, but half a second was too short on a busy machine."""


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    """A pool whose one worker has been started."""
    pool = MathPool(1, SECONDS)
    asyncio.run(pool.equal("1", "1"))
    yield pool
    pool.close()


@pytest.mark.broad
def test_hostile_expressions_are_wrong_or_time_out(
    pool: MathPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    timed_out = []
    for name, text in HOSTILE.items():
        began = time.monotonic()
        try:
            assert not asyncio.run(pool.equal("12", text)), name
        except InfraError as error:
            assert "did not end within 3 s" in str(error) and len(str(error)) < 400
            timed_out.append(name)
        assert time.monotonic() - began < 10 * SECONDS
        assert asyncio.run(pool.equal("1/2", "0.5"))
    assert "a tower of powers" in timed_out
    assert not list(tmp_path.iterdir())


def test_a_response_of_a_megabyte_is_wrong_without_being_parsed() -> None:
    huge = [r"\boxed{" + "7" * 1_000_000 + "}", r"\boxed{" * 150_000]
    assert [record.reward for record in graded_records([("7", text) for text in huge])] == [0.0, 0.0]


@pytest.mark.broad
def test_a_response_that_cannot_be_compared_in_time_earns_0() -> None:
    tower = r"\boxed{" + HOSTILE["a tower of powers"] + "}"
    slow, fine = graded_records([("12", tower), ("1/2", r"\boxed{0.5}")], timeout_seconds=SECONDS)
    assert (slow.reward, slow.error) == (0.0, None)
    assert fine.reward == 1.0


@pytest.mark.slow
def test_a_right_answer_that_cannot_be_compared_in_time_is_an_error() -> None:
    [slow] = graded_records([(HOSTILE["a tower of powers"], r"\boxed{12}")], timeout_seconds=0.5)
    assert slow.scores is None and slow.error is not None
    assert (slow.error.phase, slow.error.type) == ("reward correct_answer", "WorkerError")


async def test_a_failed_comparison_is_wrong_unless_the_right_answer_causes_the_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = MathPool(1, 1.0)

    async def equal(answer: str, response: str) -> bool:
        if "bad" in (answer, response):
            raise RemoteError("too deep", "RecursionError", "")
        if response == "closed":
            pool.close()
            raise WorkerError("ended")
        return answer == response

    monkeypatch.setattr(pool, "equal", equal)
    assert [await pool.grade("7", response) for response in ("7", "8", "bad")] == [True, False, False]
    for answer, response in (("bad", "7"), ("7", "closed")):
        with pytest.raises((RemoteError, WorkerError)):
            await pool.grade(answer, response)


def test_a_strict_pool_compares_units_and_another_leaves_that_to_math_verify(
    pool: MathPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not asyncio.run(pool.grade("10 km", "10 m"))
    monkeypatch.setattr(pool, "strict", False)
    assert asyncio.run(pool.grade("10 km", "10 m"))


def test_a_right_answer_that_cannot_be_parsed_is_an_error(pool: MathPool) -> None:
    with pytest.raises(Error, match="cannot parse the right answer"):
        asyncio.run(pool.equal(" ", "7"))


@pytest.mark.slow
def test_workers_work_with_file_descriptors_above_1023() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    open_files, pool = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], MathPool(1, 5.0)
    try:
        assert asyncio.run(pool.equal("1/2", "0.5"))
    finally:
        pool.close()
        for file in open_files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_workers_are_reused_and_work_in_another_event_loop() -> None:
    pool = MathPool(2, 0.5)

    async def compare_many() -> list:
        tasks = [pool.equal("3", str(i)) for i in range(12)]
        return await asyncio.gather(*tasks, pool.equal("12", HOSTILE["a tower of powers"]), return_exceptions=True)

    *results, slow = asyncio.run(compare_many())
    assert results == [i == 3 for i in range(12)] and isinstance(slow, InfraError)
    assert asyncio.run(pool.equal("1", "1"))
    pool.close()
    assert asyncio.run(pool.equal("1", "1.0"))
    pool.close()


@pytest.mark.slow
def test_closing_does_not_wait_for_a_comparison() -> None:
    pool = MathPool(1, 600.0)

    async def close_during_comparison() -> BaseException | bool:
        assert await pool.equal("1", "1")
        under_way = asyncio.create_task(pool.grade("12", HOSTILE["a tower of powers"]))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(pool.close)
        return (await asyncio.gather(under_way, return_exceptions=True))[0]

    assert isinstance(asyncio.run(asyncio.wait_for(close_during_comparison(), 60)), InfraError)


def test_the_error_names_math_verify_if_it_cannot_be_loaded() -> None:
    pool = MathPool(1, 5.0)
    pool.workers.paths = []
    pool.workers.module = Path(__file__).parents[1].joinpath("support", "no_such_file.py")
    with pytest.raises(InfraError, match="math-verify cannot be used: FileNotFoundError"):
        asyncio.run(pool.equal("1", "1"))


def test_the_parser_of_the_environment_takes_precedence() -> None:
    env = Quiz(dataset=rows(1), rubric=vf.MathRubric(), parser=vf.XMLParser(["answer"]))
    assert env.rubric.parser is env.parser
    assert Quiz(rubric=vf.MathRubric()).parser.parse_answer(r"\boxed{3} or \boxed{4}") == "4"


@pytest.mark.parametrize("limit", [{"max_workers": 0}, {"timeout_seconds": 0}, {"max_verify_chars": -1}])
def test_limits_must_be_positive(limit: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(limit))):
        vf.MathRubric(**limit)


@pytest.mark.broad
def test_the_error_without_math_verify_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "math_verify" else find(name))
    with pytest.raises(ConfigError, match=r"pip install 'rove\[math\]'"):
        vf.MathRubric()
