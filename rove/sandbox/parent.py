"""The host's side of a zygote: start it, request sessions, and track their ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rove.core.errors import SandboxError
from rove.core.plain import JsonMapping, JsonObject
from rove.sandbox.backend import SandboxLimits
from rove.sandbox.cgroups import Groups

START_TIMEOUT_S = 60.0
"""Maximum seconds for the zygote to start and import its modules."""
END_TIMEOUT_S = 5.0
RETRY_DELAY_S = 0.01
"""Seconds before a message is sent again if the zygote's socket was full."""
FIRST_USER_ID, NUM_USER_IDS = 1_000_000_000, 1_000_000_000
"""First user id of sessions, and number of such ids, if rove runs as root: far above the ids in use."""
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.zygote import main; main(int(sys.argv[2]))"


class Parent:
    """A running zygote, bound to the event loop in which `start` created it."""

    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes], slots: int, groups: Groups):
        self.loop = asyncio.get_running_loop()
        self.missing: dict[str, str] = {}
        self.is_gone = False
        self.groups = groups
        """The control groups of its sessions."""
        self._control, self._process = control, process
        self._slots_free = asyncio.Semaphore(slots)
        self._sending = asyncio.Lock()
        # A slot has its own user id and control groups, which its sessions use one after the other.
        self._free = list(range(slots))
        self._first_user = first_user_id(slots)
        self._count = 0
        self._slots: dict[int, int] = {}
        """Number of a session → its slot."""
        self._ends: dict[int, asyncio.Future[str]] = {}
        """Number of a session → future that is done when the session has ended, with the reason if it never started."""
        self._ready: asyncio.Future[JsonObject] = self.loop.create_future()

    @staticmethod
    async def start(settings: JsonMapping, slots: int) -> Parent:
        """Start a zygote and wait until it is ready."""
        # Packets, not a stream: each message is sent with its file descriptors, completely or not at all.
        host_end, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with zygote_end:
            process = start_process(zygote_end, settings["environment"])
        host_end.setblocking(False)
        without = {name.removesuffix(" group") for name in settings["without"]}
        parent = Parent(host_end, process, slots, Groups(without=without))
        parent.loop.add_reader(host_end.fileno(), parent._read_messages)
        try:
            host_end.send(msgspec.json.encode({**settings, "uid": parent._first_user}))
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await parent._ready
        except BaseException as error:
            await parent.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"the sandbox did not start within {START_TIMEOUT_S:g} s") from error
            raise
        if "broken" in ready:
            await parent.close()
            raise SandboxError(f"the sandbox did not start:\n{ready['broken']}")
        parent.missing = ready["missing"]
        return parent

    async def fork(self, limits: SandboxLimits) -> tuple[int, socket.socket]:
        """Start a session when a slot is free; return its number and the host's end of its socket."""
        await self._slots_free.acquire()
        if self.is_gone:
            self._slots_free.release()
            raise SandboxError("the process that starts sandboxes is gone")
        slot = self._free.pop()
        self._count += 1
        number = self._count
        self._slots[number] = slot
        self._ends[number] = self.loop.create_future()
        user = None if self._first_user is None else self._first_user + slot
        message = {"open": number, "uid": user, "limits": msgspec.to_builtins(limits)}
        try:
            async with self._sending:  # one at a time: file descriptors in flight count against this process's limit
                return number, await self._send_open(msgspec.json.encode(message), slot, limits)
        except BaseException as error:
            self._ended(number, str(error))
            if isinstance(error, OSError):
                raise SandboxError(f"a sandbox could not be started: {error}") from error
            raise

    async def _send_open(self, message: bytes, slot: int, limits: SandboxLimits) -> socket.socket:
        """Request a session; return the host's end of its socket. Wait while the zygote's socket is full."""
        host_end, zygote_end = socket.socketpair()
        files = [zygote_end.fileno()]
        try:
            files += self.groups.enter(slot, limits)
            while True:
                try:
                    socket.send_fds(self._control, [message], files)
                    return host_end
                except BlockingIOError:
                    await asyncio.sleep(RETRY_DELAY_S)
        except BaseException:
            host_end.close()
            raise
        finally:
            zygote_end.close()
            for file in files[1:]:
                os.close(file)

    def kill(self, number: int, hard: bool = False) -> asyncio.Future[str]:
        """End every process of a session; the future is done when they have ended, with a reason if the session never started.

        Without a process namespace, the supervisor first gets a request; `hard` skips this request.
        """
        end = self._ends.get(number)
        if end is None:
            end = self.loop.create_future()
            end.set_result("")
        elif not end.done():
            try:
                self._control.send(msgspec.json.encode({"kill": number, "hard": hard}))
                if not hard:
                    self.loop.call_later(END_TIMEOUT_S, self.kill, number, True)
            except BlockingIOError:
                self.loop.call_later(RETRY_DELAY_S, self.kill, number, hard)
            except OSError:
                self._mark_gone()
        return end

    async def close(self) -> None:
        """End the zygote and all sessions."""
        self._mark_gone()
        deadline = self.loop.time() + END_TIMEOUT_S
        while self._process.poll() is None:
            if self.loop.time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)
        while not self.groups.close():  # after a kill the last processes may still be ending
            if self.loop.time() > deadline:
                break
            await asyncio.sleep(0.005)

    def abandon(self) -> None:
        """Close a zygote whose event loop has ended, without awaiting anything."""
        self._control.close()
        self.is_gone = True
        self._process.wait()
        self.groups.close()

    def _read_messages(self) -> None:
        while True:
            try:
                data = self._control.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self._mark_gone()
            message = msgspec.json.decode(data)
            if "ended" in message or "failed" in message:
                self._ended(message.get("ended", message.get("failed")), message.get("error", ""))
            elif not self._ready.done():
                self._ready.set_result(message)

    def _ended(self, number: int, reason: str) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            end.set_result(reason)
            self._free.append(self._slots.pop(number))
            self._slots_free.release()

    def _mark_gone(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.loop.remove_reader(self._control.fileno())
            self._control.close()
            for number in list(self._ends):
                self._ended(number, "the process that starts sandboxes is gone")
            if not self._ready.done():
                self._ready.set_result({"broken": "it ended without a message"})


def start_process(control: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a zygote; this takes a few milliseconds."""
    # -I -S: no variables, packages or startup files of the user run in the process that still has rove's privileges.
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


def first_user_id(count: int, user: int | None = None, uid_map: Path = Path("/proc/self/uid_map")) -> int | None:
    """Return the first of `count` unused user ids; None unless this process (or user id `user`) is root."""
    if user is None:
        user = os.geteuid()
    if user != 0:
        return None
    # Each line: the first id in this user namespace, the first id outside it, the number of ids.
    rows = [line.split() for line in uid_map.read_text().splitlines()]
    end = max(int(first) + int(size) for first, _, size in rows)
    if end > FIRST_USER_ID + NUM_USER_IDS:
        # Drawn, so that two processes hardly use the same ids: a session kills all processes of its user.
        return FIRST_USER_ID + secrets.randbelow(NUM_USER_IDS // count) * count
    return end - 1 - count  # a container with few ids: use the last ones


def python_folders(packages: Sequence[str]) -> list[str]:
    """Return the folders of installed packages, if any package is requested."""
    if not packages:
        return []
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
