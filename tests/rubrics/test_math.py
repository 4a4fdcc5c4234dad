"""MathRubric: what counts as the same, and that hostile expressions cost a worker and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from toys import Quiz, rows, says

import rove as vf
from rove.core.errors import ConfigError, Error, InfraError, RemoteError, WorkerError
from rove.rubrics.math import MathPool


def graded(pairs: list[tuple[str, str]], **options) -> list[vf.RolloutRecord]:
    """The records of rollouts that answer with the second of each pair, where the first is right."""
    data = [{"question": f"q{i}", "answer": answer} for i, (answer, _) in enumerate(pairs)]
    said = {f"q{i}": response for i, (_, response) in enumerate(pairs)}
    env = vf.SingleTurnEnv(dataset=data, rubric=vf.MathRubric(max_workers=2, **options))
    player = says(lambda messages, state, rng: said[messages[-1].content])
    return asyncio.run(vf.generate(env, player))


SAME = [
    (r"\frac{1}{2}", r"Half of it, so \boxed{0.5}."),
    ("1,000", r"\boxed{1000}"),
    ("(x+1)^2", r"<think>\boxed{7}</think>\boxed{x^2+2x+1}"),
    (r"2\sqrt{2}", r"\boxed{\sqrt{8}}"),
    (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}"),
]
OTHER = [
    ("7", r"\boxed{8}"),
    ("7", "it is 7, without a box"),
    ("7", r"\boxed{}"),
    ("7", ""),
    ("7", r"\boxed{seven or so, (((}"),
]


def test_what_means_the_same_is_right_and_nothing_else() -> None:
    records = graded(SAME + OTHER)
    assert [record.error for record in records] == [None] * 10
    assert [record.reward for record in records] == [1.0] * 5 + [0.0] * 5
    assert all(record.scores.weights == {"correct_answer": 1.0} for record in records if record.scores)


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


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    """One worker, which has been started."""
    pool = MathPool(1, 0.5)
    asyncio.run(pool.equal("1", "1"))
    yield pool
    pool.close()


@pytest.mark.broad
def test_hostile_expressions_are_wrong_or_an_error_in_time(
    pool: MathPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    met = []
    for name, text in HOSTILE.items():
        began = time.monotonic()
        try:
            assert not asyncio.run(pool.equal("12", text)), name
        except InfraError as error:
            assert "did not end within 0.5 s" in str(error) and len(str(error)) < 400
            met.append(name)
        assert time.monotonic() - began < 5.0  # the limit, and much for a slow machine
        assert asyncio.run(pool.equal("1/2", "0.5"))
    assert "a tower of powers" in met
    assert not list(tmp_path.iterdir())


def test_a_megabyte_is_wrong_without_being_read() -> None:
    huge = [r"\boxed{" + "7" * 1_000_000 + "}", r"\boxed{" * 150_000]
    assert [record.reward for record in graded([("7", text) for text in huge])] == [0.0, 0.0]


@pytest.mark.broad
def test_a_response_that_cannot_be_compared_in_time_earns_0() -> None:
    tower = r"\boxed{" + HOSTILE["a tower of powers"] + "}"
    slow, fine = graded([("12", tower), ("1/2", r"\boxed{0.5}")], timeout_seconds=0.5)
    assert (slow.reward, slow.error) == (0.0, None)
    assert fine.reward == 1.0


@pytest.mark.broad
def test_a_right_answer_that_cannot_be_compared_in_time_is_an_error() -> None:
    [slow] = graded([(HOSTILE["a tower of powers"], r"\boxed{12}")], timeout_seconds=0.5)
    assert slow.scores is None and slow.error is not None
    assert (slow.error.phase, slow.error.type) == ("reward correct_answer", "WorkerError")


async def test_what_fails_in_a_worker_is_wrong_only_if_the_right_answer_is_not_the_reason(
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


def test_a_right_answer_that_is_no_mathematics_is_an_error(pool: MathPool) -> None:
    with pytest.raises(Error, match="cannot parse the right answer"):
        asyncio.run(pool.equal(" ", "7"))


@pytest.mark.broad
def test_files_above_1023_are_no_obstacle() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    held, pool = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], MathPool(1, 5.0)
    try:
        assert asyncio.run(pool.equal("1/2", "0.5"))
    finally:
        pool.close()
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.broad
def test_workers_are_used_again_and_usable_in_another_event_loop() -> None:
    pool = MathPool(2, 0.5)

    async def many() -> list:
        tasks = [pool.equal("3", str(i)) for i in range(12)]
        return await asyncio.gather(*tasks, pool.equal("12", HOSTILE["a tower of powers"]), return_exceptions=True)

    *said, slow = asyncio.run(many())
    assert said == [i == 3 for i in range(12)] and isinstance(slow, InfraError)
    assert asyncio.run(pool.equal("1", "1"))
    pool.close()
    assert asyncio.run(pool.equal("1", "1.0"))
    pool.close()


@pytest.mark.broad
def test_closing_does_not_wait_for_a_comparison() -> None:
    pool = MathPool(1, 600.0)

    async def closed() -> BaseException | bool:
        assert await pool.equal("1", "1")
        under_way = asyncio.create_task(pool.grade("12", HOSTILE["a tower of powers"]))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(pool.close)
        return (await asyncio.gather(under_way, return_exceptions=True))[0]

    assert isinstance(asyncio.run(asyncio.wait_for(closed(), 60)), InfraError)


def test_a_math_verify_that_does_not_load_is_named() -> None:
    pool = MathPool(1, 5.0)
    pool.workers.paths = []
    pool.workers.module = Path(__file__).parents[1].joinpath("support", "no_such_file.py")
    with pytest.raises(InfraError, match="math-verify cannot be used: FileNotFoundError"):
        asyncio.run(pool.equal("1", "1"))


def test_the_parser_of_the_environment_goes_first() -> None:
    env = Quiz(dataset=rows(1), rubric=vf.MathRubric(), parser=vf.XMLParser(["answer"]))
    assert env.rubric.parser is env.parser
    assert Quiz(rubric=vf.MathRubric()).parser.parse_answer(r"\boxed{3} or \boxed{4}") == "4"


@pytest.mark.parametrize("limit", [{"max_workers": 0}, {"timeout_seconds": 0}, {"max_verify_chars": -1}])
def test_limits_are_above_zero(limit: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(limit))):
        vf.MathRubric(**limit)


@pytest.mark.broad
def test_without_math_verify_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "math_verify" else find(name))
    with pytest.raises(ConfigError, match=r"pip install 'rove\[math\]'"):
        vf.MathRubric()
