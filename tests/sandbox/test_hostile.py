"""Run every attack of the table against a secret file, a listening port and another session."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hostile import FUNCTIONS, IN_CONTAINERS, LIMITS, PAGE, SNIPPETS, WALL, WITHOUT, Snippet, outcome, update_tables
from tiers import some_quick

from rove.core.errors import ConfigError
from rove.sandbox import Backend, DockerBackend, LocalBackend, Session
from rove.sandbox.containment import ESSENTIAL, FEATURES

pytestmark = pytest.mark.asyncio(loop_scope="module")
IMAGE = os.environ.get("ROVE_TEST_IMAGE", "")


class Host:
    """Resources of the host that an attack must not reach."""

    def __init__(self, folder: Path):
        folder.chmod(0o755)
        self.secret = folder / "secret"
        self.secret.write_text("canary")
        self.secret.chmod(0o644)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)

    def aim(self, code: str) -> str:
        for name, value in (
            ("$SECRET", str(self.secret)),
            ("$PARENT", str(os.getpid())),
            ("$PORT", str(self.server.getsockname()[1])),
        ):
            code = code.replace(name, value)
        return code


@pytest.fixture(scope="module")
def host():
    os.environ["ROVE_SECRET"] = "canary"
    with tempfile.TemporaryDirectory() as folder:  # readable by all users, unlike pytest's temporary folders
        host = Host(Path(folder))
        yield host
        host.server.close()
    del os.environ["ROVE_SECRET"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(host: Host) -> AsyncIterator[LocalBackend]:
    async with LocalBackend(LIMITS, max_sessions=4) as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bystander(backend: LocalBackend) -> AsyncIterator[Session | None]:
    """Yield another session with a file and a variable to protect, or None on a refused machine."""
    if await machine_is_refused(backend):
        yield None
        return
    session = await open_bystander(backend)
    yield session
    await session.close()


async def open_bystander(backend: Backend) -> Session:
    """Open a session with a file and a variable that attacks must not change."""
    session = await backend.open()
    await session.put("bystander", b"canary")
    await session.run_python("import os; mine, where = 'canary', os.path.abspath('bystander')")
    return session


async def machine_is_refused(backend: LocalBackend) -> bool:
    """Return whether this machine lacks essential features, in which case no session may open."""
    missing = [line.split(":")[0] for line in (await backend.describe()).missing]
    if not set(missing) & set(ESSENTIAL):
        return False
    with pytest.raises(ConfigError, match="cannot contain"):
        await backend.open()
    return True


@pytest.mark.parametrize("snippet", some_quick(SNIPPETS, 6), ids=lambda snippet: snippet.name)
async def test_an_attack_fails(snippet: Snippet, backend: LocalBackend, bystander: Session | None, host: Host) -> None:
    if bystander is None:
        return
    groups = "memory group" not in " ".join((await backend.describe()).missing)
    expected = snippet.outcome if snippet.contained_by != "memory group" or groups else "runs: False"
    await assert_attack_fails(snippet, expected, backend, bystander, host)


async def assert_attack_fails(
    snippet: Snippet, expected: str, backend: Backend, bystander: Session, host: Host
) -> None:
    """Run the attack in a new session; check that this session, the bystander and the host are unchanged."""
    session = await backend.open()
    try:
        code = host.aim(snippet.code)
        if snippet.kind == "bash":
            result = await session.bash(code, snippet.seconds)
        else:
            result = await session.run_python(code, snippet.seconds, FUNCTIONS)
        assert outcome(result) in expected.split(" or "), result
        assert "canary" not in result.text()
        assert (
            len(result.output) < LIMITS.output_chars + 100
            and len(result.value + result.error) < LIMITS.output_chars + 400
        )
        results_after = [await session.run_python("40 + 2") for _ in range(2)]
        assert results_after[1].value == "42", results_after
        assert not results_after[0].files_lost
    finally:
        await session.close()
    assert (await bystander.run_python("mine, open(where).read()")).value == "('canary', 'canary')"
    assert host.secret.read_text() == "canary"
    with pytest.raises(BlockingIOError):
        host.server.accept()
    assert not [line for line in all_command_lines() if f"98765.{os.getpid()}".encode() in line]


def all_command_lines() -> list[bytes]:
    """Return the command line of every process on the machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return lines


@pytest.mark.broad
@pytest.mark.parametrize(("off", "name", "expected"), WITHOUT, ids=lambda value: str(value)[:40])
async def test_an_attack_with_a_feature_turned_off(off: tuple[str, ...], name: str, expected: str, host: Host) -> None:
    [attack] = [snippet for snippet in SNIPPETS if snippet.name == name]
    async with LocalBackend(LIMITS, without=off, unsafe=True) as backend, await backend.open() as session:
        result = await session.run_python(host.aim(attack.code), attack.seconds)
    if expected == "runs: no result" and name.startswith("TCP"):
        host.server.accept()[0].close()
    assert outcome(result) == expected


@pytest.mark.broad
async def test_the_page_of_attacks_is_up_to_date() -> None:
    assert len(SNIPPETS) >= 40
    assert len({snippet.name for snippet in SNIPPETS}) == len(SNIPPETS)
    assert {snippet.contained_by for snippet in SNIPPETS} <= {*FEATURES, "limits", "supervisor"}
    page = PAGE.read_text(encoding="utf-8")
    assert update_tables(page) == page


@pytest.mark.slow
async def test_sixty_four_concurrent_attacks_fail(host: Host) -> None:
    stopped = [snippet for snippet in SNIPPETS if snippet.outcome == WALL and snippet.kind == "python"]
    async with LocalBackend(LIMITS, max_sessions=64) as backend:
        if await machine_is_refused(backend):
            return
        sessions = await asyncio.gather(*(backend.open() for _ in range(64)))
        results = await asyncio.gather(
            *(session.run_python(stopped[i % len(stopped)].code, None, FUNCTIONS) for i, session in enumerate(sessions))
        )
        assert {(result.error, result.files_lost) for result in results} == {(WALL, False)}
        results_after = await asyncio.gather(*(session.run_python("40 + 2") for session in sessions))
        assert {result.value for result in results_after} == {"42"}


@pytest.mark.slow
@pytest.mark.skipif(
    not IMAGE, reason="ROVE_TEST_IMAGE names no image that Docker or Podman has, with Python as python3"
)
async def test_attacks_in_containers_fail(host: Host) -> None:
    async with DockerBackend(IMAGE, LIMITS, binary=os.environ.get("ROVE_TEST_ENGINE")) as backend:
        bystander = await open_bystander(backend)
        for snippet in SNIPPETS:
            await assert_attack_fails(
                snippet, IN_CONTAINERS.get(snippet.name, snippet.outcome), backend, bystander, host
            )
        await bystander.close()
