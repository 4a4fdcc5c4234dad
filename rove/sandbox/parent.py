"""The host's end of a zygote: starts it, asks it for sessions, knows which have ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.core.errors import SandboxError
from rove.sandbox.backend import SandboxLimits
from rove.sandbox.cgroups import Groups

START_SECONDS = 60.0
"""For the zygote, with all it imports."""
END_SECONDS = 5.0
RETRY_SECONDS = 0.01
"""Until a message is sent again that did not fit into the socket to the zygote."""
USERS_FROM, USERS = 1_000_000_000, 1_000_000_000
"""User ids that sessions get one of where rove runs as root: far from those that anybody has."""
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.zygote import main; main(int(sys.argv[2]))"


class Parent:
    """A running zygote. Make it with `start`; it belongs to the event loop it was started in.

    Args:
        control: our end of the socket to it, not blocking.
        process: it, or the process that waits for it.
        slots: most sessions at once.
        groups: where their control groups are made.
    """

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes], slots: int, groups: Groups):
        self.loop = asyncio.get_running_loop()
        self.missing: dict[str, str] = {}
        self.is_gone = False
        self._control, self._process, self._groups = control, process, groups
        self._room = asyncio.Semaphore(slots)
        self._sending = asyncio.Lock()
        self._free = list(range(slots))
        self._first_user = users(slots)
        self._count = 0
        self._slots: dict[int, int] = {}
        self._ends: dict[int, asyncio.Future[str]] = {}
        self._hello: asyncio.Future[dict[str, Any]] = self.loop.create_future()

    @staticmethod
    async def start(settings: Mapping[str, Any], slots: int) -> Parent:
        """Start a zygote and wait until it has imported everything.

        Raises:
            SandboxError: it does not come up.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = started(theirs, settings["environment"])
        ours.setblocking(False)
        without = {name.removesuffix(" group") for name in settings["without"]}
        parent = Parent(ours, process, slots, Groups(without=without))
        parent.loop.add_reader(ours.fileno(), parent._hear)
        try:
            ours.send(msgspec.json.encode({**settings, "uid": parent._first_user}))
            async with asyncio.timeout(START_SECONDS):
                hello = await parent._hello
        except BaseException as error:
            await parent.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the sandbox did not start within {START_SECONDS:g} s") from error
            raise
        if "broken" in hello:
            await parent.close()
            raise SandboxError(f"the sandbox did not start:\n{hello['broken']}")
        parent.missing = hello["missing"]
        return parent

    @property
    def groups(self) -> Groups:
        """The control groups of its sessions."""
        return self._groups

    async def fork(self, limits: SandboxLimits) -> tuple[int, socket.socket]:
        """A new session: its number and our end of the socket to it. Waits for a free slot.

        Raises:
            SandboxError: the zygote is gone, or control groups are refused.
        """
        await self._room.acquire()
        if self.is_gone:
            self._room.release()
            raise SandboxError("the process that starts sandboxes is gone")
        slot = self._free.pop()
        self._count += 1
        number = self._count
        self._slots[number] = slot
        self._ends[number] = self.loop.create_future()
        user = None if self._first_user is None else self._first_user + slot
        message = {"open": number, "uid": user, "limits": msgspec.to_builtins(limits)}
        try:
            async with (
                self._sending
            ):  # one at a time: files that wait to be sent count against this process's open files
                return number, await self._send_open(msgspec.json.encode(message), slot, limits)
        except BaseException as error:
            self._ended(number, str(error))
            if isinstance(error, OSError):
                raise SandboxError(f"a sandbox could not be started: {error}") from error
            raise

    async def _send_open(self, message: bytes, slot: int, limits: SandboxLimits) -> socket.socket:
        """Ask for a session; returns our end of its socket. Waits while the zygote has too many messages to read.

        Raises:
            OSError: control groups or files are refused, or the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        files = [theirs.fileno()]
        try:
            files += self._groups.enter(slot, limits)
            while True:
                try:
                    socket.send_fds(self._control, [message], files)
                    return ours
                except BlockingIOError:
                    await asyncio.sleep(RETRY_SECONDS)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for file in files[1:]:
                os.close(file)

    def kill(self, number: int, hard: bool = False) -> asyncio.Future[str]:
        """End every process of a session. What is returned is done when they are gone, with a reason where they never were.

        Without a namespace of processes a supervisor is asked to do it; `hard`: no longer.
        """
        end = self._ends.get(number)
        if end is None:
            end = self.loop.create_future()
            end.set_result("")
        elif not end.done():
            try:
                self._control.send(msgspec.json.encode({"kill": number, "hard": hard}))
                if not hard:
                    self.loop.call_later(END_SECONDS, self.kill, number, True)
            except BlockingIOError:
                self.loop.call_later(RETRY_SECONDS, self.kill, number, hard)
            except OSError:
                self._lose()
        return end

    async def close(self) -> None:
        """End the zygote and with it every session."""
        self._lose()
        deadline = self.loop.time() + END_SECONDS
        while self._process.poll() is None:
            if self.loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)
        while not self._groups.close():  # where it was killed, the last processes are ending still
            if self.loop.time() > deadline:
                break
            await asyncio.sleep(0.005)

    def abandon(self) -> None:
        """The same for one whose event loop is over: nothing can be waited for in it."""
        self._control.close()
        self.is_gone = True
        self._process.wait()
        self._groups.close()

    def _hear(self) -> None:
        while True:
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self._lose()
            message = msgspec.json.decode(data)
            if "ended" in message or "failed" in message:
                self._ended(message.get("ended", message.get("failed")), message.get("error", ""))
            elif not self._hello.done():
                self._hello.set_result(message)

    def _ended(self, number: int, reason: str) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            end.set_result(reason)
            self._free.append(self._slots.pop(number))
            self._room.release()

    def _lose(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.loop.remove_reader(self._control.fileno())
            self._control.close()
            for number in list(self._ends):
                self._ended(number, "the process that starts sandboxes is gone")
            if not self._hello.done():
                self._hello.set_result({"broken": "it ended without a word"})


def started(control: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A zygote's process; takes a few milliseconds, once per backend."""
    command = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-X", "utf8", "-c", BOOT]
    return subprocess.Popen(
        [*command, str(Path(__file__).parent), str(control.fileno())],
        pass_fds=[control.fileno()],
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def users(count: int, own: int | None = None, uid_map: Path = Path("/proc/self/uid_map")) -> int | None:
    """The first of `count` user ids that nobody has; None for whoever may not choose (all but root).

    Args:
        count: how many.
        own: who asks; None = the user of this process.
        uid_map: the ids that exist here, as the kernel tells them.
    """
    if (os.geteuid() if own is None else own) != 0:
        return None
    starts = [(int(first), int(size)) for first, _, size in map(str.split, uid_map.read_text().splitlines())]
    first, size = max(starts, key=lambda pair: pair[0] + pair[1])
    if first + size > USERS_FROM + USERS:
        return USERS_FROM + secrets.randbelow(USERS // count) * count
    return first + size - 1 - count  # a container with few ids: its last ones


def python_folders(packages: Sequence[str]) -> list[str]:
    """The folders of installed packages that this Python looks in, if any package is asked for."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))] if packages else []
