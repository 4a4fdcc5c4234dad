"""Test host functions that sandboxed code calls: their values, time limits and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.errors import ConfigError, InfraError, LimitReachedError
from rove.sandbox import DockerBackend, LocalBackend, SandboxLimits, Session
from rove.sandbox.session import MAX_ERROR_CHARS, reply_to
from tests.sandbox.test_docker import engine  # noqa: F401  a fixture

LIMITS = SandboxLimits(seconds=10.0, memory_bytes=256 << 20, output_chars=2000, message_bytes=1 << 16)
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend(LIMITS, unsafe=True, max_sessions=4) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="module")
async def session(backend: LocalBackend) -> AsyncIterator[Session]:
    session = await backend.open()
    yield session
    await session.close()


async def same(value: Any = None, **fields: Any) -> Any:
    return {"value": value, **fields} if fields else value


async def fails(message: str = "badly") -> None:
    raise KeyError(message)


@module_loop
async def test_code_calls_host_functions_and_waits_for_results(session: Session) -> None:
    arguments_seen: list[str] = []

    async def loud(text: str, times: int = 1) -> list[str]:
        arguments_seen.append(text)
        await asyncio.sleep(0.01)
        return [text.upper()] * times

    result = await session.run_python(
        "print('before')\nx = loud('ä', times=2)\nx[0] + loud('b')[0]", None, {"loud": loud}
    )
    assert (result.output, result.value, arguments_seen) == ("before\n", "'ÄB'", ["ä", "b"])
    assert (await session.run_python("x")).value == "['Ä', 'Ä']"


@module_loop
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1.5,
        2**60,
        "",
        "a\n\"'\\ \x00 é 漢 🙂",
        [],
        [[1], {"a": None}],
        {"k": {"é": [1, "2"]}},
        "x" * 60_000,
    ],
)
async def test_json_values_are_passed_and_returned_unchanged(session: Session, value: Any) -> None:
    code = f"value = {value!r}\nsame(value) == value and same([value], a=value) == dict(value=[value], a=value)"
    if isinstance(value, str) and len(value) > 2000:
        code = f"same({value!r}) == {value!r}"
    assert (await session.run_python(code, None, {"same": same})).value == "True"


@module_loop
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("fails()", "RuntimeError: 'badly'"),
        ("same(1, 2)", "RuntimeError: same() takes from 0 to 1 positional arguments but 2 were given"),
        ("same({1})", "TypeError: Object of type set is not JSON serializable"),
        ("same('x' * 10**5)", "expected at most 65536 in one call"),
        ("many(70_000)", "RuntimeError: many() returned more than 65536 bytes (message_bytes)"),
        ("odd()", "RuntimeError: Object of type object is not JSON serializable"),
        ("same('\\ud800') + 1", "TypeError: can only concatenate str"),
    ],
)
async def test_errors_of_a_function_are_raised_in_the_code(session: Session, code: str, error: str) -> None:
    async def many(count: int) -> str:
        return "x" * count

    async def odd() -> Any:
        return object()

    functions = {"same": same, "fails": fails, "many": many, "odd": odd}
    result = await session.run_python(code, None, functions)
    assert error in result.error  # Python 3.14 adds notes after the last line
    assert "host_calls.py" not in result.error and not result.restarted
    caught = f"try: {code}\nexcept Exception as error: said = type(error).__name__\nsaid, same(3)"
    assert (await session.run_python(caught, None, functions)).value.endswith("', 3)")


@module_loop
async def test_a_function_is_available_only_in_calls_that_receive_it(session: Session) -> None:
    assert "NameError" in (await session.run_python("same(1)")).error
    assert (await session.run_python("kept = same\nkept(1)", None, {"same": same})).value == "1"
    assert "same() cannot be called now; expected one of: none" in (await session.run_python("kept(1)")).error
    assert "expected one of: fails" in (await session.run_python("kept(1)", None, {"fails": fails})).error
    assert (await session.run_python("same = 5\nkept(2)", None, {"same": same})).value == "2"
    assert (await session.run_python("same(3)", None, {"same": same})).value == "3"
    with pytest.raises(ConfigError, match="functions has 'a b'; expected a Python identifier"):
        await session.run_python("1", None, {"a b": same})


@pytest.mark.broad
@module_loop
async def test_the_time_of_a_function_does_not_count_toward_the_limit(session: Session) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.4)

    assert (await session.run_python("slow(); slow(); 1", 0.5, {"slow": slow})).value == "1"
    timed_out = await session.run_python("slow()\nwhile True: pass", 0.3, {"slow": slow})
    assert timed_out.timed_out and 0.7 <= timed_out.seconds < 3


@module_loop
@pytest.mark.parametrize("error", [InfraError("gone"), LimitReachedError("max_cost_reached")])
async def test_an_infrastructure_error_ends_the_call_and_resets_the_session(session: Session, error: Exception) -> None:
    async def broken() -> None:
        raise error

    await session.run_python("x = 1")
    with pytest.raises(type(error)):
        await session.run_python("broken()", None, {"broken": broken})
    assert (await session.run_python("'x' in globals()")).value == "False"


@module_loop
async def test_canceling_a_call_cancels_its_function(session: Session) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    call = asyncio.create_task(session.run_python("endless()", None, {"endless": endless}))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()
    assert (await session.run_python("6 * 7")).value == "42"


@module_loop
async def test_a_session_can_be_closed_while_its_code_waits(backend: LocalBackend) -> None:
    session = await backend.open()
    started, can_continue = asyncio.Event(), asyncio.Event()

    async def waits() -> int:
        started.set()
        await can_continue.wait()
        return 1

    call = asyncio.create_task(session.run_python("waits()", None, {"waits": waits}))
    await started.wait()
    await session.close()
    can_continue.set()
    assert (await call).files_lost
    new_session = await backend.open()
    assert (await new_session.run_python("1 + 1")).value == "2"
    await new_session.close()


@module_loop
async def test_sessions_call_functions_concurrently(backend: LocalBackend) -> None:
    waiting = 0
    all_waiting = asyncio.Event()

    async def meet(number: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            all_waiting.set()
        await asyncio.wait_for(all_waiting.wait(), 20)
        return number * number

    sessions = [await backend.open() for _ in range(4)]
    results = await asyncio.gather(
        *(session.run_python(f"meet({n})", None, {"meet": meet}) for n, session in enumerate(sessions))
    )
    assert [result.value for result in results] == ["0", "1", "4", "9"]
    await asyncio.gather(*(session.close() for session in sessions))


async def test_code_in_containers_calls_functions(engine: Path) -> None:  # noqa: F811
    async with DockerBackend(limits=LIMITS, binary=str(engine)) as backend:
        session = await backend.open()
        assert (await session.run_python("same('a') + same('b')", None, {"same": same})).value == "'ab'"
        await session.close()


@settings(deadline=None, max_examples=200)
@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda a: st.lists(a) | st.dictionaries(st.sampled_from(["id", "name", "args", "kwargs", "x"]), a),
    ).map(json.dumps)
)
def test_every_request_gets_a_reply(request_text: str) -> None:
    reply = json.loads(asyncio.run(reply_to(request_text, {"same": same, "fails": fails}, 1000)))
    assert reply.keys() in ({"id", "value"}, {"id", "error"}) and isinstance(reply["id"], int)


@pytest.mark.broad
async def test_the_length_of_an_error_message_is_limited() -> None:
    reply = json.loads(
        await reply_to('{"id": 7, "name": "fails", "args": ["' + "x" * 10**5 + '"]}', {"fails": fails}, 10**6)
    )
    assert reply["id"] == 7 and len(reply["error"]) == MAX_ERROR_CHARS
    assert "error" in json.loads(await reply_to("[" * 10**5, {}, 1000))
